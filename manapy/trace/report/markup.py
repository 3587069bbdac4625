"""Pieces of HTML for report.py. Texts are escaped, and cut if they are longer than TEXT characters. Parameters called
`markup` are HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ...core.units import span

TEXT = 2_000  # characters

_RIGHT = ' class="number"'


class Time(float):
    """A time in ns, for a cell of a table."""


def plural(number: int, what: str) -> str:
    """Return a number and a noun: `1 rank`, `1,024 ranks`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def cut(text: str) -> str:
    """Return a text, cut at TEXT characters. It is not escaped."""
    return text if len(text) <= TEXT else f"{text[:TEXT]} ..."


def note(markup: str) -> str:
    """Return a paragraph that explains what is shown."""
    return f'<p class="note">{markup}</p>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table. Columns of numbers and times are right-aligned."""
    rows = list(rows)
    heads = "".join(
        f"<th{_RIGHT if rows and isinstance(rows[0][i], (int, float)) else ''}>{escape(name)}</th>"
        for i, name in enumerate(head)
    )
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>\n" for row in rows)
    return f"<table>\n<tr>{heads}</tr>\n{body}</table>\n"


def _cell(value: object) -> str:
    if isinstance(value, Time):
        return f"<td{_RIGHT}>{span(value)}</td>"
    return f"<td{_RIGHT}>{value:,}</td>" if isinstance(value, int) else f"<td>{escape(cut(str(value)))}</td>"
