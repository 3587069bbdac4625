"""Emulated clusters: nodes that are network namespaces, connected by links of a given speed (tools/nodes), programs
that run on them, and the byte counts of their interfaces.

 1. Everything that is created here is removed on leaving, also after an error. Nodes are named after this process, so
    that nodes of other processes are not touched. The next process removes those of a process that was killed.
 2. Interfaces are read from outside, so that reading costs the programs on the nodes nothing and sends nothing.
 3. UCX may use only TCP: otherwise processes on two such nodes communicate through memory, and no byte crosses a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import ManapyError
from .commands import Command, LeftOutError, Setting
from .tools import Tools

ENVIRONMENT = {"UCX_TLS": "tcp,self", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # ranks share the processors
MEND_SECONDS = 10.0  # until a link that was mended carries something: the kernel notices it some time later
_REACHES = """
import errno, socket, sys
one = socket.socket()
one.settimeout(1)
sys.exit(one.connect_ex((sys.argv[1], 9)) not in (0, errno.ECONNREFUSED))
"""
BYTES_RECEIVED, BYTES_SENT = 1, 9  # words of a line of /proc/net/dev


@dataclass
class Cluster:
    """Existing nodes. tool: tools/nodes; names: of the nodes, in order."""

    tool: Path
    names: Sequence[str]
    _counters: list[int] = field(default_factory=list)  # one descriptor per node

    def shape(self, bits: float) -> None:
        """Limit the traffic into and out of each node to `bits` per second. The burst that may pass at once is the
        traffic of 4 ms, but at least 16 KB: at low rates this much is not delayed."""
        _nodes(self.tool, "shape", f"{bits:.0f}bit", f"{max(16_384, bits / 8 * 0.004):.0f}b", *self.names)

    def link(self, name: str, state: str) -> None:
        """Cut a node's link ("down"), as if its cable was pulled: nothing arrives any more, and no connection ends. Or
        mend it ("up"), and wait until the node reaches another one again. Raises ManapyError if it does not."""
        number = list(self.names).index(name)
        port = f"port{number + 1}"
        subprocess.run(["ip", "-n", f"{self.names[0]}-switch", "link", "set", port, state], check=True)
        if state != "up":
            return
        other = f"10.77.0.{1 if number else 2}"  # see tools/nodes
        until = time.monotonic() + MEND_SECONDS
        while subprocess.run(["ip", "netns", "exec", name, sys.executable, "-c", _REACHES, other]).returncode:
            if time.monotonic() > until:
                raise ManapyError(f"node {name} does not reach {other} although its link is up")

    def pids(self, name: str) -> list[int]:
        """The processes on a node."""
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
        return [int(word) for word in found.stdout.split()]

    def kill(self, name: str) -> bool:
        """SIGKILL to all processes on a node. Returns whether there were any."""
        found = self.pids(name)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def inside(self, name: str) -> list[str | Path]:
        """The words to put before a command so that it runs on a node."""
        return [self.tool, "run", name]

    @property
    def launcher(self) -> list[str | Path]:
        """Options of mpirun, which must run on a node."""
        return ["-launcher", "ssh", "-launcher-exec", self.tool.with_name("nodes-launch")]

    def command(self, setting: Setting, ranks: int, program: Command, **environment: str) -> list[str | Path]:
        """Command line of mpirun, which runs on the first node, for a program with `ranks` ranks on each node."""
        variables = [f"{name}={value}" for name, value in (ENVIRONMENT | environment).items()]
        hosts = ",".join(f"{name}:{ranks}" for name in self.names)
        return [
            *self.inside(self.names[0]),
            "env",
            *variables,
            setting.tools.mpirun,
            *self.launcher,
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
        """Bytes that each node has received, likewise."""
        return [self._count(descriptor, BYTES_RECEIVED) for descriptor in self._counters]

    def _count(self, descriptor: int, word: int) -> int:
        lines = os.pread(descriptor, 1 << 16, 0).decode().splitlines()
        return next(int(line.replace(":", ": ").split()[word]) for line in lines if line.strip().startswith("eth0:"))


@contextlib.contextmanager
def cluster(tools: Tools, count: int) -> Iterator[Cluster]:
    """`count` nodes, which exist until the context is left, with links as fast as the machine. Raises LeftOutError if
    nodes can't be created."""
    tool = _tool(tools)
    for names in orphans():
        _nodes(tool, "down", *names)
    with made(tool, [f"manapy-bench{os.getpid()}-{number}" for number in range(count)]) as nodes:
        yield nodes


def orphans() -> list[list[str]]:
    """Names of the nodes of each process that no longer exists."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path("/run/netns").glob("manapy-bench*")):
        if (name := re.fullmatch(r"manapy-bench(\d+)-\d+", path.name)) and not Path(f"/proc/{name[1]}").exists():
            found.setdefault(name[1], []).append(path.name)
    return list(found.values())


@contextlib.contextmanager
def made(tool: Path, names: Sequence[str]) -> Iterator[Cluster]:
    """Nodes with these names, which exist until the context is left. Raises LeftOutError with the reason if they can't
    be created."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise LeftOutError("emulated nodes need root and iproute2")
    nodes = Cluster(tool, names)
    try:
        _nodes(tool, "down", *names)  # remove nodes of a run that was killed
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
    """A descriptor of a node's /proc/net/dev. It was opened for a process of the node, so it continues to show that
    node's interfaces."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", name, "sh", "-c", "echo; read -r _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # now the process is on the node
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
