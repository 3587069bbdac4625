"""The table of the matrix, for a terminal, as plain text and in Markdown; and the file of all cells."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .cells import Cell

HEAD = "program, launched under"


def rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """A row for each program: under each MPI at launch, how many restarts under how many MPIs were right."""
    return [(name, *(_count(cells, name, launch) for launch in launches(cells))) for name in _names(cells, "program")]


def launches(cells: Sequence[Cell]) -> list[str]:
    """The MPIs at launch: the columns."""
    return _names(cells, "launch")


def failures(cells: Sequence[Cell]) -> list[str]:
    """A line for each cell that fails, with its cause."""
    return [f"{one.program}, {one.launch} to {one.restart}: {one.cause}" for one in cells if one.cause]


def show(cells: Sequence[Cell], console: Console) -> None:
    """Print the table: with rules on a terminal, else as plain text."""
    if console.is_terminal:
        shown = Table(HEAD, *launches(cells))
        for row in rows(cells):
            shown.add_row(*row, style="red" if failures([one for one in cells if one.program == row[0]]) else None)
        console.print(shown)
    else:
        lines = [(HEAD, *launches(cells)), *rows(cells)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        for line in lines:
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            console.print(text.rstrip(), soft_wrap=True, markup=False, highlight=False)
    for text in (f"restarts under: {', '.join(_names(cells, 'restart'))}", *failures(cells)):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def markdown(cells: Sequence[Cell]) -> str:
    """The table in Markdown, with the cells that fail below it."""
    head = (HEAD, *launches(cells))
    lines = [f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *rows(cells))]
    return "\n".join([*lines, "", *(f"- {line}" for line in failures(cells))]).rstrip() + "\n"


def write(cells: Sequence[Cell], file: Path) -> None:
    """Keep all cells. The file is replaced by rename, so a reader always sees a complete one."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps([dataclasses.asdict(one) for one in cells], indent=1))
    part.rename(file)


def _count(cells: Sequence[Cell], program: str, launch: str) -> str:
    """3 of 5"""
    here = [one for one in cells if (one.program, one.launch) == (program, launch)]
    return f"{sum(not one.cause for one in here)} of {len(here)}" if here else ""


def _names(cells: Sequence[Cell], field: str) -> list[str]:
    """Without repetitions, in the order of the cells."""
    return list(dict.fromkeys(str(getattr(one, field)) for one in cells))
