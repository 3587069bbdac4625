"""The cost of recording a training loop (E6, the MegaTrace paper's Figure 9): without a recorder, with manapy's, and
with recorders of other kinds, alternately.

A sample is the median iteration of one run, on rank 0, without the first ones. Each other recorder is inspired by a
tool (osu_bench/trace/recorders.py, textlog.c); none is that tool. All runs must end with the same weights.

Two runs differ by more than recording costs. So there is a run of each of manapy's recorders in which every second
iteration isn't recorded (MPI_Pcontrol): a sample is an iteration, a round is a pair of consecutive iterations in random
order.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import ManapyError
from ..shared import tools
from ..shared.commands import BenchError, LeftOutError, Setting
from ..shared.compare import Part, Sample, compare
from ..shared.samples import CLOCK, NATIVE, RECORDED, UNTRACED, Row, Rows

RANKS = 2
SCHEDULES = ("pp=2,micro=8", "tp=2,micro=8")
WARM = 2  # iterations that don't count
PAIRS = 2000
PAIRED = ("--layers", "2", "--hidden", "256", "--batch", "32")  # some ms an iteration
GOAL = "≤ 1.002"
PROFILER, STRAGGLER, TEXT = "profiler", "straggler", "textlog"
NAMES = {
    RECORDED: "manapy trace run",
    CLOCK: "manapy-launch",
    UNTRACED: "manapy-launch --no-trace",
    TEXT: "text log, inspired by NCCL's",
    STRAGGLER: "barrier and gather, inspired by Megatron's straggler log",
    PROFILER: "every function, inspired by PyTorch's profiler",
}
_TOOK = re.compile(r"^iteration \d+ took ([\d.]+) s at [\d.]+(, not recorded)?$", re.MULTILINE)
_WEIGHTS = re.compile(r"^weights (\w+)", re.MULTILINE)


def overhead(setting: Setting) -> list[Row]:
    """Times of an iteration, and their ratios to the times of the same round without a recorder."""
    text_log = setting.work / "textlog.so"
    try:
        tools.compile_library(setting.tools, setting.tools.sources / "trace" / "textlog.c", text_log)
    except ManapyError as error:
        raise LeftOutError(str(error)) from None
    schedules = SCHEDULES if setting.scale >= 1 else SCHEDULES[:1]
    rows = [
        row
        for i, schedule in enumerate(schedules)
        for row in _Loop(setting, schedule, text_log).rows((i, len(schedules)))
    ]
    return rows + [row for schedule in schedules for row in _pairs(setting, schedule)]


def _pairs(setting: Setting, schedule: str) -> list[Row]:
    """One row for each of manapy's recorders: recorded iterations (RECORDED) and others (NATIVE)."""
    rows, weights = [], set[str]()
    for variant in (CLOCK, RECORDED):
        row = Row(
            "overhead", f"{schedule}: {NAMES[variant]}, in pairs within a run", "ms", baseline="paused", goal=GOAL
        )
        rows.append(row)
        setting.progress(1, f"pairs of iterations, {variant}")
        iterations = 2 * max(2, round(PAIRS * setting.scale)) + WARM
        options = ["--schedule", schedule, "--iterations", str(iterations), "--pairs", "1", *PAIRED]
        try:
            output = setting.variant(
                variant,
                RANKS,
                [setting.tools.python, setting.tools.sources / "trace" / "pipeline.py", *options],
                OPENBLAS_NUM_THREADS="1",
            )
        except BenchError as error:
            row.failures[RECORDED] = str(error)
            continue
        weights.update(_WEIGHTS.findall(output))
        for i, (took, paused) in enumerate(_TOOK.findall(output)[WARM:]):
            row.samples.setdefault(NATIVE if paused else RECORDED, {})[i // 2] = float(took) * 1e3
        if len(weights) != 1:
            row.failures[RECORDED] = "other weights than in the first run"
    return rows


@dataclass
class _Loop:
    """One schedule. weights: the final weights of the runs."""

    setting: Setting
    schedule: str
    text_log: Path
    weights: set[str] = field(default_factory=set)

    @property
    def iterations(self) -> int:
        """Number of iterations of a run."""
        return max(WARM + 4, round(20 * self.setting.scale))

    @property
    def logs(self) -> Path:
        """Common prefix of the names of text logs."""
        return self.setting.work / f"textlog-{self.schedule}"

    def run(self, variant: str) -> str:
        """Output of pipeline.py with one recorder."""
        found = self.setting.tools
        hidden = "512" if self.setting.scale >= 1 else "64"
        options = [
            "--schedule",
            self.schedule,
            "--iterations",
            str(self.iterations),
            "--layers",
            "4",
            "--hidden",
            hidden,
            "--batch",
            "64",
        ]
        program: list[str | Path] = [found.python, found.sources / "trace" / "pipeline.py"]
        if variant == TEXT:
            program = ["env", f"LD_PRELOAD={self.text_log}", f"TEXTLOG={self.logs}", *program]
        elif variant in (PROFILER, STRAGGLER):
            program = [found.python, found.sources / "trace" / "recorders.py", variant]
        else:
            return self.setting.variant(variant, RANKS, [*program, *options], OPENBLAS_NUM_THREADS="1")
        return self.setting.variant(NATIVE, RANKS, [*program, *options], OPENBLAS_NUM_THREADS="1")

    def read(self, output: str) -> Iterator[Sample]:
        """The median iteration of a run. Raises BenchError if it ends with other weights than earlier runs."""
        took = [float(text) * 1e3 for text, _ in _TOOK.findall(output)][WARM:]
        self.weights.update(_WEIGHTS.findall(output))
        if not took or len(self.weights) != 1:
            raise BenchError("other weights than in the first run" if took else "no iterations")
        yield "iteration", "ms", statistics.median(took)

    def rows(self, part: Part) -> list[Row]:
        """One row for each recorder: with it (RECORDED) and without (NATIVE)."""
        measured = Rows("overhead")
        compare(
            measured,
            self.setting,
            (NATIVE, *NAMES),
            RANKS,
            (),
            group="iteration",
            run=self.run,
            read=self.read,
            part=part,
        )
        (row,) = measured.all()
        rows = [
            self._pair(row, name, NATIVE, variant, GOAL if variant == RECORDED else "")
            for variant, name in NAMES.items()
        ]
        rows.append(self._pair(row, "what records cost under manapy-launch", UNTRACED, CLOCK, GOAL))
        rows[-1].baseline = "--no-trace"
        if (count := row.samples.get(TEXT)) is not None:
            lines = sum(len(path.read_text().splitlines()) for path in self.logs.parent.glob(f"{self.logs.name}.*"))
            samples = {RECORDED: {0: lines / (RANKS * self.iterations * len(count))}}
            rows.append(Row("overhead", f"{self.schedule}: MPI calls of a rank in an iteration", "", samples=samples))
        return rows

    def _pair(self, row: Row, name: str, without: str, recorder: str, goal: str) -> Row:
        pair = Row("overhead", f"{self.schedule}: {name}", row.unit, goal=goal)
        for its, ours in ((without, NATIVE), (recorder, RECORDED)):
            if its in row.samples:
                pair.samples[ours] = row.samples[its]
            if its in row.failures:
                pair.failures[ours] = row.failures[its]
        return pair
