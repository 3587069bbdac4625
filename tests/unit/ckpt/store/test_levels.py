"""Levels of storage: what the manifest says of them, what a host does with its local storage, and what is deleted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import images
import pytest
from manapy.ckpt.coordinator.levels.storage import Storage
from manapy.ckpt.redundancy.policy import Policy
from manapy.ckpt.store import image, levels, local, publish, verify
from manapy.ckpt.store.levels import Code, Levels
from manapy.core.errors import CheckpointError, ManapyError, ManifestError

SECRET = bytes(range(32))
FOLDER = "node-00000"
RANKS = 2


@pytest.fixture
def job(tmp_path: Path) -> Path:
    where = tmp_path / "job"
    where.mkdir()
    (where / "job.json").write_text("{}")
    (where / "secret").write_bytes(SECRET)
    return where


@pytest.fixture
def root(tmp_path: Path, job: Path) -> Path:
    """The job's directory on local storage."""
    return levels.root(tmp_path / "storage", job)


def test_several_orders_open_the_directory_of_a_job_at_once(job: Path, root: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            list(pool.map(lambda _: local.open_root(root, job), range(8)))
            assert publish.owner(root) == job
            shutil.rmtree(root)


def write(job: Path, root: Path, seed: int = 1) -> tuple[Path, list[publish.Entry]]:
    """The images of a new checkpoint on local storage, with their final names."""
    temporary = publish.begin(job)
    kept = [path.name for _, path in publish.numbered(job)]
    local.perform("make", [str(root), str(job), temporary.name, FOLDER, *kept])
    entries = []
    for rank in range(RANKS):
        path = root / temporary.name / FOLDER / f"rank-{rank:05d}.img"
        head = image.read_header(images.build(path, rank, RANKS, seed=seed, secret=SECRET))
        name = f"{FOLDER}/{path.name}"
        entries.append(publish.Entry(rank, name, head.memory_bytes, head.file_bytes, head.crc, 0.1, "here", head.seal))
    local.perform("settle", [str(root), temporary.name, publish.final_path(temporary).name, FOLDER])
    return temporary, entries


def take(job: Path, root: Path, seed: int = 1) -> Path:
    """Publish a checkpoint whose images are on local storage only."""
    temporary, entries = write(job, root, seed)
    record = {"argv": ["prog"], "manapy": "0.1.0", "mpirun": None, "levels": Levels(str(root), False).record()}
    return publish.commit(temporary, record, entries, SECRET)


def copy(checkpoint: Path) -> None:
    local.perform("flush", [str(checkpoint), FOLDER])
    held = publish.read_manifest(checkpoint).levels
    publish.relevel(checkpoint, held._replace(shared=True), SECRET)


def names_in(root: Path) -> set[str]:
    return {path.name for path in root.glob("*-0*")}


def test_only_local(job: Path, root: Path) -> None:
    path = take(job, root)
    manifest = publish.read_manifest(path)
    assert manifest.levels == Levels(str(root), False)
    assert sorted(os.listdir(path)) == ["folders", "local", "manifest.json"]
    assert (path / "folders").read_text() == f"{FOLDER}\n" * RANKS
    assert local.perform("find", [str(path)]) == ["0", "1"]
    headers, problems = verify.headers(path, manifest)
    assert not problems and sorted(headers) == [0, 1]
    assert verify.images(path, manifest, headers) == []
    assert [oct(folder.stat().st_mode & 0o777) for folder in (root, root / path.name / FOLDER)] == ["0o700"] * 2


def test_directory_that_is_not_utf8(job: Path, tmp_path: Path) -> None:
    path = take(job, levels.root(tmp_path / os.fsdecode(b"m\xfcller"), job))
    assert (path / "local").read_bytes().startswith(os.fsencode(tmp_path) + b"/m\xfcller/manapy-")
    assert local.perform("find", [str(path)]) == ["0", "1"]


def test_copied(job: Path, root: Path) -> None:
    path = take(job, root)
    copy(path)
    manifest = publish.read_manifest(path)
    assert manifest.levels == Levels(str(root), True) and verify.origin(path, manifest) is None
    local.perform("clean", [str(root)])
    assert names_in(root) == set() and local.perform("find", [str(path)]) == []
    headers, problems = verify.headers(path, manifest)
    assert not problems and verify.images(path, manifest, headers) == []
    publish.relevel(path, Levels(), SECRET)
    assert not (path / "local").exists() and verify.headers(path, publish.read_manifest(path))[1] == []


def test_where_the_command_runs_does_not_matter(
    job: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write into the working directory, as in /tmp or a directory of a project."""
    path = take(job, root)
    copy(path)
    publish.relevel(path, Levels(), SECRET)
    (tmp_path / "project").mkdir()
    (tmp_path / "project").chmod(0o2775)
    monkeypatch.chdir(tmp_path / "project")
    assert verify.headers(path, publish.read_manifest(path))[1] == []


def test_lost_image_is_not_elsewhere_if_it_was_copied(job: Path, root: Path) -> None:
    """An image that no level has is a defect; one on another host's local storage is not."""
    path = take(job, root)
    local.perform("clean", [str(root)])
    assert verify.headers(path, publish.read_manifest(path)) == ({}, [])
    publish.relevel(path, Levels(str(root), True), SECRET)
    assert len(verify.headers(path, publish.read_manifest(path))[1]) == RANKS


def test_images_of_an_attempt_that_was_not_published(job: Path, root: Path) -> None:
    """They have the name that the next checkpoint gets, but are not taken for its images."""
    temporary, _ = write(job, root, seed=1)
    publish.cancel(temporary)
    assert names_in(root) == {"ckpt-000001"}
    path = take(job, root, seed=2)
    assert path.name == "ckpt-000001" and local.perform("find", [str(path)]) == ["0", "1"]
    other, _ = write(job, root, seed=3)
    os.replace(
        root / publish.final_path(other).name / FOLDER / "rank-00001.img", root / path.name / FOLDER / "rank-00001.img"
    )
    assert local.perform("find", [str(path)]) == ["0"]


def test_copy_that_fails_leaves_nothing(job: Path, root: Path) -> None:
    path = take(job, root)
    (root / path.name / FOLDER / "rank-00001.img").unlink()
    (root / path.name / FOLDER / "rank-00001.img").mkdir()
    with pytest.raises(CheckpointError, match=r"rank-00001.img: Is a directory"):
        local.perform("flush", [str(path), FOLDER])
    assert not (path / FOLDER).exists() and not publish.read_manifest(path).levels.shared


def test_prune_spares_what_survives_any_host(job: Path, root: Path) -> None:
    paths = [take(job, root) for _ in range(4)]
    copy(paths[0])
    copy(paths[1])
    assert publish.prune(job, 1) == [paths[0], paths[2]]
    assert names_in(root) == {"ckpt-000002", "ckpt-000004"}
    copy(paths[3])
    assert publish.prune(job, 1) == [paths[1]]


def begin(job: Path, storage: Path) -> None:
    """Begin the next checkpoint of a job with this local storage: that deletes old images there."""

    async def opened() -> None:
        host = socket.gethostname()
        await Storage(job, SECRET, storage, 0.0, Policy(), None, print).open(publish.begin(job), [FOLDER], [host])

    asyncio.run(opened())


def test_images_stay_while_a_manifest_cannot_be_read(job: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [take(job, root) for _ in range(2)]
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == paths[1] / "manifest.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    begin(job, root.parent)
    assert {"ckpt-000001", "ckpt-000002"} <= names_in(root)


def test_images_stay_under_another_path_of_the_same_directory(job: Path, root: Path, tmp_path: Path) -> None:
    path = take(job, root)
    (tmp_path / "alias").symlink_to(root.parent)
    begin(job, tmp_path / "alias")
    assert path.name in names_in(root)


def test_images_stay_while_the_job_directory_cannot_be_read(
    job: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = take(job, root)
    temporary = publish.begin(job)
    real = os.listdir

    def listdir(where: Path) -> list[str]:
        if where == job:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(where)

    async def opened() -> None:
        storage = Storage(job, SECRET, root.parent, 0.0, Policy(), None, print)
        await storage.tidy()
        with pytest.raises(CheckpointError, match=f"{job}: Stale file handle"):
            await storage.open(temporary, [FOLDER], [socket.gethostname()])

    monkeypatch.setattr(os, "listdir", listdir)
    asyncio.run(opened())
    assert names_in(root) == {path.name}


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), RuntimeError("can't start new thread")])
def test_no_failure_ends_copying(job: Path, root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The user is told each time, and the ranks that wait for a copy go on."""
    path = take(job, root)
    said: list[str] = []

    def fail(*_: object, **__: object) -> None:
        raise error

    async def copied() -> None:
        storage = Storage(job, SECRET, root.parent, 0.0, Policy(), None, said.append)
        said.append(await storage.flush(path))
        copying = asyncio.ensure_future(storage.serve())
        for count in (2, 3):
            storage.on_published(path)
            async with asyncio.timeout(60):
                while len(said) < count and not copying.done():
                    await asyncio.sleep(0.01)
        copying.cancel()

    monkeypatch.setattr(publish, "read_manifest", fail)
    monkeypatch.setattr(Path, "is_file", fail if isinstance(error, OSError) else Path.is_file)
    asyncio.run(copied())
    assert len(said) == 3 and all(text.startswith(f"{path} stays on local storage only: ") for text in said)


def test_checkpoint_that_is_being_copied_stays(job: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that takes longer than the time between two checkpoints becomes complete, although only one is kept."""
    begun, go_on, real = threading.Event(), threading.Event(), local.perform

    def perform(verb: str, words: Sequence[str]) -> list[str]:
        if verb == "flush":
            begun.set()
            assert go_on.wait(60)
        return real(verb, words)

    monkeypatch.setattr(local, "perform", perform)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    first = take(job, root)

    async def copied() -> None:
        storage = Storage(job, SECRET, root.parent, 0.0, Policy(), None, print)
        copying = asyncio.ensure_future(storage.flush(first))
        assert await asyncio.to_thread(begun.wait, 60)
        others = [await asyncio.to_thread(take, job, root) for _ in range(2)]
        assert publish.prune(job, 1, storage.copying) == others[:1], "one that only waits for its copy"
        go_on.set()
        assert await copying == "" and storage.copying == ()

    asyncio.run(copied())
    assert publish.read_manifest(first).levels.shared
    assert publish.prune(job, 1) == [], "the newest one at the shared level"


def test_copies_are_timed(job: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends the job must begin so much earlier. The next run of the job knows it from the manifest."""
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    paths = [take(job, root) for _ in range(2)]
    real, told, seen = local.perform, [], []
    never = Storage(job, SECRET, root.parent, -1.0, Policy(), None, print)
    assert not never.copies and not never.record()["flush"]

    def perform(verb: str, words: Sequence[str]) -> list[str]:
        if verb == "flush":
            time.sleep(0.2)
            seen.append(storage.copy_seconds)
        return real(verb, words)

    async def copied() -> None:
        assert await storage.flush(paths[0]) == "" and await storage.flush(paths[0]) == ""
        monkeypatch.setattr(local, "perform", real)
        assert await storage.flush(paths[1]) == ""

    monkeypatch.setattr(local, "perform", perform)
    storage = Storage(job, SECRET, root.parent, 0.0, Policy(), None, print)
    storage.on_copied = lambda: told.append(storage.took)
    assert storage.took is None and storage.copy_seconds == 0 and storage.record()["flush"]
    asyncio.run(copied())
    assert told == [publish.read_manifest(path).record["flush_seconds"] for path in paths]
    assert told[0] >= seen[0] >= 0.2 > told[1] and storage.copy_seconds == storage.took == told[1]


def test_foreign_directory(job: Path, root: Path) -> None:
    path = take(job, root)
    root.chmod(0o777)
    with pytest.raises(CheckpointError, match="writable by others"):
        local.perform("find", [str(path)])
    with pytest.raises(CheckpointError, match="local directory for checkpoints cannot be used: .* writable by others"):
        local.perform("make", [str(root), str(job), "tmp-000002-x", FOLDER])
    assert "writable by others" in verify.headers(path, publish.read_manifest(path))[1][0]
    local.perform("clean", [str(root)])
    assert names_in(root) == {"ckpt-000001"}


def test_link_in_place_of_the_directory(job: Path, root: Path, tmp_path: Path) -> None:
    root.parent.mkdir()
    root.symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="is a link"):
        local.perform("make", [str(root), str(job), "tmp-000001-x", FOLDER])


def test_hosts_that_share_a_directory(job: Path, root: Path) -> None:
    """They find each other's signs of this run of the job."""
    local.perform("sign", [str(root), str(job), "a", "old"])
    local.perform("sign", [str(root), str(job), "b", "new"])
    assert local.perform("signs", [str(root), "new"]) == ["b"]
    local.perform("sign", [str(root), str(job), "a", "new"])
    assert local.perform("signs", [str(root), "new"]) == ["a", "b"]


def test_unknown_order(job: Path) -> None:
    with pytest.raises(ManapyError, match="does not know the order"):
        local.perform("copy", ["a"])


@pytest.mark.parametrize("record", ["local", {"elsewhere": True}, {"code": {}}, 1])
def test_damaged_record(job: Path, root: Path, record: object) -> None:
    temporary, entries = write(job, root)
    good = {"argv": [], "manapy": "", "levels": Levels("/x", False).record()}
    path = publish.commit(temporary, good, entries, SECRET)
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(json.dumps({**json.loads(text), "levels": record}))
    with pytest.raises(ManifestError, match="damaged"):
        publish.read_manifest(path)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (Levels(), ("shared", "any nodes")),
        (Levels("/x", False), ("local (3 hosts)", "no node")),
        (Levels("/x", False, True), ("local (3 hosts), partner", "any one node")),
        (Levels("/x", True, True), ("local (3 hosts), partner, shared", "any nodes")),
        (Levels("/x", False, code=Code("xor", 1, [])), ("local (3 hosts), xor", "any one node")),
        (Levels("/x", False, code=Code("rs:2+2", 2, [])), ("local (3 hosts), rs:2+2", "any 2 nodes")),
        (Levels("/x", False, True, apart=True), ("local (3 hosts), partner", "any one node, any failure group")),
    ],
)
def test_description(held: Levels, text: tuple[str, str]) -> None:
    assert levels.describe(held, 3) == text
