"""Job directories."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ports
import pytest
from disks import disk
from fake_jobs import fake_job
from manapy.ckpt import command
from manapy.ckpt.store import job
from manapy.core import handshake
from manapy.core.errors import CoordinatorError, GoneError, JobError


def make(directory: Path, started: float = 1.0, **change: object) -> Path:
    directory.mkdir()
    record = {
        "format": 1,
        "id": directory.name,
        "state": "running",
        "host": "127.0.0.1",
        "port": 1,
        "ranks": 2,
        "argv": ["a"],
        "started": started,
    }
    job.write(directory, {**record, **change})
    (directory / "secret").write_bytes(bytes(32))
    return directory


def test_read(tmp_path: Path) -> None:
    read = job.read(make(tmp_path / "manapy-x"))
    assert (read.id, read.ranks, read.argv, read.dir) == ("manapy-x", 2, ["a"], tmp_path / "manapy-x")
    assert not read.is_live() and read.checkpoints() == []


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": 9}'])
def test_damaged(tmp_path: Path, content: str) -> None:
    make(tmp_path / "j")
    (tmp_path / "j" / "job.json").write_text(content)
    with pytest.raises(JobError, match=r"job\.json: "):
        job.read(tmp_path / "j")
    assert job.jobs_in(tmp_path) == []


def test_argument_that_is_not_utf8(tmp_path: Path) -> None:
    """The launcher writes it into job.json as it is (wire.c)."""
    file = make(tmp_path / "j", argv=["NAME"]) / "job.json"
    file.write_bytes(file.read_bytes().replace(b"NAME", b"m\xfcller"))
    read = job.read(tmp_path / "j")
    assert list(map(os.fsencode, read.argv)) == [b"m\xfcller"]
    job.write(tmp_path / "j", read.record)
    assert job.read(tmp_path / "j").argv == read.argv


def test_jobs_in_order(tmp_path: Path) -> None:
    for name, started in (("b", 3.0), ("a", 2.0), ("c", 1.0)):
        make(tmp_path / name, started)
    assert [j.id for j in job.jobs_in(tmp_path)] == ["c", "a", "b"]


def test_find_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "manapy-one")
    monkeypatch.chdir(tmp_path)
    assert job.find_live("one").id == job.find_live("manapy-one").id == "manapy-one"
    with pytest.raises(JobError, match="no job is running in"):
        job.find_live(None)
    with pytest.raises(JobError, match="nothing: no such job"):
        job.find_live("nothing")
    monkeypatch.chdir(tmp_path / "manapy-one")
    assert job.find_live(None).id == "manapy-one"


def test_the_live_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "manapy-live", 1) as fake:
            make(tmp_path / "manapy-stale")
            monkeypatch.chdir(tmp_path)
            assert (await asyncio.to_thread(job.find_live, None)).dir == fake.dir

    asyncio.run(run())


def test_stale_job(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorError, match="no longer running"):
        command.status(job.read(make(tmp_path / "j")))


def test_something_else_at_its_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        read = job.read(make(tmp_path / "j", port=listener.getsockname()[1]))
        command.ANSWER_SECONDS, before = 0.2, command.ANSWER_SECONDS
        try:
            with pytest.raises(CoordinatorError, match="does not answer"):
                command.status(read)
        finally:
            command.ANSWER_SECONDS = before


def test_write_is_atomic(tmp_path: Path) -> None:
    directory = make(tmp_path / "j")
    job.write(directory, {"format": 1})
    assert json.loads((directory / "job.json").read_text()) == {"format": 1}
    assert sorted(p.name for p in directory.iterdir()) == ["job.json", "secret"]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """See ports.py."""
    with ports.closed_port() as port:
        yield port


def test_record_that_grows_on_a_full_disk(tmp_path: Path) -> None:
    """What fits into the old file's space is written there. What doesn't leaves the old record as it was."""
    with disk(tmp_path / "disk", "256k"):
        made = make(tmp_path / "disk" / "job", argv=["a" * 3000])
        with contextlib.suppress(OSError), (tmp_path / "disk" / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        record = job.read(made).record
        job.write(made, {**record, "state": "ended"})
        assert job.read(made).state == "ended"
        with pytest.raises(OSError, match="No space left"):
            job.write(made, {**record, "argv": ["a" * 6000]})
        assert job.read(made).state == "ended"


@pytest.mark.parametrize("who", ["nobody", "another program", "another coordinator", "one that is ending"])
def test_ended_job(tmp_path: Path, closed_port: int, who: str) -> None:
    """Every command reports the end, whichever process has its port by now."""
    where = make(
        tmp_path / "j",
        port=closed_port,
        state="failed",
        changed=0.0,
        first_failure={"rank": 1, "host": "node7", "code": None},
    )
    expected = (
        f"{where}: the job is no longer running: it has ended at "
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(0))}, rank 1 died on node7"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(
                    b"HTTP/1.1 400 Bad Request\n"
                    if who == "another program"
                    else f"{handshake.greeting(handshake.nonce())}\n".encode()
                )
                if who != "another program":
                    connection.recv(1000)
                if who == "another coordinator":
                    connection.sendall(b"DENIED\n")

        for ask in (command.status, command.checkpoint, command.stop):
            thread = threading.Thread(target=answer)
            if who != "nobody":
                record = job.read(where).record
                job.write(where, {**record, "port": listener.getsockname()[1]})
                thread.start()
            with pytest.raises(GoneError) as caught:
                ask(job.read(where))
            assert str(caught.value) == expected
            if who != "nobody":
                thread.join()


def test_coordinator_that_is_gone_without_a_word(tmp_path: Path, closed_port: int) -> None:
    with pytest.raises(GoneError, match="no longer running .*, but has not recorded its end: see .*coordinator.log"):
        command.status(job.read(make(tmp_path / "j", port=closed_port)))
