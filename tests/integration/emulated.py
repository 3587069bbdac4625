"""Emulated cluster nodes for tests: network namespaces with a link of a given speed, and what they count (tools/nodes;
needs root and iproute2).

UCX_TLS=tcp,self must be in the environment of what runs there: otherwise processes on two such nodes talk through
shared memory, and nothing is sent.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE
from manapy.bench.shared.cluster import Cluster, made
from manapy.bench.shared.commands import LeftOutError

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


def names(number: int) -> tuple[str, ...]:
    """Names of nodes that no other process uses: other tests run at the same time."""
    return tuple(f"mpy{os.getpid()}-{i}" for i in range(number))


*NODES, SPARE = names(3)  # those of the fixture `nodes`


@contextmanager
def cluster(names: Sequence[str], bits: float | None = None) -> Iterator[Cluster]:
    """Nodes with these names while the context is open, with links of this speed (bits per second). Skips the test with
    a reason where nodes can't be made."""
    try:
        with made(TOOLS / "nodes", names) as nodes:
            if bits:
                nodes.shape(bits)
            yield nodes
    except LeftOutError as error:
        pytest.skip(str(error))


def inside(node: str) -> list[str | Path]:
    """The words to put before a command so that it runs on a node."""
    return [TOOLS / "nodes", "run", node]


def mpirun(first: str, hosts: str) -> list[str | Path]:
    """mpirun, itself on node `first`, with ranks on hosts such as "a:2,b:2"."""
    return [
        *inside(first),
        BIN / "mpirun",
        "-launcher",
        "ssh",
        "-launcher-exec",
        TOOLS / "nodes-launch",
        "-hosts",
        hosts,
    ]


def sent_by(nodes: Cluster, ranks: int, command: Sequence[str | Path]) -> tuple[str, list[int]]:
    """Run a command with `ranks` ranks on each node. Returns its output, and the bytes that each node has sent
    meanwhile, including all headers."""
    before = nodes.sent()
    start = [
        *mpirun(nodes.names[0], ",".join(f"{name}:{ranks}" for name in nodes.names)),
        "-n",
        str(ranks * len(nodes.names)),
    ]
    done = subprocess.run(
        list(map(str, [*start, *command])),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "UCX_TLS": "tcp,self"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, [after - earlier for earlier, after in zip(before, nodes.sent(), strict=True)]
