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
from typing import Any

import pytest
from jobs import BIN, manapy
from manapy.bench.scale import load
from waiting import until

RANKS, NODES = 120, 4
EACH = RANKS // NODES


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The directory of a job on several nodes, its stubs, and the processes of its agents: those of nodes 1, 2 ..."""
    setting: Any = SimpleNamespace(tools=SimpleNamespace(manapy=BIN / "manapy"), limit=100.0)
    directory = tmp_path / "job"
    with load._job(setting, directory, RANKS, NODES) as (_, stubs, agents):
        pids = list(map(int, Path(f"/proc/{agents.pid}/task/{agents.pid}/children").read_text().split()))
        try:
            yield SimpleNamespace(dir=directory, stubs=stubs, agents=pids)
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def test_a_node_that_does_not_answer_is_named_and_waited_for(job: SimpleNamespace, tmp_path: Path) -> None:
    """Its agent is stopped for a while."""
    assert len(job.agents) == NODES - 1
    os.kill(job.agents[1], signal.SIGSTOP)
    said = tmp_path / "said"
    ask = [BIN / "manapy", "checkpoint", job.dir]
    with said.open("w") as out, subprocess.Popen(ask, stdout=out, stderr=out) as asked:
        until(lambda: "no answer yet" in said.read_text(), said.read_text)
        named = said.read_text()
        assert f"ranks {2 * EACH}-{3 * EACH - 1}: no answer yet" in named
        status = manapy("status", job.dir, "--json")
        assert status.returncode == 0 and json.loads(status.stdout)["size"] == RANKS, status.stderr
        assert asked.poll() is None
        os.kill(job.agents[1], signal.SIGCONT)
        assert asked.wait(100) == 0, said.read_text()
    assert (job.dir / "latest" / "manifest.json").is_file()
    assert manapy("checkpoint", job.dir).returncode == 0


def test_a_node_that_is_lost_in_a_checkpoint_is_named(job: SimpleNamespace) -> None:
    """Its agent is stopped first, so that the checkpoint is under way when it is killed."""
    os.kill(job.agents[2], signal.SIGSTOP)
    with subprocess.Popen([BIN / "manapy", "checkpoint", job.dir], stderr=subprocess.PIPE, text=True) as asked:
        assert asked.stderr is not None
        asked.stderr.readline()  # that it waits
        os.kill(job.agents[2], signal.SIGKILL)
        said = asked.stderr.read()
        assert asked.wait(100) == 1
    assert re.search(rf"host \S+ is lost, and ranks {3 * EACH}-1\d\d with it", said), said
    assert not (job.dir / "latest").exists()
