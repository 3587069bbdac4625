"""RDMA queue pairs of one recorded job, as SVG and a table: the progress of each, and the traffic of each device over
time. Records: MPY_OP_RDMA_QP of trace.h.

Invariants
 1. Between two records of a queue pair its bytes are spread evenly over the time. They count for the device that the
    later record names.
 2. What was posted before the first remaining record is not drawn. Totals are the queue pair's own counts, so they are
    always right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from ...core.units import span
from ..model.events import Trace
from .markup import Time, cut, note, plural, table

ROWS = 80  # largest number of queue pairs and of devices that are shown
WIDTH, LEFT, ROW, BINS = 1200, 160, 40, 400  # sizes in the picture


@dataclass(frozen=True)
class QueuePair:
    """A queue pair. records: its records, in order of time."""

    rank: int
    number: int
    records: np.ndarray

    @property
    def in_flight(self) -> int:
        """Number of work requests that are posted and not completed, at the end."""
        return max(int(self.records["request"][-1]) - int(self.records["context"][-1]), 0)

    @property
    def switches(self) -> int:
        """How often it changed to another device."""
        devices = self.records["tag"]
        return int((devices[1:] != devices[:-1]).sum())


def queue_pairs(trace: Trace) -> list[QueuePair]:
    """Return all queue pairs of a trace, by rank and number."""
    events = trace.rdma[np.lexsort((trace.rdma["seq"], trace.rdma["enter"], trace.rdma["comm"], trace.rdma["rank"]))]
    if not len(events):
        return []
    changes = 1 + np.flatnonzero(
        (events["rank"][1:] != events["rank"][:-1]) | (events["comm"][1:] != events["comm"][:-1])
    )
    return [QueuePair(int(part["rank"][0]), int(part["comm"][0]), part) for part in np.split(events, changes)]


def section(trace: Trace, begin: int, end: int) -> str:
    """Return the section as HTML; empty if there are no queue pairs. begin, end: the time that the page shows, ns."""
    found = queue_pairs(trace)
    if not found:
        return ""
    found.sort(key=lambda pair: (-pair.switches, -pair.in_flight, pair.rank, pair.number))
    rows = [_row(trace, pair) for pair in found[:ROWS]]
    more = (
        note(f"{len(found) - ROWS:,} more queue pairs are left out: none has switched more often than these.")
        if len(found) > ROWS
        else ""
    )
    heads = (
        "rank",
        "queue pair",
        "remote",
        "device",
        "switches",
        "posted",
        "completed",
        "in flight",
        "bytes posted",
        "last record before the end",
    )
    return f"<h2>RDMA queue pairs</h2>\n{_picture(trace, found, begin, end)}{table(heads, rows)}{more}"


def _row(trace: Trace, pair: QueuePair) -> tuple[object, ...]:
    first, last = pair.records[0], pair.records[-1]
    device = _device(trace, int(last["tag"]))
    if pair.switches:
        device = f"{_device(trace, int(first['tag']))}, at last {device}"
    counts = tuple(int(last[name]) for name in ("request", "context"))
    return (
        f"rank {pair.rank}",
        f"{pair.number:#x}",
        f"{int(last['peer']) & 0xFFFFFF:#x}",
        device,
        pair.switches,
        *counts,
        pair.in_flight,
        int(last["bytes"]),
        Time(max(trace.now - int(last["enter"]), 0)),
    )


def _device(trace: Trace, index: int) -> str:
    return trace.devices[index] if 0 <= index < len(trace.devices) else "an unknown device"


def traffic(trace: Trace, found: list[QueuePair], begin: int, end: int, bins: int) -> dict[tuple[str, str], np.ndarray]:
    """Return the bytes posted in each of `bins` equal parts of the time, [bins], by (host, device)."""
    edges = np.linspace(begin, end, bins + 1)
    moved: dict[tuple[str, str], np.ndarray] = {}
    for pair in found:
        known = trace.ranks.get(pair.rank)
        times, total = pair.records["enter"].astype(float), pair.records["bytes"].astype(float)
        for first, last, device in _stretches(pair):
            so_far = np.interp(edges, times[first : last + 1], total[first : last + 1])
            key = known.host if known is not None else "", _device(trace, device)
            moved[key] = moved.get(key, np.zeros(bins)) + np.maximum(np.diff(so_far), 0)
    return moved


def _stretches(pair: QueuePair) -> Iterator[tuple[int, int, int]]:
    """Yield each stretch of time on one device: its first and last record, and the device. The first record is the last
    one before the stretch, if there is one."""
    devices = pair.records["tag"]
    begins = [0, *(1 + np.flatnonzero(devices[1:] != devices[:-1])).tolist()]
    for begin, after in zip(begins, [*begins[1:], len(devices)], strict=True):
        yield max(begin - 1, 0), after - 1, int(devices[begin])


def _picture(trace: Trace, found: list[QueuePair], begin: int, end: int) -> str:
    """Return the picture: a line for each device, all on one scale."""
    moved = sorted(traffic(trace, found, begin, end, BINS).items())[:ROWS]
    most = max(float(values.max()) for _, values in moved)
    if not most:
        return note("Nothing was posted between the records of a queue pair.")
    shapes = []
    for row, ((host, device), values) in enumerate(moved):
        bottom = (row + 1) * ROW - 4
        points = " ".join(
            f"{LEFT + (WIDTH - LEFT) * (i + 0.5) / BINS:.1f},{bottom - (ROW - 8) * value / most:.1f}"
            for i, value in enumerate(values.tolist())
        )
        shapes.append(
            f'<text x="4" y="{bottom - 8}">{escape(cut(f"{host} {device}"))}</text><polyline points="{points}"/>'
        )
    rate = most * BINS / max((end - begin) * 1e-9, 1e-9)
    said = (
        f"Bytes posted over each device; the highest is {rate:.3g} bytes a second over {span((end - begin) / BINS)}, "
        f"of {plural(len(found), 'queue pair')}."
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {len(moved) * ROW}" role="img" aria-label="RDMA '
        f'traffic">\n{chr(10).join(shapes)}\n</svg>\n{note(said)}'
    )
