"""Measure what manapy costs here: run the same programs natively, under two-phase commit (2pc) and under the collective
clock (cc).

The three kinds of runs alternate. The table shows medians over all rounds. Differences and ratios are computed per
round, and shown as their median and its 95 % bootstrap interval. If the interval contains 0 (or 1), the runs cannot be
distinguished here. The command needs an otherwise idle machine, a C compiler and the mpi.h of the MPI in use. It writes
every sample (result.json) and pictures. Figures and tables of the jobs below are those of the paper "Enabling Practical
Transparent Checkpointing for MPI: A Topological Sort Approach" (arXiv:2408.02218).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..shared import arguments
from ..shared.output import Output

if TYPE_CHECKING:
    from ...bench import Row

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
    parser.epilog = "\n".join(["jobs, with their approximate time on two processors:", *lines])
    add = parser.add_argument
    add(
        "what", nargs="?", choices=["shift", "trace", "fcdp", "scale", "images", "loop"],
        metavar="shift|trace|fcdp|scale|images|loop",
        help="shift: RDMA traffic while NICs fail, in a virtual machine (jobs verbs to training); "
        "trace: how well hung and slow ranks are found, and at what cost (jobs hangs to healthy); "
        "fcdp: bytes, memory and time of sharded training on emulated nodes (jobs fcdp-...); "
        "scale: checkpoints of very many ranks, which are stubs (job scale); "
        "images: ways to write and to read images (jobs images and dmtcp); "
        "loop: jobs under `manapy run` while faults happen, and healthy ones (jobs loop and untouched) "
        "(default: all other jobs, scale and images)",
    )  # fmt: skip
    add("--only", metavar="JOB,JOB", type=_jobs, help="run only these of the jobs below")
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
        help="job messages: largest number of ranks (default: 4096; 100000 takes 10 minutes more)",
    )
    arguments.add_file_system(
        parser, "write images to this directory; its file system is measured (default: here)", Path()
    )
    add(
        "--out",
        metavar="D",
        type=Path,
        help="write result.json and the pictures to D (default: manapy-bench-<date>-<host>/ here)",
    )
    add("--storm", metavar="N", type=arguments.positive, help="job storm: number of failures (default: 200)")
    add(
        "--seed",
        metavar="N",
        type=arguments.positive,
        help="job storm: first seed, one for every 20 failures; also the first one of job loop, and the seed of "
        "simulated training jobs (default: 1)",
    )
    add(
        "--minutes",
        metavar="N",
        type=arguments.positive,
        help="jobs healthy and untouched: minutes for which jobs are watched (default: 10)",
    )
    add(
        "--imb",
        metavar="PATH",
        type=Path,
        help="job imb: the wheel of impi-rt, or a folder with IMB-MPI1 etc. (default: pip downloads it once, 130 MB)",
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
    from ...bench import FCDP_JOBS, JOBS, LOOP_JOBS, SHIFT_JOBS, TRACE_JOBS, Guest, Setting, measure
    from ...bench.shared import machine, plots, report, tools
    from ...core.errors import ManapyError

    for path in (options.file_system, options.imb):
        if path is not None and not path.exists():
            raise ManapyError(f"{path}: no such file or directory")
    found = tools.find()
    os.environ["MANAPY_CONFIG"] = "off"  # figures of manapy's own defaults
    values = {
        "pairs": 7,
        "ms": 50.0,
        "megabytes": 500,
        "scale": 1.0,
        "simulated": 4096,
        "storm": 200,
        "seed": 1,
        "minutes": 10,
        **(QUICK if options.quick else {}),
    }
    values |= {name: given for name in values if (given := getattr(options, name, None)) is not None}
    where = options.out or Path(f"manapy-bench-{datetime.date.today()}-{platform.node()}")
    work = Path(tempfile.mkdtemp(prefix="manapy-bench-", dir=options.file_system)).resolve()
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    seconds: dict[str, float] = {}
    interrupted = False
    groups: dict[str | None, list[str]] = {
        "shift": SHIFT_JOBS,
        "trace": TRACE_JOBS,
        "fcdp": FCDP_JOBS,
        "scale": ["scale"],
        "images": ["images", "dmtcp"],
        "loop": LOOP_JOBS,
    }
    apart = TRACE_JOBS + FCDP_JOBS + LOOP_JOBS
    groups[None] = [name for name, job in JOBS.items() if not job.guest and name not in apart]
    names = options.only or groups[options.what]
    guest = Guest(found, work)
    total = sum(JOBS[name].seconds for name in names)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `finally` ends all processes and removes nodes
    done = 0.0
    try:
        facts = machine.facts(found, work)
        if not set(names) <= set(apart):
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
                rows += measure(name, setting, left_out)
                seconds[name] = time.monotonic() - begin
                done += JOBS[name].seconds
    except KeyboardInterrupt:
        interrupted = True
    finally:
        guest.close()
        shutil.rmtree(work, ignore_errors=True)
    result = report.record(rows, left_out, seconds, facts, values)
    written = [report.write(where, result)]
    title = (
        f"{facts['cpu']}; {facts['memory']}; Linux {facts['kernel']}; {facts['file system']}; {facts['mpi']}; manapy "
        f"{facts['manapy']}"
    )
    if plots.available():
        plots.draw(rows, where, title)
        written += sorted(where.glob("*.png"))
    else:
        out.note("manapy bench: no pictures: matplotlib is not installed (pip install 'manapy[bench]')")
    _show(out, rows, f"{title}; load before: {facts['load before']}")
    out.data(result)
    for name, why in left_out.items():
        out.note(f"manapy bench: {name} is left out: {why}")
    failures = report.failures(rows)
    for line in failures:
        out.error(line)
    out.note(f"written: {', '.join(str(path) for path in written)}")
    if interrupted:
        out.error("interrupted: what was measured until then is above")
    return 1 if interrupted or failures or not rows else 0


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
        raise argparse.ArgumentTypeError(f"no job '{unknown[0]}' (there are {', '.join(JOBS)})")
    return list(dict.fromkeys(names))
