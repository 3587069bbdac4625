"""Connections to processes outside the job work. While they exist, a checkpoint is refused with a line that names them;
afterwards it isn't."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, manapy
from launchers import OPEN_MPIS, Launcher
from restarts import restart


def refused(job: Job) -> str:
    """The line with which a checkpoint fails."""
    done = manapy("checkpoint", job.dir)
    assert done.returncode != 0, done.stdout
    return done.stderr


def finish(job: Job) -> None:
    (job.where / "end").touch()
    assert job.finish().count("done") == job.ranks, job.report()


def test_children(make_job: Callable[..., Job]) -> None:
    job = make_job(2)
    job.start_python("spawned/dynamic_family.py", job.where)
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


def start_family(make_job: Callable[..., Job], which: str) -> Job:
    job = make_job(2)
    job.start_python("spawned/family_objects.py", job.where, which)
    return job


def go_on(job: Job, name: str, word: str) -> None:
    (job.where / name).touch()
    job.wait_for(lambda text: text.count(word) == 2)


def test_persistent_collectives_with_children(make_job: Callable[..., Job]) -> None:
    """The children know nothing of what the ranks of a job agree on."""
    job = start_family(make_job, "persistent")
    job.wait_for(lambda text: text.count("connected") == 2)
    for name, word in (("part", "kept"), ("rest", "parted")):
        go_on(job, name, word)
    job.checkpoint()
    restart(job)
    finish(job)


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ("group", "a communicator connects to processes outside the job (made by MPI_Comm_create_group)"),
        ("file", "MPI_File_close): {where}/shared"),
    ],
)
def test_objects_that_outlive_the_connection(make_job: Callable[..., Job], which: str, reason: str) -> None:
    job = start_family(make_job, which)
    job.wait_for(lambda text: text.count("connected") == 2)
    refused(job)
    go_on(job, "part", "kept")
    line = refused(job)
    assert reason.format(where=job.where) in line, line
    go_on(job, "rest", "parted")
    job.checkpoint()
    restart(job)
    finish(job)


@pytest.mark.parametrize("launcher", OPEN_MPIS, ids=lambda m: m.name)
def test_children_on_open_mpi(make_job: Callable[..., Job], tmp_path: Path, launcher: Launcher) -> None:
    """A part of the program above: on 4.1 two communicators with the same children can't be disconnected one by one.
    mpi4py has to be told which MPI the children have, because they run without manapy."""
    text = f"""
import os, sys, time
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    assert parent.allreduce(0) == 1
    parent.Disconnect()
    sys.exit()
world, info = MPI.COMM_WORLD, MPI.Info.Create({{"env": "FIRST=1" + chr(10) + "SECOND=2"}})
children = world.Spawn(sys.executable, [__file__], maxprocs=1, info=info)
print("connected", flush=True)
while not os.path.exists({str(tmp_path / "part")!r}):
    time.sleep(0.02)
children.allreduce(world.rank)
children.Disconnect()
print("parted", flush=True)
while not os.path.exists({str(tmp_path / "end")!r}):
    time.sleep(0.02)
assert world.allreduce(1) == 2
print("done", flush=True)
"""
    launcher.skip_if_missing()
    program = tmp_path / "program.py"
    program.write_text(text)
    job = make_job(2, mpirun=launcher.mpirun, env={**launcher.native, "MPI4PY_MPIABI": "openmpi"})
    job.start(sys.executable, program)
    job.wait_for(lambda text: text.count("connected") == 2)
    assert "(made by MPI_Comm_spawn)" in refused(job)
    (tmp_path / "part").touch()
    job.wait_for(lambda text: text.count("parted") == 2)
    job.checkpoint()
    restart(job)
    (tmp_path / "end").touch()
    assert job.finish().count("done") == 2, job.report()


def test_two_jobs(make_job: Callable[..., Job]) -> None:
    server, client = make_job(2), make_job(1)
    program = [sys.executable, PROGRAMS / "spawned/dynamic_jobs.py", server.where]
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
for _ in range(40):
    comm = MPI.COMM_WORLD.Dup()
    assert MPI.Comm.Get_parent() == MPI.COMM_NULL, "a communicator has the parent's handle"
    comm.Free()
print("alone", flush=True)
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
    assert job.finish().count("alone") == 2
