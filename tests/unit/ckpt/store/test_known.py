"""Names of jobs and chains, used from any directory."""

from __future__ import annotations

import os
from pathlib import Path

import images
import pytest
from fake_jobs import fake_job
from histories import History
from manapy.chain import record, steps
from manapy.ckpt.store import job, known, publish
from manapy.core.errors import JobError, ManapyError, ManifestError
from test_job import make


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tests have their own home directory; the working directory is elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "state" / "manapy" / "known"


def test_a_job_by_its_name(tmp_path: Path) -> None:
    directory = make(tmp_path / "manapy-1a")
    images.checkpoint(directory, 1)
    with pytest.raises(JobError, match="1a: no such job"):
        job.find_live("1a")
    known.note(directory)
    known.note(directory)
    assert job.find_live("1a").dir == job.find_live("manapy-1a").dir == job.find_live("1a/latest").dir == directory
    assert publish.resolve("1a") == publish.resolve("1a/ckpt-000001") == directory / "ckpt-000001"
    with pytest.raises(ManifestError, match="1a/ckpt-000002: no such checkpoint"):
        publish.resolve("1a/ckpt-000002")
    assert known.directories() == [directory]


def test_several_of_one_name(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        known.note(make(tmp_path / place / "job"))
    with pytest.raises(
        JobError, match="job: several directories have this name, give the path of one: .*/a/job, .*/b/job"
    ):
        job.find_live("job")
    os.chdir(tmp_path / "b")
    assert job.find_live("job").dir == tmp_path / "b" / "job", "what is here comes first"


def test_what_is_gone(tmp_path: Path, state: Path) -> None:
    directory = make(tmp_path / "j")
    known.note(directory)
    (link,) = state.iterdir()
    directory.rename(tmp_path / "k")
    with pytest.raises(JobError, match="j: no such job"):
        job.find_live("j")
    assert known.directories() == [] and not link.is_symlink()


def test_what_this_host_has_not_mounted(tmp_path: Path, state: Path) -> None:
    """Other hosts, which share the home, still find it by its name."""
    (tmp_path / "scratch").mkdir()
    directory = make(tmp_path / "scratch" / "j")
    known.note(directory)
    (tmp_path / "scratch").rename(tmp_path / "unmounted")
    assert known.directories() == [] and len(list(state.iterdir())) == 1
    (tmp_path / "unmounted").rename(tmp_path / "scratch")
    assert known.directories() == [directory]


@pytest.mark.parametrize("which", ["", ".", "..", "/", "../y", "no\nname"])
def test_no_name(which: str, tmp_path: Path) -> None:
    known.note(make(tmp_path / "x"))
    with pytest.raises(JobError, match="no such job"):
        job.find_live(which)


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(JobError, match="xxx: File name too long"):
        job.find_live("x" * 300)


def test_a_folder_that_others_may_write_to(tmp_path: Path, state: Path) -> None:
    known.note(make(tmp_path / "a"))
    state.chmod(0o777)
    known.note(make(tmp_path / "b"))
    with pytest.raises(JobError, match="a: no such job"):
        job.find_live("a")
    state.chmod(0o700)
    assert known.directories() == [tmp_path / "a"]


def test_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for state in (tmp_path / "file", Path("/proc/nowhere")):
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        known.note(make(tmp_path / f"j{state.name}"))
        assert known.directories() == [] and known.find("j", job.is_job) is None


async def _noted(tmp_path: Path) -> list[Path]:
    async with fake_job(tmp_path, 1):
        return known.directories()


def test_a_coordinator_notes_its_job(tmp_path: Path) -> None:
    import asyncio

    (found,) = asyncio.run(_noted(tmp_path))
    assert job.is_job(found)


def test_a_chain_and_its_jobs(tmp_path: Path) -> None:
    history = History(tmp_path / "chain")
    assert record.find("chain").dir == tmp_path / "chain"
    with pytest.raises(JobError, match="no job yet"):
        steps.newest(history.chain)
    history.begin()
    for number in (1, 2):
        where = history.job(number, "done")
        history.step(where, step=number)
    assert steps.newest(history.chain).dir == tmp_path / "chain" / "step-002"
    assert job.find_live("chain/step-001").dir == tmp_path / "chain" / "step-001"
    found = steps.chain_of(tmp_path / "chain" / "step-001")
    assert found is not None and found.dir == tmp_path / "chain" and steps.chain_of(tmp_path) is None
    with pytest.raises(ManapyError, match="nothing: no such chain"):
        record.find("nothing")
