"""What the start of a program costs: mpirun to its end, with and without manapy-launch."""

from __future__ import annotations

import shutil
import sys

from commands import Setting, launched, native, timed
from samples import Row

PROGRAMS = (
    ("/bin/true, 2 ranks", ["/bin/true"]),
    ("python -c 'from mpi4py import MPI', 2 ranks", [sys.executable, "-c", "from mpi4py import MPI"]),
)


def start(setting: Setting) -> list[Row]:
    """Seconds; the first pair of each only warms the page cache."""
    rows = []
    for name, program in PROGRAMS:
        row = Row("start-up", name, "s", goal="≤ +0.15 s")
        for pair in range(-1, setting.pairs):
            directory = setting.fresh("start")
            before, after = timed(native(2, *program)), timed(launched(2, directory, *program))
            shutil.rmtree(directory, ignore_errors=True)  # its coordinator may be about to end
            if pair >= 0:
                row.add(before, after)
        rows.append(row)
    return rows
