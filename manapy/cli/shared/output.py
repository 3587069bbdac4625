"""Output of commands: rich tables and bars on a terminal, plain text in a pipe, JSON on request.

Results go to `file` (stdout), progress and errors to `err` (stderr), so that `$(manapy checkpoint)` is a path. rich is
imported only when something is drawn on a terminal: its import costs more than all the rest of `manapy status`.

A result that cannot be written is an error. An error or a remark that cannot be written, because a disk is full, is
ignored: a supervisor must survive this.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence

from ...core.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TextIO


class Output:
    """Where and how results are shown."""

    def __init__(self, json: bool = False, file: TextIO | None = None, err: TextIO | None = None) -> None:
        self.json = json
        self.file = file if file is not None else sys.stdout
        self.err = err if err is not None else sys.stderr
        if isinstance(self.file, io.TextIOWrapper):  # a path that is not UTF-8 is printed as its bytes are
            self.file.reconfigure(errors="surrogateescape")

    def line(self, text: str) -> None:
        """Print one line of result; nothing with --json."""
        if not self.json:
            print(text, file=self.file, flush=True)

    def data(self, value: Any) -> None:
        """Print the result as JSON, only with --json."""
        if self.json:
            print(json.dumps(value, indent=2, default=str), file=self.file, flush=True)

    def error(self, text: str) -> None:
        """Print an error, in one line."""
        self.note(f"manapy: {text}")

    def note(self, text: str) -> None:
        """Print a remark that is not part of the result."""
        with contextlib.suppress(OSError):
            print(text, file=self.err, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
        """Print a table; numbers are right-aligned. Prints nothing with --json."""
        if self.json:
            return
        right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
        cells = [[str(cell) for cell in row] for row in rows]
        if not self.file.isatty():
            self._plain_table(columns, cells, right, title)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left", header_style="bold")
        for column, numeric in zip(columns, right, strict=True):
            table.add_column(column, justify="right" if numeric else "left")
        for row in cells:
            table.add_row(*[Text(cell, style=_STYLES.get(cell, "")) for cell in row])
        Console(file=self.file).print(table)

    def _plain_table(self, columns: Sequence[str], cells: list[list[str]], right: list[bool], title: str) -> None:
        if title:
            print(title, file=self.file)
        for line in aligned([list(columns), *cells], right):
            print(line, file=self.file)
        self.file.flush()

    @contextlib.contextmanager
    def bar(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar over `total` bytes, only on a terminal. Yields a function to call with each number of bytes
        done."""
        if self.json or not self.err.isatty():
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(file=self.err), transient=True) as progress:
            task = progress.add_task(description, total=total)
            yield lambda done: progress.advance(task, done)

    @contextlib.contextmanager
    def progress(self, terminal: bool | None = None) -> Iterator[Callable[[float, str], None]]:
        """A progress bar for any work, only on a terminal.

        Yields a function to call with the fraction done (0 to 1) and a text. terminal: whether `err` appears on one, if
        isatty() cannot tell (terminal.py).
        """
        if self.json or not (self.err.isatty() if terminal is None else terminal):
            yield lambda fraction, text: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=Console(file=self.err, force_terminal=True), transient=True) as progress:
            task = progress.add_task("", total=1.0)
            yield lambda fraction, text: progress.update(task, completed=fraction, description=text)

    @contextlib.contextmanager
    def activity(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show work of unknown length. Yields a function to call with each new text."""
        if self.json:
            yield lambda text: None
        elif not self.err.isatty():
            yield self.note
        else:
            from rich.console import Console

            with Console(file=self.err).status(text) as status:
                yield lambda text: status.update(text)


_STYLES = {
    "ok": "green",
    "note": "yellow",
    "bad": "bold red",
    "running": "green",
    "blocked": "yellow",
    "parked": "cyan",
    "collective": "cyan",
}


def aligned(cells: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Lines with aligned columns. right: columns that are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)).rstrip()
        for line in cells
    ]


def _is_number(cell: Any) -> bool:
    if isinstance(cell, (int, float)):
        return True
    words = str(cell).split()
    return bool(words) and words[0].replace(".", "", 1).isdigit() and len(words) <= 2
