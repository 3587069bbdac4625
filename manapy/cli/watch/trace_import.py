"""`manapy trace import`: converts what another tool has recorded."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from ..shared import arguments
from ..shared.output import Output

NOTES = 8  # lines


def add_arguments(commands: Any) -> None:
    """Its options. commands: the subparsers of `manapy trace`."""
    parser = commands.add_parser(
        "import",
        help="convert a recording of another tool",
        description=(
            "Convert what another tool has recorded. `manapy why`, `manapy trace report` and other commands accept the "
            "new folder as JOB. The files must be of one job: an OTF2 archive (Score-P; needs manapy's "
            "extra trace), dumps of PyTorch's Flight Recorder (pickle or JSON) of all ranks, or traces in Chrome's "
            "format (JSON, also gzip) by torch.profiler of all ranks, or by a tracer of MPI. No code in a file is run."
        ),
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="+",
        help=(
            "a file, or a folder with the files of all ranks; the name of a Flight Recorder's dump ends with its rank, "
            "and its time is taken as the moment of the dump (copy with cp -p)"
        ),
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="write the recording to a new folder DIR"
    )
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=arguments.natural,
        help="how many ranks the job had; needed for dumps of jobs that use Gloo, which do not contain it",
    )


def run(options: argparse.Namespace, out: Output) -> int:
    """Read the files and write the recording."""
    from ...core.errors import explained
    from ...trace.capture import layout
    from ...trace.convert import foreign, read

    if options.out.exists():
        raise foreign.ForeignError(f"{options.out} exists already")
    job = read.read(options.paths, options.ranks)
    with explained(foreign.ForeignError, options.out):
        count = foreign.write(job, options.out)
    notes = [line for line in (foreign.missing(job), *job.notes) if line]
    for note in notes[:NOTES]:
        out.note(layout.printable(note))  # it may contain names from the files
    if len(notes) > NOTES:
        out.note(f"{len(notes) - NOTES} more like this")
    name = shlex.quote(str(options.out))
    out.line(f"{count} records of {len(job.ranks)} ranks in {options.out}: manapy why {name}")
    return 0
