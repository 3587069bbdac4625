"""Throughput of perftest's programs while a rail fails and comes back, with and without SHIFT; the paper's Figure 8.

Bytes are counted at the hosts' ports, so they include headers and retransmissions. The initiator is host a.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..shared import plots
from ..shared.commands import BenchError, Setting
from ..shared.samples import NATIVE, SHIFT, Row, Rows

FAILURES: dict[str, tuple[str, str | None] | None] = {  # how it fails, and for which host: guest/rails
    "no failure": None,
    "local NIC down": ("admin-down", "a"),
    "remote NIC down": ("admin-down", "b"),
    "switch": ("switch", None),
    "100 % loss": ("netem", None),
}
RAILS = (0, 1)
SAMPLE_MS = 100
HOLD = 3.0  # seconds of each stage
GIVES_UP = 20.0  # seconds for a program to notice
PERFTEST = ("-F", "-x", "1", "-s", "65536", "-t", "16", "-D", "1", "--run_infinitely")
BACKUP = "#66a61e"  # color of the backup's traffic
FLOWING = 1e5  # bytes: a connection has been made
_ports = itertools.count(19000)


@dataclass
class Run:
    """One run. times: seconds of the machine's clock; rates: for each time and rail, MB/s since the previous time. cut,
    repaired, fallback, back: when these events happened. ended: when the program ended with an error; said: its last
    output."""

    failure: str
    variant: str
    times: list[float] = field(default_factory=list)
    rates: list[tuple[float, ...]] = field(default_factory=list)
    cut: float | None = None
    fallback: float | None = None
    repaired: float | None = None
    back: float | None = None
    ended: float | None = None
    said: str = ""

    def mean(self, begin: float, end: float) -> float | None:
        """MB/s on all rails between two times; None if there is no sample between."""
        chosen = [sum(rates) for moment, rates in zip(self.times, self.rates, strict=True) if begin < moment <= end]
        return statistics.fmean(chosen) if chosen else None

    def flowing_again(self) -> float | None:
        """The time after the failure at which a fifth of the previous rate is reached again."""
        assert self.cut is not None
        usual = self.mean(self.cut - HOLD, self.cut) or 0
        later = zip(self.times, self.rates, strict=True)
        return next(
            (moment for moment, rates in later if moment > self.cut + SAMPLE_MS / 500 and rates[1] > usual / 5), None
        )


def throughput(program: str, setting: Setting) -> list[Row]:
    """MB/s before a failure, on the backup and afterwards, and the time without traffic. One run of each, which counts
    as seven rounds of other jobs."""
    rows = Rows(program)
    runs: list[Run] = []
    rounds = max(1, setting.rounds // 7)
    failures = FAILURES if setting.scale >= 0.1 else ("no failure", "switch")
    todo = [
        (number, failure, variant) for number in range(rounds) for failure in failures for variant in (NATIVE, SHIFT)
    ]
    for done, (number, failure, variant) in enumerate(todo):
        setting.progress(done / len(todo), f"{failure}, {variant}")
        sample = number * len(FAILURES) + list(FAILURES).index(failure)
        try:
            with setting.guest.used(program) as vm:
                runs.append(_run(setting, vm, program, failure, variant))
            _add(rows, runs[-1], number, sample)
        except BenchError as error:
            rows.fail(failure, set(), variant, str(error))
    _write(setting, program, runs)
    if plots.available() and runs:
        draw(runs, setting.pictures / f"figure8-{program}.png", program)
    return rows.all()


def _run(setting: Setting, vm: Any, program: str, failure: str, variant: str) -> Run:
    hold = HOLD * min(setting.scale, 1) if setting.scale >= 0.1 else 0.6
    run = Run(failure, variant)
    port = next(_ports)
    env = setting.guest.environment(variant) or {"LD_PRELOAD": str(setting.guest.program("give_up"))}
    carried = setting.guest.program("carried")
    command = [program, *PERFTEST, "-p", port]
    server = vm.start([*command, "-d", "rxb0"], env=env)
    setting.guest.listening(port)
    ports = [f"e{host}{rail}" for rail in RAILS for host in "ab"]
    counter = vm.start([carried, str(SAMPLE_MS), *ports])
    client = vm.start([*command, "-d", "rxa0", "127.0.0.1"], env=env)
    pair = setting.guest.part("pairs").Pair(server, client)
    shift = setting.guest.part("shift")
    counter.wait_for(lambda text: _carried_since_start(text) > FLOWING or client.poll() is not None)
    if variant == SHIFT:
        _await(setting, shift, pair, "protected")
    time.sleep(hold)
    how = FAILURES[failure]
    if how is None:
        time.sleep(2 * hold)
    else:
        run.cut = vm.cut(0, how[1], how=how[0])
        if variant == SHIFT:
            _await(setting, shift, pair, "fallback")
            time.sleep(hold)
        else:
            if _ends(client, GIVES_UP):
                run.ended = float(vm.run("cut -d' ' -f1 /proc/uptime").stdout)
            time.sleep(hold / 2)
        run.repaired = vm.repair(0)
        if variant == SHIFT:
            _await(setting, shift, pair, "return")
        time.sleep(hold)
    for process in (client, server):
        if process.poll() is not None:
            run.said = run.said or _last_words(process)
            if variant == SHIFT:
                raise BenchError(f"{program} ended: {_last_words(process)}")
    for process in (client, server, counter):
        process.kill()
    _read(run, counter.stdout)
    if variant == SHIFT and how is not None:
        run.fallback, run.back = (min(_when(process, name) for process in pair.both) for name in ("fallback", "return"))
    return run


def _await(setting: Setting, shift: Any, pair: Any, event: str) -> None:
    """Wait until both ends have reported the event. Raises BenchError with their output otherwise."""
    try:
        shift.wait_event(pair, event, timeout=setting.limit)
    except setting.guest.part("machine").VMError:
        ends = [("client", pair.client), ("server", pair.server)]
        said = [f"the {end} has ended: {_last_words(one)}" for end, one in ends if one.poll() is not None]
        silent = [
            f"the {end} has not said it within {setting.limit:.0f} s"
            for end, one in ends
            if not shift.count(one, event)
        ]
        raise BenchError(f"no {event}: {'; '.join(said or silent)}") from None


def _ends(process: Any, seconds: float) -> bool:
    """Return whether a process ends in this time. It may wait for ever, which is also a result."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return process.poll() is not None


def _last_words(process: Any) -> str:
    lines = [
        line.strip()
        for line in (process.stderr + "\n" + process.stdout).splitlines()
        if line.strip() and '"event":' not in line
    ]
    told = [line for line in lines if "error" in line.lower() or "status" in line.lower()]
    return (told or lines or [f"exit status {process.returncode}"])[-1][:200]


def _samples(text: str) -> Iterator[list[float]]:
    lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
    for line in lines:
        yield [float(word) for word in line.split()]


def _carried_since_start(text: str) -> float:
    samples = list(_samples(text))
    return sum(samples[-1][1:]) - sum(samples[0][1:]) if samples else 0


def _read(run: Run, text: str) -> None:
    before: list[float] | None = None
    for sample in _samples(text):
        if before is not None and sample[0] - before[0] < SAMPLE_MS / 2000:
            continue  # the previous sample was late: the time is too short for a rate
        if before is not None:
            moved = [
                (now - then) / (sample[0] - before[0]) / 1e6 for now, then in zip(sample[1:], before[1:], strict=True)
            ]
            run.times.append(sample[0])
            run.rates.append(tuple(moved[2 * i] + moved[2 * i + 1] for i in range(len(RAILS))))
        before = sample


def _when(process: Any, name: str) -> float:
    """The machine's time of its first event with this name."""
    line = next(line for line in process.stderr.splitlines() if f'"event":"{name}"' in line)
    return float(line.removeprefix("manapy shift: ").split()[0])


def _add(rows: Rows, run: Run, number: int, sample: int) -> None:
    if run.cut is None:
        begin = run.times[0] + (run.times[-1] - run.times[0]) / 3
        _value(rows, "before a failure", "MB/s", run.variant, sample, run.mean(begin, run.times[-1]))
        return
    _value(
        rows, "before a failure", "MB/s", run.variant, sample, run.mean(run.cut - HOLD / 2, run.cut - SAMPLE_MS / 1000)
    )
    if run.variant == NATIVE:
        _value(
            rows,
            f"{run.failure}: ends with an error after",
            "s",
            NATIVE,
            number,
            None if run.ended is None else run.ended - run.cut,
        )
        return
    assert run.fallback is not None and run.back is not None and run.repaired is not None
    again = run.flowing_again()
    _value(rows, f"{run.failure}: no traffic for", "s", SHIFT, number, None if again is None else again - run.cut)
    _value(
        rows,
        f"{run.failure}: on the backup",
        "MB/s",
        SHIFT,
        number,
        run.mean(run.fallback + SAMPLE_MS / 1000, run.repaired),
    )
    _value(rows, f"{run.failure}: repair to return", "s", SHIFT, number, run.back - run.repaired)
    _value(
        rows,
        f"{run.failure}: after the return",
        "MB/s",
        SHIFT,
        number,
        run.mean(run.back + SAMPLE_MS / 1000, run.times[-1]),
    )


def _value(rows: Rows, name: str, unit: str, variant: str, number: int, value: float | None) -> None:
    if value is not None:
        rows.add(name, unit, variant, number, value)


def _write(setting: Setting, program: str, runs: Sequence[Run]) -> None:
    """Every sample, as a table."""
    with (setting.pictures / f"{program}.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["failure", "variant", "seconds since the failure", *(f"rail {rail}, MB/s" for rail in RAILS)])
        for run in runs:
            origin = run.cut if run.cut is not None else run.times[0]
            out.writerows(
                [run.failure, run.variant, f"{moment - origin:.3f}", *(f"{rate:.3f}" for rate in rates)]
                for moment, rates in zip(run.times, run.rates, strict=True)
            )


def draw(runs: Sequence[Run], path: Path, title: str) -> None:
    """SHIFT's Figure 8: throughput while a rail fails and comes back; a panel for each failure, natively above and with
    SHIFT below."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    failures = list(dict.fromkeys(run.failure for run in runs))
    figure, axes = plt.subplots(
        2, len(failures), figsize=(3 * len(failures), 5), squeeze=False, sharey=True, layout="constrained"
    )
    shown: dict[tuple[str, str], Run] = {}
    for run in runs:
        shown.setdefault((run.failure, run.variant), run)
    for (failure, variant), run in shown.items():
        axis = axes[int(variant == SHIFT)][failures.index(failure)]
        origin = run.cut if run.cut is not None else run.times[0]
        moments = [moment - origin for moment in run.times]
        for rail, color in enumerate((plots.COLORS[variant], BACKUP)):
            axis.fill_between(
                moments,
                [rates[rail] for rates in run.rates],
                step="pre",
                color=color,
                alpha=0.8,
                lw=0,
                label="rail of its own" if rail == 0 else "backup",
            )
        for moment, color, text in ((run.cut, "#d00000", "failure"), (run.repaired, "#008000", "recovery")):
            if moment is not None:
                axis.axvline(moment - origin, color=color, lw=1, ls="--")
                axis.annotate(
                    text,
                    (moment - origin, 1),
                    xycoords=("data", "axes fraction"),
                    fontsize=6,
                    color=color,
                    rotation=90,
                    va="top",
                    ha="right",
                )
        if run.cut is not None and variant == NATIVE:
            axis.text(
                0.98,
                0.6,
                f"ends:\n{run.said[:60]}" if run.ended else "neither ends\nnor goes on",
                transform=axis.transAxes,
                fontsize=5,
                ha="right",
            )
        axis.set_title(f"{failure}, {plots.LABELS[variant]}", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1][0].legend(frameon=False, fontsize=6)
    for row in axes:
        row[0].set_ylabel("MB/s at the ports")
    for axis in axes[-1]:
        axis.set_xlabel("s since the failure", fontsize=8)
    figure.suptitle(f"{title}, emulated", fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
