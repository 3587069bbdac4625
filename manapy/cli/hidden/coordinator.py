"""The coordinator of a job. Started by manapy-launch on rank 0 with the listening socket on --fd; not for people."""

from __future__ import annotations

import argparse

from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that lowerhalf/join/rendezvous.c passes."""
    from ...ckpt.coordinator import coordinator

    coordinator.add_arguments(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Serve until the job ends. Then remove recordings of earlier jobs if there are too many."""
    from ...ckpt.coordinator import coordinator
    from ...trace.capture import tidy

    code = int(coordinator.run(options))
    tidy.tidy()
    return code
