"""Whole programs: rates of calls (Table 1), run time (Figure 7), and run time over the number of ranks (Figure 8). The
table and the figures are those of the collective clock paper, "Enabling Practical Transparent Checkpointing for MPI: A
Topological Sort Approach" (Xu, Cooperman), section 5.

The programs are stand-ins of our own (osu_bench/calls/apps.c), which have the communication of that paper's
applications. They are not these applications.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

from ..shared.commands import BenchError, Command, Setting, records
from ..shared.compare import Sample, compare
from ..shared.samples import CLOCK, NATIVE, VARIANTS, Row, Rows

RANKS = 2
STANDS_FOR = {
    "bcast": "OSU MicroBench",
    "transpose": "VASP 6",
    "cg": "Poisson solver",
    "particles": "CoMD, LAMMPS",
    "stencil": "SW4",
}
NONBLOCKING = {"cg"}  # as in Figure 7 of that paper, two-phase commit can't run it
RANKS_MAX = 64  # the stand-in for VASP has 64 rows


def rates(setting: Setting) -> list[Row]:
    """Seconds, and calls per second and rank."""
    rows = Rows("apps")
    for i, kind in enumerate(STANDS_FOR):
        _app(rows, setting, kind, RANKS, f"{kind}, run time", part=(i, len(STANDS_FOR)), with_rates=True)
    return rows.all()


def scaling(setting: Setting) -> list[Row]:
    """The stand-in for VASP with 1, 2, 4 ... ranks, up to the number of processors but at least 2."""
    rows = Rows("scaling")
    processors = min(len(os.sched_getaffinity(0)), RANKS_MAX)
    counts = [2**i for i in range(max(processors.bit_length(), 2))]
    for i, ranks in enumerate(counts):
        _app(
            rows,
            setting,
            "transpose",
            ranks,
            f"transpose, {ranks} rank{'s' * (ranks > 1)}",
            part=(i, len(counts)),
            with_rates=False,
        )
    return rows.all()


def startup(setting: Setting) -> list[Row]:
    """Seconds from mpirun to its end. A run before the first round warms the page cache."""
    rows = Rows("startup")
    programs = {
        "/bin/true, 2 ranks": ["/bin/true"],
        "python -c 'from mpi4py import MPI', 2 ranks": [sys.executable, "-c", "from mpi4py import MPI"],
    }
    for i, (name, program) in enumerate(programs.items()):
        if subprocess.run(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            continue
        row = rows.row(name, "s", goal="≤ +0.15 s")
        for number in range(-1, setting.rounds):
            setting.progress((i + (number + 1) / (setting.rounds + 1)) / len(programs), name)
            directory = setting.fresh("start")
            try:
                seconds = {
                    NATIVE: setting.timed(setting.native(2, *program)),
                    CLOCK: setting.timed(setting.launched(CLOCK, 2, directory, *program)),
                }
            except BenchError as error:
                row.failures[CLOCK] = str(error)
                break
            shutil.rmtree(directory, ignore_errors=True)  # its coordinator may still be ending
            if number >= 0:
                for variant, value in seconds.items():
                    row.samples.setdefault(variant, {})[number] = value
    return rows.all()


def _app(
    rows: Rows, setting: Setting, kind: str, ranks: int, name: str, part: tuple[int, int], with_rates: bool
) -> None:
    checksums: set[str] = set()

    def read(output: str) -> Iterable[Sample]:
        record = records(output)[0]
        checksums.add(record["checksum"])
        if len(checksums) > 1:
            raise BenchError(f"{kind} has another result than in the first run")
        yield name, "s", record["seconds"]
        if with_rates:
            yield f"{kind}, collectives a second", "/s", record["collectives"]
            yield f"{kind}, messages a second", "/s", record["messages"]

    variants = (NATIVE, CLOCK) if kind in NONBLOCKING else VARIANTS
    program: Command = [setting.program("apps"), kind, str(setting.scale)]
    compare(rows, setting, variants, ranks, program, group=name, read=read, part=part)
