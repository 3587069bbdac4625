"""Incremental checkpoints (--dirty): images hold only what has changed, and a restart gives all of the memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import images
import pytest
from jobs import BIN, Job, manapy, run
from manapy.ckpt.store import image, publish
from phases import BESIDE, STANDING, answer, needs_way, request

TRIES = 20
MEGABYTES = 200  # of each rank; the program changes 1 % of it in a step


@pytest.fixture(params=["hash", "pagemap", "soft-dirty"])
def way(request: pytest.FixtureRequest) -> str:
    """How changed pages are found."""
    needs_way(request.param)
    return request.param


def idle(job: Job, program: Path, *options: str, way: str = "auto", megabytes: int = MEGABYTES) -> Job:
    job.start(program, str(megabytes), options=[*options, "--dirty", way])
    job.wait_for("begun")
    return job


def go(job: Job, step: int) -> None:
    """Let the program do its steps up to this one."""
    (job.where / "go.new").write_text(str(step))
    (job.where / "go.new").rename(job.where / "go")
    job.wait_for(f"step {step}\n")


def written(checkpoint: Path) -> int:
    return publish.read_manifest(checkpoint).file_bytes


def parent(checkpoint: Path) -> str:
    return publish.read_manifest(checkpoint).parent


def ends_well(job: Job) -> None:
    (job.where / "end").touch()
    assert "ok" in job.finish().splitlines(), job.report()


def names(job: Job) -> list[str]:
    return sorted(path.name for path in job.dir.glob("ckpt-*"))


@pytest.mark.parametrize("options", [STANDING, BESIDE], ids=["standing", "beside"])
def test_only_changes_are_written(
    make_job: Callable[..., Job], mostly_idle: Path, options: tuple[str, ...], way: str
) -> None:
    job = idle(make_job(), mostly_idle, *options, way=way)
    taken = [job.checkpoint()]
    for step in (1, 2, 3):
        go(job, step)
        taken.append(job.checkpoint())
    assert [parent(path) for path in taken] == ["", *(path.name for path in taken[:-1])]
    full = written(taken[0])
    assert full > 2 * MEGABYTES << 20
    assert [path for path in taken[1:] if written(path) > full * 3 // 100] == []
    assert (job.status()["dirty"], job.status()["dirty_used"]) == (way, [way])
    assert f"(--dirty {way}, used: {way})\n" in manapy("status", job.dir).stdout
    assert f"changes by  {way}\n" in manapy("inspect", job.dir).stdout
    job.kill()
    done = manapy("verify", job.dir)
    assert done.stdout.endswith(", and what they need of ckpt-000003, ckpt-000002, ckpt-000001: good\n"), done.stderr
    job.restart(options=[*options, "--dirty", way]).wait_until_it_runs()
    go(job, 4)
    first = job.checkpoint()  # a new process knows no image
    go(job, 5)
    assert not parent(first) and parent(job.checkpoint()) == first.name
    job.kill()
    job.restart().wait_until_it_runs()
    ends_well(job)


def test_any_checkpoint_of_a_chain_can_be_restarted(make_job: Callable[..., Job], mostly_idle: Path, way: str) -> None:
    job = idle(make_job(), mostly_idle, way=way, megabytes=2)
    taken = [job.checkpoint()]
    for step in range(1, 4):
        go(job, step)
        taken.append(job.checkpoint())
    assert [bool(parent(path)) for path in taken] == [False, True, True, True]
    for path in (taken[1], taken[2]):
        job.kill()
        job.restart(path).wait_until_it_runs()
    go(job, 4)
    ends_well(job)


def test_a_failed_checkpoint_between(make_job: Callable[..., Job], mostly_idle: Path, way: str) -> None:
    """All ranks have written images, which are not published. What has changed since the last published ones is not
    lost."""
    job = idle(make_job(), mostly_idle, way=way, megabytes=8)
    job.checkpoint()
    go(job, 1)
    base, step = job.checkpoint(), 1
    for _ in range(2):
        step += 1
        go(job, step)
        base = _fail_to_publish(job) or base
    step += 1
    go(job, step)
    last = job.checkpoint()
    assert parent(last) == base.name
    job.kill()
    job.restart().wait_until_it_runs()
    ends_well(job)


def _fail_to_publish(job: Job) -> Path | None:
    """A checkpoint whose name is taken meanwhile, and the last one that was published because it was too fast."""
    last = None
    for _ in range(TRIES):
        asked, taken = request(job), None
        while asked.poll() is None and taken is None:
            for temporary in job.dir.glob("tmp-0*"):
                taken = job.dir / f"ckpt-{temporary.name.split('-')[1]}"
        with contextlib.suppress(FileExistsError, TypeError):
            os.mkdir(taken)
        code, path, errors = answer(asked)
        if code:
            assert f"{taken} exists already" in errors
            taken.rmdir()
            return last
        last = Path(path)
    raise AssertionError("each checkpoint was too fast")


def test_keep_spares_what_is_needed(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    job = idle(make_job(1), mostly_idle, "--keep", "1", megabytes=4)
    for step in range(1, 4):
        go(job, step)
        job.checkpoint()
    assert names(job) == ["ckpt-000001", "ckpt-000002", "ckpt-000003"]
    listed = {Path(found["path"]).name: found["parent"] for found in json.loads(_list(job, "--json"))}
    assert listed == {"ckpt-000001": None, "ckpt-000002": "ckpt-000001", "ckpt-000003": "ckpt-000002"}
    assert "needs" in _list(job).splitlines()[0]
    job.kill()
    pruned = manapy("prune", job.dir, "--keep", "1")
    assert pruned.stdout == "" and pruned.stderr.startswith("3 checkpoints remain, because newer ones need"), pruned
    shown = manapy("inspect", job.dir).stdout
    assert "needs       ckpt-000002, ckpt-000001\n" in shown and "of parents" in shown
    job.restart().wait_until_it_runs()
    ends_well(job)


def _list(job: Job, *options: str) -> str:
    return manapy("list", job.dir, *options).stdout


def test_a_damaged_link_is_named(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    job = idle(make_job(), mostly_idle, megabytes=4)
    taken = [job.checkpoint()]
    for step in (1, 2):
        go(job, step)
        taken.append(job.checkpoint())
    job.kill()
    link = taken[1] / "rank-00001.img"
    images.flip(link, _needed(link, taken[2] / link.name))
    done = manapy("verify", job.dir)
    assert done.returncode == 1 and f"{link}: damaged: " in done.stderr
    job.restart()
    assert job.wait() != 0 and f"{link}: damaged: " in job.output()
    images.flip(link, 100)
    done = manapy("restart", job.dir)
    assert done.returncode == 1
    assert done.stderr == (f"manapy: {link}: damaged: the header's checksum is wrong; {taken[0]} can be used instead\n")
    job.restart(taken[0]).wait_until_it_runs()
    ends_well(job)


def _needed(older: Path, newer: Path) -> int:
    """Where in an image a page begins that a newer one needs."""
    kept = image.Image.open(newer).kept
    for run_ in image.Image.open(older).runs:
        if run_.kind == image.RUN_DATA and any(k.address <= run_.address < k.address + k.bytes for k in kept):
            return run_.offset
    raise AssertionError("it needs nothing")


def test_a_killed_writer_between(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    """The rank then writes while it is paused, from the same base. (With pagemap, so few changes need no writer.)"""
    job = idle(make_job(1), mostly_idle, *BESIDE, way="hash", megabytes=64)
    base = job.checkpoint()
    go(job, 1)
    for _ in range(TRIES):
        asked = request(job)
        while asked.poll() is None and not _kill_writer(job.pids()[0]):
            pass
        if answer(asked)[0] != 0:
            break
        base = publish.latest(job.dir)
    else:
        raise AssertionError("no writer was met")
    go(job, 2)
    assert parent(job.checkpoint()) == base.name
    job.kill()
    job.restart().wait_until_it_runs()
    ends_well(job)


def _kill_writer(rank: int) -> bool:
    for children in Path(f"/proc/{rank}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            try:
                if Path(f"/proc/{child}/comm").read_text() == "manapy-writer\n":
                    os.kill(child, signal.SIGKILL)
                    return True
            except OSError:
                pass
    return False


@pytest.mark.parametrize("command", ["manapy-launch", "manapy-restart"])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--dirty", "soft"], "--dirty needs auto, pagemap, soft-dirty, hash or off, not soft"),
        (["--full-every", "0"], "--full-every needs a number up to 100, not 0"),
        (["--full-every", "101"], "--full-every needs a number up to 100, not 101"),
        (["--full-every", "3x"], "--full-every needs a number up to 100, not 3x"),
    ],
)
def test_options(command: str, options: list[str], why: str) -> None:
    done = run([BIN / command, *options, "x"])
    assert done.returncode == 2 and done.stderr == f"{command}: {why} (see --help)\n"
