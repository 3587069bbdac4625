"""A node is lost in each phase of a restart: the job ends and says why, its checkpoint stays good, and it can be
restarted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import emulated
import pytest
from compiling import SHARED, build
from emulated import NODES, SPARE, TOOLS, inside
from jobs import BIN, Job, manapy
from launchers import MPICH
from manapy.bench.shared.cluster import Cluster
from manapy.ckpt.store.job import read
from solver import MIDDLE, after, step
from runs import Run, heat
from waiting import until

FIRST, SECOND = NODES
# A library that is MPICH, except that ranks of a host wait for ever at one place. A file names both.
HOLDING = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int PMPI_Init_thread(int *argc, char ***argv, int required, int *provided);
int PMPI_Barrier(int comm);
static void hold(const char *place) {
    char host[256], here[512], wanted[512] = "";
    FILE *file = fopen(getenv("HELD"), "r");
    if (!file) return;
    if (!fgets(wanted, sizeof wanted, file)) wanted[0] = 0;
    fclose(file);
    gethostname(host, sizeof host);
    snprintf(here, sizeof here, "%s of %s", place, host);
    if (strcmp(wanted, here)) return;
    dprintf(2, "held: %s\n", here);
    for (;;) pause();
}
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    hold("begin of MPI_Init");
    int code = PMPI_Init_thread(argc, argv, required, provided);
    hold("end of MPI_Init");
    return code;
}
int MPI_Barrier(int comm) {
    hold("MPI_Barrier");
    return PMPI_Barrier(comm);
}
"""
PLACES = ["begin of MPI_Init", "end of MPI_Init", "MPI_Barrier"]  # the barrier: just before the program goes on


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of jobs over two nodes with this library."""
    library = build(tmp_path / "libholding.so", HOLDING, *SHARED, MPICH.library, f"-Wl,-rpath,{MPICH.library.parent}")
    held = str(tmp_path / "held")
    return {"UCX_TLS": "tcp,self", "MANAPY_LIBMPI": str(library), "HELD": held, "MANAPY_LOSS_SECONDS": "15"}


@pytest.fixture
def job(make_job: Callable[..., Job], nodes: Cluster, env: dict[str, str]) -> Job:
    """A job of two ranks on each of two nodes that was killed after its checkpoint."""
    made = make_job(4, mpirun=emulated.mpirun(FIRST, f"{FIRST}:2,{SECOND}:2"), inside=inside(FIRST), env=env)
    go = made.hold(MIDDLE)
    made.start_solver()
    made.wait_for(after(100))
    made.checkpoint()
    made.kill()
    go.touch()
    return made


@contextmanager
def held_open(path: Path) -> Iterator[Callable[[], bool]]:
    """Keep a file open with a lease, so that every process that opens it waits (fcntl(2)). The result tells whether a
    process waits."""
    waiting: list[int] = []
    before = signal.signal(signal.SIGIO, lambda number, _: waiting.append(number))
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield lambda: bool(waiting)
    finally:
        os.close(file)
        signal.signal(signal.SIGIO, before)


def lose(node: str) -> None:
    """Kill the ranks of a node, and its agent."""
    listed = subprocess.run(["ip", "netns", "pids", node], capture_output=True, text=True, check=True).stdout
    for pid in map(int, listed.split()):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            program = Path(os.readlink(f"/proc/{pid}/exe")).name
            if program in ("manapy-launch", "manapy-restart") or b"_node" in words:
                os.kill(pid, signal.SIGKILL)


def until_it_has_come(directory: Path, node: str, runs: int) -> None:
    """Wait until the agent of a node has connected to the coordinator, in so many runs of a job."""
    log = directory / "coordinator.log"
    until(lambda: log.read_text().count(f"host {node}: its agent is process") == runs, log.read_text)


def check_and_restart(job: Job, undisturbed: bytes) -> None:
    """The checkpoint is good, and the job continues from it."""
    assert manapy("verify", job.dir).returncode == 0
    last = step(job.output(0))
    job.restart()
    assert step(job.finish()) > last
    assert (job.where / "field.npy").read_bytes() == undisturbed


def mpirun_has_said_it(job: Job, *hosts: str) -> bool:
    """It names a process on one of the hosts. Or, if its own process there has ended first, it gives up."""
    output = job.output()
    gives_up = "process manager error waiting for completion" in output
    return gives_up or any(f"RUNNING AT {host}" in output for host in hosts)


def test_lost_while_images_are_checked(job: Job, undisturbed: bytes) -> None:
    (image,) = job.dir.glob("ckpt-*/**/rank-00002.img")
    with held_open(image) as somebody_waits:
        job.restart()
        until(somebody_waits, job.report)
        lose(SECOND)
        assert job.wait() != 0
    assert mpirun_has_said_it(job, SECOND)
    check_and_restart(job, undisturbed)


@pytest.mark.parametrize("place", PLACES)
def test_lost_later(job: Job, undisturbed: bytes, place: str) -> None:
    held = Path(job.env["HELD"])
    held.write_text(f"{place} of {SECOND}")
    job.restart()
    job.wait_for(lambda text: text.count(f"held: {place} of {SECOND}") == 2)
    lose(SECOND)
    assert job.wait() != 0
    # Once a rank has sent something to the lost host, it may end first: MPICH's send fails, or crashes.
    blamed = (SECOND,) if place == "begin of MPI_Init" else NODES
    assert mpirun_has_said_it(job, *blamed)
    held.unlink()
    check_and_restart(job, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("begin of MPI_Init", f"manapy-restart: host {SECOND} is lost: its agent has ended"),
        ("MPI_Barrier", f"manapy: rank 0: host {SECOND} is lost, and ranks 2, 3 with it: its agent has ended"),
    ],
    ids=["MPI_Init", "MPI_Barrier"],  # all processes of a run must give a test the same name
)
def test_link_cut(job: Job, nodes: Cluster, undisturbed: bytes, place: str, line: str) -> None:
    """No connection ends, and mpirun notices nothing. The coordinator does, and ends the ranks that it can reach."""
    held = Path(job.env["HELD"])
    held.write_text(f"{place} of {SECOND}")
    job.restart()
    job.wait_for(lambda text: text.count(f"held: {place} of {SECOND}") == 2)
    until_it_has_come(job.dir, SECOND, 2)
    nodes.link(SECOND, "down")
    job.wait_for(lambda text: line in text.splitlines())
    until(lambda: read(job.dir).state == "failed", job.report)
    job.end()  # mpirun waits for its process on the other node
    nodes.link(SECOND, "up")
    held.unlink()
    check_and_restart(job, undisturbed)


@pytest.mark.slow
def test_chain_goes_on(tmp_path: Path, nodes: Cluster, env: dict[str, str], undisturbed: bytes) -> None:
    """A rank dies on the second node. The third node takes its place, and its link is cut in the MPI_Init of the
    restart. The next attempt leaves it out, too."""
    run = Run(tmp_path, inside=inside(FIRST), env={**env, "PATH": f"{BIN}:{os.environ['PATH']}"})
    run.hold(MIDDLE)
    hosts = f"{FIRST}:1,{SECOND}:1,{SPARE}:1"
    command = ["mpirun", "-launcher", "ssh", "-launcher-exec", TOOLS / "nodes-launch", *heat()[1:]]
    options = ["--dir", run.chain, "--interval", "500ms", "--hosts", hosts]
    run.spawn([*run.inside, BIN / "manapy", "run", *options, "--", *command])
    try:
        run.wait_for(after(100))
        run.wait_for_event("checkpoint", len(run.events("checkpoint")) + 1)
        (tmp_path / "held").write_text(f"begin of MPI_Init of {SPARE}")
        run.kill_rank(1)
        run.wait_for(f"held: begin of MPI_Init of {SPARE}")
        until_it_has_come(run.dir, SPARE, 1)
        nodes.link(SPARE, "down")
        run.wait_for(f"host {SPARE} was lost: starting again")
        run.finish()
    finally:
        run.end()
    assert run.ends() == ["crashed", "crashed", "finished"]
    assert (run.where / "field.npy").read_bytes() == undisturbed
