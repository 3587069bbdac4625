"""Sends what one host of a job knows to `manapy why` or `manapy trace` on another host; not for people.

The agent of a node starts it (ckpt/collectors.py), or a remote shell (trace/capture/reach.py).
"""

from __future__ import annotations

import argparse
import sys

from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options: requests arrive on standard input."""


def run(options: argparse.Namespace, out: Output) -> int:
    """Serve until standard input ends."""
    from ...trace.capture import collect

    collect.serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0
