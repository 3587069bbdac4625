"""Images that move from one host's local storage to another's: both hosts are played in this process."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from pathlib import Path

import pytest
from manapy.ckpt import transfer
from manapy.ckpt.host_storage import LocalStorage
from manapy.core.errors import CheckpointError

SECRET = bytes(range(32))
NAME, IMAGE = "ckpt-000001", "node-00000/rank-00000.img"
DATA = os.urandom(3 * transfer.CHUNK // 2)
HERE = "127.0.0.1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a job on local storage, with one image."""
    where = tmp_path / "storage" / "manapy-0"
    (where / NAME / "node-00000").mkdir(parents=True)
    (where / NAME / IMAGE).write_bytes(DATA)
    return where


@pytest.fixture(scope="module")
def server() -> transfer.Server:
    return transfer.Server(HERE, SECRET)


def pull(place: tuple[str, str], root: Path, *images: str, secret: bytes = SECRET, name: str = NAME) -> None:
    transfer.pull(secret, *place, str(root), str(root.parent), name, images)


def test_moved(server: transfer.Server, root: Path) -> None:
    before = (root / NAME / IMAGE).stat().st_ino
    pull(server.place, root, IMAGE)
    assert (root / NAME / IMAGE).read_bytes() == DATA and (root / NAME / IMAGE).stat().st_ino != before
    assert not list(root.rglob("*.part"))


def test_a_group_may_not_write_what_has_arrived(server: transfer.Server, root: Path, tmp_path: Path) -> None:
    """The host had nothing of this checkpoint. Storage that others may write to is not trusted."""
    before = os.umask(0o002)
    try:
        incoming = transfer.Incoming(transfer.connect(SECRET, *server.place), "GET", str(root), NAME, IMAGE)
        transfer._save(incoming, tmp_path / "other" / NAME / IMAGE)
    finally:
        os.umask(before)
    folders = ("other", f"other/{NAME}", f"other/{NAME}/node-00000")
    assert [(tmp_path / folder).stat().st_mode & 0o777 for folder in folders] == [0o700] * 3


def test_wrong_secret(server: transfer.Server, root: Path) -> None:
    with pytest.raises(CheckpointError, match="refuses the connection"):
        pull(server.place, root, IMAGE, secret=bytes(32))


@pytest.mark.parametrize(
    ("name", "image"),
    [
        (NAME, "../../secret"),
        (NAME, "node-00000/../rank-00000.img"),
        (NAME, "node-00000/rank-00000.img/../x.img"),
        ("..", IMAGE),
        ("ckpt-1/../..", IMAGE),
    ],
)
def test_only_images(server: transfer.Server, root: Path, name: str, image: str) -> None:
    with pytest.raises(CheckpointError, match="is no image"):
        pull(server.place, root, image, name=name)


def test_no_such_image(server: transfer.Server, root: Path) -> None:
    with pytest.raises(CheckpointError, match=r"rank-00001.img: No such file"):
        pull(server.place, root, "node-00000/rank-00001.img")


def test_foreign_directory(server: transfer.Server, root: Path) -> None:
    """The server reads nothing where another user may have written."""
    (root / NAME).chmod(0o777)
    with pytest.raises(CheckpointError, match="writable by others"):
        pull(server.place, root, IMAGE)


def altering(place: tuple[str, str]) -> tuple[str, str]:
    """A network that changes one byte of an image, in front of a server."""
    door = socket.create_server((HERE, 0))

    def pass_on(source: socket.socket, target: socket.socket, change: bool) -> None:
        seen = 0
        while data := bytearray(source.recv(1 << 16)):
            if change and seen <= transfer.CHUNK < seen + len(data):
                data[transfer.CHUNK - seen] ^= 1
            seen += len(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        client = door.accept()[0]
        upper = socket.create_connection((place[0], int(place[1])))
        threading.Thread(target=pass_on, args=(client, upper, False), daemon=True).start()
        pass_on(upper, client, True)

    threading.Thread(target=serve, daemon=True).start()
    return HERE, str(door.getsockname()[1])


def test_changed_on_the_network(server: transfer.Server, root: Path) -> None:
    before = (root / NAME / IMAGE).stat().st_ino
    with pytest.raises(CheckpointError, match=r"rank-00000.img was changed on the network"):
        pull(altering(server.place), root, IMAGE)
    assert (root / NAME / IMAGE).stat().st_ino == before and not list(root.rglob("*.part"))


def test_host_that_does_not_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CONNECT_SECONDS", 0.1)
    with socket.create_server((HERE, 0)) as silent:
        with pytest.raises(CheckpointError, match=f"images from {HERE}: the other host does not answer"):
            pull((HERE, str(silent.getsockname()[1])), root, IMAGE)


class NoThreadAtFirst(threading.Thread):
    """A thread that cannot be started the first time, as at `ulimit -u`."""

    refused = 0

    def start(self) -> None:
        if not NoThreadAtFirst.refused:
            NoThreadAtFirst.refused += 1
            raise RuntimeError("can't start new thread")
        super().start()


def test_no_thread_for_a_connection(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes that connection, and serves the next one."""
    server = transfer.Server(HERE, SECRET)
    monkeypatch.setattr(NoThreadAtFirst, "refused", 0)
    monkeypatch.setattr(threading, "Thread", NoThreadAtFirst)
    with pytest.raises(CheckpointError, match="the connection was closed"):
        pull(server.place, root, IMAGE)
    pull(server.place, root, IMAGE)
    assert (root / NAME / IMAGE).read_bytes() == DATA


def test_connection_that_cannot_be_accepted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = socket.socket.accept, threading.Event()

    def accept(listener: socket.socket) -> tuple[socket.socket, object]:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    server = transfer.Server(HERE, SECRET)
    assert failed.wait(60)
    pull(server.place, root, IMAGE)
    assert (root / NAME / IMAGE).read_bytes() == DATA


def test_strangers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many silent connections: the oldest is closed, and an authentic one is served."""
    monkeypatch.setattr(transfer, "STRANGERS_MAX", 3)
    server = transfer.Server(HERE, SECRET)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HERE, int(server.place[1])))) for _ in range(4)]
        silent[0].settimeout(60)
        assert silent[0].recv(1000).startswith(b"MANAPY ") and silent[0].recv(1000) in (b"", b"DENIED\n")
        pull(server.place, root, IMAGE)
    assert (root / NAME / IMAGE).read_bytes() == DATA


def test_no_thread_for_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent says so, and carries out the next order."""
    said: list[str] = []
    storage = LocalStorage(said.append, SECRET, lambda: HERE)
    monkeypatch.setattr(NoThreadAtFirst, "refused", 0)
    monkeypatch.setattr(threading, "Thread", NoThreadAtFirst)
    for number in (1, 2):
        assert storage.take(f"STORE {number} offer")
        assert select.select([storage], [], [], 60)[0]
        storage.ready()
    assert said[0].startswith("STORED 1 failed ") and said[1].startswith("STORED 2 ok ")
