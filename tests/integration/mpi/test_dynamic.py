"""Connections to processes outside the job work. While they exist, a checkpoint is refused with a line that names them;
afterwards it isn't."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, manapy
from launchers import ENVIRONMENT, MPICH, OPEN_MPI_4, OPEN_MPI_5, Launcher
from restarts import restart


def refused(job: Job) -> str:
    """The line with which a checkpoint fails."""
    done = manapy("checkpoint", job.dir)
    assert done.returncode != 0, done.stdout
    return done.stderr


def finish(job: Job) -> None:
    (job.where / "end").touch()
    assert job.finish().count("done") == job.ranks, job.report()


@pytest.mark.parametrize("launcher", [MPICH, OPEN_MPI_4, OPEN_MPI_5], ids=lambda m: m.name)
def test_children(make_job: Callable[..., Job], launcher: Launcher) -> None:
    """The children run without manapy, so on Open MPI mpi4py has to be told its interface."""
    launcher.skip_if_missing()
    env = launcher.native if launcher == MPICH else {**launcher.native, "MPI4PY_MPIABI": "openmpi"}
    job = make_job(2, mpirun=launcher.mpirun, env=dict(env))
    job.start_python("mpi/dynamic_family.py", job.where)
    job.wait_for(lambda text: text.count("connected") == 2)
    line = refused(job)
    assert (
        "communicator 'workers' connects to processes outside the job (made by MPI_Comm_spawn)" in line
        and "MPI_Comm_disconnect" in line
    ), line
    (job.where / "part").touch()  # the merged communicator is freed; the first one still connects
    job.wait_for(lambda text: text.count("still connected") == 2)
    assert "communicator 'workers'" in refused(job)
    (job.where / "part2").touch()
    job.wait_for(lambda text: text.count("parted") == 2)
    job.checkpoint()
    restart(job)
    finish(job)


def test_two_jobs(make_job: Callable[..., Job]) -> None:
    server, client = make_job(2), make_job(1)
    program = [sys.executable, PROGRAMS / "mpi/dynamic_jobs.py", server.where]
    server.start(*program, "server")
    server.wait_for(lambda text: text.count("waiting") == 2 and (server.where / "port").exists())
    line = refused(server)
    assert "MPI_Comm_accept waits for processes outside the job" in line, line
    client.start(*program, "client")
    for job, function in ((server, "MPI_Comm_accept"), (client, "MPI_Comm_connect")):
        job.wait_for(lambda text, n=job.ranks: text.count("connected") == n)
        assert f"(made by {function})" in refused(job)
    (server.where / "part").touch()
    for job in (server, client):
        job.wait_for(lambda text, n=job.ranks: text.count("parted") == n)
        job.checkpoint()
        restart(job)
    (client.where / "end").touch()
    (server.where / "end").touch()
    for job in (server, client):
        assert job.finish().count("done") == job.ranks, job.report()


def test_children_started_by_manapy_launch(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """A program that spawns `manapy-launch program` gets children under manapy: their checkpoint names the parent."""
    text = f"""
import os, sys, time
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    parent = MPI.COMM_SELF.Spawn({str(BIN / "manapy-launch")!r}, ["--dir", {str(tmp_path / "children")!r}, \
sys.executable, __file__], maxprocs=1)
print("up", flush=True)
while not os.path.exists({str(tmp_path / "part")!r}):
    time.sleep(0.02)
parent.Disconnect()
"""
    program = tmp_path / "program.py"
    program.write_text(text)
    job = make_job(1)
    job.start(sys.executable, program)
    job.wait_for(lambda text: text.count("up") == 2)
    done = manapy("checkpoint", tmp_path / "children")
    assert done.returncode != 0 and "'MPI_COMM_PARENT' connects to processes outside the job" in done.stderr, (
        done.stderr
    )
    (tmp_path / "part").touch()
    job.finish()
