"""Emulated cluster nodes for tests: network namespaces with a link of a given speed, and what each has sent over it (tools/nodes; needs root and iproute2).

UCX_TLS=tcp,self must be in the environment of what runs there: otherwise processes on two such nodes talk through shared memory, and nothing is sent.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE
from manapy.bench.cluster import made
from manapy.bench.commands import LeftOutError

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


@contextmanager
def cluster(names: Sequence[str], rate: tuple[str, str] | None = None) -> Iterator[None]:
    """Nodes of these names for the time being, with links of a rate (tc's rate and burst, such as 100mbit and 128kb); skips the test, saying why, where there can't be any."""
    try:
        with made(TOOLS / "nodes", names):
            if rate:
                _nodes("shape", *rate, *names)
            yield
    except LeftOutError as error:
        pytest.skip(str(error))


def inside(node: str) -> list[str | Path]:
    """What to put before a command that is to run on a node."""
    return [TOOLS / "nodes", "run", node]


def mpirun(first: str, hosts: str) -> list[str | Path]:
    """mpirun, itself on node `first`, with ranks on hosts such as "a:2,b:2"."""
    return [*inside(first), BIN / "mpirun", "-launcher", "ssh", "-launcher-exec", TOOLS / "nodes-launch", "-hosts", hosts]


def sent(names: Sequence[str]) -> list[int]:
    """Bytes that each node has sent over its network since it was made, with all headers."""
    return [int(line) for line in _nodes("sent", *names).split()]


def sent_by(names: Sequence[str], ranks: int, command: Sequence[str | Path]) -> tuple[str, list[int]]:
    """Runs a command with `ranks` ranks on each of these nodes: its output, and the bytes that each node has sent meanwhile."""
    before = sent(names)
    start = [*mpirun(names[0], ",".join(f"{name}:{ranks}" for name in names)), "-n", str(ranks * len(names))]
    done = subprocess.run(list(map(str, [*start, *command])), capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "UCX_TLS": "tcp,self"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, [after - earlier for earlier, after in zip(before, sent(names), strict=True)]


def _nodes(*arguments: str) -> str:
    return subprocess.run([str(TOOLS / "nodes"), *arguments], capture_output=True, text=True, check=True).stdout
