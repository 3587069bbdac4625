"""Measure what manapy costs here: run the same programs natively, under two-phase commit (2pc) and under the collective
clock (cc).

The three kinds of runs alternate. The table shows medians over all rounds. Differences and ratios are computed per
round, and shown as their median and its 95 % bootstrap interval. If the interval contains 0 (or 1), the runs cannot be
distinguished here. With fewer than six rounds there is no such interval; the table then shows the least and the
greatest value, which do not say whether the runs can be distinguished.

The command needs an otherwise idle machine, a C compiler and the mpi.h of the MPI in use. It writes every sample
(result.json) and pictures into a folder. Figures and tables of the jobs below are those of the paper "Enabling
Practical Transparent Checkpointing for MPI: A Topological Sort Approach" (arXiv:2408.02218).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..shared import arguments
from ..shared.output import Output

if TYPE_CHECKING:
    from ...bench import Row
    from ...bench.shared.tools import Tools

FULL: dict[str, Any] = {
    "pairs": 7,
    "ms": 50.0,
    "megabytes": 500,
    "scale": 1.0,
    "simulated": 4096,
    "storm": 200,
    "seed": 1,
    "minutes": 10,
}
QUICK: dict[str, Any] = {
    "pairs": 1,
    "ms": 0.5,
    "megabytes": 2,
    "scale": 0.01,
    "simulated": 64,
    "storm": 3,
    "minutes": 0.05,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    from ...bench import JOBS

    lines = [f"  {name:<12} {job.title}, {job.seconds:.0f} s" for name, job in JOBS.items()]
    parser.epilog = "\n".join(["measurements, with their approximate time on two processors:", *lines])
    add = parser.add_argument
    add(
        "what", nargs="?", choices=["shift", "trace", "fcdp", "scale", "images", "loop"],
        metavar="shift|trace|fcdp|scale|images|loop",
        help="shift: RDMA traffic while NICs fail, in a virtual machine (measurements verbs to training); "
        "trace: how well hung and slow ranks are found, and at what cost (measurements hangs to healthy); "
        "fcdp: bytes, memory and time of sharded training on emulated nodes (measurements fcdp-...); "
        "scale: checkpoints of very many ranks, which are stubs (measurement scale); "
        "images: ways to write and to read images (measurements images and dmtcp); "
        "loop: jobs under `manapy run` while faults happen, and healthy ones (measurements loop and untouched) "
        "(default: all others, scale and images)",
    )  # fmt: skip
    add("--only", metavar="MEASUREMENT,...", type=_jobs, help="run only these of the measurements below")
    add("--quick", action="store_true", help="only check that everything runs; the figures mean nothing")
    add(
        "--pairs",
        metavar="N",
        type=arguments.positive,
        help="interleaved native/2pc/cc rounds of each program (default: 7; half for large images)",
    )
    add("--ms", metavar="MS", type=arguments.positive, help="milliseconds for each figure inside one run (default: 50)")
    add("--megabytes", metavar="MB", type=arguments.positive, help="data per rank in the largest image (default: 500)")
    add(
        "--simulated",
        metavar="N",
        type=arguments.positive,
        help="measurements messages and scale: largest number of ranks (default: 4096; 100000 takes 10 minutes more)",
    )
    arguments.add_file_system(
        parser, "write images to this directory; its file system is measured (default: here)", Path()
    )
    add(
        "--out",
        metavar="DIR",
        type=Path,
        help="write result.json and the pictures to folder DIR (default: manapy-bench-<time>-<host>/ here)",
    )
    add("--storm", metavar="N", type=arguments.positive, help="measurement storm: number of failures (default: 200)")
    add(
        "--seed",
        metavar="N",
        type=arguments.positive,
        help="measurement storm: first seed, one for every 20 failures; also the first one of loop, and the seed of "
        "simulated training jobs (default: 1)",
    )
    add(
        "--minutes",
        metavar="N",
        type=arguments.positive,
        help="measurements healthy and untouched: minutes for which jobs are watched (default: 10)",
    )
    add(
        "--imb",
        metavar="PATH",
        type=Path,
        help="measurement imb: the wheel of impi-rt, or a folder with IMB-MPI1 etc. (default: pip downloads it once, "
        "130 MB)",
    )
    add(
        "--timeout",
        metavar="TIME",
        type=arguments.seconds,
        default=120.0,
        help="time limit of one command, such as 90s or 5m (default: 2m)",
    )
    add("--json", action="store_true", help="print the content of result.json instead of the table")


def run(options: argparse.Namespace, out: Output) -> int:
    """Measure, print, write. Returns 1 if a measured command failed, or if nothing could be measured."""
    from ...bench.shared import machine, report, tools
    from ...core.errors import ManapyError

    for path in (options.file_system, options.imb):
        if path is not None and not path.exists():
            raise ManapyError(f"{path}: no such file or directory")
    found = tools.find()
    os.environ["MANAPY_CONFIG"] = "off"  # figures of manapy's own defaults
    where = options.out or Path(f"manapy-bench-{time.strftime('%Y%m%d-%H%M%S')}-{platform.node()}")
    if (where / "result.json").exists():  # a run may have taken hours
        raise ManapyError(f"{where} has the results of another run: name another folder with --out")
    before = _files(where)
    figures = _Figures(_values(options), machine.facts(found, options.file_system.resolve()))
    _measure(figures, options, found, where, out)
    result = figures.result()
    _write(figures, result, where, out)
    out.data(result)
    for name, why in figures.left_out.items():
        out.note(f"manapy bench: {name} is left out: {why}")
    failures = report.failures(figures.rows)
    for line in failures:
        out.error(line)
    written = [path for path, stamp in _files(where).items() if before.get(path) != stamp]
    out.note(f"written: {', '.join(map(str, written))}")
    if figures.interrupted:
        out.error("interrupted: what was measured until then is above")
    return 1 if figures.interrupted or failures or not figures.rows else 0


def _files(where: Path) -> dict[Path, int]:
    """The files in a folder, in the order of their names, and when each was written. Empty without a folder."""
    return {path: path.stat().st_mtime_ns for path in sorted(where.glob("*")) if path.is_file()}


@dataclass
class _Figures:
    """What was measured. left_out: why, by measurement. seconds: that each took. interrupted: not all were run."""

    values: dict[str, Any]
    facts: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False

    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        from ...bench.shared import report

        return report.record(self.rows, self.left_out, self.seconds, self.facts, self.values)


def _names(options: argparse.Namespace) -> list[str]:
    """The measurements that were asked for."""
    from ...bench import FCDP_JOBS, JOBS, LOOP_JOBS, SHIFT_JOBS, TRACE_JOBS

    apart = TRACE_JOBS + FCDP_JOBS + LOOP_JOBS
    groups: dict[str | None, list[str]] = {
        "shift": SHIFT_JOBS,
        "trace": TRACE_JOBS,
        "fcdp": FCDP_JOBS,
        "scale": ["scale"],
        "images": ["images", "dmtcp"],
        "loop": LOOP_JOBS,
        None: [name for name, job in JOBS.items() if not job.guest and name not in apart],
    }
    return options.only or groups[options.what]


def _values(options: argparse.Namespace) -> dict[str, Any]:
    """How much is measured."""
    values = {**FULL, **(QUICK if options.quick else {})}
    return values | {name: given for name in values if (given := getattr(options, name, None)) is not None}


def _measure(figures: _Figures, options: argparse.Namespace, found: Tools, where: Path, out: Output) -> None:
    """Run all measurements, until Ctrl-C."""
    from ...bench import FCDP_JOBS, JOBS, LOOP_JOBS, TRACE_JOBS, Guest, Setting, measure
    from ...bench.shared import tools

    values, names = figures.values, _names(options)
    work = Path(tempfile.mkdtemp(prefix="manapy-bench-", dir=options.file_system)).resolve()
    guest = Guest(found, work)
    total, done = sum(JOBS[name].seconds for name in names), 0.0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `finally` ends all processes and removes nodes
    try:
        if not set(names) <= {*TRACE_JOBS, *FCDP_JOBS, *LOOP_JOBS}:
            tools.compile_programs(found, work)
        where.mkdir(parents=True, exist_ok=True)
        with out.progress() as show:
            for name in names:

                def progress(fraction: float, text: str, name: str = name) -> None:
                    show((done + fraction * JOBS[name].seconds) / total, f"{name}: {text}")

                setting = Setting(
                    work=work, tools=found, rounds=values["pairs"], ms=values["ms"], megabytes=values["megabytes"],
                    scale=values["scale"],
                    simulated=values["simulated"], limit=options.timeout, imb=options.imb and options.imb.resolve(),
                    guest=guest,
                    storm=values["storm"], seed=values["seed"], minutes=values["minutes"], pictures=where,
                    progress=progress,
                )  # fmt: skip
                begin = time.monotonic()
                figures.rows += measure(name, setting, figures.left_out)
                figures.seconds[name] = time.monotonic() - begin
                done += JOBS[name].seconds
    except KeyboardInterrupt:
        figures.interrupted = True
    finally:
        guest.close()
        shutil.rmtree(work, ignore_errors=True)


def _write(figures: _Figures, result: dict[str, Any], where: Path, out: Output) -> None:
    """Write the results and the pictures, and print the table."""
    from ...bench.shared import plots, report

    facts = figures.facts
    report.write(where, result)
    title = (
        f"{facts['cpu']}; {facts['memory']}; Linux {facts['kernel']}; {facts['file system']}; {facts['mpi']}; manapy "
        f"{facts['manapy']}"
    )
    if plots.available():
        plots.draw(figures.rows, where, title)
    else:
        out.note("manapy bench: no pictures: matplotlib is not installed (manapy's extra 'bench')")
    _show(out, figures.rows, f"{title}; load before: {facts['load before']}")


def _show(out: Output, rows: list[Row], title: str) -> None:
    from ...bench import JOBS
    from ...bench.shared import report

    out.line(title)
    for name in JOBS:
        if chosen := [row for row in rows if row.job == name]:
            out.line("")
            out.table(report.columns(chosen), report.lines(chosen), title=f"{name}: {JOBS[name].title}")


def _jobs(text: str) -> list[str]:
    from ...bench import JOBS

    names = text.split(",")
    if unknown := [name for name in names if name not in JOBS]:
        raise argparse.ArgumentTypeError(f"no measurement '{unknown[0]}' (there are {', '.join(JOBS)})")
    return list(dict.fromkeys(names))
