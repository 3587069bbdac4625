"""The live view of `manapy trace top`: what each rank is doing now.

Invariant
 1. The view takes at most ROWS_SHARE + WHY_SHARE (top_view.py) of a processor: the cost of a look decides the time
    until the next one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ...trace.model.schedule import Schedule
from ..shared.output import Output
from . import status_watch
from .top_text import data, lines
from .top_view import View

if TYPE_CHECKING:
    from rich.text import Text

    from ...trace.capture.locate import Found

ROWS_SHARE = 0.05  # of a processor
LINES = 80  # if stdout is not a terminal


def top(found: Found, plan: Schedule | None, interval: float, once: bool, sort: str, out: Output) -> None:
    """Show the view until the job has ended, or Ctrl-C. once: print it once, for a live job after `interval`
    seconds."""
    view = View(found, plan)
    if once:
        view.look()
        if not view.over:
            time.sleep(interval)
            view.due = 0.0  # processes have been seen twice now, so that their activity is known
            view.look()
        out.data(data(view))
        for line, _ in lines(view, sort, LINES):
            out.line(line)
        return
    from rich.text import Text

    spent = 0.0

    def picture() -> tuple[Text, float | None]:
        nonlocal spent
        began = time.monotonic()
        view.look()
        shown = Text(no_wrap=True, overflow="ellipsis", end="")
        width, height = os.get_terminal_size(out.file.fileno())
        for i, (line, style) in enumerate(lines(view, sort, (height or 24) - 1, width or 80)):
            shown.append("\n" * bool(i) + line, style)
        so_far = time.process_time() - view.judging  # includes the drawing of the last picture
        cost, spent = so_far - spent if spent else 0.0, so_far  # the first look reads everything and does not count
        return shown, None if view.over else max(max(interval, cost / ROWS_SHARE) - (time.monotonic() - began), 0.0)

    status_watch.draw(picture, out)
