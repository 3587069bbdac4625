"""One clock for the whole job: converts ticks of time-stamp counters to nanoseconds since 1970 on the clock of rank 0's
host, with an uncertainty.

On one host all processors share the counter, so all its ranks share one line through all their samples. Between hosts,
each collective in which all wait for all bounds the offset: no rank leaves before all have entered. Many such calls
make the bounds narrow. While a job runs, its hosts are also asked for the time (collect.py): the fastest ping-pong
bounds the offset by half of its duration (Cristian, "Probabilistic clock synchronization", 1989); the bound widens with
the distance in time, by DRIFT. Both bounds hold together. Between two bounds the offset is assumed to change steadily.
Without any bound the hosts' own clocks are used, with an uncertainty that says so.

Invariants
 1. Times never come from a clock that can be set: realtime only anchors the line, once per host.
 2. Files whose samples do not lie on the line of their host (another machine of this name, a reboot, a counter that is
    not invariant) get their own line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from ..model.events import OPEN, Op

SECOND = 10**9
JUMP = 50_000_000  # ns by which realtime and monotonic may diverge between two samples without a message
FIT = 1_000_000  # ns by which a sample may miss the line of its host
SAMPLE_ERROR = 2_000  # ns of one sample
DRIFT = 1e-4  # largest drift between two hosts' clocks: twice a quartz's specification
UNSURE = SECOND  # ns of uncertainty between hosts without any bound
WINDOW = 10 * SECOND  # offsets drift, so they are computed once per WINDOW
MEETING = [int(op) for op in (Op.BARRIER, Op.ALLREDUCE, Op.ALLGATHER, Op.ALLTOALL)]


@dataclass(frozen=True)
class Sample:
    """Clocks of one host, read together; ns."""

    ticks: int
    realtime: int
    monotonic: int


@dataclass(frozen=True)
class Meeting:
    """A host was asked for the time: it took `sample` at time `at` of the asking host's monotonic clock, ±
    `uncertainty` (ns).
    """

    host: str
    sample: Sample
    at: int
    uncertainty: int


@dataclass
class Line:
    """ns = anchor.realtime + (ticks - anchor.ticks) / rate, on one host. rate: ticks a ns. shift: see `shifted`."""

    host: str
    samples: list[Sample]
    rate: float
    problems: list[str] = field(default_factory=list)
    at: np.ndarray = field(default_factory=lambda: np.zeros(1))  # ns, and there:
    shift: np.ndarray = field(default_factory=lambda: np.zeros(1))  # ns to add to get rank 0's
    uncertainty: int = 0
    meetings: list[Meeting] = field(default_factory=list)

    @property
    def anchor(self) -> Sample:
        """The oldest sample."""
        return self.samples[0]

    @property
    def span(self) -> int:
        """ns between the oldest and the newest sample."""
        return self.samples[-1].monotonic - self.samples[0].monotonic

    def own(self, ticks: np.ndarray) -> np.ndarray:
        """ns by this host's clock. Differences of ticks are signed: a call may be older than the oldest sample."""
        anchor = self.anchor
        away = ticks.astype(np.uint64) - np.uint64(anchor.ticks)
        return anchor.realtime + np.rint(away.view(np.int64) / self.rate).astype(np.int64)

    def shifted(self, ns: np.ndarray) -> np.ndarray:
        """From this host's clock to the job's."""
        return ns + np.rint(np.interp(ns, self.at, self.shift)).astype(np.int64)

    def add(self, samples: list[Sample]) -> None:
        """Add samples of the same host."""
        self.samples = sorted({*self.samples, *samples}, key=lambda s: s.ticks)
        if self.span > 0:
            self.rate = (self.samples[-1].ticks - self.samples[0].ticks) / self.span

    def fits(self, samples: list[Sample]) -> bool:
        """Can these samples be from this host since its boot?"""
        anchor = self.anchor
        slack = SAMPLE_ERROR / max(self.span, 1)
        for s in samples:
            away = (s.ticks - anchor.ticks) / self.rate
            if abs(away - (s.monotonic - anchor.monotonic)) > FIT + 2 * slack * abs(away):
                return False
        return True


def lines(files: list[tuple[str, list[Sample], int, bool]]) -> tuple[list[Line], list[int]]:
    """One file each: host, samples, ticks per second, whether its counter is invariant. The lines, and which of them
    each file is on."""
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
    """Give each line the meetings with its host. Their samples make its rate exact."""
    for meeting in meetings:
        line = next((line for line in found if line.host == meeting.host and line.fits([meeting.sample])), None)
        if line is not None:
            line.add([meeting.sample])
            line.meetings.append(meeting)


def as_line(meeting: Meeting) -> str:
    """For the file CLOCKS of a recording (format.py): JSON."""
    sample = meeting.sample
    return json.dumps([meeting.host, sample.ticks, sample.realtime, sample.monotonic, meeting.at, meeting.uncertainty])


def from_line(text: str) -> Meeting:
    """What as_line has made. ValueError if it is none."""
    try:
        host, ticks, realtime, monotonic, at, uncertainty = json.loads(text)
        return Meeting(str(host), Sample(int(ticks), int(realtime), int(monotonic)), int(at), int(uncertainty))
    except TypeError as error:
        raise ValueError(f"no answer of a host: {text!r}") from error


def _jumps(line: Line) -> list[str]:
    gaps = [s.realtime - s.monotonic for s in line.samples]
    jumps = [b - a for a, b in zip(gaps, gaps[1:], strict=False) if abs(b - a) > JUMP]
    return [
        f"{line.host}: its clock was set by {jump / SECOND:+.3f} s while the job ran; recorded times are not affected"
        for jump in jumps
    ]


def align(found: list[Line], base: int, of: np.ndarray, events: np.ndarray) -> None:
    """Fills in shift and uncertainty of all lines but `base`, from the events (EVENT, times by their own hosts'
    clocks); of: line of each event."""
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
        ends = np.array([mine.min(), mine.max()] if len(mine) else [], np.int64)  # it must hold for them, too
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
    """The best lower bound at each time (sorted) that follows from those at all of them, as clocks run apart by DRIFT
    at most."""
    slack = DRIFT * (when - when[0]).astype(float)
    before = np.maximum.accumulate(low + slack) - slack
    after = np.maximum.accumulate((low - slack)[::-1])[::-1] + slack
    return np.maximum(before, after)


def _asked(line: Line, base: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each meeting with a line's host: when (its clock), what is to be added to get to `base`, and by how much that
    may be wrong; ns. Both are known against the asking host."""
    if not line.meetings or not base.meetings:
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    (at_base, behind_base, doubt_base), (at, behind, doubt) = (_behind(each) for each in (base, line))
    nearest = np.abs(at[:, None] - at_base[None, :]).argmin(1)
    doubt = doubt + doubt_base[nearest] + DRIFT * np.abs(at - at_base[nearest])
    return at - behind, (behind - behind_base[nearest]).astype(float), doubt


def _behind(line: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each meeting: when, by how much the host's line is behind the asking host's monotonic clock, and by how much
    that may be wrong; ns."""
    at = np.array([m.at for m in line.meetings], np.int64)
    own = line.own(np.array([m.sample.ticks for m in line.meetings], np.uint64))
    return at, at - own, np.array([m.uncertainty for m in line.meetings], float) + SAMPLE_ERROR


def bounds(events: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each collective that both took part in, and in which all wait for all: when (their clock), and the bounds of
    what is to be added to it; sorted by time."""
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
