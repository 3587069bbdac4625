"""A small training job (osu_bench/rdma/train.py) on two hosts while their rail fails: the five cases of the SHIFT
paper's section 5.2, and its Figure 10.

As in the paper: 4 epochs, a checkpoint after each, and the failure after 1.78 epochs. MPI runs over verbs (UCX on
Soft-RoCE). Progress is measured: how many steps must be repeated, and how long nothing advances. All runs must end with
the same weights, bit for bit.
"""

from __future__ import annotations

import csv
import importlib.util
import itertools
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..shared import plots
from ..shared.commands import BenchError, LeftOutError, Setting
from ..shared.samples import NATIVE, SHIFT, Row, Rows

EPOCHS, STEPS, FAILS_AFTER = 4, 40, 1.78  # steps of an epoch; epochs
PAUSE = 0.03  # seconds of each step in which a larger network would compute
FLAP = 4.0  # seconds for which the rail is down; the program without SHIFT ends after about two
BUSY = ("ib_write_bw", "-F", "-x", "1", "-s", "16384", "-t", "4", "-D", "1", "--run_infinitely")  # on the backup
_ports = itertools.count(19500)


@dataclass(frozen=True)
class Case:
    """`busy`: other traffic on the backup. `after`: the reaction to the failure (None: there is no failure)."""

    name: str
    variant: str
    busy: bool
    after: Callable[[_Attempts], None] | None


@dataclass
class Run:
    """One case. points: seconds since the first step, and number of steps done; saved: the same for checkpoints; cut,
    repaired: seconds; weights: a digest."""

    case: Case
    points: list[tuple[float, int]] = field(default_factory=list)
    saved: list[tuple[float, int]] = field(default_factory=list)
    cut: float | None = None
    repaired: float | None = None
    weights: str = ""

    @property
    def again(self) -> int:
        """Number of steps that were repeated."""
        return sum(max(0, before - after + 1) for (_, before), (_, after) in itertools.pairwise(self.points))

    @property
    def standstill(self) -> float:
        """The longest time between a step and the next one that had not been done before."""
        first: dict[int, float] = {}
        for moment, step in self.points:
            first.setdefault(step, moment)
        return max(later - earlier for earlier, later in itertools.pairwise(first.values()))


class _Attempts:
    """The processes of one case, in sequence."""

    def __init__(self, setting: Setting, vm: Any, case: Case, directory: Path) -> None:
        self._setting, self._vm, self._case, self._directory = setting, vm, case, directory
        self._steps = max(5, round(STEPS * min(setting.scale, 1)))
        self._processes: list[Any] = []
        self.cut_at: float | None = None
        self.repaired_at: float | None = None

    @property
    def process(self) -> Any:
        """The running process."""
        return self._processes[-1]

    def start(self) -> None:
        """Start a process; it continues from the saved state."""
        env = self._setting.guest.environment(self._case.variant)
        options = [
            "--dir",
            self._directory,
            "--epochs",
            str(EPOCHS),
            "--steps",
            str(self._steps),
            "--pause",
            str(PAUSE),
        ]
        program = [self._setting.tools.python, self._setting.tools.sources / "rdma" / "train.py", *options]
        self._processes.append(
            self._setting.guest.part("mpi").start(self._vm, self._setting.tools.mpirun.parent, program, env=env)
        )

    def wait_protected(self) -> None:
        """Wait until both ranks have reported protection of the queue pairs between them and of those to themselves."""
        shift, vm = self._setting.guest.part("shift"), self._vm
        with vm.changed:
            vm.changed.wait_for(
                lambda: len(shift.events(self.process, "protected")) >= 4 or self.process.poll() is not None,
                self._setting.limit,
            )
        if len(shift.events(self.process, "protected")) < 4:
            raise BenchError("the connections of the training job are not protected")

    def wait_failure(self) -> None:
        """Wait until the time of the failure."""
        self.process.wait_for(f"step {int(FAILS_AFTER * self._steps)} ", self._setting.limit)

    def cut(self) -> None:
        """Make the rail fail."""
        self.cut_at = self._vm.cut(0)

    def repair(self) -> None:
        """Repair the rail."""
        self.repaired_at = self._vm.repair(0)

    def wait_saved(self) -> None:
        """Wait until the next checkpoint."""
        count = self.process.stdout.count("\nsaved ")
        self.process.wait_for(lambda text: text.count("\nsaved ") > count, self._setting.limit)

    def finish(self) -> Run:
        """Wait until the end; returns the whole run."""
        status = self.process.wait(self._setting.limit)
        text = "".join(process.stdout for process in self._processes)
        weights = re.search(r"^weights (\w+)$", text, re.M)
        if status or weights is None:
            raise BenchError(f"the training job ended with {status}: {_last(self.process)}")
        points, saved = (
            [(float(at), int(step)) for step, at in re.findall(rf"^{word} (\d+) .*?at ([\d.]+)$", text, re.M)]
            for word in ("step", "saved")
        )
        origin = points[0][0]
        cut, repaired = (None if at is None else at - origin for at in (self.cut_at, self.repaired_at))
        return Run(
            self._case,
            [(at - origin, step) for at, step in points],
            [(at - origin, step) for at, step in saved],
            cut,
            repaired,
            weights[1],
        )


def _dies(job: _Attempts) -> None:
    """The program ends. The rail is repaired, and the program is started again."""
    if job.process.wait() == 0:
        raise BenchError("the failure did not end the program, though nothing stood in for its rail")
    job.repair()
    job.start()


def _saves_and_ends(job: _Attempts) -> None:
    """Let the program continue on a busy backup until its next checkpoint. Then end it, and continue it over the
    repaired rail."""
    job.wait_saved()
    job.process.kill()
    job.repair()
    job.start()


def _stays(job: _Attempts) -> None:
    """The program stays on the backup to its end."""


def _flaps(job: _Attempts) -> None:
    """The rail comes back by itself."""
    time.sleep(FLAP)
    job.repair()


BASELINE = Case("no failure", NATIVE, False, None)
RESTART = Case("failure, checkpoint and restart", NATIVE, False, _dies)
CASES = (
    BASELINE,
    RESTART,
    Case("failure, busy backup", SHIFT, True, _saves_and_ends),
    Case("failure, idle backup", SHIFT, False, _stays),
    Case("flapping, busy backup", SHIFT, True, _flaps),
)


def training(setting: Setting) -> list[Row]:
    """For each case: seconds from the first step to the end, repeated steps and the longest standstill; one run of
    each."""
    if importlib.util.find_spec("mpi4py") is None:
        raise LeftOutError("no mpi4py (pip install mpi4py)")
    rows = Rows("training")
    runs: list[Run] = []
    for number, case in enumerate(CASES):
        setting.progress(number / len(CASES), case.name)
        try:
            with setting.guest.used(BUSY[0]) as vm:
                runs.append(_run(setting, vm, case))
        except BenchError as error:
            rows.fail(case.name, set(), case.variant, str(error))
            continue
        run = runs[-1]
        if run.weights != runs[0].weights:
            rows.fail(
                case.name, set(), case.variant, f"its weights at the end are {run.weights}, not {runs[0].weights}"
            )
        rows.add(f"{case.name}: to the end", "s", case.variant, 0, run.points[-1][0])
        rows.add(f"{case.name}: steps done again", "", case.variant, 0, run.again)
        if run.cut is not None:
            rows.add(f"{case.name}: no progress for", "s", case.variant, 0, run.standstill)
    _write(setting.pictures / "training.csv", runs)
    if plots.available() and runs:
        draw(runs, setting.pictures / "figure10-training.png")
    return rows.all()


def _run(setting: Setting, vm: Any, case: Case) -> Run:
    directory = setting.fresh("training")
    directory.mkdir()
    job = _Attempts(setting, vm, case, directory)
    try:
        if case.busy:
            _make_busy(setting, vm)
        job.start()
        if case.variant == SHIFT:
            job.wait_protected()
        if case.after is not None:
            job.wait_failure()
            job.cut()
            case.after(job)
        return job.finish()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make_busy(setting: Setting, vm: Any) -> None:
    """Start other traffic on rail 1, until all processes in the machine are ended."""
    port = next(_ports)
    command = [*BUSY, "-p", str(port)]
    vm.start([*command, "-d", "rxb1"])
    setting.guest.listening(port)
    vm.start([*command, "-d", "rxa1", "127.0.0.1"])


def _last(process: Any) -> str:
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip() and '"event":' not in line]
    return (lines or ["it says nothing"])[-1][:200]


def _write(path: Path, runs: Sequence[Run]) -> None:
    """Every step, as a table."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["case", "seconds since the first step", "steps done"])
        out.writerows([run.case.name, f"{moment:.3f}", step] for run in runs for moment, step in run.points)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Figure 10: a panel for each case with SHIFT, compared with the case without failure and the one without SHIFT."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [run for run in runs if run.case.variant == SHIFT]
    common = [
        (run, color)
        for run in runs
        for case, color in ((BASELINE, "#7f7f7f"), (RESTART, "#d95f02"))
        if run.case is case
    ]
    figure, axes = plt.subplots(
        1, max(len(shown), 1), figsize=(4.2 * max(len(shown), 1), 3.6), squeeze=False, sharey=True, layout="constrained"
    )
    for i, axis in enumerate(axes[0]):
        chosen = [*common, *((run, "#1b6ca8") for run in shown[i : i + 1])]
        for run, color in chosen:
            axis.plot(
                [moment for moment, _ in run.points],
                [step for _, step in run.points],
                color=color,
                lw=1.5,
                label=run.case.name + (", SHIFT" if run.case.variant == SHIFT else ""),
            )
        for step in sorted({step for run, _ in chosen for _, step in run.saved}):
            axis.axhline(step, color="#bbbbbb", lw=0.7, ls="--", zorder=0)
        for run, color in chosen[-1:]:
            for moment, text in ((run.cut, "failure"), (run.repaired, "repair")):
                if moment is not None:
                    axis.axvline(moment, color=color, lw=0.8, ls=":")
                    axis.annotate(
                        text,
                        (moment, 0.02),
                        xycoords=("data", "axes fraction"),
                        fontsize=6,
                        color=color,
                        rotation=90,
                        va="bottom",
                        ha="right",
                    )
        axis.set_xlabel("s since the first step (emulated)")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=7)
    axes[0][0].set_ylabel("steps done; dashed: checkpoints")
    figure.savefig(path, dpi=150)
    plt.close(figure)
