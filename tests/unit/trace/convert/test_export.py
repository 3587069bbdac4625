"""Exports of a trace are read back: JSON, OpenMetrics, Perfetto packets, OTF2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import Builder

from manapy.trace.convert import export
from manapy.trace.model.events import OPEN, PROC_NULL, Flag, Op, Refusal, Trace
from manapy.trace.model.schedule import parse
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate


@pytest.fixture(scope="module")
def trace() -> Trace:
    found = simulate(
        Model(parse("tp=2,pp=2,dp=1,micro=2"), iterations=2), [Fault(Kind.SPIN, rank=2, iteration=1, micro=1)], seed=1
    ).trace
    assert found is not None and (found.events["exit"] == OPEN).any()
    return found


def test_json(trace: Trace, tmp_path: Path) -> None:
    export.to_json(trace, tmp_path / "out")
    found = json.loads((tmp_path / "out").read_text())
    assert len(found["events"]) == len(trace.events)
    assert [e["op"] for e in found["events"][:40]] == [Op(op).name for op in trace.events["op"][:40]]
    assert sum(e["exit"] is None for e in found["events"]) == (trace.events["exit"] == OPEN).sum()
    assert found["communicators"][0]["members"] == [0, 1, 2, 3]
    assert {e["peer"] for e in found["events"] if e["op"] == "ALLREDUCE"} == {None}


def test_json_of_a_job_that_a_refused_call_has_ended(tmp_path: Path) -> None:
    job = Builder(1)
    job.call(0, Op.SEND, 1, 2, peer=0, tag=1)
    job.ranks[0] = replace(job.ranks[0], refused=Refusal("MPI_Send", 2, 5))
    export.to_json(job.trace(10), tmp_path / "out")
    (rank,) = json.loads((tmp_path / "out").read_text())["ranks"]
    assert rank["refused"] == {"call": "MPI_Send", "error": 2, "at": 5}


def test_openmetrics(trace: Trace, tmp_path: Path) -> None:
    export.to_openmetrics(trace, tmp_path / "out")
    text = (tmp_path / "out").read_text()
    assert text.endswith("# EOF\n")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    sends = ((trace.events["rank"] == 0) & (trace.events["op"] == Op.SEND)).sum()
    assert values['manapy_mpi_calls_total{rank="0",op="send"}'] == str(sends)
    assert float(values['manapy_mpi_call_seconds_total{rank="0",op="recv"}']) > 0
    assert any(name.startswith("manapy_mpi_open_call_seconds{") for name in values)


def test_otf2(trace: Trace, tmp_path: Path) -> None:
    otf2 = pytest.importorskip("otf2", reason="pip install '.[trace]'")
    export.to_otf2(trace, tmp_path / "out")
    with otf2.reader.open(str(tmp_path / "out" / "traces.otf2")) as archive:
        kinds = [type(event).__name__ for _, event in archive.events]
        assert kinds.count("Enter") == kinds.count("Leave") == len(trace.events)
    with pytest.raises(export.ExportError, match="exists already"):
        export.to_otf2(trace, tmp_path / "out")


def test_otf2_has_messages_and_collectives(tmp_path: Path) -> None:
    """OTF2's own reader reads it back. Checked are ranks in communicators, tags, bytes and requests."""
    otf2 = pytest.importorskip("otf2", reason="pip install '.[trace]'")
    job = Builder(3)
    pair = job.comm(2, 0, name="a pair")
    job.call(0, Op.SEND, 0, 5, peer=1, tag=4, bytes=80)
    job.call(1, Op.RECV, 2, 6, peer=0, tag=4, bytes=80)
    job.call(0, Op.RECV, 10, 11, peer=2, tag=7, comm=pair, bytes=99, request=1, flags=Flag.NONBLOCKING)
    job.call(2, Op.SEND, 10, 12, peer=0, tag=7, comm=pair, bytes=16, request=2, flags=Flag.NONBLOCKING)
    job.call(0, Op.WAIT, 13, 20, peer=2, tag=7, comm=pair, bytes=16, request=1)
    job.call(2, Op.WAIT, 13, 20, request=2)
    for rank in (2, 0):
        job.call(rank, Op.BCAST, 30, 35, comm=pair, peer=2, bytes=8)
    for rank in range(3):
        job.call(rank, Op.BARRIER, 40, OPEN if rank == 1 else 45)
    job.call(0, Op.RECV, 46, 47, peer=PROC_NULL, tag=4, request=3, flags=Flag.NONBLOCKING)
    job.call(0, Op.WAIT, 48, 49, request=3)
    job.call(0, Op.SEND, 50, OPEN, peer=1, tag=4, bytes=80)
    export.to_otf2(job.trace(60), tmp_path / "out")
    found = []
    with otf2.reader.open(str(tmp_path / "out" / "traces.otf2")) as archive:
        for location, event in archive.events:
            kind, rank = type(event).__name__, int(location.group.name.split()[-1])
            if kind in ("MpiSend", "MpiIsend"):
                more = (event.receiver, event.communicator.name, event.msg_tag, event.msg_length)
            elif kind in ("MpiRecv", "MpiIrecv"):
                more = (event.sender, event.communicator.name, event.msg_tag, event.msg_length)
            elif kind == "MpiCollectiveEnd":
                more = (
                    next(
                        name for name in ("BCAST", "BARRIER") if event.collective_op == getattr(otf2.CollectiveOp, name)
                    ),
                    event.communicator.name,
                    event.root if event.root in (0, 1, 2) else None,
                    event.size_sent,
                )
            elif kind in ("Enter", "Leave", "MpiCollectiveBegin"):
                continue
            else:
                more = ()
            request = (event.request_id,) if hasattr(event, "request_id") else ()
            found.append((rank, event.time, kind, *more, *request))
    world = f"{1:016x}"
    assert sorted(found, key=str) == sorted(
        [
            (0, 0, "MpiSend", 1, world, 4, 80),
            (1, 6, "MpiRecv", 0, world, 4, 80),
            (0, 10, "MpiIrecvRequest", 1),
            (2, 10, "MpiIsend", 1, "a pair", 7, 16, 2),
            (0, 20, "MpiIrecv", 0, "a pair", 7, 16, 1),
            (2, 20, "MpiIsendComplete", 2),
            *((rank, 35, "MpiCollectiveEnd", "BCAST", "a pair", 0, 8) for rank in (0, 2)),
            *((rank, 45, "MpiCollectiveEnd", "BARRIER", world, None, 0) for rank in (0, 2)),
        ],
        key=str,
    )


def test_otf2_of_records_whose_times_are_damaged(tmp_path: Path) -> None:
    otf2 = pytest.importorskip("otf2", reason="pip install '.[trace]'")
    job = Builder(1)
    for enter, exit in ((10, 20), (30, 10**15), (50, 60)):
        job.call(0, Op.BARRIER, enter, exit)
    export.to_otf2(job.trace(100), tmp_path / "out")
    with otf2.reader.open(str(tmp_path / "out" / "traces.otf2")) as archive:
        assert [event.time for _, event in archive.events if type(event).__name__ == "Enter"] == [0, 20, 10**15 - 10]


@pytest.mark.parametrize("kind", ["json", "openmetrics", "perfetto"])
def test_an_empty_trace(kind: str, tmp_path: Path) -> None:
    empty = Trace(np.empty(0, export.EVENT), [], 1, {}, 0)
    export.FORMATS[kind][0](empty, tmp_path / "out")
    assert (tmp_path / "out").exists()


def test_without_otf2(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "otf2", None)
    with pytest.raises(export.ExportError, match=r"\(manapy's extra 'trace'\)"):
        export.to_otf2(trace, tmp_path / "out")
