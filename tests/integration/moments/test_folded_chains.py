"""Chains of incremental checkpoints are folded beside the running program."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import images
import pytest
from disks import disk
from jobs import Job, manapy
from manapy.ckpt.store import image, publish
from test_incremental import ends_well, go, idle, names, parent, written
from waiting import until

BIG = 128  # MB of a rank: folding takes long enough to be met


def steps(job: Job, first: int, count: int) -> list[Path]:
    """So many checkpoints, each after a step of the program."""
    taken = []
    for step in range(first, first + count):
        go(job, step)
        taken.append(job.checkpoint())
    return taken


def until_folded(job: Job, path: Path) -> None:
    until(lambda: not parent(path), job.report)


def folders(job: Job) -> list[int]:
    """The processes that fold images of this job."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"_fold" in words and any(word.startswith(os.fsencode(job.dir)) for word in words):
            found.append(int(process.name))
    return found


def meet(job: Job) -> int:
    """Wait for a process that folds."""
    until(lambda: folders(job), job.report)
    return folders(job)[0]


@pytest.mark.parametrize("way", ["hash", "auto"])
@pytest.mark.parametrize("compress", ["off", "on"])
def test_no_full_image_is_written_again(
    make_job: Callable[..., Job], mostly_idle: Path, way: str, compress: str
) -> None:
    job = idle(
        make_job(), mostly_idle, "--keep", "1", "--full-every", "4", "--compress", compress, way=way, megabytes=8
    )
    taken = steps(job, 1, 3)
    full = written(taken[0]) if taken[0].exists() else 0
    until_folded(job, taken[2])
    until(lambda: names(job) == [taken[2].name], job.report)
    assert not full or written(taken[2]) > full / 2
    assert manapy("verify", job.dir).returncode == 0
    assert "needs" not in manapy("list", job.dir).stdout.splitlines()[0]
    later = steps(job, 4, 2)
    until_folded(job, later[1])
    until(lambda: names(job) == [later[1].name], job.report)
    job.kill()
    assert not list(job.dir.glob("tmp-*"))
    for path in later[1].glob("*.img"):
        header = image.read_header(path)
        assert header.folded_seal and not header.parent and path.stat().st_mode & 0o777 == 0o600
    job.restart().wait_until_it_runs()
    go(job, 6)
    ends_well(job)


def test_lazy_restart_from_a_folded_base(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    """An image whose parent was folded after it had been written."""
    job = idle(make_job(), mostly_idle, "--full-every", "3", way="hash", megabytes=BIG)
    middle = steps(job, 1, 2)[1]
    pid = meet(job)
    os.kill(pid, signal.SIGSTOP)
    newest = steps(job, 3, 1)[0]
    assert parent(newest) == middle.name and parent(middle)
    os.kill(pid, signal.SIGCONT)
    until_folded(job, middle)
    job.kill()
    assert manapy("prune", job.dir, "--keep", "1").returncode == 0 and names(job) == [middle.name, newest.name]
    job.restart(options=("--lazy",)).wait_until_it_runs()
    ends_well(job)


def test_killed_process(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    """The checkpoint stays as it was, the user is told once, and the next one is folded."""
    job = idle(make_job(), mostly_idle, "--full-every", "3", way="hash", megabytes=BIG)
    taken = steps(job, 1, 2)
    os.kill(meet(job), signal.SIGKILL)
    job.wait_for(f"{taken[1]} was not folded, and is as it was: host ")
    assert "the process that folded was ended by signal 9" in job.output()
    assert parent(taken[1]) == taken[0].name and not list(job.dir.glob("tmp-*"))
    assert manapy("verify", job.dir).returncode == 0
    newest = steps(job, 3, 1)[0]
    until_folded(job, newest)
    job.kill()
    job.restart(taken[1]).wait_until_it_runs()
    go(job, 3)
    job.kill()
    job.restart().wait_until_it_runs()
    ends_well(job)


def test_end_of_the_job_meanwhile(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    """The final checkpoint does not wait, and nothing is left."""
    job = idle(make_job(), mostly_idle, "--full-every", "3", way="hash", megabytes=BIG)
    steps(job, 1, 2)
    os.kill(meet(job), signal.SIGSTOP)
    last = job.checkpoint("--then", "exit")
    job.finish()
    until(lambda: not folders(job), job.report)
    until(lambda: not list(job.dir.glob("tmp-*")), job.report)
    assert "not folded" not in job.output() and manapy("verify", last).returncode == 0
    job.restart().wait_until_it_runs()
    ends_well(job)


def test_damaged_link(make_job: Callable[..., Job], mostly_idle: Path) -> None:
    """One line names the damage. At the limit of the chain a full image is written."""
    job = idle(make_job(1), mostly_idle, "--full-every", "3", way="hash", megabytes=4)
    first = steps(job, 1, 1)[0]
    link = first / "rank-00000.img"
    images.flip(link, 100)
    second = steps(job, 2, 1)[0]
    job.wait_for(f"{second} was not folded, and is as it was: host ")
    assert f"{link}: damaged: the header's checksum is wrong" in job.output()
    steps(job, 3, 1)
    full = steps(job, 4, 1)[0]
    assert not parent(full) and manapy("verify", full).returncode == 0
    job.kill()
    job.restart().wait_until_it_runs()
    ends_well(job)


def test_full_disk(make_job: Callable[..., Job], mostly_idle: Path, tmp_path: Path) -> None:
    job = make_job(1)
    job.where = tmp_path / "small"
    with disk(job.where, "1g") as resize:
        idle(job, mostly_idle, "--full-every", "3", way="hash", megabytes=16)
        first = steps(job, 1, 1)[0]
        used = (shutil.disk_usage(job.where).used >> 20) + 8
        resize(f"{used}m")
        second = steps(job, 2, 1)[0]
        job.wait_for(f"{second} was not folded, and is as it was: host ")
        assert "to fold it may take" in job.output() and parent(second) == first.name
        resize("1g")
        third = steps(job, 3, 1)[0]
        until_folded(job, third)
        job.kill()
        job.restart().wait_until_it_runs()
        ends_well(job)


def test_on_local_storage(make_job: Callable[..., Job], mostly_idle: Path, tmp_path: Path) -> None:
    """Images are folded at each level that has them."""
    local = tmp_path / "local"
    job = idle(
        make_job(), mostly_idle, "--keep", "1", "--full-every", "3", "--local", str(local), way="hash", megabytes=8
    )
    newest = steps(job, 1, 2)[1]
    until(lambda: not parent(newest) and publish.read_manifest(newest).levels.shared, job.report)
    places = [*local.glob(f"*/{newest.name}/*/*.img"), *newest.glob("*/*.img")]
    assert len(places) == 4 and not any(image.read_header(path).parent for path in places)
    until(lambda: not [*local.glob("*/tmp-*"), *job.dir.glob("tmp-*")], job.report)
    job.kill()
    job.restart(options=("--local", str(local)))
    job.wait_for(f"continuing {newest}: 2 images from local storage")
    job.wait_until_it_runs()
    job.kill()
    shutil.rmtree(local)
    job.restart()
    job.wait_for(f"continuing {newest}: 2 images from the job directory")
    job.wait_until_it_runs()
    ends_well(job)
