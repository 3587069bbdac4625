"""In a Slurm allocation with spare nodes: wait for the loss of the first node (chain/sentinel.py)."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..shared import arguments
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that chain/spares.py passes."""
    parser.add_argument("--dir", type=Path, required=True, help="the chain's directory")
    parser.add_argument("--job", required=True)
    parser.add_argument("--first", metavar="NODE", required=True, help="the node on which the script runs")
    parser.add_argument("--poll", metavar="TIME", type=arguments.seconds, required=True)


def run(options: argparse.Namespace, out: Output) -> int:
    """Wait, and end the job."""
    from ...chain import record, sentinel

    sentinel.watch(record.read(options.dir), options.job, options.first, options.poll)
    return 0
