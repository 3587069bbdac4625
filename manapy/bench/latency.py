"""What calls cost: on one rank, between ranks, blocking and nonblocking, from C and from Python; the paper's Figures 5 and 6."""

from __future__ import annotations

import functools
import importlib.util

from .commands import LeftOutError, Setting
from .compare import compare, json_lines
from .samples import CLOCK, NATIVE, VARIANTS, Row, Rows

RANKS = 2
GOALS = {
    "Comm_rank": "≤ +3 ns",
    "Barrier, one rank": "≤ +40 ns",
    "Bcast, one rank, 4 B": "≤ +40 ns",
    "Allreduce, one rank, 4 B": "≤ +40 ns",
    "Send to PROC_NULL, 4 B": "≤ +45 ns",
    "Recv from PROC_NULL, 4 B": "≤ +45 ns",
    "Isend+Irecv+Waitall, self, 4 B": "≤ +120 ns",
    "Ibcast+Wait, one rank, 4 B": "≤ +120 ns",
}


def calls(setting: Setting) -> list[Row]:
    """ns per call on one rank; the median and the minimum over the batches of each run."""
    rows = Rows("calls")
    read = functools.partial(json_lines, minimum=True)
    compare(rows, setting, (NATIVE, CLOCK), 1, [setting.program("calls"), str(setting.ms)], group="calls on one rank", read=read, goals=GOALS)
    return rows.all()


def p2p(setting: Setting) -> list[Row]:
    """ns per call between two ranks."""
    rows = Rows("p2p")
    compare(rows, setting, (NATIVE, CLOCK), RANKS, [setting.program("p2p"), str(setting.ms)], group="point-to-point")
    return rows.all()


def blocking(setting: Setting) -> list[Row]:
    """Figure 5 (a)."""
    return _collectives(setting, "blocking", VARIANTS)


def nonblocking(setting: Setting) -> list[Row]:
    """Figure 5 (b). Two-phase commit has no nonblocking collectives."""
    return _collectives(setting, "nonblocking", (NATIVE, CLOCK))


def overlap(setting: Setting) -> list[Row]:
    """Figure 6, in %."""
    return _collectives(setting, "overlap", (NATIVE, CLOCK))


def python(setting: Setting) -> list[Row]:
    """The same with mpi4py."""
    if importlib.util.find_spec("mpi4py") is None:
        raise LeftOutError("mpi4py is not installed (pip install 'manapy[bench]')")
    rows = Rows("python")
    modes = ("p2p", "blocking", "nonblocking")
    for i, mode in enumerate(modes):
        program = [setting.tools.python, setting.tools.sources / "collectives.py", mode, str(setting.ms)]
        compare(rows, setting, (NATIVE, CLOCK), RANKS, program, group=f"mpi4py {mode}", part=(i, len(modes)))
    return rows.all()


def _collectives(setting: Setting, mode: str, variants: tuple[str, ...]) -> list[Row]:
    rows = Rows(mode)
    goals = {"%": "± 3 points"} if mode == "overlap" else {}
    compare(rows, setting, variants, RANKS, [setting.program("collectives"), mode, str(setting.ms)], group=f"{mode} collectives")
    for row in rows.all():
        row.goal = goals.get(row.unit, "")
    return rows.all()
