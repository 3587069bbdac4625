"""Emulated clusters: nodes that are network namespaces, joined by links of a given speed (tools/nodes), programs across
them, and what their interfaces count.

1. Whatever is made here is removed on leaving, also after an error. Nodes are named after this process, so that nobody
   else's are touched; those of a process that was killed are removed by the next one.
2. Interfaces are looked at from outside, so that looking takes nothing from what runs on the nodes, and sends nothing.
3. UCX is told to use TCP only: otherwise processes on two such nodes talk through memory, and no byte crosses a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import ManapyError
from .commands import Command, LeftOutError, Setting
from .tools import Tools

ENVIRONMENT = {"UCX_TLS": "tcp,self", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # ranks share the processors
BYTES_RECEIVED, BYTES_SENT = 1, 9  # words of a line of /proc/net/dev


@dataclass
class Cluster:
    """Nodes that exist. tool: tools/nodes; names: of the nodes, in order."""

    tool: Path
    names: Sequence[str]
    _counters: list[int] = field(default_factory=list)  # of each node, a descriptor

    def shape(self, bits: float) -> None:
        """Let no more than `bits` a second into and out of each node. What may pass at once is what takes 4 ms, but no
        less than 16 KB: at low rates all that is free of charge."""
        _nodes(self.tool, "shape", f"{bits:.0f}bit", f"{max(16_384, bits / 8 * 0.004):.0f}b", *self.names)

    def command(self, setting: Setting, ranks: int, program: Command, **environment: str) -> list[str | Path]:
        """mpirun, itself on the first node, of a program with `ranks` ranks on each node."""
        variables = [f"{name}={value}" for name, value in (ENVIRONMENT | environment).items()]
        launcher = ["-launcher", "ssh", "-launcher-exec", self.tool.with_name("nodes-launch")]
        hosts = ",".join(f"{name}:{ranks}" for name in self.names)
        return [
            self.tool,
            "run",
            self.names[0],
            "env",
            *variables,
            setting.tools.mpirun,
            *launcher,
            "-hosts",
            hosts,
            "-n",
            str(ranks * len(self.names)),
            *program,
        ]

    def run(self, setting: Setting, ranks: int, program: Command, **environment: str) -> str:
        """Standard output of a program with `ranks` ranks on each node; BenchError if it fails or takes too long."""
        return setting.run(self.command(setting, ranks, program, **environment))

    def sent(self) -> list[int]:
        """Bytes that each node has sent over its interface so far, with all headers."""
        return [self._count(descriptor, BYTES_SENT) for descriptor in self._counters]

    def received(self) -> list[int]:
        """Likewise what came in."""
        return [self._count(descriptor, BYTES_RECEIVED) for descriptor in self._counters]

    def _count(self, descriptor: int, word: int) -> int:
        lines = os.pread(descriptor, 1 << 16, 0).decode().splitlines()
        return next(int(line.replace(":", ": ").split()[word]) for line in lines if line.strip().startswith("eth0:"))


@contextlib.contextmanager
def cluster(tools: Tools, count: int) -> Iterator[Cluster]:
    """`count` nodes for the time being, with links as fast as the machine. Raises LeftOutError where there can't be
    any."""
    tool = _tool(tools)
    for names in orphans():
        _nodes(tool, "down", *names)
    with made(tool, [f"manapy-bench{os.getpid()}-{number}" for number in range(count)]) as nodes:
        yield nodes


def orphans() -> list[list[str]]:
    """Names of the nodes of each process that is no more."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path("/run/netns").glob("manapy-bench*")):
        if (name := re.fullmatch(r"manapy-bench(\d+)-\d+", path.name)) and not Path(f"/proc/{name[1]}").exists():
            found.setdefault(name[1], []).append(path.name)
    return list(found.values())


@contextlib.contextmanager
def made(tool: Path, names: Sequence[str]) -> Iterator[Cluster]:
    """Nodes of these names for the time being. Raises LeftOutError, saying why, where there can't be any."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise LeftOutError("emulated nodes need root and iproute2")
    nodes = Cluster(tool, names)
    try:
        _nodes(tool, "down", *names)  # those of a run that was killed
        try:
            _nodes(tool, "up", *names)
        except subprocess.CalledProcessError as error:
            raise LeftOutError(f"network namespaces are not available here: {error.stderr.strip()}") from None
        nodes._counters.extend(_interfaces(name) for name in names)
        yield nodes
    finally:
        while nodes._counters:
            os.close(nodes._counters.pop())
        _nodes(tool, "down", *names)


def _interfaces(name: str) -> int:
    """A descriptor of a node's /proc/net/dev: opened for a process of the node, it goes on showing that node's
    interfaces."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", name, "sh", "-c", "echo; read -r _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it is on the node now
        return os.open(f"/proc/{process.pid}/net/dev", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        process.communicate()


def _tool(tools: Tools) -> Path:
    found = next(
        (path for path in (tools.sources / "nodes", tools.sources.parent / "tools" / "nodes") if path.exists()), None
    )
    if found is None:
        raise ManapyError("tools/nodes is missing: this installation of manapy is incomplete")
    return found


def _nodes(tool: Path, *arguments: str) -> None:
    subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=True)
