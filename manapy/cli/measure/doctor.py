"""Check whether this machine and a program can be checkpointed, and list what prevents it.

The exit code is 1 if something prevents it.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ..shared.arguments import add_file_system
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("program", nargs="?", metavar="PROG", help="check this program, too")
    parser.add_argument(
        "--mpi", metavar="PATH", help="the MPI library, or the prefix of its installation, as for manapy-launch"
    )
    add_file_system(parser, "check the file system of this directory, where job directories will be (default: here)")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Print the findings."""
    from ...doctor import Level, check_program, check_system

    findings = check_system(options.mpi, options.file_system)
    if options.program:
        findings += check_program(options.program)
    out.data([{**asdict(f), "level": f.level.value} for f in findings])
    out.table(("", "what", "finding"), [(f.level.value, f.subject, f.text) for f in findings])
    bad = [f for f in findings if f.level is Level.BAD]
    if bad:
        out.error(f"{len(bad)} problem{'s' * (len(bad) > 1)}: {', '.join(f.subject for f in bad)}")
    return 1 if bad else 0
