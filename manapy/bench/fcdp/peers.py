"""manapy's sharded training compared with other libraries, on emulated nodes with slow links: FSDP2 and DeepSpeed,
alternating with manapy, with the same initial values and the same data.

 1. A run is one start of one library with one workload: two steps at full speed, the second one to measure memory; then
    some steps at each rate, whose median is a sample. The first step, which fetches data that then stays, is only used
    as a sample of the first step.
 2. The losses of all runs equal those of one process, or the row reports it.
 3. Times of others are divided by manapy's time in the same round.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..shared.cluster import Cluster, cluster
from ..shared.commands import BenchError, LeftOutError, Setting
from ..shared.samples import FCDP, Row, Rows
from . import deepspeed
from .peer_runs import Step, Training, losses_alone, training

NODES, RANKS = 2, 2  # ranks of a node
TOLERANCE = 1e-4  # of a loss, relative: Adam's steps amplify float32's rounding errors
ENOUGH = 3, 5.0  # largest number of steps of a run at one rate; seconds after which no further step begins
SMALL = ("--layers", "1", "--hidden", "64", "--words", "128")
FULL, GIGABIT, HUNDRED, TEN = 1e10, 1e9, 1e8, 1e7  # bits per second
RATES = {FULL: "full speed", GIGABIT: "1 Gb/s", HUNDRED: "100 Mb/s", TEN: "10 Mb/s"}


@dataclass(frozen=True)
class Library:
    """One way to train. by, options: of osu_bench/fcdp/peers. several: only for workloads of several micro-batches,
    because only there it differs from the others. patient: also at 10 Mb/s."""

    by: str
    options: tuple[str, ...] = ()
    several: bool = False
    patient: bool = False


@dataclass(frozen=True)
class Workload:
    """goals: by library and rate, the smallest ratio of times that we aim at."""

    name: str
    options: tuple[str, ...]
    rates: tuple[float, ...]
    goals: dict[tuple[str, float], str]


OURS = {FCDP: Library("fcdp", patient=True)}
# FCDP-Cache, if the device has room for everything
KEPT = {"fcdp, τ=1": Library("fcdp", ("--tau", "1", "--budget", str(1 << 32)))}
FSDP2 = {
    "FSDP2": Library("fsdp2", patient=True),
    "FSDP2 in nodes": Library("fsdp2-node"),
    "HSDP": Library("hsdp"),
    "FSDP2 deferred": Library("fsdp2", ("--defer",), several=True),
    "FSDP2 kept": Library("fsdp2-kept", ("--defer",), several=True),
}
DEEPSPEED = {"ZeRO-3": Library("deepspeed"), "hpZ": Library("deepspeed-hpz")}
WORKLOADS = (
    Workload("full", (), (GIGABIT, HUNDRED), {("FSDP2", HUNDRED): "FSDP2 ≥ 2.5"}),
    Workload(
        "LoRA",
        ("--lora", "16"),
        (GIGABIT, HUNDRED, TEN),
        {("FSDP2", HUNDRED): "FSDP2 ≥ 20", ("FSDP2", TEN): "FSDP2 ≥ 90"},
    ),
    Workload("full, k=4", ("--micro-batches", "4"), (GIGABIT,), {}),
    Workload("LoRA, k=4", ("--lora", "16", "--micro-batches", "4"), (GIGABIT,), {}),
)


def fsdp2(setting: Setting) -> list[Row]:
    """manapy and PyTorch's own sharding."""
    need_torch()
    return _Comparison(setting, "fcdp-fsdp2", {**OURS, **FSDP2}).rows()


def zero(setting: Setting) -> list[Row]:
    """manapy and DeepSpeed's sharding."""
    need_torch()
    not_quick(setting)
    return _Comparison(setting, "fcdp-deepspeed", {**OURS, **DEEPSPEED}, deepspeed.packages(setting)).rows()


def by_nodes(setting: Setting) -> list[Row]:
    """Throughput over the number of nodes, of one rank each (Figures 5 and 7)."""
    return _throughput(setting, "fcdp-nodes", [(f"{count} nodes", count, 1, 2) for count in (2, 3, 4)])


def by_batch(setting: Setting) -> list[Row]:
    """Throughput over the sentences that a rank takes at once (Figures 6 and 8)."""
    return _throughput(setting, "fcdp-batches", [(f"batch {batch}", NODES, RANKS, batch) for batch in (1, 4, 16)])


def not_quick(setting: Setting) -> None:
    """Raises LeftOutError in a run that only tests that everything works: one comparison is enough for that."""
    if setting.scale < 1:
        raise LeftOutError("not with --quick: fcdp-fsdp2 stands for it")


def need_torch() -> None:
    """Raises LeftOutError if a requirement of manapy.fcdp.pytorch is missing."""
    for name, extra in (("torch", "torch"), ("ml_dtypes", "torch"), ("mpi4py", "mpich")):
        if importlib.util.find_spec(name) is None:
            raise LeftOutError(f"no {name} (manapy's extra '{extra}')")


class _Comparison:
    """All workloads by several libraries. path: additional directory from which Python imports them."""

    def __init__(self, setting: Setting, job: str, libraries: dict[str, Library], path: Path | None = None) -> None:
        self._setting, self._path, self._rows = setting, path, Rows(job)
        self._libraries = libraries
        self._rounds = max(1, setting.rounds // 3)
        self._small = setting.scale < 1

    def rows(self) -> list[Row]:
        """Measure. Raises LeftOutError if nodes can't be emulated."""
        workloads = (replace(WORKLOADS[0], rates=(HUNDRED,), goals={}),) if self._small else WORKLOADS
        with cluster(self._setting.tools, NODES) as nodes:
            for number, workload in enumerate(workloads):
                self._measure(nodes, workload, number / len(workloads), 1 / len(workloads))
        return self._rows.all()

    def _measure(self, nodes: Cluster, workload: Workload, done: float, part: float) -> None:
        libraries = {
            name: library for name, library in self._libraries.items() if "k=" in workload.name or not library.several
        }
        if self._small:
            libraries = dict(list(libraries.items())[:2])
        options = (*workload.options, *(SMALL if self._small else ()))
        expected = losses_alone(self._setting, NODES * RANKS, 3 + ENOUGH[0] * (1 + len(workload.rates)), *options)
        for number in range(self._rounds):
            order = list(libraries.items())
            for turn, (name, library) in enumerate(order if number % 2 == 0 else reversed(order)):
                self._setting.progress(
                    done + part * (number + turn / len(order)) / self._rounds,
                    f"{workload.name}, {name}, {number + 1} of {self._rounds}",
                )
                if name in self._row(workload, "a step at full speed", "s").failures:
                    continue
                try:
                    losses = self._run(nodes, workload, number, name, library, options)
                    check(losses, expected)
                except BenchError as error:
                    self._rows.fail(
                        workload.name,
                        {row.name for row in self._rows.all() if row.name.startswith(f"{workload.name}: ")},
                        name,
                        str(error),
                    )
        for rate in workload.rates:
            self._compare(workload, rate)

    def _run(
        self, nodes: Cluster, workload: Workload, number: int, name: str, library: Library, options: tuple[str, ...]
    ) -> list[float]:
        """Add its samples; returns the loss of each step."""
        nodes.shape(FULL)
        with training(self._setting, nodes, RANKS, library.by, *options, *library.options, path=self._path) as job:
            first = job.step()
            watched, memory = job.step_watched()
            steps = [first, watched]
            for rate in (FULL, *workload.rates):
                if rate == TEN and not library.patient:
                    continue
                nodes.shape(rate)
                its = list(_some(job))
                steps += its
                self._row(workload, f"a step at {RATES[rate]}", "s").samples.setdefault(name, {})[number] = (
                    statistics.median(step.seconds for step in its)
                )
            later = statistics.median(step.per_node for step in steps[1:])
            for what, unit, value in (
                ("sent by a node in a step", "W", later / job.parameters),
                ("sent by a node in the first step", "W", first.per_node / job.parameters),
                ("memory of a node", "MB", memory / 1e6),
            ):
                self._row(workload, what, unit).samples.setdefault(name, {})[number] = value
        return [step.loss for step in steps]

    def _compare(self, workload: Workload, rate: float) -> None:
        times = self._row(workload, f"a step at {RATES[rate]}", "s")
        for name, its in ratios(
            {name: its for name, its in times.samples.items() if name not in times.failures}
        ).items():
            row = self._row(workload, f"times fcdp's at {RATES[rate]}", "×")
            row.goal = row.goal or workload.goals.get((name, rate), "")
            row.samples[name] = its

    def _row(self, workload: Workload, what: str, unit: str) -> Row:
        return self._rows.row(f"{workload.name}: {what}", unit)


def ratios(times: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """Ratios of all other libraries' times to fcdp's, round by round."""
    ours = times.get(FCDP, {})
    found = {
        name: {number: time / ours[number] for number, time in its.items() if number in ours}
        for name, its in times.items()
        if name != FCDP
    }
    return {name: its for name, its in found.items() if its}


def _throughput(setting: Setting, job: str, places: Sequence[tuple[str, int, int, int]]) -> list[Row]:
    """places: label, number of nodes, ranks per node, sentences per rank."""
    need_torch()
    not_quick(setting)
    rows = Rows(job)
    libraries = {**OURS, **KEPT, "FSDP2": FSDP2["FSDP2"]}
    for at, (label, count, ranks, batch) in enumerate(places):
        with cluster(setting.tools, count) as nodes:
            nodes.shape(HUNDRED)
            for turn, (workload, (name, library)) in enumerate(itertools.product(WORKLOADS[:2], libraries.items())):
                setting.progress((at + turn / (2 * len(libraries))) / len(places), f"{label}, {workload.name}, {name}")
                options = (*workload.options, *library.options, "--layers", "2", "--batch", str(batch))
                row = rows.row(f"{workload.name}, {label}: sentences a second at {RATES[HUNDRED]}", "/s")
                try:
                    with training(setting, nodes, ranks, library.by, *options) as run:
                        run.step()
                        row.samples[name] = {
                            number: count * ranks * batch / step.seconds for number, step in enumerate(_some(run))
                        }
                except BenchError as error:
                    row.failures[name] = str(error)
    return rows.all()


def _some(job: Training) -> Iterator[Step]:
    """Yield as many steps as there is time for, but at least one."""
    most, seconds = ENOUGH
    taken = 0.0
    for _ in range(most):
        step = job.step()
        yield step
        taken += step.seconds
        if taken > seconds:
            break


def check(losses: Sequence[float], expected: Sequence[float]) -> None:
    """Raises BenchError if the losses aren't those of one process."""
    for number, (loss, other) in enumerate(zip(losses, expected, strict=False)):
        if not abs(loss - other) <= TOLERANCE * abs(other):
            raise BenchError(f"its loss in step {number + 1} is {loss:.6f}, in one process {other:.6f}")
