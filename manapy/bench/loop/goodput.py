"""Useful work per time while faults happen (SCR's and TorchPass's measure): the time that an undisturbed run takes,
natively, as a share of the time that the job takes with the faults of a seed; and what would be possible.

A job that has not ended after LONGEST times the undisturbed run is ended. Its share is that of the steps it has got to.
The possible share is computed from the faults that have happened: each costs half an interval of work, the time until
it can be noticed at all, and a new start; and the program is paused for each checkpoint. Daly's bound is the same from
the mean time between such faults (J. T. Daly, A higher order estimate of the optimum checkpoint interval, 2006,
equation 20).
"""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high

from ..shared import plots
from ..shared.cluster import Cluster, cluster
from ..shared.commands import BenchError, Setting
from ..shared.samples import Row, Rows
from .faults import FAST_BITS, HARMLESS, Fault, FaultInjector, draw, mean_loss
from .ways import BEGINNING, INTERVAL, LOSS, MANAPY, PATIENCE, RANKS, SCRIPT, WAYS, RecoveryMethod

KINDS = ("solver", "training")
STEPS = 4000  # about 100 s
MEAN = 20.0  # seconds between two faults
LONGEST, SHORTEST = 4.0, 40.0  # limits of a run: so many undisturbed ones, but at least so many seconds
QUICK = 2  # faults with --quick
LOOK = 0.05  # seconds
DISK = "size=2g"
POSSIBLE, DALY = "possible", "Daly's bound"
_STOOD = re.compile(r"the job was paused for (\d+) ms")


@dataclass
class Run:
    """One run of a job. ``steps``: (seconds, step) at each look; ``share``: the last step, as a share of all."""

    seconds: float = 0.0
    share: float = 0.0
    checksum: str = ""
    starts: int = 0
    stood: float = 0.0
    steps: list[tuple[float, int]] = field(default_factory=list)
    happened: list[tuple[float, Fault]] = field(default_factory=list)

    def goodput(self, native: Run) -> float:
        """Useful work per time, as a share of that of the undisturbed run."""
        return self.share * native.seconds / self.seconds


def goodput(setting: Setting) -> list[Row]:
    """Each kind of program, seed and way. Raises LeftOutError without emulated nodes."""
    rows = Rows("loop")
    steps, mean = max(int(STEPS * setting.scale), 200), max(MEAN * setting.scale, 8.0)
    kinds, rounds = KINDS if setting.scale >= 1 else KINDS[:1], max(setting.rounds // 2, 1)
    with cluster(setting.tools, RANKS + 1) as nodes, _disk(setting.work / "loop") as disk:
        nodes.shape(FAST_BITS)
        for i, kind in enumerate(kinds):
            setting.progress(i / len(kinds), f"{kind}, undisturbed")
            native = _run(setting, nodes, disk, BEGINNING, kind, steps, [], math.inf)
            start, longest = native.steps[0][0] if native.steps else 0.0, max(LONGEST * native.seconds, SHORTEST)
            for number in range(rounds):
                faults = draw(setting.seed + number, longest, mean, RANKS)[: None if setting.scale >= 1 else QUICK]
                runs: dict[str, Run] = {}
                for k, way in enumerate(WAYS):
                    fraction = (i + (number + k / len(WAYS)) / rounds) / len(kinds)
                    setting.progress(fraction, f"{kind}, seed {setting.seed + number}, {way}")
                    try:
                        runs[way] = _run(setting, nodes, disk, way, kind, steps, faults, longest)
                    except BenchError as error:
                        rows.row(f"{kind}: goodput", "%").failures[way] = str(error)
                _add(rows, kind, number, native, start, runs)
                _draw(runs, native, setting.pictures / f"loop-{kind}-{setting.seed + number}.png")
    return rows.all()


def _add(rows: Rows, kind: str, number: int, native: Run, start: float, runs: dict[str, Run]) -> None:
    for way, run in runs.items():
        rows.add(f"{kind}: goodput", "%", way, number, 100 * run.goodput(native))
        rows.add(f"{kind}: faults", "", way, number, len(run.happened))
        rows.add(f"{kind}: starts", "", way, number, run.starts)
        if run.checksum:
            same = 100.0 * (run.checksum == native.checksum)
            rows.add(f"{kind}: result equal bit for bit", "%", way, number, same, "100 %")
    if MANAPY in runs:
        run = runs[MANAPY]
        possible = _possible(native, run, start)
        rows.add(f"{kind}: goodput", "%", POSSIBLE, number, 100 * possible)
        fatal = sum(fault.kind not in HARMLESS for _, fault in run.happened)
        if fatal:
            lost = start + sum(mean_loss(fault, 0, PATIENCE, LOSS) for _, fault in run.happened) / fatal
            rows.add(f"{kind}: goodput", "%", DALY, number, 100 * daly(run.stood, run.seconds / fatal, lost))
        reached = 100 * run.goodput(native) / possible
        rows.add(f"{kind}: of what is possible", "%", MANAPY, number, reached, "≥ 90 %")


def _possible(native: Run, run: Run, start: float) -> float:
    """A share of 1."""
    costs = sum(
        mean_loss(fault, INTERVAL, PATIENCE, LOSS) + start for _, fault in run.happened if fault.kind not in HARMLESS
    )
    stands = native.seconds / INTERVAL * run.stood
    return native.seconds / (native.seconds + costs + stands)


def daly(cost: float, mean: float, restart: float) -> float:
    """The share of useful work with checkpoints every INTERVAL seconds that cost ``cost`` seconds each, if failures
    come every ``mean`` seconds, and a restart takes ``restart`` seconds."""
    return INTERVAL / (mean * math.exp(restart / mean) * math.expm1((INTERVAL + cost) / mean))


def _run(
    setting: Setting,
    nodes: Cluster,
    disk: Path,
    way: str,
    kind: str,
    steps: int,
    faults: Sequence[Fault],
    limit: float,
) -> Run:
    folder = setting.fresh(f"{disk.name}/{way.replace(' ', '-')}")
    program = setting.tools.sources / "loop" / "work.py"
    job: RecoveryMethod = WAYS[way](
        setting, nodes, folder, [setting.tools.python, program, kind, "--steps", str(steps)]
    )
    chaos = FaultInjector(nodes, disk, list(faults), job.target())
    run, begin = Run(), time.monotonic()
    try:
        while not job.look(since := time.monotonic() - begin) and since < limit:
            run.steps.append((since, job.step))
            chaos.look(since)
            if not faults and since > setting.limit + 60 * setting.scale:
                raise BenchError(f"an undisturbed run did not end in {since:.0f} s: see {job.log.read_text()[-300:]}")
            time.sleep(LOOK)
        run.seconds, run.share = time.monotonic() - begin, 1.0 if job.checksum else job.step / steps
    finally:
        job.end()
        chaos.end()
    run.steps = [(since, step) for since, step in run.steps if step] or run.steps
    run.checksum, run.happened = job.checksum, chaos.happened
    run.starts = max(job.starts, job.log.read_bytes().count(b"starting again") + 1)
    stood = [int(ms) / 1000 for log in folder.rglob("coordinator.log") for ms in _STOOD.findall(log.read_text())]
    run.stood = median_high(stood) if stood else 0.0
    return run


@contextlib.contextmanager
def _disk(where: Path) -> Iterator[Path]:
    """A file system of its own, which can be filled."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "manapy-bench", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


def _draw(runs: dict[str, Run], native: Run, path: Path) -> None:
    """Steps over time, and faults. Draws nothing without matplotlib."""
    if not plots.available():
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5), layout="constrained")
    colors = {MANAPY: "#1b6ca8", SCRIPT: "#d95f02", BEGINNING: "#7f7f7f"}
    axis.plot(*zip(*native.steps, strict=True), color="black", linestyle=":", label="undisturbed, native")
    for way, run in runs.items():
        axis.plot(*zip(*run.steps, strict=True), color=colors[way], label=way)
    for moment, fault in runs[MANAPY].happened if MANAPY in runs else ():
        axis.axvline(moment, color=colors[MANAPY], alpha=0.2)
        axis.annotate(fault.kind, (moment, 0), rotation=90, fontsize=6, va="bottom", ha="right", color="#666666")
    axis.set(xlabel="s", ylabel="step", ylim=(0, None), xlim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7, loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)
