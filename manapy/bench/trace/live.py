"""Real training jobs (osu_bench/trace/pipeline.py) that are watched while they run: the cost of watching (the MegaTrace
paper's Figure 11), its two case studies (E7), and false alarms.

A job is recorded by `manapy trace run` and ended when it has been watched for long enough. Verdicts are those of
`manapy why --watch`, as a user would get them. Only for false alarms each inspection is counted, including those
without a result.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...trace.capture import rings
from ...trace.host import process_state
from ...trace.host.runqueue import Sampler
from ...trace.live.diagnose import diagnose
from ...trace.model import schedule
from ...trace.model.verdict import Cause, Phase, State
from ...trace.slow import alarms, slow
from ..shared import plots
from ..shared.commands import BenchError, Setting, end, forget, trace_of
from ..shared.samples import MANAPY, Row, Rows
from .diagnosis import keep

FOR_EVER = 10**8  # iterations
LOOK = 1.0  # seconds between two inspections
# Rates of calls: one like a real training job's, and one of a job that mostly communicates.
LOADS = {"a training loop": ("512", "64"), "a loop that hardly computes": ("16", "4")}
_ITERATION = re.compile(r"^iteration (\d+) took", re.MULTILINE)
_FAULT = re.compile(r"^fault .* at ([\d.]+)$", re.MULTILINE)


class Training:
    """A running job. trace: folder with its records."""

    def __init__(self, setting: Setting, ranks: int, plan: str, *options: str) -> None:
        self._setting, self.directory = setting, setting.fresh("training")
        self.trace = trace_of(self.directory)
        self._log = setting.fresh("log")
        program: list[str | Path] = [
            setting.tools.python,
            setting.tools.sources / "trace" / "pipeline.py",
            "--schedule",
            plan,
            *options,
        ]
        words = [
            str(word) for word in ["env", "OPENBLAS_NUM_THREADS=1", *setting.recorded(ranks, self.directory, *program)]
        ]
        with self._log.open("wb") as stream:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, text=True, cwd=setting.work
            )

    @property
    def output(self) -> str:
        """Output so far."""
        return self._log.read_text(errors="replace")

    @property
    def iterations(self) -> int:
        """Number of iterations that have ended."""
        return len(_ITERATION.findall(self.output))

    def wait_for(self, ready: Callable[[], Any], what: str) -> None:
        """Raises BenchError if it isn't ready in time, or before the job ends."""
        limit = time.monotonic() + self._setting.limit
        while not ready():
            if self.process.poll() is not None and not ready():
                raise BenchError(
                    f"the training job ended with {self.process.returncode} before {what}: "
                    f"{self.output.strip().splitlines()[-1:]}"
                )
            if time.monotonic() > limit:
                raise BenchError(f"{self._setting.limit:.0f} s without {what} of the training job")
            time.sleep(0.02)


@contextlib.contextmanager
def training(setting: Setting, ranks: int, plan: str, *options: str) -> Iterator[Training]:
    """A job that is ended on leaving."""
    job = Training(setting, ranks, plan, *options)
    try:
        job.wait_for(lambda: job.iterations > 2, "its first iterations")
        yield job
    finally:
        end(job.process)
        forget(job.directory)


# ---- what watching takes


@dataclass(frozen=True)
class Usage:
    """Resource usage of one tool beside one job. moments: seconds since its start; shares: % of one processor since the
    previous moment; memory: resident, MB."""

    tool: str
    load: str
    moments: list[float]
    shares: list[float]
    memory: list[float]


def watching(setting: Setting) -> list[Row]:
    """Each tool beside each load, for half a minute. The first samples include its start."""
    seconds = max(LOOK, 30 * min(setting.scale, 1))
    rows = Rows("watching")
    used: list[Usage] = []
    loads = list(LOADS.items())[: None if setting.scale >= 1 else 1]
    for i, (load, (hidden, batch)) in enumerate(loads):
        with training(
            setting,
            2,
            "pp=2,micro=8",
            "--iterations",
            str(FOR_EVER),
            "--layers",
            "4",
            "--hidden",
            hidden,
            "--batch",
            batch,
        ) as job:
            tools: dict[str, list[str | Path]] = {
                "manapy why --watch": ["why", "--watch", "--every", f"{LOOK}s", job.directory],
                "manapy trace record": ["trace", "record", "--out", setting.fresh("recording"), job.directory],
            }
            for k, (tool, arguments) in enumerate(tools.items()):
                setting.progress((i + k / len(tools)) / len(loads), f"{tool}, {load}")
                calls, began = _calls(job), time.monotonic()
                used.append(_observe(tool, load, [setting.tools.manapy, *arguments], seconds))
                rows.add(
                    f"{load}: recorded calls a second of all ranks",
                    "/s",
                    MANAPY,
                    k,
                    (_calls(job) - calls) / (time.monotonic() - began),
                )
    for usage in used:
        for name, unit, values in (("share of one processor", "%", usage.shares), ("memory", "MB", usage.memory)):
            for number, value in enumerate(values):
                rows.add(f"{usage.tool}, {usage.load}: {name}", unit, MANAPY, number, value)
        rows.add(f"{usage.tool}, {usage.load}: memory at the end", "MB", MANAPY, 0, usage.memory[-1])
    draw(used, setting.pictures / "figure11-watching.png")
    return rows.all()


def draw(used: Sequence[Usage], path: Path) -> None:
    """MegaTrace's Figure 11: the cost of watching over time. Draws nothing without matplotlib."""
    if not plots.available():
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for one in used:
        for axis, values in zip(axes, (one.shares, one.memory), strict=True):
            axis.plot(one.moments, values, label=f"{one.tool}, beside {one.load}")
    for axis, title in zip(axes, ("share of one processor, %", "resident memory, MB"), strict=True):
        axis.set(xlabel="s", ylabel=title, ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=6)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _calls(job: Training) -> int:
    """Number of calls recorded so far."""
    events = rings.read(job.trace).events
    ranks = events["rank"]
    return sum(int(events["seq"][ranks == rank].max(initial=0)) for rank in set(ranks.tolist()))


def _observe(tool: str, load: str, command: Sequence[str | Path], seconds: float) -> Usage:
    """Observe a tool that runs until it is ended. Raises BenchError if it ends by itself."""
    usage = Usage(tool, load, [], [], [])
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    began = before = time.monotonic()
    ticks = 0
    try:
        while before - began < seconds:
            time.sleep(LOOK)
            seen, now = process_state.look(process.pid), time.monotonic()
            if process.poll() is not None:
                raise BenchError(f"{tool} ended with {process.returncode} beside {load}")
            usage.moments.append(now - began)
            usage.shares.append(100 * (seen.ticks - ticks) / os.sysconf("SC_CLK_TCK") / (now - before))
            usage.memory.append(
                int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            )
            ticks, before = seen.ticks, now
    finally:
        end(process)
    return usage


# ---- the case studies


@dataclass(frozen=True)
class Case:
    """name: what is wrong. fault: in pipeline.py's format. The remaining fields: the expected verdict."""

    name: str
    ranks: int
    plan: str
    fault: str
    state: State
    rank: int
    cause: Cause
    place: tuple[Phase, int, int] | None = None  # phase, iteration, micro-batch

    def right(self, verdict: dict[str, Any]) -> dict[str, bool]:
        """Which parts of a verdict are right?"""
        found = {"rank": verdict["rank"] == self.rank, "cause": verdict["cause"] == self.cause.value}
        if self.place is not None:
            found["place"] = (verdict["phase"], verdict["iteration"], verdict["micro"]) == (
                self.place[0].value,
                *self.place[1:],
            )
        return found


CASES = (
    Case(
        "case 1, a Recv that isn't called", 4, "pp=4,micro=8", "skip-recv:rank=2,iteration=20,micro=3,phase=forward",
        State.HUNG, 2, Cause.MISSING, (Phase.TRANSFER, 20, 3),
    ),
    Case(
        "case 2, a node with too few processors", 2, "pp=2,micro=8", "starve:rank=1,iteration=20,busy=3",
        State.SLOW, 1, Cause.STARVED,
    ),
)  # fmt: skip


def cases(setting: Setting) -> list[Row]:
    """Both case studies, several times each: the content and the time of the first verdict of the right kind that
    `manapy why --watch` gives after the fault. The sentences are kept."""
    rows = Rows("cases")
    rounds = (setting.rounds + 1) // 2
    said: list[str] = []
    for i, case in enumerate(CASES):
        for number in range(rounds):
            setting.progress((i + number / rounds) / len(CASES), f"{case.name}, {number + 1} of {rounds}")
            try:
                verdict, seconds, before = _judged(setting, case)
            except BenchError as error:
                rows.fail(f"{case.name}: from the fault to the verdict", set(), MANAPY, str(error))
                break
            said.append(f"{case.name}: after {seconds:.2f} s: {verdict['sentence']}")
            rows.add(f"{case.name}: from the fault to the verdict", "s", MANAPY, number, seconds)
            rows.add(f"{case.name}: other verdicts before it", "", MANAPY, number, before, "0")
            for what, yes in case.right(verdict).items():
                rows.add(f"{case.name}: {what} right", "%", MANAPY, number, 100.0 * yes, "100 %")
    keep(setting.pictures / "cases.txt", said)
    return rows.all()


def _judged(setting: Setting, case: Case) -> tuple[dict[str, Any], float, int]:
    """The first verdict with the case's state after the fault, the seconds between them, and the number of other
    verdicts before it."""
    said = setting.fresh("verdicts")
    with training(
        setting, case.ranks, case.plan, "--iterations", str(FOR_EVER), "--hidden", "256", "--fault", case.fault
    ) as job:
        write = f'echo "$(date +%s.%N) $MANAPY_VERDICT" >> {said}'
        command = [
            setting.tools.manapy,
            "why",
            "--watch",
            "--every",
            "200ms",
            "--patience",
            "0",
            "--schedule",
            case.plan,
            "--run",
            write,
            job.directory,
        ]
        watcher = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            job.wait_for(lambda: _FAULT.search(job.output), "its fault")
            fault = float(_FAULT.findall(job.output)[0])

            def its() -> list[int]:
                return [
                    i
                    for i, (moment, verdict) in enumerate(_said(said))
                    if moment > fault and verdict["state"] == case.state.value
                ]

            job.wait_for(its, "a verdict on its fault")
        finally:
            end(watcher)
        before = its()[0]
        moment, verdict = _said(said)[before]
        return verdict, moment - fault, before


def _said(path: Path) -> list[tuple[float, dict[str, Any]]]:
    """Moments and verdicts; a line that is still being written is skipped."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [(float(line.split(" ", 1)[0]), json.loads(line.split(" ", 1)[1])) for line in lines if line.endswith("\n")]


# ---- false alarms


def healthy(setting: Setting) -> list[Row]:
    """An inspection every second of healthy jobs: one with pipeline stages, alternately with and without its schedule,
    and one that has practically no stages. Each wrong statement counts once. A statement that a rank had to wait for
    its processor is not a false alarm, and is counted separately."""
    rows = Rows("healthy")
    seconds = 60 * setting.minutes
    starved = Cause.STARVED.value
    counts = dict.fromkeys(
        (*(state.value for state in (State.HUNG, State.LATE, State.SLOW, State.UNKNOWN)), starved), 0
    )
    wrong: list[str] = []
    looks = iterations = 0
    plans = {"pp=2,micro=8": schedule.parse("pp=2,micro=8"), "tp=2,micro=8": None}
    for i, (plan, known) in enumerate(plans.items()):
        with (
            training(setting, 2, plan, "--iterations", str(FOR_EVER), "--layers", "4", "--hidden", "256") as job,
            Sampler() as sampler,
        ):
            said = set()
            reader = rings.Reader(job.trace)
            watches = [(None, slow.WatchState()), (known, slow.WatchState())]
            began = time.monotonic()
            while (passed := time.monotonic() - began) < seconds / len(plans):
                setting.progress(
                    (i + passed * len(plans) / seconds) / len(plans), f"{plan}, {sum(counts.values())} alarms"
                )
                reader.poll()
                given, before = watches[looks % 2]
                for verdict in diagnose(
                    reader.trace(),
                    given,
                    live=True,
                    sampler=sampler,
                    judge=functools.partial(alarms.verdicts, looks=before),
                ):
                    same = verdict.state, verdict.cause, verdict.rank, verdict.since_ns
                    if verdict.state is not State.HEALTHY and same not in said:
                        said.add(same)
                        counts[
                            starved
                            if verdict.state is not State.HUNG and verdict.cause is Cause.STARVED
                            else verdict.state.value
                        ] += 1
                        wrong.append(f"{plan}, after {passed:.1f} s: {verdict.state.value}: {verdict.sentence}")
                looks += 1
                time.sleep(LOOK)
            if job.process.poll() is not None:
                raise BenchError(f"a healthy training job ended with {job.process.returncode}")
            iterations += job.iterations
    rows.add("watched", "minutes", MANAPY, 0, setting.minutes)
    rows.add("looks", "", MANAPY, 0, looks)
    rows.add("iterations", "", MANAPY, 0, iterations)
    for what, count in counts.items():
        rows.add(
            f"said: {what}",
            "",
            MANAPY,
            0,
            count,
            "0 in an hour" if what in (State.HUNG.value, State.LATE.value, State.SLOW.value) else "",
        )
    keep(setting.pictures / "healthy-wrong.txt", wrong)
    return rows.all()
