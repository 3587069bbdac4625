"""Exports for Perfetto are read back: slices, arrows, and the tracks of work, iterations and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from manapy.trace.convert.perfetto import to_perfetto
from manapy.trace.live.diagnose import diagnose
from manapy.trace.model import stages
from manapy.trace.model.events import EVENT, OPEN, Op, Trace
from manapy.trace.model.iterations import iterations
from manapy.trace.model.schedule import parse
from manapy.trace.model.verdict import State, Verdict
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate
from traces import Builder

SCHEDULE = parse("tp=2,pp=2,dp=1,micro=2")


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Return the fields of a message of protocol buffers: (field, value)."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    at, found = 0, []
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            size = 8 if key & 7 == 1 else varint()
            found.append((key >> 3, data[at : at + size]))
            at += size
    assert at == len(data)
    return found


@dataclass
class Shown:
    """What a file contains. slices: for each track, (begin, end, category, name); arrows: the ends of each."""

    names: dict[int, str] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    slices: dict[int, list[tuple[int, int, str, str]]] = field(default_factory=dict)
    arrows: Counter[bytes] = field(default_factory=Counter)

    def of(self, category: str) -> list[tuple[int, int, str]]:
        """The slices of a category: begin, end, name."""
        return sorted((a, b, name) for rows in self.slices.values() for a, b, kind, name in rows if kind == category)


def shown(trace: Trace, path: Path, labels: stages.Labels | None = None, verdicts: Sequence[Verdict] = ()) -> Shown:
    """Export the trace and read the file. The slices of a track do not overlap, and belong to a track that exists."""
    to_perfetto(trace, path, labels, verdicts)
    found = Shown()
    begun: dict[int, tuple[int, str, str]] = {}
    for packet in (dict(fields(value)) for number, value in fields(path.read_bytes()) if number == 1):
        if 60 in packet:
            described = dict(fields(packet[60]))
            process = dict(fields(described.get(3, b"")))
            found.names[described[1]] = (described.get(2) or process.get(6) or b"").decode()
            found.parents[described[1]] = described.get(5, 0)
        if 11 not in packet:
            continue
        event = dict(fields(packet[11]))
        track, at = event[11], packet[8]
        assert track in found.names
        if event[9] == 1:
            assert track not in begun
            rows = found.slices.setdefault(track, [])
            assert not rows or at >= rows[-1][1]
            begun[track] = at, event[22].decode(), event[23].decode()
            found.arrows.update(value for number, value in fields(packet[11]) if number == 47)
        else:
            since, kind, name = begun.pop(track)
            assert at >= since
            found.slices[track].append((since, at, kind, name))
    assert not begun
    return found


@pytest.fixture(scope="module")
def stuck() -> Trace:
    found = simulate(Model(SCHEDULE, iterations=2), [Fault(Kind.SPIN, rank=2, iteration=1, micro=1)], seed=1).trace
    assert found is not None and (found.events["exit"] == OPEN).any()
    return found


def test_calls_and_messages(stuck: Trace, tmp_path: Path) -> None:
    found = shown(stuck, tmp_path / "out")
    assert len(found.of("mpi")) == len(stuck.events)
    assert {name for _, _, name in found.of("mpi")} >= {"MPI_Send", "MPI_Recv", "MPI_Allreduce"}
    assert found.arrows and set(found.arrows.values()) == {2}


def test_work_fills_the_time_between_calls(stuck: Trace, tmp_path: Path) -> None:
    found = shown(stuck, tmp_path / "out")
    for track, rows in found.slices.items():
        if found.names[track].startswith("work of thread"):
            continue
        work = found.slices[track | 2 << 32]
        spent = sum(b - a for a, b, _, _ in [*rows, *work])
        assert spent == stuck.now - int(stuck.events["enter"].min()) - rows[0][0]


def test_iterations_and_the_names_of_work(stuck: Trace, tmp_path: Path) -> None:
    labels = stages.label(stuck, SCHEDULE)
    found = shown(stuck, tmp_path / "out", labels)
    start = int(stuck.events["enter"].min())
    measured = [(one.begin - start, one.end - start, f"iteration {one.number}") for one in iterations(labels)]
    assert measured and found.of("iteration") == measured
    assert {"forward of micro-batch 1", "backward of micro-batch 0"} <= {name for _, _, name in found.of("work")}


def test_each_verdict_has_a_track(stuck: Trace, tmp_path: Path) -> None:
    verdicts = diagnose(stuck, SCHEDULE)
    found = shown(stuck, tmp_path / "out", verdicts=[*verdicts, *verdicts])
    assert verdicts[0].state is State.LATE and verdicts[0].since_ns is not None
    start = int(stuck.events["enter"].min())
    assert (verdicts[0].since_ns - start, stuck.now - start, verdicts[0].sentence) in found.of("verdict")
    tracks = [track for track, name in found.names.items() if name.startswith("verdict: ")]
    assert len(tracks) == 2 * len(verdicts) and len({found.parents[track] for track in tracks}) == 1


def test_lost_records_and_pauses_are_not_work(tmp_path: Path) -> None:
    job = Builder(1)
    for begin in (10, 20, 40, 60):
        job.call(0, Op.BARRIER, begin, begin + 5)
    job.rows[0, 0][2]["seq"], job.rows[0, 0][3]["seq"] = 9, 10
    job.pause(0, 50, 55)
    found = shown(job.trace(80), tmp_path / "out")
    assert [(a, b) for a, b, _ in found.of("work")] == [(5, 10), (55, 70)]


def test_an_empty_trace(tmp_path: Path) -> None:
    assert shown(Trace(np.empty(0, EVENT), [], 1, {}, 0), tmp_path / "out") == Shown()
