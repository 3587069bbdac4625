"""Makes full images of incremental ones, beside a running job; not for people.

The agent of a host starts it (ckpt/folding.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from pathlib import Path

from ..shared.output import Output

NICE = 10  # as the process that writes an image beside its program (lowerhalf/image/background.c)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command: the images to fold."""
    parser.add_argument("temporary", type=Path, help="directory for new images")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folders", nargs="+", help="folders of the checkpoint; . if it has none")


def run(options: argparse.Namespace, out: Output) -> int:
    """Fold them; end at once when standard input ends."""
    from ...ckpt.store import fold

    threading.Thread(target=_end_with_the_agent, daemon=True).start()
    os.nice(NICE)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the agent's processor may be that of a rank
    fold.folders(options.temporary, options.checkpoint, options.folders)
    return 0


def _end_with_the_agent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.buffer: its lock would be held when the interpreter ends
    os._exit(1)
