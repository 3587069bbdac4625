"""What need not be saved: children (--ignore-child), and connections to outside (--drop-sockets)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job, JobError, oks

THROUGH_PARENT = PROGRAMS / "state/through_parent.py"
CHILDREN = """
import os, pathlib, signal, subprocess, sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
monitor = subprocess.Popen(["./monitor-7", "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
script = subprocess.Popen(["./watcher", "300"])
kept = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert monitor.stdout.readline() == b"begins\\n"
comm.Barrier()
print("ready", flush=True)
while not comm.bcast(os.path.exists("go"), root=0):
    time.sleep(0.01)
assert monitor.wait(60) == script.wait(60) == -signal.SIGKILL
assert monitor.stdout.read() == b""
assert kept.communicate(b"kept") == (b"kept", None) and kept.returncode == 0
if comm.rank == 0:
    print("ok", flush=True)
"""
CONNECTIONS = """
import os, socket, time
from through_parent import COMM as comm
where = ("127.0.0.1", int(os.environ["PORT"]))
stream = socket.create_connection(where)
stream.sendall(b"hello")
datagrams = socket.socket(type=socket.SOCK_DGRAM)
datagrams.connect(where)
comm.Barrier()
print("ready", flush=True)
while not comm.bcast(os.path.exists("go"), root=0):
    time.sleep(0.01)
try:
    print("got", stream.recv(10), flush=True)
except ConnectionResetError:
    print("reset", flush=True)
datagrams.send(b"still there")
stream.close()
stream = socket.create_connection(where)
stream.sendall(b"again")
if comm.rank == 0:
    print("ok", flush=True)
"""


@pytest.mark.parametrize("how", [[], ["--background", "off"]], ids=["beside", "standing"])
def test_ignored_children_are_killed_by_a_restart(job: Job, how: list[str]) -> None:
    os.symlink("/bin/sh", job.where / "monitor-7")
    (job.where / "5").write_text("echo begins; read line; sleep 300")
    (job.where / "watcher").write_text("#!/bin/sh\nsleep $1")
    (job.where / "watcher").chmod(0o755)
    job.start(sys.executable, "-c", CHILDREN, options=["--ignore-child", "monitor-?,watch*", *how])
    job.wait_for(lambda text: text.count("ready") == job.ranks)
    job.checkpoint()
    job.kill()
    job.restart(options=["--ignore-child", "monitor-?,watch*"])
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("starter", [[], [THROUGH_PARENT]], ids=["rank", "child"])
def test_connections_to_outside(make_job: Callable[..., Job], starter: list[Path], drops: bool) -> None:
    job = make_job(2, env={"PYTHONPATH": str(THROUGH_PARENT.parent)})
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        server.settimeout(60)
        datagrams.settimeout(60)
        datagrams.bind(server.getsockname())
        job.env["PORT"] = str(server.getsockname()[1])
        job.start(sys.executable, *starter, "-c", CONNECTIONS, options=["--drop-sockets"] * drops)
        peers = [server.accept()[0] for _ in range(job.ranks)]
        job.wait_for(lambda text: text.count("ready") == job.ranks)
        if not drops:
            with pytest.raises(JobError, match="connected UDP socket to 127.0.0.1"):
                job.checkpoint()
            return
        job.checkpoint()  # the program goes on with its connections
        assert all(peer.recv(10) == b"hello" for peer in peers)
        job.kill()
        job.restart()
        (job.where / "go").touch()
        again = [server.accept()[0] for _ in range(job.ranks)]
        assert all(peer.recv(10) == b"again" for peer in again)
        assert all(datagrams.recv(20) == b"still there" for _ in range(job.ranks))
        output = job.finish()
        assert output.count("reset") == job.ranks and oks(output) == 1
