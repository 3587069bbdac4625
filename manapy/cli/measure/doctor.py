"""Check whether this machine and a program can be checkpointed, and list what prevents it.

The exit code is 1 if something prevents it. If nothing does, the last line is a command to try.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from pathlib import Path

from ..shared import naming
from ..shared.arguments import add_file_system
from ..shared.output import Output

TAKES_MORE = "[-- PROG ARGUMENTS...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("program", nargs="*", metavar="PROG", help="check this program, too; its arguments may follow")
    parser.add_argument(
        "--mpi", metavar="PATH", help="the MPI library, or the prefix of its installation, as for manapy-launch"
    )
    add_file_system(parser, "check the file system of this directory, where job directories will be (default: here)")
    parser.add_argument(
        "--report", metavar="FILE", type=Path, help="write what a bug report needs, without secrets, to FILE (.tar.gz)"
    )
    parser.add_argument("--job", metavar="JOB", help=f"with --report: add the records and logs of {naming.JOB}")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Print the findings."""
    from ...core.errors import UsageError
    from ...doctor import Level, check_program, check_system, report

    if options.job and not options.report:
        raise UsageError("--job is for --report FILE")
    job = naming.job(options.job).dir if options.job else None
    findings = check_system(options.mpi, options.file_system)
    command = [*options.program, *options.after]
    if command:
        findings += check_program(command[0], command[1:])
    out.data([{**asdict(f), "level": f.level.value} for f in findings])
    out.table(("", "what", "finding"), [(f.level.value, f.subject, f.text) for f in findings])
    if options.report:
        report.write(options.report, findings, job)
        out.note(f"{options.report} has these findings, versions, limits and settings: read it before you send it")
    bad = [f for f in findings if f.level is Level.BAD]
    if not bad:
        program = shlex.join(command) or "PROG"
        out.line(f"try next: mpirun -n 2 manapy-launch {program}; then, in another shell, manapy checkpoint")
    if bad:
        out.error(f"{len(bad)} problem{'s' * (len(bad) > 1)}: {', '.join(f.subject for f in bad)}")
    return 1 if bad else 0
