"""TCP connections between processes of a job: kept by a checkpoint, and recreated by a restart."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable

import emulated
import pytest
from emulated import NODES, inside
from jobs import PROGRAMS, Job, JobError, oks
from manapy.bench.shared.cluster import Cluster

pytestmark = pytest.mark.mpi

PROGRAM = PROGRAMS / "state/tcp_ranks.py"
RANKS = 3


def begin(job: Job, *states: str) -> None:
    job.env["STATE_GO"] = str(job.where / "go")
    job.start(sys.executable, PROGRAM, *states)
    job.wait_for(lambda text: text.count("ready") == job.ranks)


def end(job: Job) -> None:
    (job.where / "go").touch()
    assert oks(job.finish()) == job.ranks, job.report()


def test_connections_go_on(make_job: Callable[..., Job]) -> None:
    """After two checkpoints, as if nothing had happened."""
    job = make_job(RANKS)
    begin(job)
    for _ in range(2):
        job.checkpoint()
    end(job)


def test_connections_come_back(make_job: Callable[..., Job]) -> None:
    """After two restarts."""
    job = make_job(RANKS)
    begin(job)
    for _ in range(2):
        job.checkpoint()
        job.kill()
        job.restart()
        job.wait_until_it_runs()
    end(job)


def test_connections_between_hosts(make_job: Callable[..., Job], nodes: Cluster) -> None:
    """After a restart with the ranks placed differently: connections within a host become connections between hosts,
    and the other way round."""
    env = {"UCX_TLS": "tcp,self", "TCP_HOST": "own"}
    placed = [f"{NODES[0]}:2,{NODES[1]}:2", f"{NODES[1]}:1,{NODES[0]}:1,{NODES[1]}:2"]
    job = make_job(4, mpirun=emulated.mpirun(NODES[0], placed[0]), inside=inside(NODES[0]), env=env)
    begin(job)
    job.checkpoint()
    job.checkpoint()
    job.kill()
    job.mpirun = emulated.mpirun(NODES[0], placed[1])
    job.restart()
    job.wait_until_it_runs()
    end(job)


OUTSIDE = """
import os, socket, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
outside = socket.create_connection(("127.0.0.1", int(sys.argv[1]))) if rank == 1 else None
MPI.COMM_WORLD.Barrier()
print("connected", flush=True)
while not os.path.exists("close"):
    time.sleep(0.01)
if outside:
    outside.close()
MPI.COMM_WORLD.Barrier()
print("closed", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("ok", flush=True)
"""


def test_connection_to_outside(make_job: Callable[..., Job]) -> None:
    """It is refused by name each time, without harm to the job, until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        job = make_job(2)
        job.start(sys.executable, "-c", OUTSIDE, str(port))
        job.wait_for(lambda text: text.count("connected") == 2)
        for _ in range(2):
            refusal = rf"rank 1: descriptor \d+ is a connected TCP socket to 127.0.0.1:{port}; close it before"
            with pytest.raises(JobError, match=refusal):
                job.checkpoint()
        (job.where / "close").touch()
        job.wait_for(lambda text: text.count("closed") == 2)
        job.checkpoint()
    (job.where / "go").touch()
    assert oks(job.finish()) == 2
