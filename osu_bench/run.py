"""The benchmarks: what manapy costs, against the same thing without it.

    python osu_bench/run.py [--only JOB,JOB] [--pairs N] [--out] [--quick]

Prints a table, and with --out writes all samples to osu_bench/results/<date>-<host>.json. README.md tells how to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import calls
import images
import machine
import startup
from commands import SOURCES, BenchError, Setting, compile_programs
from rich.console import Console
from rich.table import Table
from samples import Estimate, Row

JOBS: dict[str, Callable[[Setting], list[Row]]] = {
    "calls": calls.one_rank,
    "latency": calls.two_ranks,
    "startup": startup.start,
    "small": images.small,
    "large": images.large,
}


def main() -> int:
    """0; 1 if a command failed."""
    options = _arguments()
    notes = Console(stderr=True)
    work = Path(tempfile.mkdtemp(prefix="osu_bench-", dir=options.dir))
    setting = Setting(work, *((2, 3, 2) if options.quick else (options.pairs, options.batches, options.megabytes)))
    facts = machine.facts(work)
    rows: list[Row] = []
    try:
        compile_programs(work)
        for name in options.only:
            with notes.status(f"{name} ..."):
                rows += JOBS[name](setting)
    except BenchError as error:
        notes.print(f"run.py: {error}", markup=False, highlight=False)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    Console(width=None if sys.stdout.isatty() else 180).print(_table(rows, setting, facts))
    if options.out is not None:
        path = _write(options.out, rows, setting, facts)
        notes.print(f"written: {path}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="JOBS", type=_jobs, default=list(JOBS), help=f"comma-separated, of: {', '.join(JOBS)}")
    parser.add_argument("--pairs", type=int, default=15, metavar="N", help="interleaved native/manapy pairs per row (default: 15; half for large images)")
    parser.add_argument("--batches", type=int, default=200, metavar="N", help="samples inside one run of calls (a fifth for latency; default: 200)")
    parser.add_argument("--megabytes", type=int, default=500, metavar="MB", help="random data per rank in job 'large' (default: 500)")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where images are written: its file system is measured (default: here)")
    parser.add_argument("--out", nargs="?", const=SOURCES / "results", default=None, type=Path, metavar="PATH", help="write a result file (folder or file; default: osu_bench/results)")
    parser.add_argument("--quick", action="store_true", help="only show that everything runs; the figures mean nothing")
    return parser.parse_args()


def _jobs(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in JOBS]:
        raise argparse.ArgumentTypeError(f"no job {unknown[0]!r}")
    return names


def _table(rows: list[Row], setting: Setting, facts: dict[str, str]) -> Table:
    title = f"{facts['cpu']}; {facts['memory']}; Linux {facts['kernel']}; {facts['file system']}; {facts['mpi']}; manapy {facts['manapy']} ({facts['commit']}); load before: {facts['load before']}"
    table = Table(title=title, title_justify="left", title_style="dim", header_style="bold")
    for column, justify in (("what", "left"), ("baseline", "right"), ("manapy", "right"), ("difference [95 %]", "right"), ("ratio [95 %]", "right"), ("goal", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    job = ""
    for row in rows:
        if row.job != job:
            job = row.job
            table.add_section()
            table.add_row(f"[bold]{job}[/bold]")
        difference, ratio = row.difference, row.ratio
        table.add_row(row.name, _median(row.native, row), _median(row.manapy, row), _difference(difference, row.unit), _ratio(ratio), row.goal)
    table.caption = f"medians of {setting.pairs} interleaved pairs; difference and ratio are formed pair by pair, with the 95 % bootstrap interval of their median"
    return table


def _median(values: list[float], row: Row) -> str:
    if not values:
        return ""
    text = _number(statistics.median(values), row.unit)
    return text if values is row.manapy or row.baseline == "native" else f"{text} ({row.baseline})"


def _number(value: float, unit: str, sign: str = "") -> str:
    if unit == "ns" and abs(value) >= 100_000:
        return f"{value / 1000:{sign}.1f} µs"
    return f"{value:{sign}.{3 if unit == 's' else 1}f} {unit}"


def _difference(e: Estimate | None, unit: str) -> str:
    return "" if e is None else f"{_number(e.median, unit, '+')} [{_number(e.low, unit, '+')}, {_number(e.high, unit, '+')}]"


def _ratio(e: Estimate | None) -> str:
    return "" if e is None else f"{e.median:.2f} [{e.low:.2f}, {e.high:.2f}]"


def _write(where: Path, rows: list[Row], setting: Setting, facts: dict[str, str]) -> Path:
    now = datetime.datetime.now().astimezone()
    path = where if where.suffix == ".json" else where / f"{now:%Y-%m-%d}-{platform.node()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "time": now.isoformat(timespec="seconds"),
        "machine": facts,
        "setting": {"pairs": setting.pairs, "batches": setting.batches, "megabytes": setting.megabytes},
        "rows": [{**dataclasses.asdict(row), "difference": _plain(row.difference), "ratio": _plain(row.ratio)} for row in rows],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def _plain(e: Estimate | None) -> dict[str, float] | None:
    return None if e is None else dataclasses.asdict(e)


if __name__ == "__main__":
    sys.exit(main())
