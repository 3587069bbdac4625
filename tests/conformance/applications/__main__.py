"""tools/applications: runs the applications, prints the table, and exits with 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launchers import MPICH, Launcher
from rich.console import Console

from manapy.cli.shared.arguments import add_renamed

from . import place, table
from .packages import install
from .programs import APPLICATIONS, OTHERS, Application
from .record import Record, Records
from .running import Settings, run


def arguments(argv: list[str] | None, names: list[str]) -> argparse.Namespace:
    """The command line. names: of all applications."""
    parser = argparse.ArgumentParser(
        prog="applications",
        description="Real MPI applications natively, under manapy, and through checkpoints, SIGKILL and restarts",
    )
    add = parser.add_argument
    add("--only", metavar="LIST", help=f"of {','.join(names)} (default: all)")
    add("--repeat", type=int, default=3, metavar="N", help="pairs of a native run and one under manapy (default 3)")
    add("--moments", type=int, default=3, metavar="N", help="checkpoints, kills and restarts of one run (default 3)")
    add("--limit", type=float, default=120.0, metavar="S", help="seconds for one run (default 120)")
    add("--seed", type=int, default=1, help="of the moments of checkpoints (default 1)")
    add("--no-install", action="store_true", help="install no Debian packages, also as root")
    add(
        "--results",
        metavar="DIR",
        type=Path,
        help="keep directories and results in DIR, or go on with those (default: a temporary one)",
    )
    add_renamed(parser, "--dir", "--results")
    add("--json", type=Path, metavar="FILE", help="keep the results in FILE, or go on with those")
    add("--markdown", type=Path, metavar="FILE", help="write the table to FILE, too")
    options = parser.parse_args(argv)
    options.only = options.only.split(",") if options.only else names
    if unknown := [name for name in options.only if name not in names]:
        parser.error(f"unknown application {unknown[0]!r}: choose of {', '.join(names)}")
    return options


def available(others: tuple[Launcher, ...]) -> list[Launcher]:
    """MPIs for restarts in turn: the one that has started the job, and the other ones that are here."""
    return [MPICH, *(mpi for mpi in others if mpi.is_there)]


def main(argv: list[str] | None = None, applications: tuple[Application, ...] = APPLICATIONS) -> int:
    """argv: as in main() of argparse. applications: those to choose from."""
    options = arguments(argv, [app.name for app in applications])
    console = Console()
    wanted = [app for app in applications if app.name in options.only]
    if not options.no_install:
        install(dict.fromkeys(package for app in wanted for package in app.packages))
    base = place.make(options.results, "applications")
    records = Records(options.json or base / "results.json")
    settings = Settings(available(OTHERS), options.repeat, options.moments, options.limit, options.seed)
    said = Console(stderr=True)
    for app in wanted:
        if app.name not in records.of or records.of[app.name].missing:
            records.add(run(app, base / app.name, settings, said.print))
    shown = [records.of[app.name] for app in wanted]
    return report(console, shown, {app.name: app.tolerance for app in wanted}, options, base)


def report(
    console: Console, shown: list[Record], tolerances: dict[str, float], options: argparse.Namespace, base: Path
) -> int:
    """Print the table. The exit code."""
    rows = table.rows(shown, tolerances)
    console.print(table.table(rows))
    if options.markdown:
        options.markdown.write_text(table.markdown(rows))
    wrong = any(not row.good for row in rows)
    place.leave(base, wrong or options.results is not None, console, "the directories of the runs")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
