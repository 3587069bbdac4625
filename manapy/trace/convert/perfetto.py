"""Exports a trace for Perfetto (ui.perfetto.dev).

Each rank is a process, with a track for the calls of each thread and one for its work between them. Arrows lead from
sends to receives. The job is a process, too, with its iterations and its verdicts.

Times are ns from the begin of the trace. Source of the format: perfetto.dev/docs/reference/trace-packet-proto; the
numbers of fields below are those of TracePacket, TrackEvent, TrackDescriptor and DebugAnnotation.

Invariants
 1. The slices of a track do not overlap, so each verdict has a track of its own.
 2. Work is drawn only where it is known that no call was made: not over lost records or pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..model.events import OPEN, Trace
from ..model.iterations import iterations
from ..model.match import IS_SEND, Matching, match
from ..model.stages import PHASES, Labels
from ..model.verdict import Phase, Verdict
from .slices import calls, details, title

_BEGIN, _END = 1, 2  # TrackEvent.Type
_PROCESS, _WORK, _JOB = 1 << 32, 2 << 32, 3 << 32  # the first identity of each kind of track; threads are below


def to_perfetto(trace: Trace, out: Path, labels: Labels | None = None, verdicts: Sequence[Verdict] = ()) -> None:
    """Write a trace. labels: of a schedule, for the iterations and the names of the work. Raises OSError."""
    with out.open("wb") as stream:
        _File(stream, trace, labels).write(verdicts)


class _File:
    """Writes the file."""

    def __init__(self, stream: BinaryIO, trace: Trace, labels: Labels | None) -> None:
        self.stream, self.trace, self.labels = stream, trace, labels
        self.start = int(trace.events["enter"].min()) if len(trace.events) else 0
        self.tracks: dict[tuple[int, int], int] = {}
        self.ranks: dict[int, int] = {}  # the rank of each track
        self.begun = False

    def write(self, verdicts: Sequence[Verdict]) -> None:
        """Write all of it."""
        self._job(verdicts)
        flows = _flows(match(self.trace))
        before: dict[int, tuple[int, int]] = {}  # of each track, the end and the seq of the call before
        for begin, group, end in calls(self.trace):
            event = self.trace.events[group[0]]
            track = self._thread(int(event["rank"]), int(event["thread"]))
            arrows = b"".join(_fixed(47, flows[i]) for i in group if i in flows)
            if track in before and before[track][1] + 1 == event["seq"]:
                self._work(track, before[track][0], begin, group[0])
            self._slice(track, begin, end, "mpi", title(self.trace, group), details(self.trace, event), arrows)
            before[track] = end, int(self.trace.events["seq"][group[-1]])
            if event["exit"] == OPEN:
                before[track] = end, -2
        for track, rank in self.ranks.items():
            known = self.trace.ranks.get(rank)
            if known is not None and not known.ended and before[track][1] >= 0:
                self._work(track, before[track][0], self.trace.now, None)

    def _job(self, verdicts: Sequence[Verdict]) -> None:
        """Write the tracks of the job."""
        measured = list(iterations(self.labels)) if self.labels is not None else []
        if not measured and not verdicts:
            return
        pid = self.trace.size + 1  # those of ranks begin with 1
        self._track(_JOB, process=_number(1, pid) + _bytes(6, self.trace.job or "job"))
        if measured:
            self._track(_JOB + 1, parent=_JOB, name="iterations")
        for one in measured:
            self._slice(_JOB + 1, one.begin, one.end, "iteration", f"iteration {one.number}", ())
        begins = {one.number: one.begin for one in measured}
        for place, verdict in enumerate(verdicts):
            track = _JOB + 2 + place
            self._track(track, parent=_JOB, name=f"verdict: {verdict.state.value}")
            since = verdict.since_ns
            if since is None:
                since = self.start if verdict.iteration is None else begins.get(verdict.iteration, self.start)
            facts = {
                "state": verdict.state.value,
                "cause": verdict.cause.value,
                "confidence": f"{verdict.confidence:.0%}",
                "evidence": "; ".join(verdict.evidence),
                "next": verdict.action,
            }
            self._slice(track, since, self.trace.now, "verdict", verdict.sentence, facts.items())

    def _thread(self, rank: int, thread: int) -> int:
        """Return the track of a thread's calls. Writes it, the one of its work, and before the first one of a rank the
        track of its process, if this was not done."""
        if (known := self.tracks.get((rank, thread))) is not None:
            return known
        pid = rank + 1  # process ids of different hosts may be equal
        host = self.trace.ranks[rank].host if rank in self.trace.ranks else ""
        if rank not in self.ranks.values():
            name = f"rank {rank}{f' on {host}' if host else ''}"
            self._track(_PROCESS | rank, process=_number(1, pid) + _bytes(6, name))
        track = self.tracks[rank, thread] = len(self.tracks) + 1
        self.ranks[track] = rank
        named = _number(1, pid) + _number(2, thread + 1) + _bytes(5, f"thread {thread}")
        self._track(track, parent=_PROCESS | rank, thread=named)
        self._track(_WORK | track, parent=_PROCESS | rank, name=f"work of thread {thread}")
        return track

    def _work(self, track: int, begin: int, end: int, following: int | None) -> None:
        """Write the work of a thread between two calls. following: the event after it."""
        known = self.trace.ranks.get(self.ranks[track])
        pauses = known.pauses if known is not None else ()
        if end > begin and not any(since < end and (until == OPEN or until > begin) for since, until in pauses):
            self._slice(_WORK | track, begin, end, "work", self._named(following), ())

    def _named(self, following: int | None) -> str:
        """Return the name of the work before an event: `forward of micro-batch 3`, if a schedule tells."""
        if self.labels is None or following is None:
            return "work"
        phase, micro = PHASES[self.labels.phase[following]], int(self.labels.micro[following])
        if phase is Phase.UNKNOWN:
            return "work"
        return f"{phase.value} of micro-batch {micro}" if micro >= 0 else f"before {phase.value}"

    # ---- packets

    def _track(self, track: int, *, parent: int = 0, name: str = "", process: bytes = b"", thread: bytes = b"") -> None:
        described = _number(1, track)
        described += _bytes(2, name) if name else b""
        described += _bytes(3, process) if process else b""
        described += _bytes(4, thread) if thread else b""
        described += _number(5, parent) if parent else b""
        self.stream.write(_bytes(1, _number(10, 1) + _bytes(60, described)))

    def _slice(
        self,
        track: int,
        begin: int,
        end: int,
        category: str,
        name: str,
        facts: Iterable[tuple[str, int | str]],
        more: bytes = b"",
    ) -> None:
        packet = _number(9, _BEGIN) + _number(11, track) + _bytes(22, category) + _bytes(23, name)
        for text, value in facts:
            said = _number(4, value) if isinstance(value, int) else _bytes(6, value)
            packet += _bytes(4, _bytes(10, text) + said)
        self._packet(begin, packet + more)
        self._packet(max(end, begin), _number(9, _END) + _number(11, track))

    def _packet(self, at: int, track_event: bytes) -> None:
        incremental = b"" if self.begun else _number(13, 1)  # SEQ_INCREMENTAL_STATE_CLEARED
        self.begun = True
        at = max(at - self.start, 0)
        self.stream.write(_bytes(1, _number(8, at) + _number(10, 1) + incremental + _bytes(11, track_event)))


def _flows(matching: Matching) -> dict[int, int]:
    """Return the identity of the arrow of each event that has one. An arrow goes from a send to the end of its
    receive."""
    flows: dict[int, int] = {}
    for send in np.flatnonzero((matching.partner >= 0) & IS_SEND[matching.op]).tolist():
        receive = int(matching.partner[send])
        end = int(matching.done[receive])
        flows[send] = flows[end if end >= 0 else receive] = send + 1
    return flows


# ---- the part of protocol buffers' wire format that a trace needs


def _varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + (value & (1 << 64) - 1).to_bytes(8, "little")
