"""tools/matrix: runs the cells, prints the table, and exits with 1 if a cell fails."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from applications import place
from applications.results import ResultError
from launchers import LAUNCHERS, Launcher
from rich.console import Console

from manapy.cli.shared.arguments import add_renamed

from . import table
from .cells import Cell, native, run
from .programs import KNOWN, Program

Chosen = tuple[Program, Launcher, Launcher]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="matrix",
        description="Programs of each binary interface, launched under each MPI and restarted under each MPI",
        epilog=f"MPIs: {', '.join(f'{mpi.name} ({mpi.title})' for mpi in LAUNCHERS)}. "
        f"Programs: {', '.join(program.name for program in KNOWN)}.",
    )
    add = parser.add_argument
    add(
        "--only",
        metavar="PROGRAM:LAUNCH:RESTART",
        action="append",
        help="cells; each part is a name or empty for all, for example 'C for MPICH:intelmpi:'; several times for more",
    )
    add("--limit", type=float, default=120.0, metavar="S", help="seconds for one step of a cell (default 120)")
    add(
        "--results",
        metavar="DIR",
        type=Path,
        help="make the directories of the cells in DIR, and keep those of cells that fail",
    )
    add_renamed(parser, "--dir", "--results")
    add("--json", type=Path, metavar="FILE", help="write all cells to FILE, after each cell")
    add("--markdown", type=Path, metavar="FILE", help="write the table to FILE, too")
    options = parser.parse_args(argv)
    try:
        options.cells = chosen(options.only or ["::"])
    except ValueError as error:
        parser.error(str(error))
    return options


def chosen(only: Sequence[str]) -> list[Chosen]:
    """The cells that match one of the patterns, in the order of the table. ValueError: a pattern is wrong."""
    programs, mpis = {one.name: one for one in KNOWN}, {one.name: one for one in LAUNCHERS}
    found = set()
    for pattern in only:
        parts = pattern.split(":")
        if len(parts) != 3:
            raise ValueError(f"--only {pattern!r}: give PROGRAM:LAUNCH:RESTART")
        for part, names in zip(parts, (programs, mpis, mpis), strict=True):
            if part and part not in names:
                raise ValueError(f"--only: {part!r} is none of {', '.join(names)}")
        choices = ([part] if part else names for part, names in zip(parts, (programs, mpis, mpis), strict=True))
        found.update(itertools.product(*choices))
    every = itertools.product(programs, mpis, mpis)
    return [(programs[a], mpis[b], mpis[c]) for a, b, c in every if (a, b, c) in found]


def cells(wanted: Sequence[Chosen], base: Path, limit: float, said: Console) -> Iterator[Cell]:
    """Run the cells. What is not installed is named once and has none."""
    for missing in dict.fromkeys(mpi for _, *pair in wanted for mpi in pair if not mpi.is_there):
        said.print(f"without {missing.title}: {missing.install}", soft_wrap=True)
    here = [cell for cell in wanted if cell[1].is_there and cell[2].is_there]
    for number, (program, group) in enumerate(itertools.groupby(here, lambda cell: cell[0])):
        if program.missing:
            said.print(f"without {program.name}: {program.missing}", soft_wrap=True)
            continue
        folder = base / f"program-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        pairs = [(launch, restart) for _, launch, restart in group]
        said.print(f"{program.name}: native run", soft_wrap=True)
        try:
            command = program.build(folder)
            expected = native(program, command, folder / "native", limit)
        except ResultError as error:
            yield from (Cell(program.name, a.title, b.title, 0.0, str(error)) for a, b in pairs)
            continue
        for launch, restart in pairs:
            said.print(f"{program.name}: {launch.title} to {restart.title}", soft_wrap=True)
            where = folder / f"{launch.name}-{restart.name}"
            yield run(program, command, (launch, restart), expected, where, limit)


def main(argv: list[str] | None = None) -> int:
    """argv: as in main() of argparse."""
    options = arguments(argv)
    console, said = Console(), Console(stderr=True)
    base = place.make(options.results, "matrix")
    shown: list[Cell] = []
    for cell in cells(options.cells, base, options.limit, said):
        shown.append(cell)
        if cell.cause:
            said.print(f"  {cell.cause}", soft_wrap=True, markup=False)
        if options.json:
            table.write(shown, options.json)
    if not shown:
        said.print("matrix: no cell can run here")
        return 1
    table.show(shown, console)
    if options.markdown:
        options.markdown.write_text(table.markdown(shown))
    wrong = bool(table.failures(shown))
    place.leave(base, wrong or options.results is not None, console, "the directories of failed cells")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
