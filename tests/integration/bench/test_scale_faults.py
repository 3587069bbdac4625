"""Faults among many ranks: the real coordinator and agents, and stubs of ranks (manapy/bench/scale)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from jobs import BIN, manapy
from manapy.bench.scale import load
from manapy.ckpt.store.job import read
from manapy.clock.messages import decode_ranks
from waiting import until

RANKS, NODES, FANIN = 180, 6, 2
EACH = RANKS // NODES


class Job(NamedTuple):
    """A job on several nodes. ``agents``: processes of the agents of nodes 1, 2 ...; ``above`` and ``below``: such
    nodes. The agents of both are in one branch of the tree. ``refused``: connections that stubs have tried in vain."""

    dir: Path
    agents: list[int]
    above: int
    below: int
    refused: int

    @property
    def branch(self) -> int:
        """The number of agents below the one above."""
        return (NODES - 1 - FANIN + 1) // FANIN


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """With a tree of agents. All ranks have come."""
    monkeypatch.setenv("MANAPY_AGENT_FANIN", str(FANIN))
    setting: Any = SimpleNamespace(tools=SimpleNamespace(manapy=BIN / "manapy"), limit=100.0)
    directory = tmp_path / "job"
    with load._job(setting, directory, RANKS, NODES) as started:
        until(lambda: read(directory).state == "running", (directory / "coordinator.log").read_text)
        agents = started.agents.pid
        pids = list(map(int, Path(f"/proc/{agents}/task/{agents}/children").read_text().split()))
        log = (directory / "coordinator.log").read_text()
        come = [1 + pids.index(int(pid)) for pid in re.findall(r"its agent is process (\d+)", log)]
        assert len(come) == len(pids) == NODES - 1
        try:
            yield Job(directory, pids, come[0], come[FANIN], started.refused)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def test_ranks_try_again(job: Job) -> None:
    """The coordinator and each agent have refused some connections."""
    assert job.refused == NODES
    assert manapy("checkpoint", job.dir).returncode == 0


def test_a_node_that_does_not_answer_is_named_and_waited_for(job: Job, tmp_path: Path) -> None:
    """Its agent is stopped for a while. All other nodes answer."""
    agent = job.agents[job.below - 1]
    os.kill(agent, signal.SIGSTOP)
    said = tmp_path / "said"
    ask = [BIN / "manapy", "checkpoint", job.dir]
    with said.open("w") as out, subprocess.Popen(ask, stdout=out, stderr=out) as asked:
        until(lambda: "no answer yet" in said.read_text(), said.read_text)
        named = said.read_text()
        assert f"ranks {job.below * EACH}-{(job.below + 1) * EACH - 1}: no answer yet" in named
        status = manapy("status", job.dir, "--json")
        assert status.returncode == 0 and json.loads(status.stdout)["size"] == RANKS, status.stderr
        assert asked.poll() is None
        os.kill(agent, signal.SIGCONT)
        assert asked.wait(100) == 0, said.read_text()
    assert (job.dir / "latest" / "manifest.json").is_file()
    assert manapy("checkpoint", job.dir).returncode == 0


@pytest.mark.parametrize("place", ["above", "below"])
def test_a_node_that_is_lost_in_a_checkpoint_is_named(job: Job, place: str) -> None:
    """Its agent is stopped first, so that the checkpoint is under way when it is killed."""
    node = getattr(job, place)
    agent = job.agents[node - 1]
    os.kill(agent, signal.SIGSTOP)
    with subprocess.Popen([BIN / "manapy", "checkpoint", job.dir], stderr=subprocess.PIPE, text=True) as asked:
        assert asked.stderr is not None
        asked.stderr.readline()  # that it waits
        os.kill(agent, signal.SIGKILL)
        said = asked.stderr.read()
        assert asked.wait(100) == 1
    if place == "above":
        found = re.search(r"is lost, and (\d) other hosts? connected through it, and ranks (.+) with them", said)
        assert found and int(found[1]) == job.branch, said
        lost = set(decode_ranks(found[2].replace(" ", "")))
        assert len(lost) == EACH * (1 + job.branch) and {EACH * node, EACH * job.below} < lost, said
    else:
        assert f"is lost, and ranks {EACH * node}-{EACH * (node + 1) - 1} with it: its agent has ended" in said, said
    assert not (job.dir / "latest").exists()
