"""A running osu_bench/fcdp/peers: one training by one library on the nodes of an emulated cluster. It takes a step
when told to.

mpirun on the first node starts manapy's ranks; those of torch.distributed are started one by one. The bytes that a step
sends are read from the nodes' interfaces and include headers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..shared.cluster import ENVIRONMENT, Cluster
from ..shared.commands import BenchError, Setting, end, reason

MANAPY = ("fcdp", "zero3", "hpz", "hpz_naive", "mics")  # of osu_bench/fcdp/peers' --by
SAMPLED = 0.02  # seconds between samples of the memory
_ports = itertools.count(29500)


@dataclass(frozen=True)
class Step:
    """seconds: from the beginning to the end, over all ranks; loss: the mean of all; sent: bytes of each node."""

    seconds: float
    loss: float
    sent: tuple[int, ...]

    @property
    def per_node(self) -> float:
        """Bytes: the mean over nodes."""
        return sum(self.sent) / len(self.sent)


class Training:
    """A training that is ready for its first step. parameters, trainable: bytes."""

    def __init__(
        self, setting: Setting, cluster: Cluster, processes: Sequence[subprocess.Popen[str]], errors: Path
    ) -> None:
        self._setting, self._cluster, self._processes, self._errors = setting, cluster, processes, errors
        ready = self._answer()
        self.parameters, self.trainable = ready["parameters"], ready["trainable"]
        self._ranks: dict[str, list[int]] = defaultdict(list)
        for host, process in ready["ranks"]:
            self._ranks[host].append(process)

    def step(self) -> Step:
        """Take a step. Raises BenchError if the job fails or takes too long."""
        before = self._cluster.sent()
        rank_0 = self._processes[0]
        assert rank_0.stdin is not None
        try:
            rank_0.stdin.write("step\n")
            rank_0.stdin.flush()
        except BrokenPipeError:
            pass  # the job's error messages say why
        done = self._answer()
        return Step(
            done["seconds"],
            done["loss"],
            tuple(now - earlier for now, earlier in zip(self._cluster.sent(), before, strict=True)),
        )

    def step_watched(self) -> tuple[Step, float]:
        """A step that is not measured for its time, and the largest memory of a node during it, in bytes."""
        with _Memory(list(self._ranks.values())) as memory:
            step = self.step()
        return step, memory.peak

    def _answer(self) -> dict[str, Any]:
        """The next line of JSON."""
        rank_0 = self._processes[0]
        assert rank_0.stdout is not None
        late = threading.Timer(self._setting.limit, rank_0.kill)
        late.start()
        try:
            for line in rank_0.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        finally:
            late.cancel()
        if late.finished.is_set() and rank_0.wait() < 0:
            raise BenchError(f"no answer within {self._setting.limit:.0f} s")
        raise BenchError(cause(self._errors.read_text(errors="replace")) or "it ended")


@contextlib.contextmanager
def training(
    setting: Setting, cluster: Cluster, ranks: int, by: str, *options: str, path: Path | None = None
) -> Iterator[Training]:
    """A training with `ranks` on each node, which ends when the context is left. path: directory from which Python
    imports the library, if it isn't on the usual path."""
    errors = setting.fresh("errors")
    program: list[str | Path] = [setting.tools.python, setting.tools.sources / "fcdp" / "peers", "--by", by, *options]
    processes: list[subprocess.Popen[str]] = []
    with errors.open("w") as sink:

        def start(command: Sequence[str | Path]) -> None:
            words, first = [str(word) for word in command], not processes
            told, says = (subprocess.PIPE, subprocess.PIPE) if first else (subprocess.DEVNULL, sink)
            processes.append(
                subprocess.Popen(
                    words, stdin=told, stdout=says, stderr=sink, text=True, errors="replace", cwd=setting.work
                )
            )

        try:
            if by in MANAPY:
                start(cluster.command(setting, ranks, program))
            else:
                size, port = ranks * len(cluster.names), next(_ports)
                for rank in range(size):
                    node, local = divmod(rank, ranks)
                    place = {
                        "RANK": rank,
                        "WORLD_SIZE": size,
                        "LOCAL_RANK": local,
                        "LOCAL_WORLD_SIZE": ranks,
                        "MASTER_ADDR": cluster.names[0],
                        "MASTER_PORT": port,
                    }
                    variables = {
                        **ENVIRONMENT,
                        **place,
                        "GLOO_SOCKET_IFNAME": "eth0",
                        **({"PYTHONPATH": path} if path else {}),
                    }
                    start(
                        [
                            cluster.tool,
                            "run",
                            cluster.names[node],
                            "env",
                            *(f"{name}={value}" for name, value in variables.items()),
                            *program,
                        ]
                    )
            yield Training(setting, cluster, processes, errors)
            assert processes[0].stdin is not None
            processes[0].stdin.close()  # ends the training
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(setting.limit)
        finally:
            for process in processes:
                end(process)


def losses_alone(setting: Setting, ranks: int, steps: int, *options: str) -> list[float]:
    """The losses of the sentences of `ranks` ranks in one process, by torch alone."""
    command = [
        setting.tools.python,
        setting.tools.sources / "fcdp" / "peers",
        "--by",
        "alone",
        "--ranks",
        str(ranks),
        *options,
    ]
    words = ["sh", "-c", f'for i in $(seq {steps}); do echo step; done | "$@"', "sh", *map(str, command)]
    return [record["loss"] for line in setting.run(words).splitlines() if "loss" in (record := json.loads(line))]


class _Memory(threading.Thread):
    """Samples the memory of some processes on each node repeatedly: their private memory, and their part of shared
    memory except files (libraries)."""

    def __init__(self, nodes: list[list[int]]) -> None:
        super().__init__(daemon=True)
        self._nodes, self._over = nodes, threading.Event()
        self.peak = 0.0

    def run(self) -> None:
        while not self._over.wait(SAMPLED):
            self.peak = max(self.peak, *(sum(map(_memory_of, processes)) for processes in self._nodes))

    def __enter__(self) -> _Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _memory_of(process: int) -> float:
    """Bytes; 0 if the process has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(1024.0 * int(size) for size in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", text, re.MULTILINE))


def cause(errors: str) -> str:
    """The last line of the first traceback; otherwise what commands.reason finds."""
    raised = re.search(r"^(\w[\w.]*(?:Error|Exception|Interrupt): .*)$", errors, re.MULTILINE)
    return raised[1][:300] if raised else reason("", errors)
