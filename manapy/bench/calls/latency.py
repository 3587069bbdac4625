"""The cost of calls: on one rank, between ranks, blocking and nonblocking, from C and from Python; Figures
5 and 6 of the collective clock paper (apps.py)."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator

from ..shared.commands import Command, LeftOutError, Setting
from ..shared.compare import Sample, compare, json_lines
from ..shared.samples import CLOCK, NATIVE, UNTRACED, VARIANTS, Row, Rows

RANKS = 2
RECORDING = {
    "recording: Barrier, one rank": "≤ +30 ns",
    "recording: Bcast, one rank, 4 B": "≤ +30 ns",
    "recording: Allreduce, one rank, 4 B": "≤ +30 ns",
    "recording: Send to PROC_NULL, 4 B": "≤ +30 ns",
    "recording: Recv from PROC_NULL, 4 B": "≤ +30 ns",
    "recording: Isend+Irecv+Waitall, self, 4 B": "≤ +90 ns (3 calls)",
    "recording: Ibcast+Wait, one rank, 4 B": "≤ +60 ns (2 calls)",
}
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

RATES = {
    "a message of a window of 64, 4 B": "≤ 1.11",
    "Put+flush, 4 B": "≤ 1.3",
    "Put+flush, 1 KB": "≤ 1.3",
    "Allreduce, 4 B": "≤ 1.15",
    "Barrier": "≤ 1.15",
}


def calls(setting: Setting) -> list[Row]:
    """ns per call on one rank: median and minimum over the batches of each run. First without recording (--no-trace),
    then the additional cost of recording."""
    rows, recording = Rows("calls"), Rows("calls")
    program: Command = [setting.program("calls"), str(setting.ms)]
    read = functools.partial(json_lines, minimum=True)

    def plain(variant: str) -> str:
        return setting.variant(UNTRACED if variant == CLOCK else variant, 1, program)

    def recorded(variant: str) -> str:
        return setting.variant(UNTRACED if variant == NATIVE else variant, 1, program)

    compare(
        rows,
        setting,
        (NATIVE, CLOCK),
        1,
        program,
        group="calls on one rank",
        run=plain,
        read=read,
        goals=GOALS,
        part=(0, 2),
    )
    compare(
        recording,
        setting,
        (NATIVE, CLOCK),
        1,
        program,
        group="recording calls",
        run=recorded,
        read=_recorded,
        goals=RECORDING,
        part=(1, 2),
    )
    for row in recording.all():
        row.baseline = "--no-trace"
    return rows.all() + recording.all()


def _recorded(output: str) -> Iterator[Sample]:
    return ((f"recording: {name}", unit, value) for name, unit, value in json_lines(output, minimum=True))


def p2p(setting: Setting) -> list[Row]:
    """ns per call between two ranks."""
    rows = Rows("p2p")
    compare(rows, setting, (NATIVE, CLOCK), RANKS, [setting.program("p2p"), str(setting.ms)], group="point-to-point")
    return rows.all()


def rate(setting: Setting) -> list[Row]:
    """ns per operation in a sequence of many small ones, also without recording; median and minimum over the
    batches."""
    rows = Rows("rate")
    program: Command = [setting.program("rate"), str(setting.ms)]
    read = functools.partial(json_lines, minimum=True)
    variants = (NATIVE, CLOCK, UNTRACED)
    compare(rows, setting, variants, RANKS, program, group="rate of small operations", read=read, goals=RATES)
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
        raise LeftOutError("mpi4py is not installed (manapy's extra 'mpich', or mpi4py for your MPI)")
    rows = Rows("python")
    modes = ("p2p", "blocking", "nonblocking")
    for i, mode in enumerate(modes):
        program: Command = [
            setting.tools.python,
            setting.tools.sources / "calls" / "collectives.py",
            mode,
            str(setting.ms),
        ]
        compare(rows, setting, (NATIVE, CLOCK), RANKS, program, group=f"mpi4py {mode}", part=(i, len(modes)))
    return rows.all()


def _collectives(setting: Setting, mode: str, variants: tuple[str, ...]) -> list[Row]:
    rows = Rows(mode)
    goals = {"%": "± 3 points"} if mode == "overlap" else {}
    compare(
        rows,
        setting,
        variants,
        RANKS,
        [setting.program("collectives"), mode, str(setting.ms)],
        group=f"{mode} collectives",
    )
    for row in rows.all():
        row.goal = goals.get(row.unit, "")
    return rows.all()
