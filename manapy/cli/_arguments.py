"""Arguments that several commands have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_job(parser: argparse.ArgumentParser) -> None:
    """JOB, optional."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="job directory or id; may be left out if exactly one live job is in this directory")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """CHECKPOINT, required."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="a checkpoint directory, or a job directory: its latest checkpoint")


def seconds(text: str) -> float:
    """A time such as 500ms, 30s, 10m or 2h, as manapy-launch takes it."""
    for suffix, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)):
        if text.endswith(suffix):
            try:
                value = float(text.removesuffix(suffix) if suffix else text) * factor
            except ValueError:
                break
            if value >= 0:
                return value
            break
    raise argparse.ArgumentTypeError(f"not a time such as 30s, 10m or 2h: '{text}'")


def positive(text: str) -> int:
    """A number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of at least 1: '{text}'")
    return int(text)
