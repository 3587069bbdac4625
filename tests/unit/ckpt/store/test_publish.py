"""Publishing: a checkpoint is complete or isn't there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manapy.ckpt.store import publish
from manapy.core.errors import CheckpointError, ManifestError

SECRET = bytes(range(32))
RECORD: dict[str, Any] = {"argv": ["prog"], "manapy": "0.1.0", "mpirun": "/bin/mpirun"}


def write(directory: Path, ranks: int = 2, where: Path | None = None) -> tuple[Path, list[publish.Entry]]:
    """A temporary directory with images."""
    temporary = publish.begin(directory, where)
    entries = []
    for rank in range(ranks):
        (temporary / f"rank-{rank:05d}.img").write_bytes(b"x" * (rank + 1))
        entries.append(publish.Entry(rank, f"rank-{rank:05d}.img", 4096, rank + 1, 7, 0.1, "host"))
    return temporary, entries


def take(directory: Path, where: Path | None = None, parent: Path | None = None) -> Path:
    temporary, entries = write(directory, where=where)
    more = {"parent": parent.name} if parent else {}
    return publish.commit(temporary, RECORD | more, entries, SECRET)


def unreadable(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """This file cannot be read."""
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)


def test_published(tmp_path: Path) -> None:
    first, second = take(tmp_path), take(tmp_path)
    assert (first.name, second.name) == ("ckpt-000001", "ckpt-000002")
    assert os.readlink(tmp_path / "latest") == "ckpt-000002"
    manifest = publish.read_manifest(second)
    assert [(e.rank, e.file_bytes) for e in manifest.ranks] == [(0, 1), (1, 2)]
    assert (manifest.argv, manifest.mpirun, manifest.file_bytes) == (["prog"], "/bin/mpirun", 3)
    assert [c.path for c in publish.checkpoints(tmp_path)] == [first, second]
    assert sorted(os.listdir(tmp_path)) == ["ckpt-000001", "ckpt-000002", "latest"]
    assert sorted(os.listdir(second)) == ["manifest.json", "rank-00000.img", "rank-00001.img"]


def test_image_of_another_size_is_not_published(tmp_path: Path) -> None:
    first = take(tmp_path)
    temporary, entries = write(tmp_path)
    (temporary / "rank-00001.img").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"rank-00001.img has 0 bytes instead of the 2"):
        publish.commit(temporary, RECORD, entries, SECRET)
    publish.discard(temporary)
    assert publish.latest(tmp_path) == first and len(publish.checkpoints(tmp_path)) == 1


def test_size_that_the_client_of_nfs_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without open(), it may be that of a moment at which the image was incomplete."""
    real = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        found = real(path, **how)
        if str(path).endswith(".img"):
            return os.stat_result([*found[:6], 0, *found[7:10]])
        return found

    temporary, entries = write(tmp_path)
    monkeypatch.setattr(os, "stat", stat)
    assert publish.commit(temporary, RECORD, entries, SECRET).name == "ckpt-000001"


def test_missing_image_is_not_published(tmp_path: Path) -> None:
    temporary, entries = write(tmp_path)
    (temporary / "rank-00000.img").unlink()
    with pytest.raises(CheckpointError, match=r"rank-00000.img: No such file"):
        publish.commit(temporary, RECORD, entries, SECRET)
    assert publish.checkpoints(tmp_path) == []


def test_resolve(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no such"):
        publish.resolve(tmp_path / "nothing")
    with pytest.raises(ManifestError, match="neither"):
        publish.resolve(tmp_path)
    first = take(tmp_path)
    assert publish.resolve(tmp_path) == publish.resolve(tmp_path / "latest") == publish.resolve(first) == first
    (tmp_path / "latest").unlink()
    assert publish.resolve(tmp_path) == first


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"magic": "something else"}', b"\xff"])
def test_damaged_manifest(tmp_path: Path, content: bytes) -> None:
    path = take(tmp_path)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError, match=r"manifest\.json: "):
        publish.read_manifest(path)
    assert publish.checkpoints(tmp_path) == []


def test_rank_missing_in_manifest(tmp_path: Path) -> None:
    path = take(tmp_path)
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"size": 3}))
    with pytest.raises(ManifestError, match="incomplete"):
        publish.read_manifest(path)


def test_prune(tmp_path: Path) -> None:
    paths = [take(tmp_path) for _ in range(4)]
    assert publish.prune(tmp_path, 2) == paths[:2]
    assert [c.path for c in publish.checkpoints(tmp_path)] == paths[2:]
    assert publish.prune(tmp_path, 2) == []
    assert take(tmp_path).name == "ckpt-000005"


def test_prune_where_a_group_may_write(tmp_path: Path) -> None:
    """manapy-launch accepts such a job directory."""
    tmp_path.chmod(0o775)
    paths = [take(tmp_path) for _ in range(2)]
    assert publish.prune(tmp_path, 1) == paths[:1]
    assert [c.path for c in publish.checkpoints(tmp_path)] == paths[1:]


def test_latest_that_a_host_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may know an old link until it opens the directory (NFS)."""
    first, second = take(tmp_path), take(tmp_path)
    publish._link_latest(tmp_path, first.name)
    real = os.listdir

    def listdir(directory: Path) -> list[str]:
        publish._link_latest(tmp_path, second.name)
        return real(directory)

    monkeypatch.setattr(os, "listdir", listdir)
    assert publish.latest(tmp_path) == second


def test_prune_spares_latest(tmp_path: Path) -> None:
    paths = [take(tmp_path) for _ in range(3)]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to(paths[0].name)
    assert publish.prune(tmp_path, 1) == [paths[1]]


def test_prune_while_a_checkpoint_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, real = [take(tmp_path) for _ in range(2)], os.listdir

    def listdir(where: Path) -> list[str]:
        names = real(where)
        monkeypatch.undo()
        paths.append(take(tmp_path))
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    assert publish.prune(tmp_path, 1) == paths[:1]
    assert [c.path for c in publish.checkpoints(tmp_path)] == paths[1:]


def test_two_prunes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, real = [take(tmp_path) for _ in range(3)], os.rename

    def rename(source: Path, target: Path) -> None:
        publish.discard(paths[0])  # by the other one
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    publish.prune(tmp_path, 1)
    assert [c.path for c in publish.checkpoints(tmp_path)] == paths[2:]


def test_prune_spares_what_newer_ones_need(tmp_path: Path) -> None:
    full = [take(tmp_path)]
    full += [take(tmp_path, parent=full[0])]
    other = take(tmp_path)
    chain = [take(tmp_path)]
    chain += [take(tmp_path, parent=chain[0])]
    chain += [take(tmp_path, parent=chain[1])]
    assert publish.chain(chain[2]) == chain[::-1] and publish.chain(other) == [other]
    assert publish.prune(tmp_path, 1) == [*full, other]
    assert publish.prune(tmp_path, 1) == []
    newest = take(tmp_path)
    assert publish.prune(tmp_path, 1) == chain and publish.chain(newest) == [newest]


def test_chain_in_another_place(tmp_path: Path) -> None:
    job, place = tmp_path / "job", tmp_path / "choice" / "place"
    for path in (job, place.parent):
        path.mkdir()
    (job / "job.json").touch()
    first = take(job, place)
    second = take(job, place, first)
    assert publish.chain(job / second.name) == [second, first]
    assert publish.prune(job, 1) == []


@pytest.mark.parametrize("number", [2, 3])
def test_prune_deletes_nothing_if_a_manifest_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    chain = [take(tmp_path)]
    chain += [take(tmp_path, parent=chain[0])]
    chain += [take(tmp_path, parent=chain[1])]
    with monkeypatch.context() as patched:
        unreadable(patched, chain[number - 1] / "manifest.json")
        with pytest.raises(ManifestError, match=f"ckpt-00000{number}/manifest.json: Input/output error: nothing was"):
            publish.prune(tmp_path, 1)
        assert chain[number - 1] not in [c.path for c in publish.checkpoints(tmp_path)]
        with pytest.raises(ManifestError, match="Input/output error"):
            publish.checkpoints(tmp_path, strict=True)
    assert [c.path for c in publish.checkpoints(tmp_path)] == chain


def test_prune_does_not_need_what_a_damaged_checkpoint_needs(tmp_path: Path) -> None:
    first = take(tmp_path)
    second = take(tmp_path, parent=first)
    (second / "manifest.json").write_text("")
    take(tmp_path)
    assert publish.prune(tmp_path, 2) == [first]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4))))
def test_prunes_never_break_a_chain(history: list[bool], prunes: list[tuple[int, int]]) -> None:
    """history: is each checkpoint incremental? prunes: after which one, and how many are kept."""
    with tempfile.TemporaryDirectory() as name:
        directory, last, parents = Path(name).resolve(), None, {}
        for number, incremental in enumerate(history):
            path = take(directory, parent=last if incremental else None)
            parents[path] = last if incremental else None
            last = path
            for _, keep in [prune for prune in prunes if prune[0] == number]:
                publish.prune(directory, keep)
                left = [c.path for c in publish.checkpoints(directory)]
                assert left[-keep:] == list(parents)[-keep:][-len(left) :]
                assert all(parents[path] is None or parents[path] in left for path in left)


def test_parent_that_is_no_name(tmp_path: Path) -> None:
    path = take(tmp_path, parent=Path("/x/.."))
    assert publish.read_manifest(path).parent == "" and publish.chain(path) == [path]


def test_clean_removes_only_what_is_temporary(tmp_path: Path) -> None:
    first = take(tmp_path)
    write(tmp_path)
    (tmp_path / "tmp-latest-0a1b2c").symlink_to("nowhere")
    for name in ("tmp-deleted-ckpt-000001-0a1b2c", "tmp-fold-000001-0a1b2c", "tmp-scratch", "tmp-of-user", "tmp-1"):
        (tmp_path / name).mkdir()
    publish.clean(tmp_path)
    mine = ["tmp-1", "tmp-of-user", "tmp-scratch"]
    assert sorted(os.listdir(tmp_path)) == ["ckpt-000001", "latest", *mine] and publish.latest(tmp_path) == first


def test_no_room_in_the_programs_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of the attempt."""
    directory, where = tmp_path / "job", tmp_path / "archive" / "place"
    directory.mkdir()
    take(directory, where)
    before, real = sorted(os.listdir(directory)), Path.mkdir

    def mkdir(path: Path, *arguments: Any, **more: Any) -> None:
        if path.name.startswith("tmp-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(CheckpointError, match="No space left"):
        publish.begin(directory, where)
    assert sorted(os.listdir(directory)) == before


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job directory."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").touch()
    return tmp_path / "job"


@pytest.fixture
def place(job: Path, tmp_path: Path) -> Path:
    """The place of its checkpoints if the program names another directory."""
    return publish.place(job, str(tmp_path / "elsewhere"))


def test_place(job: Path, place: Path, tmp_path: Path) -> None:
    assert place.parent == tmp_path / "elsewhere" and re.fullmatch("manapy-[0-9a-f]{16}", place.name)
    (tmp_path / "link").symlink_to(job)
    assert publish.place(job, str(tmp_path / "link")) == publish.place(job, f"{job}/") == job
    assert publish.place(tmp_path / "other", str(tmp_path / "elsewhere")) != place
    for choice in ("", "relative"):
        with pytest.raises(CheckpointError, match="not an absolute path"):
            publish.begin(job, publish.place(job, choice))
    with pytest.raises(CheckpointError, match="too long"):
        publish.begin(job, publish.place(job, f"/{'x' * 990}"))
    assert os.listdir(job) == ["job.json"]


def test_another_place(job: Path, place: Path) -> None:
    taken = [take(job), take(job, place), take(job, place), take(job)]
    assert [path.parent for path in taken] == [job, place, place, job]
    assert [c.path for c in publish.checkpoints(job)] == taken
    assert publish.latest(job) == taken[-1] and publish.latest(place) == taken[2]
    assert publish.owner(place) == publish.owner(job) == job
    assert publish.prune(job, 2) == [job / "ckpt-000001", job / "ckpt-000002"]
    assert not taken[1].exists() and sorted(os.listdir(place)) == ["ckpt-000003", "latest", "manapy-job"]
    assert publish.prune(job, 1) == [job / "ckpt-000003"] and sorted(os.listdir(place)) == ["manapy-job"]
    assert take(job, place).name == "ckpt-000005"


def test_interrupted_in_another_place(job: Path, place: Path) -> None:
    first = take(job)
    temporary, _ = write(job, where=place)
    assert [c.path for c in publish.checkpoints(job)] == [first] and publish.latest(job) == first
    publish.cancel(temporary)
    assert sorted(os.listdir(job)) == ["ckpt-000001", "job.json", "latest"] and os.listdir(place) == ["manapy-job"]
    temporary, _ = write(job, where=place)
    place.rename(place.with_name("unmounted"))
    publish.clean(job)
    assert publish.checkpoints(job)[-1].path == first and (job / "ckpt-000002").is_symlink(), (
        "what isn't there now may be there later"
    )
    place.with_name("unmounted").rename(place)
    publish.clean(job)
    assert sorted(os.listdir(job)) == ["ckpt-000001", "job.json", "latest"] and os.listdir(place) == ["manapy-job"]


def test_late_images_do_not_keep_a_cancelled_checkpoint(job: Path) -> None:
    """Ranks go on to create their images while it is deleted, until its folder is gone."""
    for _ in range(20):
        temporary, _ = write(job, ranks=20)

        def be_late(temporary: Path = temporary) -> None:
            with contextlib.suppress(FileNotFoundError):
                for number in range(100, 10_000):
                    (temporary / f"rank-{number:05d}.img").touch()

        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(be_late)
            publish.cancel(temporary)
            late.result(10)
        assert os.listdir(job) == ["job.json"]


def unreachable(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Nothing in this place can be looked at."""
    real = Path.stat

    def stat(path: Path, **how: Any) -> os.stat_result:
        looked_at = path if how.get("follow_symlinks", True) else path.parent
        if os.path.realpath(looked_at).startswith(str(place)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)


def test_place_that_cannot_be_looked_at(job: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It concerns no other checkpoint, and nothing there is deleted."""
    there, here = take(job, place), [take(job), take(job)]
    with monkeypatch.context() as patched:
        unreachable(patched, place)
        write(job)
        assert [path.name.split("-")[0] for path in publish.clean(job)] == ["tmp"]
        assert [c.path for c in publish.checkpoints(job)] == publish.usable(job) == here
        assert publish.latest(job) == here[1] and publish.prune(job, 1) == here[:1]
    assert [c.path for c in publish.checkpoints(job)] == [there, here[1]]


def test_the_latest_checkpoint_cannot_be_looked_at(job: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No older one is taken in its place."""
    take(job)
    newest = take(job, place)
    unreachable(monkeypatch, place)
    assert publish.latest(job) == publish.resolve(job) == newest


def test_an_older_jobs_checkpoints_stay(job: Path, place: Path) -> None:
    """The job directory was deleted and recreated: checkpoints elsewhere aren't overwritten."""
    old = take(job, place)
    for name in ("ckpt-000001", "latest"):
        (job / name).unlink()
    assert take(job, place).name == "ckpt-000002" and publish.read_manifest(old)


def test_archived_by_hand(job: Path, tmp_path: Path) -> None:
    """A user has moved a checkpoint away and linked it: manapy deletes only the link."""
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "tmp-of-somebody").mkdir()
    taken = [take(job), take(job)]
    taken[0].rename(archive / "first")
    (job / "ckpt-000001").symlink_to(archive / "first")
    publish.clean(job)
    assert len(publish.checkpoints(job)) == 2
    assert publish.prune(job, 1) == [job / "ckpt-000001"] and not (job / "ckpt-000001").is_symlink()
    assert sorted(os.listdir(archive)) == ["first", "tmp-of-somebody"] and publish.read_manifest(archive / "first")
