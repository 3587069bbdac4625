"""The RDMA agents of a job of manapy-launch: inside the coordinator on rank 0's host, inside the agents of the nodes on
the others. The coordinator has the keys. The test plays the ranks' RDMA clients."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import emulated
import pytest
from emulated import NODES, inside
from jobs import BIN, PROGRAMS, Job
from manapy.bench.shared.cluster import Cluster
from manapy.ckpt.store.job import read
from manapy.core import processes
from manapy.rdma import client
from manapy.rdma.place import Place
from rdma_ranks import ask_for_agent, place_of, program
from solver import after, step
from waiting import until

FIRST, SECOND = NODES
ENDLESS = "--n 64 --steps 100000 --every 20 --pause 0.03".split()


def helpers(job: Job) -> dict[str, int]:
    """The processes beside the ranks of a job, by command: _coordinator, _node, rdma ..."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
            environment = (path.parent / "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if str(job.where).encode() in environment and "/manapy" in " ".join(words[:4]):
            found |= {word: int(path.parent.name) for word in words if word in ("_coordinator", "_node", "rdma")}
    return found


def status(where: Place) -> dict[str, object]:
    with client.Connection(where) as connection:
        return connection.status()


@pytest.fixture
def job(make_job: Callable[..., Job], nodes: Cluster, tmp_path: Path) -> Job:
    """A job of one rank on each of two nodes, which runs until it is killed. The nodes share /tmp, so each has a place
    of its own for agents."""
    made = make_job(2, inside=inside(FIRST), env={"UCX_TLS": "tcp,self"})
    solver = [sys.executable, PROGRAMS / "steps/heat2d.py", *ENDLESS]
    spawn(made, tmp_path, BIN / "manapy-launch", "--dir", made.dir, *solver)
    return made


def spawn(job: Job, tmp_path: Path, *command: str | Path) -> None:
    """Run a command as both ranks, and wait until the solver works."""
    ranks = [["-n", "1", "-env", "MANAPY_SHIFT_DIR", tmp_path / host, *command] for host in NODES]
    job.spawn([*emulated.mpirun(FIRST, f"{FIRST}:1,{SECOND}:1"), *ranks[0], ":", *ranks[1]])
    job.wait_for(after(20))


def agents(job: Job, tmp_path: Path) -> list[Place]:
    """The RDMA agents of both hosts, as the ranks get them."""
    return [agent(job, tmp_path, host, pid) for host, pid in zip(NODES, job.pids(), strict=True)]


def agent(job: Job, tmp_path: Path, host: str, pid: int) -> Place:
    """The RDMA agent of a host, as a rank there gets it."""
    where = {"MANAPY_SHIFT_DIR": str(tmp_path / host)}
    return place_of(ask_for_agent(job.dir, pid=pid, env=where, inside=inside(host)))


def test_keys_of_two_hosts_meet_in_the_coordinator(job: Job, tmp_path: Path) -> None:
    """No process is started for it, and no store is named. The keys of a program vanish with it."""
    before = helpers(job)
    here, there = agents(job, tmp_path)
    assert helpers(job) == before and before.keys() == {"_coordinator", "_node"}
    assert [status(where)["pid"] for where in (here, there)] == [before["_coordinator"], before["_node"]]
    assert status(here)["store"] == status(there)["store"] == f"coordinator://{read(job.dir).host}:{read(job.dir).port}"
    with program(here, 0) as first:
        assert first("PUT qp/a 0a0b link/a ff") == "OK"
        with program(there, 1) as second:
            assert second("GET qp/a none") == "OK 0a0b -"
            assert second("PUT qp/b 0c") == "OK" and first("GET qp/b qp/a") == "OK 0c 0a0b"
            assert first("DEL qp/a") == "OK"
            assert second("GET qp/a") == "OK -", "it asks again"
            job.checkpoint()
        until(lambda: first("GET qp/b") == "OK -", "the end of the keys")
    job.kill()
    until(lambda: not (here.address.exists() or there.address.exists()), "the agents' end")


def test_a_lost_node_takes_its_keys_with_it_and_a_restart_has_none(job: Job, tmp_path: Path) -> None:
    """The ranks of the next run put their keys again: the first ones have got new queue pairs."""
    job.checkpoint()
    for run in range(2):
        here, there = agents(job, tmp_path)
        with program(here, 0) as first, program(there, 1) as second:
            assert first("GET qp/a qp/b") == "OK - -" == second("GET qp/a qp/b"), "nothing is left of another run"
            assert first("PUT qp/a 0a") == "OK" and second("PUT qp/b 0b") == "OK"
            assert first("GET qp/b") == "OK 0b" and second("GET qp/a") == "OK 0a"
        if run == 0:
            os.kill(helpers(job)["_node"], signal.SIGKILL)
            assert job.wait() != 0
            spawn(job, tmp_path, BIN / "manapy-restart", job.dir)


def test_the_coordinator_is_lost(job: Job, tmp_path: Path) -> None:
    """The job goes on. On the other host programs still have events and commands, but no keys that their agent does not
    know. On rank 0's host they have them again when somebody has started an agent there."""
    ranks, found = job.pids(), helpers(job)
    here, there = agents(job, tmp_path)
    with program(there, 1) as second:
        assert second("PUT qp/b 0b") == "OK"
        os.kill(found["_coordinator"], signal.SIGKILL)
        until(lambda: second("GET none").startswith("ERROR EHOSTUNREACH the coordinator is lost"), "the loss")
        assert second("PUT qp/c 0c").startswith("ERROR EHOSTUNREACH")
        assert second('EVENT {"event": "fallback", "qp": 1}') == "OK"
        with client.Connection(there) as watching:
            assert [event["event"] for event in watching.events()] == ["fallback"]
            assert watching.ask("MOVE", 1, "*", "m1") == "1"
        assert not here.is_alive() and agent(job, tmp_path, SECOND, ranks[1]) == there
        assert agent(job, tmp_path, FIRST, ranks[0]) == here
        with program(here, 0) as first:
            assert first("PUT qp/a 0a") == "OK" and first("GET qp/a") == "OK 0a"
        job.wait_for(after(step(job.output())))
    replaced = status(here)["pid"]
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes.is_alive(found["_node"]), "the end of the node's agent")
    assert not there.address.exists()
    os.kill(int(str(replaced)), signal.SIGTERM)
