"""TCP connections between processes of a job: kept by a checkpoint, and recreated by a restart."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import emulated
import pytest
from emulated import NODES, inside
from jobs import PROGRAMS, Job, JobError, oks
from manapy.bench.shared.cluster import Cluster

pytestmark = pytest.mark.mpi

PROGRAM = PROGRAMS / "state/tcp_ranks.py"
THROUGH_PARENT = PROGRAMS / "state/through_parent.py"
RANKS = 3
# The connections are those of the MPI processes, or of their children.
WHOSE = pytest.mark.parametrize("program", [[PROGRAM], [THROUGH_PARENT, PROGRAM]], ids=["ranks", "children"])


def begin(job: Job, program: Sequence[Path] = (PROGRAM,)) -> None:
    job.env["STATE_GO"] = str(job.where / "go")
    job.start(sys.executable, *program, options=["--child-grace", "0.5"])
    job.wait_for(lambda text: text.count("ready") == job.ranks)


def end(job: Job) -> None:
    (job.where / "go").touch()
    assert oks(job.finish()) == job.ranks, job.report()


@WHOSE
def test_connections_go_on(make_job: Callable[..., Job], program: list[Path]) -> None:
    """After two checkpoints, as if nothing had happened."""
    job = make_job(RANKS)
    begin(job, program)
    for _ in range(2):
        job.checkpoint()
    end(job)


@WHOSE
def test_connections_come_back(make_job: Callable[..., Job], program: list[Path]) -> None:
    """After two restarts."""
    job = make_job(RANKS)
    begin(job, program)
    for _ in range(2):
        job.checkpoint()
        job.kill()
        job.restart()
        job.wait_until_it_runs()
    end(job)


@WHOSE
def test_connections_between_hosts(make_job: Callable[..., Job], nodes: Cluster, program: list[Path]) -> None:
    """After a restart with the ranks placed differently: connections within a host become connections between hosts,
    and the other way round."""
    env = {"UCX_TLS": "tcp,self", "TCP_HOST": "own"}
    placed = [f"{NODES[0]}:2,{NODES[1]}:2", f"{NODES[1]}:1,{NODES[0]}:1,{NODES[1]}:2"]
    job = make_job(4, mpirun=emulated.mpirun(NODES[0], placed[0]), inside=inside(NODES[0]), env=env)
    begin(job, program)
    job.checkpoint()
    job.checkpoint()
    job.kill()
    job.mpirun = emulated.mpirun(NODES[0], placed[1])
    job.restart()
    job.wait_until_it_runs()
    end(job)


OUTSIDE = """
import os, socket, sys, time
from through_parent import COMM
outside = socket.create_connection(("127.0.0.1", int(sys.argv[1]))) if COMM.rank == 1 else None
COMM.Barrier()
print("connected", flush=True)
while not os.path.exists("close"):
    time.sleep(0.01)
if outside:
    outside.close()
COMM.Barrier()
print("closed", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("ok", flush=True)
"""


@pytest.mark.parametrize(("starter", "whose"), [([], ""), ([THROUGH_PARENT], r"process \d+: ")], ids=["rank", "child"])
def test_connection_to_outside(make_job: Callable[..., Job], starter: list[Path], whose: str) -> None:
    """It is refused by name each time, without harm to the job, until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        job = make_job(2, env={"PYTHONPATH": str(THROUGH_PARENT.parent)})
        job.start(sys.executable, *starter, "-c", OUTSIDE, str(port))
        job.wait_for(lambda text: text.count("connected") == 2)
        for _ in range(2):
            refusal = rf"rank 1: {whose}descriptor \d+ is a connected TCP socket to 127.0.0.1:{port}; close it before"
            with pytest.raises(JobError, match=refusal):
                job.checkpoint()
        (job.where / "close").touch()
        job.wait_for(lambda text: text.count("closed") == 2)
        job.checkpoint()
    (job.where / "go").touch()
    assert oks(job.finish()) == 2
