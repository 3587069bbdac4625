"""The agent of a node. Started by manapy-launch on each node but rank 0's, with the listening socket on --fd; not for
people."""

from __future__ import annotations

import argparse

from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that lowerhalf/join/node.c passes."""
    from ...ckpt.node import agent

    agent.add_arguments(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Serve until the job ends."""
    from ...ckpt.node import agent

    return agent.run(options)
