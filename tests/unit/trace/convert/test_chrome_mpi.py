"""Traces in Chrome's format by tracers of MPI: what is claimed of calls of which something is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manapy.trace.capture import rings
from manapy.trace.convert import read
from manapy.trace.convert.foreign import ForeignError, write
from manapy.trace.live.diagnose import diagnose
from manapy.trace.model.events import NO_PEER, OPEN, Op, Trace
from manapy.trace.model.verdict import Cause, State, Verdict

END = 20_000_000  # µs


class Tracer:
    """Events of all ranks in one file."""

    def __init__(self) -> None:
        self.events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "x"}}]

    def call(self, rank: int, name: str, begin: float, end: float | None = None, **args: object) -> None:
        """A call; without `end` it does not return."""
        event: dict[str, object] = {"name": f"MPI_{name}", "pid": rank, "tid": 1, "ts": begin, "args": args}
        self.events.append({**event, "ph": "B"} if end is None else {**event, "ph": "X", "dur": end - begin})

    def trace(self, folder: Path) -> Trace:
        """Import it. The trace ends at END."""
        self.events.append({"ph": "X", "name": "compute", "pid": 0, "tid": 2, "ts": END, "dur": 0})
        folder.mkdir()
        (folder / "trace.json").write_text(json.dumps(self.events))
        write(read.read([folder]), folder / "out")
        return rings.read(folder / "out")


def verdict(tracer: Tracer, tmp_path: Path) -> Verdict:
    return diagnose(tracer.trace(tmp_path / "files"))[0]


@pytest.fixture
def tracer() -> Tracer:
    """Two ranks that have met in a barrier."""
    found = Tracer()
    for rank in (0, 1):
        found.call(rank, "Barrier", 10 + rank, 20)
    return found


def test_a_deadlock(tracer: Tracer, tmp_path: Path) -> None:
    for rank in (0, 1):
        tracer.events += [{"ph": "B", "name": "MPI_Bcast", "pid": rank, "tid": 1, "ts": 20, "args": {"root": 0}}]
        tracer.events += [{"ph": "E", "pid": rank, "tid": 1, "ts": 30}]
        tracer.call(rank, "Recv", 40, source=1 - rank, tag=3)
    said = verdict(tracer, tmp_path)
    assert said.state is State.HUNG and said.cause is Cause.DEADLOCK
    assert "rank 0 waits in MPI_Recv from rank 1, tag 3" in said.sentence


@pytest.mark.parametrize("end", ["", "\n", ",", ", \n"])
def test_an_array_without_its_end(tracer: Tracer, tmp_path: Path, end: str) -> None:
    """Chrome's format allows it: the tracer of a job that hangs or dies cannot write it."""
    text = json.dumps(tracer.events)
    whole, open_ended = tmp_path / "whole.json", tmp_path / "open.json"
    whole.write_text(text)
    open_ended.write_text(text[:-1] + end)
    assert read.read([open_ended]).ranks[1].calls == read.read([whole]).ranks[1].calls
    open_ended.write_text(text[:-9])
    with pytest.raises(ForeignError, match="damaged or truncated"):
        read.read([open_ended])


def test_the_rank_that_others_wait_for(tracer: Tracer, tmp_path: Path) -> None:
    tracer.call(0, "Allreduce", 40, comm="MPI_COMM_WORLD")
    said = verdict(tracer, tmp_path)
    assert said.state is State.LATE and said.rank == 1


def test_nonblocking_sends_count(tracer: Tracer, tmp_path: Path) -> None:
    tracer.call(1, "Isend", 30, 31, dest=0, tag=3)
    tracer.call(0, "Recv", 40, 50, source=1, tag=3)
    tracer.call(1, "Waitall", 60)
    tracer.call(0, "Allreduce", 70)
    said = verdict(tracer, tmp_path)
    assert said.state is not State.HUNG and "MPI_Waitall" in said.sentence


@pytest.mark.parametrize("name", ["Sendrecv", "Start", "Mrecv"])
def test_no_message_is_missing_if_some_are_unknown(name: str, tracer: Tracer, tmp_path: Path) -> None:
    tracer.call(1, name, 30, 31)
    tracer.call(0, "Recv", 40, source=1, tag=3)
    found = tracer.trace(tmp_path / "files")
    assert found.events["peer"][found.events["op"] == Op.RECV].tolist() == [NO_PEER]
    said = diagnose(found)[0]
    assert said.state is State.UNKNOWN and said.rank is None


def test_a_rank_in_an_unknown_function_is_not_accused(tracer: Tracer, tmp_path: Path) -> None:
    tracer.call(1, "Win_fence", 30)
    tracer.call(0, "Allreduce", 40)
    said = verdict(tracer, tmp_path)
    assert said.state is State.UNKNOWN and said.rank is None


@pytest.mark.parametrize("how", ["named", "made", "in time", "by operation"])
def test_collectives_on_other_communicators_are_not_compared(how: str, tracer: Tracer, tmp_path: Path) -> None:
    name = {"comm": "0x84000001"} if how == "named" else {}
    if how == "made":
        for rank in (0, 1):
            tracer.call(rank, "Comm_split", 30, 35)
    tracer.call(0, "Allreduce", 40, 50, **name)
    tracer.call(1, "Bcast" if how == "by operation" else "Allreduce", 60 if how == "in time" else 45, 70, **name)
    tracer.call(0, "Allreduce", 80, **name)
    found = tracer.trace(tmp_path / "files")
    assert (found.events["exit"] == OPEN).sum() == 1
    assert all(said.rank is None and said.state is State.UNKNOWN for said in diagnose(found))


def test_what_is_wrong_with_a_file(tracer: Tracer, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(tracer.events))
    with pytest.raises(ForeignError, match="are both of rank 0"):
        read.read([tmp_path])
    (tmp_path / "b.json").write_text(json.dumps([{**tracer.events[1], "pid": "node7"}]))
    with pytest.raises(ForeignError, match="the process id of MPI_Barrier is no rank: node7"):
        read.read([tmp_path / "b.json"])
