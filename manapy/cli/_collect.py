"""What one host of a job knows, for `manapy why` and `manapy trace` on another one; not for people. Started by
trace/capture/collect.py through a remote shell."""

from __future__ import annotations

import argparse
import sys

from ._output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: requests come on standard input."""


def run(options: argparse.Namespace, out: Output) -> int:
    """Until standard input ends."""
    from ..trace.capture import collect

    collect.serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0
