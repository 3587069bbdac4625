"""For programs whose errors a test reads. The interpreter writes a traceback in many pieces, and those of several ranks
would mix."""

from __future__ import annotations

import os
import sys
import traceback


def in_one_piece(*error: object) -> None:
    os.write(2, "".join(traceback.format_exception(*error)).encode())  # type: ignore[arg-type]


sys.excepthook = in_one_piece
