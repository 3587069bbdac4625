"""A job on six emulated nodes, one rank on each, whose agents form a tree of two levels."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import emulated
import pytest
from emulated import inside
from jobs import BIN, Job, manapy
from networks import call_inside
from phases import BESIDE, PHASES, STANDING, answer, reach, restart_after
from solver import MIDDLE, step
from waiting import until

NODES = emulated.names(6)
FANIN = 2
ENVIRONMENT = {"UCX_TLS": "tcp,self", "MANAPY_AGENT_FANIN": str(FANIN)}


class Agent(NamedTuple):
    """The agent of a node. Rank N is on node N."""

    rank: int
    pid: int

    @property
    def host(self) -> str:
        return NODES[self.rank]


@pytest.fixture
def job(request: pytest.FixtureRequest, make_job: Callable[..., Job]) -> Iterator[Job]:
    """All its ranks have come. Its parameter, if a test has one: options."""
    with emulated.cluster(NODES):
        hosts = ",".join(f"{node}:1" for node in NODES)
        mpirun = emulated.mpirun(NODES[0], hosts)
        made = make_job(len(NODES), mpirun=mpirun, inside=inside(NODES[0]), env=ENVIRONMENT)
        made.hold(MIDDLE)
        options = getattr(request, "param", ())
        made.start_solver(options=options)
        made.wait_until_it_runs()
        yield made
        made.end()


def agents(job: Job) -> tuple[list[Agent], list[Agent]]:
    """Those of the last run that are connected to the coordinator, and those that are connected through these."""
    text = (job.dir / "coordinator.log").read_text().rpartition(" ranks, pid ")[2]
    come = re.findall(r"host (\S+): its agent is process (\d+)", text)
    through = re.findall(r"host (\S+): its agent is connected through that of host \S+", text)
    above = [Agent(NODES.index(host), int(pid)) for host, pid in come if host not in through]
    below = [Agent(NODES.index(host), int(pid)) for host, pid in come if host in through]
    assert (len(above), len(below)) == (FANIN, len(NODES) - 1 - FANIN), text
    return above, below


def restart_to_the_end(job: Job, undisturbed: bytes, last: int) -> None:
    job.restart()
    ends_as_undisturbed(job, undisturbed, last)


def ends_as_undisturbed(job: Job, undisturbed: bytes, last: int) -> None:
    assert step(job.finish()) > last
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_checkpoint_kill_restart(job: Job, undisturbed: bytes) -> None:
    """Also while an agent below another one is stopped: its rank is waited for, and named."""
    slow = agents(job)[1][0]
    os.kill(slow.pid, signal.SIGSTOP)
    said = job.where / "said"
    ask = list(map(str, [*job.inside, BIN / "manapy", "checkpoint", job.dir]))
    with said.open("w") as out, subprocess.Popen(ask, stdout=out, stderr=out) as asked:
        until(lambda: f"rank {slow.rank}: no answer yet" in said.read_text(), said.read_text)
        os.kill(slow.pid, signal.SIGCONT)
        assert asked.wait(100) == 0, said.read_text()
    last = step(job.output())
    job.kill()
    restart_to_the_end(job, undisturbed, last)
    agents(job)  # they form a tree again


@pytest.mark.parametrize("is_asked", [False, True], ids=["between checkpoints", "in a checkpoint"])
@pytest.mark.parametrize("place", ["above", "below"])
def test_an_agent_is_killed(job: Job, undisturbed: bytes, place: str, is_asked: bool) -> None:
    """Only its own node is lost, or also those that were connected through it. The job ends, says why, and can be
    restarted."""
    job.checkpoint()
    last = step(job.output())
    above, below = agents(job)
    log = job.dir / "coordinator.log"
    lost = (above if place == "above" else below)[0]
    if is_asked:
        os.kill(lost.pid, signal.SIGSTOP)
        ask = list(map(str, [*job.inside, BIN / "manapy", "checkpoint", job.dir]))
        with subprocess.Popen(ask, stderr=subprocess.PIPE, text=True) as asked:
            assert asked.stderr is not None
            assert "no answer yet" in asked.stderr.readline()
            os.kill(lost.pid, signal.SIGKILL)
            assert f"host {lost.host} is lost" in asked.stderr.read()
            assert asked.wait(100) == 1
    else:
        os.kill(lost.pid, signal.SIGKILL)
    assert job.wait() != 0
    (line,) = until(lambda: re.findall(rf"ERROR (host {lost.host} is lost, and .*)", log.read_text()), log.read_text)
    if place == "above":
        assert re.search(
            r"and [12] other hosts? connected through it, and ranks .* with them: its agent has ended", line
        )
    else:
        assert line == f"host {lost.host} is lost, and rank {lost.rank} with it: its agent has ended"
    assert f"the agent of host {lost.host} is lost" in job.output()
    assert manapy("verify", job.dir).returncode == 0
    restart_to_the_end(job, undisturbed, last)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "options", "place"),
    [(STANDING, STANDING, "above"), (BESIDE, BESIDE, "below")],
    indirect=["job"],
    ids=["above, standing", "below, beside"],
)
def test_an_agent_is_killed_in_each_phase(job: Job, undisturbed: bytes, options: tuple[str, ...], place: str) -> None:
    """No rank stays, and a published checkpoint is good."""
    for phase in PHASES[options]:
        above, below = agents(job)
        lost = (above if place == "above" else below)[0]
        asked, status, last = call_inside(NODES[0], reach, job, phase)
        os.kill(lost.pid, signal.SIGKILL)
        code, path, errors = answer(asked)
        assert code == 0 or f"host {lost.host} is lost" in errors, errors
        assert job.wait() != 0
        latest = (job.dir / "latest").resolve()
        assert latest == (Path(path) if code == 0 else last) or phase in ("publishing", "resuming")
        assert manapy("verify", latest).returncode == 0
        restart_after(job, status, options)
    ends_as_undisturbed(job, undisturbed, 0)
