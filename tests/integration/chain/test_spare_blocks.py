"""Spare blocks of the images on local storage of five emulated nodes (--redundancy xor, rs:K+M): nodes that are lost
take their local storage with them, and the restart rebuilds their images."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import emulated
import pytest
from compiling import build
from emulated import inside
from jobs import PROGRAMS, Job, JobError, manapy
from manapy.bench.shared.cluster import Cluster
from manapy.ckpt.store import publish
from networks import call_inside
from phases import BESIDE, PHASES, STANDING, answer, reach
from solver import MIDDLE, after, step
from waiting import until

pytest.importorskip("zfec")
NAMES = emulated.names(5)
LOCAL = "/dev/shm/images"
LOSSES = {"xor": 1, "rs:3+2": 2}


@pytest.fixture(scope="module")
def five() -> Iterator[Cluster]:
    with emulated.cluster(NAMES) as nodes:
        yield nodes


@pytest.fixture
def job(make_job: Callable[..., Job], five: Cluster) -> Job:
    """A rank on each node, not started yet."""
    for name in NAMES:
        shutil.rmtree(images_of(name), ignore_errors=True)  # of another test
    mpirun = emulated.mpirun(NAMES[0], ",".join(f"{name}:1" for name in NAMES))
    return make_job(5, mpirun=mpirun, inside=inside(NAMES[0]), env={"UCX_TLS": "tcp,self"})


def images_of(node: str) -> Path:
    return Path("/run/mpy-nodes") / node / "images"  # tools/nodes keeps the /dev/shm of each node here


def start(job: Job, redundancy: str, *more: str) -> None:
    job.hold(MIDDLE)
    options = ("--local", LOCAL, "--flush", "off", "--redundancy", redundancy, *more)
    job.start_solver(options=options)
    job.wait_for(after(100))


def goes_on(job: Job, undisturbed: bytes, checkpoint: Path, last: int) -> None:
    """The restarted job continues this checkpoint, and its result is right."""
    assert job.go is not None
    job.go.touch()  # the job that was killed may have come so far
    job.wait_for(lambda text: f"continuing {checkpoint}: " in text)
    job.wait_for(after(last))
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


@pytest.mark.parametrize("redundancy", LOSSES)
def test_lost_nodes(job: Job, undisturbed: bytes, redundancy: str) -> None:
    """As many as the code bears. Then one more."""
    start(job, redundancy)
    path = job.checkpoint()
    last = step(job.output())
    lost = NAMES[1 : 1 + LOSSES[redundancy]]
    where, survives = f"local (5 hosts), {redundancy}", f"any {'one node' if len(lost) == 1 else '2 nodes'}"
    listed = manapy("list", job.dir, inside=job.inside).stdout
    assert where in listed and survives in listed
    files = [file for name in NAMES for file in images_of(name).rglob("*-*-*.blk")]
    assert len(files) == 5 * len(lost) and {file.stat().st_mode & 0o777 for file in files} == {0o600}
    job.kill()
    for node in lost:
        shutil.rmtree(images_of(node))
    kept = images_of(NAMES[4]).rename(images_of(NAMES[4]).with_name("away"))
    job.restart()
    assert job.wait() != 0
    assert f"--redundancy {redundancy} survives the loss of {len(lost)} host" in job.output()
    shutil.rmtree(images_of(NAMES[4]), ignore_errors=True)
    kept.rename(images_of(NAMES[4]))
    job.restart()
    goes_on(job, undisturbed, path, last)
    images = f"{len(lost)} image{'s' * (len(lost) > 1)}"
    assert f"{5 - len(lost)} images from local storage and {images} rebuilt from spare blocks" in job.output()
    assert not [part for name in NAMES for part in images_of(name).rglob("*.part")]


@pytest.mark.parametrize("phase", ["stopping", "writing", "saving", "publishing", "resuming"])
def test_node_lost_in_a_checkpoint(job: Job, undisturbed: bytes, phase: str) -> None:
    """Two nodes are lost in a phase of a checkpoint: the newest published one continues."""
    start(job, "rs:3+2", *(() if phase in PHASES[BESIDE] else STANDING))
    asked, _, last = call_inside(NAMES[0], reach, job, phase)
    before = step(job.output())
    for node in (NAMES[1], NAMES[3]):
        lose(job, node)
    code, path, _ = answer(asked)
    assert job.wait() != 0
    newest = publish.latest(job.dir)
    assert newest is not None and newest >= (Path(path) if code == 0 else last)
    job.restart()
    goes_on(job, undisturbed, newest, before)
    assert "2 images rebuilt from spare blocks" in job.output()


def test_node_lost_during_the_copy(job: Job, undisturbed: bytes) -> None:
    """While images are copied to the job directory."""
    start(job, "xor", "--flush", "0s")
    path = job.checkpoint()
    before = step(job.output())
    lose(job, NAMES[2])
    assert job.wait() != 0
    job.restart()
    goes_on(job, undisturbed, path, before)


@pytest.mark.parametrize("redundancy", ["partner", "rs:3+2"])
def test_incremental_images(job: Job, undisturbed: bytes, redundancy: str) -> None:
    """Lost images, and those that they need, come back; also if ranks are on other nodes now."""
    start(job, redundancy, "--dirty", "hash")
    paths = [job.checkpoint() for _ in range(3)]
    assert [publish.read_manifest(path).parent for path in paths] == ["", paths[0].name, paths[1].name]
    last = step(job.output())
    job.kill()
    for node in NAMES[1::2][: LOSSES.get(redundancy, 1)]:
        shutil.rmtree(images_of(node))
    job.mpirun = emulated.mpirun(NAMES[0], ",".join(f"{name}:1" for name in (*NAMES[2:], *NAMES[:2])))
    job.restart()
    log = job.dir / "coordinator.log"
    for path in paths:
        until(lambda: re.search(rf"{path}: \d+ lost .* were recreated", log.read_text()), log.read_text)
    job.kill()
    shutil.rmtree(images_of(NAMES[2]))
    job.mpirun = emulated.mpirun(NAMES[0], ",".join(f"{name}:1" for name in NAMES))
    job.restart()
    goes_on(job, undisturbed, paths[-1], last)


def test_damaged_spare_block(job: Job, undisturbed: bytes) -> None:
    """A bit of a spare block changes on its disk, and a node is lost: what was rebuilt is not used."""
    start(job, "xor")
    older = job.checkpoint()
    last = step(job.output())
    newer = job.checkpoint()
    job.kill()
    for spare in (file for name in NAMES[1:] for file in (images_of(name)).rglob(f"{newer.name}/spare/*.blk")):
        with spare.open("r+b") as stream:
            stream.seek(5000)
            (byte,) = stream.read(1)
            stream.seek(5000)
            stream.write(bytes([byte ^ 4]))
    shutil.rmtree(images_of(NAMES[0]))
    job.restart()
    job.wait_for(lambda text: "cannot be rebuilt: " in text and f"continuing {older}: " in text)
    goes_on(job, undisturbed, older, last)


@pytest.mark.parametrize("redundancy", ["partner", "xor"])
def test_one_node_after_the_other(job: Job, undisturbed: bytes, redundancy: str) -> None:
    """A node is lost, and, after the restart, another one, before there was a new checkpoint."""
    start(job, redundancy)
    path = job.checkpoint()
    log = job.dir / "coordinator.log"
    for run, node in enumerate(NAMES[:3], 1):
        last = step(job.output())
        job.kill()
        shutil.rmtree(images_of(node))
        job.restart()
        until(lambda: len(re.findall(rf"{path}: [1-9] lost .* were recreated", log.read_text())) == run, log.read_text)
    goes_on(job, undisturbed, path, last)


def test_failure_group(job: Job, undisturbed: bytes, tmp_path: Path) -> None:
    """Two nodes share a power supply, which fails: their images have copies on nodes that don't."""
    groups = tmp_path / "groups"
    groups.write_text(f"first: {NAMES[0]} {NAMES[1]}\nsecond: {NAMES[2]} {NAMES[3]}\n")
    start(job, "partner", "--failure-groups", str(groups))
    path = job.checkpoint()
    last = step(job.output())
    assert "any one node, any failure group" in manapy("list", job.dir, inside=job.inside).stdout
    job.kill()
    for node in NAMES[:2]:
        shutil.rmtree(images_of(node))
    job.restart()
    goes_on(job, undisturbed, path, last)
    assert "3 images from local storage and 2 images from other hosts" in job.output()


def test_failure_group_that_is_too_large(job: Job, tmp_path: Path) -> None:
    """No group of nodes would survive its loss: the job ends at once, and says so."""
    groups = tmp_path / "groups"
    groups.write_text(f"most: {' '.join(NAMES[:3])}\n")
    options = ("--local", LOCAL, "--redundancy", "rs:3+1", "--failure-groups", str(groups))
    job.start_solver(options=options)
    assert job.wait() == 2
    assert job.output().count("--redundancy rs:3+1: 3 of 5 hosts fail together (most)") == 1


@pytest.mark.parametrize("redundancy", ["none", "xor"])
def test_shared_directory(job: Job, tmp_path: Path, redundancy: str) -> None:
    """All nodes see this directory: spare blocks there protect nothing, and the job ends. Without them, it says so."""
    shared = str(tmp_path / "shared")
    trouble = f"--local {shared}: hosts {' and '.join(sorted(NAMES))} share this directory"
    options = ("--local", shared, "--redundancy", redundancy)
    job.start_solver(options=options)
    if redundancy == "none":
        job.wait_for(f"{trouble}: it is not local to each host")
        job.kill()
    else:
        assert job.wait() == 2
        assert job.output().count(f"{trouble}, so --redundancy xor protects nothing") == 1


def test_disks_that_fail(job: Job, undisturbed: bytes, tmp_path: Path) -> None:
    """At each level: a checkpoint that cannot be written fails, one that cannot be copied stays where it is, and the
    next one succeeds."""
    preload, order = tmp_path / "disk_errors.so", tmp_path / "order"
    build(preload, PROGRAMS / "moments" / "disk_errors.c", "-shared", "-fPIC", "-ldl")
    job.env |= {"LD_PRELOAD": str(preload), "DISK_ERRORS": str(order)}
    start(job, "xor", "--flush", "0s")
    path = job.checkpoint()
    for number, call, place in (
        (errno.EIO, "pwrite", f"{LOCAL}/"),
        (errno.ENOSPC, "write", "/spare/"),
        (errno.EIO, "fsync", "/spare/"),
    ):
        until(lambda: publish.read_manifest(path).levels.shared, job.report)
        order.write_text(f"{number} {call} {place}")
        with pytest.raises(JobError, match=os.strerror(number)):
            job.checkpoint()
        assert publish.latest(job.dir) == path
        order.unlink()
        path = job.checkpoint()
    for number, call in ((errno.ENOSPC, "write"), (errno.EIO, "fsync")):
        order.write_text(f"{number} {call} {job.dir.name}/ckpt-")
        path = job.checkpoint()
        job.wait_for(
            lambda text: bool(re.search(rf"{path} stays on local storage only: .*{os.strerror(number)}", text))
        )
        assert not publish.read_manifest(path).levels.shared
        order.unlink()
    last = step(job.output())
    job.kill()
    shutil.rmtree(images_of(NAMES[3]))
    job.restart()
    goes_on(job, undisturbed, path, last)
    assert "1 image rebuilt from spare blocks" in job.output()


def lose(job: Job, node: str) -> None:
    """A node is lost with its memory: its agent ends, and its ranks with it."""
    (agent,) = re.findall(rf"host {node}: its agent is process (\d+)", (job.dir / "coordinator.log").read_text())
    os.kill(int(agent), signal.SIGKILL)
    shutil.rmtree(images_of(node), ignore_errors=True)


def test_too_few_nodes(job: Job) -> None:
    """The job ends at once, and says what it needs."""
    job.ranks = 2
    job.mpirun = emulated.mpirun(NAMES[0], f"{NAMES[0]}:1,{NAMES[1]}:1")
    options = ("--local", LOCAL, "--redundancy", "rs:3+2")
    job.start_solver(options=options)
    assert job.wait() == 2
    assert job.output().count("--redundancy rs:3+2 needs ranks on at least 3 hosts") == 1
