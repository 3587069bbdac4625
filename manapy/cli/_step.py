"""What a manapy-launch in a chain (MANAPY_CHAIN) has to do: one line on standard output, for lowerhalf/control/chain.c."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ._output import Output

TAKES_MORE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What chain.c passes; the program and its arguments follow '--'."""
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--dir", type=Path)


def run(options: argparse.Namespace, out: Output) -> int:
    """NEW, RESUME, DONE or ERROR."""
    from ..chain import record, steps
    from ..ckpt.errors import ManapyError

    try:
        out.line(steps.decide(record.read(Path(os.environ["MANAPY_CHAIN"])), options.after, options.ranks, options.dir).line())
    except (ManapyError, OSError) as error:
        out.line(f"ERROR {error}")
    return 0
