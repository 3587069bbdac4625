"""OTF2 archives that export.py has written are read back: the same calls, and the same verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from manapy.trace.capture import rings
from manapy.trace.convert import export, read
from manapy.trace.convert.foreign import ForeignError, write
from manapy.trace.live.diagnose import diagnose
from manapy.trace.model.events import OPEN, Flag, Op, Trace
from manapy.trace.model.schedule import parse
from manapy.trace.model.verdict import State
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate
from traces import SECOND, Builder

pytest.importorskip("otf2", reason="pip install '.[trace]'")


def again(trace: Trace, folder: Path) -> Trace:
    """The trace after an export and an import."""
    export.to_otf2(trace, folder / "archive")
    write(read.read([folder / "archive"]), folder / "out")
    return rings.read(folder / "out")


def rows(trace: Trace) -> list[tuple[object, ...]]:
    """All calls, with times from the first one on, and the members of their communicators."""
    start = int(trace.events["enter"].min())
    found = []
    for event in trace.events:
        numbers = tuple(int(event[name]) for name in ("rank", "op", "peer", "tag", "bytes", "flags", "context"))
        members = tuple(trace.comms[event["comm"]].members) if event["comm"] >= 0 else ()
        found.append((*numbers, int(event["enter"]) - start, int(event["exit"]) - start, members))
    return sorted(found)


def test_calls_come_back(tmp_path: Path) -> None:
    job = Builder(3)
    pair = job.comm(2, 0, name="a pair")
    for rank in range(3):
        job.call(rank, Op.INIT, 0, 4, comm=-1)
    job.call(0, Op.SSEND, 5, 7, peer=1, tag=4, bytes=80)
    job.call(1, Op.RECV, 5, 7, peer=0, tag=4, bytes=80)
    job.call(0, Op.SEND, 8, 9, peer=1, tag=5, bytes=8, flags=Flag.MORE)
    job.call(0, Op.RECV, 8, 9, peer=1, tag=5, bytes=8)
    job.call(1, Op.SEND, 8, 9, peer=0, tag=5, bytes=8, flags=Flag.MORE)
    job.call(1, Op.RECV, 8, 9, peer=0, tag=5, bytes=8)
    for rank in (2, 0):
        job.call(rank, Op.BCAST, 30, 35, comm=pair, peer=2, bytes=8)
    for rank in range(3):
        job.call(rank, Op.BARRIER, 40, 45)
        job.call(rank, Op.FINALIZE, 50, 60, comm=-1)
    before = job.trace(70)
    after = again(before, tmp_path)
    assert rows(after) == rows(before)
    assert {c.name for c in after.comms} >= {"a pair"} and all(known.ended for known in after.ranks.values())
    assert {known.host for known in after.ranks.values()} == {"node0"}


def test_requests_come_back(tmp_path: Path) -> None:
    job = Builder(2)
    job.call(0, Op.RECV, 10, 11, peer=1, tag=7, bytes=99, request=1, flags=Flag.NONBLOCKING)
    job.call(1, Op.SEND, 10, 12, peer=0, tag=7, bytes=16, request=2, flags=Flag.NONBLOCKING)
    job.call(0, Op.WAIT, 13, 20, request=1, peer=1, tag=7, bytes=16)
    job.call(1, Op.WAIT, 13, 20, request=2)
    after = again(job.trace(30), tmp_path).events
    assert after["op"].tolist() == [Op.RECV, Op.WAIT, Op.SEND, Op.WAIT]
    assert after["request"].tolist() == [1, 1, 1, 1]  # of each rank's first record
    assert after["peer"][[0, 2]].tolist() == [1, 0] and after["bytes"][[0, 2]].tolist() == [16, 16]


def test_numbers_of_requests_may_be_used_again(tmp_path: Path) -> None:
    job = Builder(2)
    for at in (10, 30, 50):
        job.call(0, Op.SEND, at, at + 1, peer=1, tag=7, request=5, flags=Flag.NONBLOCKING)
        job.call(0, Op.WAIT, at + 2, at + 3, request=5)
        job.call(1, Op.RECV, at, at + 2, peer=0, tag=7)
    after = again(job.trace(90), tmp_path).events
    assert after["request"][after["rank"] == 0].tolist() == [1, 1, 3, 3, 5, 5]


def test_the_slow_rank_is_found_in_an_archive(tmp_path: Path) -> None:
    faults = [Fault(Kind.COMPUTE, rank=2, iteration=5, micro=1, seconds=0.5)]
    model = Model(parse("tp=2,pp=2,dp=1,micro=2"), iterations=12)
    before = simulate(model, faults, seed=1).trace
    assert before is not None
    after = again(before, tmp_path)
    assert diagnose(before)[0].state is State.SLOW and diagnose(before)[0].rank == 2
    assert [(v.state, v.rank) for v in diagnose(after)] == [(v.state, v.rank) for v in diagnose(before)]


def test_a_call_that_has_not_ended_accuses_nobody(tmp_path: Path) -> None:
    """An archive has nothing of such a call but its region."""
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.BARRIER, SECOND, SECOND + 9)
    job.call(0, Op.RECV, 2 * SECOND, OPEN, peer=1, tag=3)
    after = again(job.trace(60 * SECOND), tmp_path)
    assert (after.events["exit"] == OPEN).sum() == 1
    said = diagnose(after)[0]
    assert said.state is State.UNKNOWN and said.rank is None
    assert "MPI_Recv" in said.sentence and "not recorded" in said.sentence


def test_damaged_archives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.BARRIER, 10, 20)
    export.to_otf2(job.trace(30), tmp_path / "archive")
    (tmp_path / "archive/traces.def").write_bytes(b"")
    (tmp_path / "empty.otf2").touch()
    for path in (tmp_path / "archive", tmp_path / "empty.otf2"):
        with pytest.raises(ForeignError, match="damaged or truncated"):
            read.read([path])
    with pytest.raises(ForeignError, match="no such file"):
        read.read([tmp_path / "none.otf2"])


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "otf2", None)
    (tmp_path / "traces.otf2").touch()
    with pytest.raises(ForeignError, match=r"\(manapy's extra 'trace'\)"):
        read.read([tmp_path])
