"""One clock for the whole job: converts ticks of time-stamp counters to nanoseconds since 1970 on the clock of rank 0's
host, with an uncertainty.

On one host all processors share the counter. So all its ranks share one line through all their samples. Between hosts,
each collective in which all ranks wait for all others bounds the offset: no rank leaves before all have entered. Many
such calls make the bounds narrow. While a job runs, its hosts are also asked for the time (collect.py). The fastest
ping-pong bounds the offset by half of its duration (Cristian, "Probabilistic clock synchronization", 1989). This bound
widens with the distance in time, by DRIFT. Both kinds of bounds are used together. Between two points in time the
offset is assumed to change steadily. Without any bound the hosts' own clocks are used, with a large uncertainty
(UNSURE).

Invariants
 1. Times never come from a clock that can be set: realtime only anchors the line, once per host.
 2. Files whose samples do not lie on the line of their host get their own line. The reason may be another machine of
    this name, a reboot, or a counter that is not invariant.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from ..model.events import OPEN, Op

SECOND = 10**9
JUMP = 50_000_000  # ns; a larger change of realtime - monotonic between two samples is reported
FIT = 1_000_000  # ns; a sample may deviate by this from the line of its host
SAMPLE_ERROR = 2_000  # ns; error of one sample
DRIFT = 1e-4  # largest drift between two hosts' clocks: twice a quartz's specification
UNSURE = SECOND  # ns; uncertainty between hosts without any bound
WINDOW = 10 * SECOND  # ns; offsets drift, so they are computed once per WINDOW
MOST, NEWEST = 64, 16  # meetings with one host that are kept; so many of them are the newest ones
MEETING = [int(op) for op in (Op.BARRIER, Op.ALLREDUCE, Op.ALLGATHER, Op.ALLTOALL)]


@dataclass(frozen=True)
class Sample:
    """The clocks of one host, read together. ticks: of the counter; realtime, monotonic: ns."""

    ticks: int
    realtime: int
    monotonic: int


@dataclass(frozen=True)
class Meeting:
    """A host was asked for the time. It took `sample` at time `at` (ns) of the asking host's monotonic clock, ±
    `uncertainty` (ns)."""

    host: str
    sample: Sample
    at: int
    uncertainty: int


@dataclass
class Line:
    """The conversion of one host's ticks: ns = anchor.realtime + (ticks - anchor.ticks) / rate.

    rate: ticks per ns.
    at, shift: at these times (ns, this host's clock), the ns to add to get rank 0's clock. See `shifted`.
    uncertainty: of the shift, ns.
    """

    host: str
    samples: list[Sample]
    rate: float
    problems: list[str] = field(default_factory=list)
    at: np.ndarray = field(default_factory=lambda: np.zeros(1))
    shift: np.ndarray = field(default_factory=lambda: np.zeros(1))
    uncertainty: int = 0
    meetings: list[Meeting] = field(default_factory=list)

    @property
    def anchor(self) -> Sample:
        """The oldest sample."""
        return self.samples[0]

    @property
    def span(self) -> int:
        """Time between the oldest and the newest sample, ns."""
        return self.samples[-1].monotonic - self.samples[0].monotonic

    def own(self, ticks: np.ndarray) -> np.ndarray:
        """Convert ticks to ns on this host's clock. Differences of ticks are signed, because a call may be older than
        the oldest sample."""
        anchor = self.anchor
        away = ticks.astype(np.uint64) - np.uint64(anchor.ticks)
        return anchor.realtime + np.rint(away.view(np.int64) / self.rate).astype(np.int64)

    def shifted(self, ns: np.ndarray) -> np.ndarray:
        """Convert ns on this host's clock to ns on the job's clock."""
        return ns + np.rint(np.interp(ns, self.at, self.shift)).astype(np.int64)

    def add(self, samples: list[Sample]) -> None:
        """Add samples of the same host."""
        for sample in samples:
            at = bisect.bisect_left(self.samples, sample.ticks, key=attrgetter("ticks"))
            if self.samples[at : at + 1] != [sample]:
                self.samples.insert(at, sample)
        if self.span > 0:
            self.rate = (self.samples[-1].ticks - self.samples[0].ticks) / self.span

    def fits(self, samples: list[Sample]) -> bool:
        """Return whether these samples can be from this host since its boot."""
        anchor = self.anchor
        slack = SAMPLE_ERROR / max(self.span, 1)
        for s in samples:
            away = (s.ticks - anchor.ticks) / self.rate
            if abs(away - (s.monotonic - anchor.monotonic)) > FIT + 2 * slack * abs(away):
                return False
        return True


def lines(files: list[tuple[str, list[Sample], int, bool]]) -> tuple[list[Line], list[int]]:
    """Return the lines, and for each file the index of its line. files: host, samples, ticks per second, and whether
    the counter is invariant, for each file."""
    found: list[Line] = []
    of = []
    for host, samples, ticks_per_second, invariant in files:
        samples = sorted(samples, key=lambda s: s.ticks) or [Sample(0, 0, 0)]
        same = [i for i, line in enumerate(found) if line.host == host]
        match = next((i for i in same if found[i].fits(samples)), None)
        if match is None:
            line = Line(host, samples[:1], (ticks_per_second or SECOND) / SECOND)
            if same:
                line.problems.append(
                    f"{host}: two clocks under this name (a reboot, two machines, or a counter that isn't invariant); "
                    "they are aligned like different hosts"
                )
            found.append(line)
            match = len(found) - 1
        found[match].add(samples)
        if not invariant and not any("invariant" in text for text in found[match].problems):
            found[match].problems.append(f"{host}: its time-stamp counter isn't said to be invariant; times may drift")
        of.append(match)
    for line in found:
        line.problems += _jumps(line)
    return found, of


def meet(found: list[Line], meetings: list[Meeting]) -> None:
    """Give each line the meetings with its host. Their samples make its rate more exact."""
    of: dict[str, list[Line]] = {}
    for line in found:
        of.setdefault(line.host, []).append(line)
    for meeting in meetings:
        fitting = next((line for line in of.get(meeting.host, ()) if line.fits([meeting.sample])), None)
        if fitting is not None:
            fitting.add([meeting.sample])
            fitting.meetings.append(meeting)


def kept(meetings: Sequence[Meeting]) -> list[Meeting]:
    """Return at most MOST of the meetings with one host: the newest ones, and one for each interval of the time before.
    The intervals double until there are few enough. meetings: in order of time.

    All hosts have the same intervals, and the meeting near the begin of one is taken, because two hosts are compared by
    meetings at about the same time."""
    if len(meetings) <= MOST:
        return list(meetings)
    older, span = meetings[:-NEWEST], WINDOW
    while len(older) > MOST - NEWEST:
        best: dict[int, Meeting] = {}
        for meeting in older:
            before = best.setdefault(meeting.at // span, meeting)
            if _doubt(meeting, span) < _doubt(before, span):
                best[meeting.at // span] = meeting
        older, span = list(best.values()), 2 * span
    return [*older, *meetings[-NEWEST:]]


def _doubt(meeting: Meeting, span: int) -> float:
    """Return the possible error of what a meeting says of the begin of its interval, ns."""
    return meeting.uncertainty + DRIFT * (meeting.at % span)


def as_line(meeting: Meeting) -> str:
    """Return a meeting as a line of JSON, for the file CLOCKS of a recording (layout.py)."""
    sample = meeting.sample
    return json.dumps([meeting.host, sample.ticks, sample.realtime, sample.monotonic, meeting.at, meeting.uncertainty])


def from_line(text: str) -> Meeting:
    """Return the meeting that as_line has written. Raises ValueError if the text is no such line."""
    try:
        host, ticks, realtime, monotonic, at, uncertainty = json.loads(text)
        return Meeting(str(host), Sample(int(ticks), int(realtime), int(monotonic)), int(at), int(uncertainty))
    except TypeError as error:
        raise ValueError(f"no answer of a host: {text!r}") from error


def _jumps(line: Line) -> list[str]:
    """Return one line for each time that the host's clock was set."""
    gaps = [s.realtime - s.monotonic for s in line.samples]
    jumps = [b - a for a, b in zip(gaps, gaps[1:], strict=False) if abs(b - a) > JUMP]
    return [
        f"{line.host}: its clock was set by {jump / SECOND:+.3f} s while the job ran; recorded times are not affected"
        for jump in jumps
    ]


def align(found: list[Line], base: int, of: np.ndarray, events: np.ndarray) -> None:
    """Fill in shift and uncertainty of all lines except `base`. of: the line of each event. events: EVENT, with times
    on their own hosts' clocks."""
    for i, line in enumerate(found):
        if i == base:
            continue
        when, low, high = bounds(events, of == base, of == i)
        at, shift, doubt = _asked(line, found[base])
        if not len(when) and not len(at):
            line.uncertainty = UNSURE
            line.problems.append(
                f"{line.host}: no collective and no answer relates its clock to that of {found[base].host}; both are "
                f"assumed to be right, ±{UNSURE // SECOND} s"
            )
            continue
        mine = events[of == i]["enter"]
        # the shift is also needed at the first and the last event
        ends = np.array([mine.min(), mine.max()] if len(mine) else [], np.int64)
        when, unknown = np.concatenate((when, at, ends)), np.full(len(ends), np.inf)
        order = np.argsort(when, kind="stable")
        when = when[order]
        nodes = np.unique([*np.flatnonzero(np.diff((when - when[0]) // WINDOW, prepend=-1)), len(when) - 1])
        lo = _spread(when, np.concatenate((low, shift - doubt, -unknown))[order])[nodes]
        hi = -_spread(when, -np.concatenate((high, shift + doubt, unknown))[order])[nodes]
        line.at = when[nodes].astype(float)
        line.shift = (lo + hi) / 2
        line.uncertainty = int(np.max(np.abs(hi - lo)) / 2) + 1
        if np.any(lo > hi + SAMPLE_ERROR):
            line.problems.append(
                f"{line.host}: its clock and that of {found[base].host} contradict each other by up to "
                f"{int(np.max(lo - hi)) / 1e6:.3f} ms"
            )


def _spread(when: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the best lower bound at each time (sorted) that follows from the bounds at all times, because clocks drift
    apart by at most DRIFT."""
    slack = DRIFT * (when - when[0]).astype(float)
    before = np.maximum.accumulate(low + slack) - slack
    after = np.maximum.accumulate((low - slack)[::-1])[::-1] + slack
    return np.maximum(before, after)


def _asked(line: Line, base: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays for the meetings with a line's host: when they were, on its clock; what to add to get to the
    clock of `base`; and the possible error of that; ns. Both clocks are known relative to the asking host."""
    if not line.meetings or not base.meetings:
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    (at_base, behind_base, doubt_base), (at, behind, doubt) = (_behind(each) for each in (base, line))
    nearest = _nearest(at, at_base)
    doubt = doubt + doubt_base[nearest] + DRIFT * np.abs(at - at_base[nearest])
    return at - behind, (behind - behind_base[nearest]).astype(float), doubt


def _nearest(at: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return for each time the index of the nearest time of `among`."""
    order = np.argsort(among, kind="stable")
    after = np.searchsorted(among[order], at).clip(1, max(len(among) - 1, 1))
    before, after = order[after - 1], order[np.minimum(after, len(among) - 1)]
    return np.where(at - among[before] <= among[after] - at, before, after)


def _behind(line: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays for the meetings with a line's host: when they were; by how much the line is behind the
    asking host's monotonic clock; and the possible error of that; ns."""
    at = np.array([m.at for m in line.meetings], np.int64)
    own = line.own(np.array([m.sample.ticks for m in line.meetings], np.uint64))
    return at, at - own, np.array([m.uncertainty for m in line.meetings], float) + SAMPLE_ERROR


def bounds(events: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays for the collectives in which both sides took part and all wait for all, sorted by time: when
    they were (`theirs` clock), and the lower and upper bound of what to add to that clock; ns."""
    meets = (
        np.isin(events["op"], MEETING) & (events["exit"] != OPEN) & (events["flags"] & 1 == 0) & (events["comm"] >= 0)
    )
    sides = []
    for mask in (ours & meets, theirs & meets):
        some = events[mask]
        key = (some["comm"].astype(np.int64) << 40) + some["context"].astype(np.int64) * 64 + some["generation"]
        order = np.argsort(key, kind="stable")
        keys, start = np.unique(key[order], return_index=True)
        if not len(keys):
            return (np.empty(0, np.int64),) * 3
        sides.append(
            (keys, np.maximum.reduceat(some["enter"][order], start), np.minimum.reduceat(some["exit"][order], start))
        )
    (keys_a, enter_a, exit_a), (keys_b, enter_b, exit_b) = sides
    _, a, b = np.intersect1d(keys_a, keys_b, return_indices=True)
    low, high, when = enter_a[a] - exit_b[b], exit_a[a] - enter_b[b], enter_b[b]
    order = np.argsort(when, kind="stable")
    return when[order], low[order], high[order]
