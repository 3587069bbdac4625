"""Checkpoints on local storage of three emulated nodes, and copies of them in the job directory. A node that is lost
takes its local storage with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import emulated
import pytest
from emulated import inside
from jobs import Job, JobError, manapy
from manapy.bench.shared.cluster import Cluster
from manapy.ckpt.store import image, publish
from solver import MIDDLE, after, step
from waiting import until

NAMES = emulated.names(3)
SHM = Path("/run/mpy-nodes")  # tools/nodes keeps the /dev/shm of each node here


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with emulated.cluster(NAMES) as nodes:
        yield nodes


@pytest.fixture
def job(make_job: Callable[..., Job], three: Cluster) -> Job:
    """A rank on each node, not started yet."""
    for name in NAMES:
        shutil.rmtree(images_of(name), ignore_errors=True)  # of another test
    hosts = ",".join(f"{name}:1" for name in NAMES)
    mpirun = emulated.mpirun(NAMES[0], hosts)
    return make_job(3, mpirun=mpirun, inside=inside(NAMES[0]), env={"UCX_TLS": "tcp,self"})


def start(job: Job, flush: str, *more: str) -> None:
    job.hold(MIDDLE)
    options = ("--local", "/dev/shm/images", "--flush", flush, *more)
    job.start_solver(options=options)
    job.wait_for(after(100))


def copied(checkpoint: Path) -> bool:
    return publish.read_manifest(checkpoint).levels.shared


def images_of(node: str) -> Path:
    return SHM / node / "images"


def lose(node: str) -> None:
    """The node has lost its memory."""
    shutil.rmtree(images_of(node))


def goes_on(job: Job, undisturbed: bytes, checkpoint: Path, last: int) -> None:
    """The restarted job continues this checkpoint, and its result is right."""
    job.wait_for(lambda text: f"continuing {checkpoint}: " in text)
    assert step(job.finish()) > last
    assert (job.where / "field.npy").read_bytes() == undisturbed


@pytest.mark.parametrize("node", NAMES, ids=("first", "second", "third"))
def test_copied_checkpoint_survives_any_node(job: Job, undisturbed: bytes, node: str) -> None:
    start(job, "0s")
    path = job.checkpoint()
    until(lambda: copied(path), job.report)
    last = step(job.output())
    assert not list(path.rglob("*.part"))
    job.kill()
    lose(node)
    job.restart()
    goes_on(job, undisturbed, path, last)
    assert "2 images from local storage and 1 image from the job directory" in job.output()


def test_only_local(job: Job, undisturbed: bytes) -> None:
    """Without copies the job directory has no image, and the nodes continue from theirs. Unless one is lost."""
    start(job, "off")
    path = job.checkpoint()
    last = step(job.output())
    job.kill()
    assert not list(path.rglob("*.img"))
    assert all(len(list(images_of(name).rglob("*.img"))) == 1 for name in NAMES)
    kept = images_of(NAMES[1]).rename(SHM / NAMES[1] / "away")
    job.restart()
    assert job.wait() != 0
    lost = f"{path} cannot be completed: only host {NAMES[1]} had the image of rank 1"
    assert job.output().count(f"manapy-restart: {lost}, and no older checkpoint can be completed") == 1
    kept.rename(images_of(NAMES[1]))
    job.restart()
    goes_on(job, undisturbed, path, last)


def test_ranks_on_other_hosts(job: Job, undisturbed: bytes) -> None:
    """Images move to where their ranks are now. The agents form a tree."""
    job.env["MANAPY_AGENT_FANIN"] = "1"
    start(job, "off")
    path = job.checkpoint()
    last = step(job.output())
    job.kill()
    hosts = ",".join(f"{name}:1" for name in (*NAMES[1:], NAMES[0]))
    job.mpirun = emulated.mpirun(NAMES[0], hosts)
    job.restart()
    goes_on(job, undisturbed, path, last)
    assert f"continuing {path}: 3 images from other hosts" in job.output()
    assert all(len(list(images_of(name).rglob("*.img"))) == 2 for name in NAMES)


@pytest.mark.parametrize("node", NAMES, ids=("first", "second", "third"))
def test_partner_survives_any_node(job: Job, undisturbed: bytes, node: str) -> None:
    """Each image is on two nodes, and nowhere else. If one node is lost, its image comes back from the other one."""
    start(job, "off", "--redundancy", "partner")
    path = job.checkpoint()
    last = step(job.output())
    listed = manapy("list", job.dir, inside=job.inside).stdout
    assert "local (3 hosts), partner" in listed and "any one node" in listed
    inspected = manapy("inspect", path, inside=job.inside)
    assert "images not shown, because they are only on local storage of other hosts: 1" in inspected.stderr
    verified = manapy("verify", path, inside=job.inside)
    assert "2 images" in verified.stdout and "not checked" in verified.stderr
    images = [image for name in NAMES for image in images_of(name).rglob("*.img")]
    assert [image.stat().st_mode & 0o777 for image in images] == 6 * [0o600]
    job.kill()
    lose(node)
    job.restart(options=("--local", "/dev/shm/images", "--flush", "off", "--redundancy", "partner"))
    job.wait_until_it_runs()
    assert f"continuing {path}: 2 images from local storage and 1 image from other hosts" in job.output()
    newer = job.checkpoint()
    last = step(job.output())
    job.kill()
    lose(NAMES[0])
    job.restart()
    goes_on(job, undisturbed, newer, last)


def test_partner_and_a_new_node(job: Job, undisturbed: bytes) -> None:
    """A node is lost, and another one that has no images takes its place."""
    job.ranks = 2
    job.mpirun = emulated.mpirun(NAMES[0], f"{NAMES[0]}:1,{NAMES[1]}:1")
    start(job, "off", "--redundancy", "partner")
    path = job.checkpoint()
    last = step(job.output())
    job.kill()
    lose(NAMES[1])
    job.mpirun = emulated.mpirun(NAMES[0], f"{NAMES[0]}:1,{NAMES[2]}:1")
    job.restart()
    goes_on(job, undisturbed, path, last)


def test_partner_lost_with_its_node(job: Job, undisturbed: bytes) -> None:
    """A node is lost while images are copied to partners: the checkpoint before is there, on the other nodes."""
    start(job, "off", "--redundancy", "partner")
    older = job.checkpoint()
    last = step(job.output())
    (agent,) = re.findall(rf"host {NAMES[1]}: its agent is process (\d+)", (job.dir / "coordinator.log").read_text())
    shutil.rmtree(images_of(NAMES[1]))
    images_of(NAMES[1]).touch()  # its disk is broken
    with pytest.raises(JobError, match=f"host {NAMES[1]}: "):
        job.checkpoint()
    os.kill(int(agent), signal.SIGKILL)
    assert job.wait() != 0
    images_of(NAMES[1]).unlink()
    job.restart()
    goes_on(job, undisturbed, older, last)


def test_older_checkpoint(job: Job, undisturbed: bytes) -> None:
    """The newest checkpoint is lost with a node, before its copy was due. The job continues the one before. If the
    user has named the newest one, it does not."""
    start(job, "1h")
    older = job.checkpoint()
    until(lambda: copied(older), job.report)
    last = step(job.output())
    newer = job.checkpoint()
    job.kill()
    lose(NAMES[2])
    lost = f"{newer} cannot be completed: only host {NAMES[2]} had the image of rank 2"
    job.restart(newer)
    assert job.wait() != 0
    assert f"manapy-restart: {lost}\n" in job.output()
    job.restart()
    job.wait_for(f"manapy-restart: {lost}; continuing {older}: ")
    goes_on(job, undisturbed, older, last)


@pytest.mark.parametrize("node", NAMES[1:], ids=("second", "third"))
def test_node_lost_during_the_copy(job: Job, undisturbed: bytes, node: str) -> None:
    """The second checkpoint is being copied, or its copy is complete: nothing that was published is lost."""
    start(job, "0s")
    older = job.checkpoint()
    until(lambda: copied(older), job.report)
    last = step(job.output())
    newer = job.checkpoint()
    (agent,) = re.findall(rf"host {node}: its agent is process (\d+)", (job.dir / "coordinator.log").read_text())
    os.kill(int(agent), signal.SIGKILL)
    lose(node)
    assert job.wait() != 0
    until(lambda: "the job has ended" in (job.dir / "coordinator.log").read_text(), job.report)
    found = newer if copied(newer) else older
    job.restart()
    goes_on(job, undisturbed, found, last)


@pytest.mark.parametrize("local", [True, False], ids=["partner", "shared"])
def test_folded_on_each_node(job: Job, undisturbed: bytes, local: bool) -> None:
    """Each node folds its images, and the copies that it has of those of another one."""
    incremental = ("--dirty", "hash", "--full-every", "3")
    if local:
        start(job, "off", "--redundancy", "partner", *incremental)
    else:
        job.hold(MIDDLE)
        job.start_solver(options=incremental)
        job.wait_for(after(100))
    first, newest = job.checkpoint(), job.checkpoint()
    log = job.dir / "coordinator.log"  # it names the checkpoint when the folders for new images are gone
    until(lambda: f"folded {newest} in " in log.read_text(), job.report)
    assert not publish.read_manifest(newest).parent
    places = [images_of(name) for name in NAMES] if local else [job.dir]
    folded = [path for place in places for path in place.glob(f"**/{newest.name}/**/*.img")]
    assert len(folded) == (6 if local else 3)
    assert all(image.read_header(path).folded_seal for path in folded)
    last = step(job.output())
    job.kill()
    assert not list(job.dir.glob("tmp-fold-*"))
    for path in {path for place in (*places, job.dir) for path in place.glob(f"**/{first.name}")}:
        shutil.rmtree(path)
    if local:
        lose(NAMES[1])
    job.restart()
    if local:
        goes_on(job, undisturbed, newest, last)
    else:
        assert step(job.finish()) > last
        assert (job.where / "field.npy").read_bytes() == undisturbed
