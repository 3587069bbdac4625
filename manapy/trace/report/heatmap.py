"""The ranks' activity over time: each rank's own work in each iteration of a training job, or else the share of each
stretch of time that it spent in MPI.

Large maps are made coarser so that conspicuous cells remain visible. Of cells that are merged, the largest work counts,
or the smallest share of MPI (the other ranks wait for this rank).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..model.events import OPEN, Flag, Trace
from ..model.iterations import Iteration
from ..model.match import first_of_call
from ..model.stages import Labels
from .timeline_bins import NOT_CALLS

ROWS, COLUMNS = 128, 240


@dataclass(frozen=True)
class Heat:
    """A heatmap.

    values: [rows, columns], seconds of own work, or share of time in MPI (0 to 1); NaN: not known.
    ratio: own work relative to the median of its stage; None for a share.
    rows: first and last rank of each row.
    columns: first and last iteration, or stretch, of each column.
    begin, end: of each column, ns on the job's clock.
    """

    values: np.ndarray
    ratio: np.ndarray | None
    rows: list[tuple[int, int]]
    columns: list[tuple[int, int]]
    begin: np.ndarray
    end: np.ndarray


def work(labels: Labels, measured: Sequence[Iteration]) -> Heat:
    """Return the heatmap of own work in iterations that all ranks have ended (at least one). Cells of iterations that a
    checkpoint interrupted are unknown."""
    schedule = labels.schedule
    values = np.empty((schedule.size, len(measured)))
    for i, one in enumerate(measured):
        blocks = one.timing.compute.sum(axis=1)
        own = blocks.reshape(schedule.pp, -1, *blocks.shape[1:]).sum(axis=1) + one.timing.closing
        values[schedule.ranks.ravel(), i] = own.ravel()
    stopped = interrupted(labels)
    values[:, [one.number in stopped for one in measured]] = np.nan
    usual = np.ones(schedule.size)
    for ranks in schedule.ranks.reshape(schedule.pp, -1):
        known = values[ranks][~np.isnan(values[ranks])]
        usual[ranks] = np.median(known) if len(known) and np.median(known) > 0 else np.nan
    numbers = [one.number for one in measured]
    return _coarse(
        values,
        values / usual[:, None],
        numbers,
        np.array([one.begin for one in measured]),
        np.array([one.end for one in measured]),
        np.fmax,
    )


def interrupted(labels: Labels) -> set[int]:
    """Return the iterations in which a checkpoint or a restart happened."""
    return set(labels.iteration[labels.trace.events["flags"] & Flag.STOPPED > 0].tolist())


def share(trace: Trace, begin: int, end: int) -> Heat:
    """Return the heatmap of the share of time in MPI, of the first thread of each rank. begin, end: ns."""
    events = trace.events
    calls = events[first_of_call(events) & ~np.isin(events["op"], NOT_CALLS)]
    edges = np.linspace(0, max(end - begin, 1), COLUMNS + 1)
    values = np.full((trace.size, COLUMNS), np.nan)
    starts = np.searchsorted(calls["rank"], np.arange(trace.size + 1))
    for rank in range(trace.size):
        own = calls[starts[rank] : starts[rank + 1]]
        own = own[own["thread"] == own["thread"].min(initial=0xFFFF)]
        if not len(own):
            continue
        entered = own["enter"]
        left = np.where(own["exit"] == OPEN, np.maximum(trace.now, entered), own["exit"])
        inside = np.cumsum(left - entered)
        total = np.interp(
            edges,
            (np.stack([entered, left], axis=1) - begin).ravel(),
            np.stack([np.r_[0, inside[:-1]], inside], axis=1).ravel(),
        )
        known = edges[1:] > entered[0] - begin
        if rank in trace.ranks and trace.ranks[rank].ended:
            known &= edges[:-1] < left[-1] - begin
        values[rank, known] = np.clip(np.diff(total) / np.diff(edges), 0, 1)[known]
    return _coarse(values, None, list(range(COLUMNS)), begin + edges[:-1], begin + edges[1:], np.fmin)


def _coarse(
    values: np.ndarray,
    ratio: np.ndarray | None,
    numbers: list[int],
    begin: np.ndarray,
    end: np.ndarray,
    reduce: np.ufunc,
) -> Heat:
    """Return the heatmap, merged into at most ROWS and COLUMNS."""
    rows, columns = (
        np.linspace(0, n, min(n, most) + 1).astype(int) for n, most in zip(values.shape, (ROWS, COLUMNS), strict=True)
    )

    def merged(cells: np.ndarray) -> np.ndarray:
        return reduce.reduceat(reduce.reduceat(cells, rows[:-1], axis=0), columns[:-1], axis=1)

    return Heat(
        merged(values), None if ratio is None else merged(ratio),
        [(a, b - 1) for a, b in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)],
        [(numbers[a], numbers[b - 1]) for a, b in zip(columns[:-1].tolist(), columns[1:].tolist(), strict=True)],
        begin[columns[:-1]], end[columns[1:] - 1],
    )  # fmt: skip
