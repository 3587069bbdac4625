"""Pieces of HTML for report.py. What is not said to be markup is escaped, and cut where it is longer than TEXT
characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ...core.units import span

TEXT = 2_000

_RIGHT = ' class="number"'


class Time(float):
    """ns, for a cell of a table."""


def plural(number: int, what: str) -> str:
    """1 rank, 1,024 ranks."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def cut(text: str) -> str:
    """Not escaped."""
    return text if len(text) <= TEXT else f"{text[:TEXT]} ..."


def note(markup: str) -> str:
    """A paragraph on what is shown."""
    return f'<p class="note">{markup}</p>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers and times to the right."""
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
