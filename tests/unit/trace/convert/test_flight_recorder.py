"""Dumps of a Flight Recorder with NCCL, written by hand in the form of version 2.10; and pickles of plain values."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manapy import cli
from manapy.trace.capture import rings
from manapy.trace.convert import plain_pickle, read
from manapy.trace.convert.foreign import write
from manapy.trace.live.diagnose import diagnose
from manapy.trace.model.events import OPEN, Flag, Op, Trace
from manapy.trace.model.verdict import Cause, State, Verdict

START = 1_790_000_000 * 10**9
SECOND = 10**9
GROUPS = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "7": {"name": "7", "desc": "dp", "ranks": "[1, 3]"},
}


class Dump:
    """The dump of one rank."""

    def __init__(self, overwritten: int = 0) -> None:
        self.entries: list[dict[str, Any]] = []
        self.overwritten = overwritten

    def add(self, name: str, seq: int, at: float, *, group: str = "0", done: bool = True, p2p: bool = False) -> None:
        """An entry that was made `at` seconds after START."""
        created = START + round(at * SECOND)
        self.entries.append(
            {
                "record_id": self.overwritten + len(self.entries),
                "pg_id": int(group),
                "process_group": (group, GROUPS[group]["desc"]),
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "profiling_name": f"nccl:{name}",
                "time_created_ns": created,
                "input_sizes": [[3, 4]],
                "input_dtypes": ["BFloat16"],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": created + SECOND // 10 if done else None,
                "retired": done,
                "timeout_ms": 600000,
                "is_p2p": p2p,
            }
        )


def trace(folder: Path, *dumped: Dump, at: float = 60) -> Trace:
    """Import the dumps of ranks 0, 1 ..., which were made `at` seconds after START."""
    folder.mkdir(exist_ok=True)
    for rank, one in enumerate(dumped):
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": GROUPS, "entries": one.entries}, protocol=2))
        os.utime(path, ns=(START + round(at * SECOND),) * 2)
    write(read.read([folder]), folder / "out")
    return rings.read(folder / "out")


def verdict(found: Trace) -> Verdict:
    return diagnose(found)[0]


def steps(count: int, *, overwritten: int = 0) -> Dump:
    """A rank that has made so many all_reduces on the world, one a second."""
    dump = Dump(overwritten)
    for step in range(count):
        dump.add("all_reduce", overwritten + step + 1, step)
    return dump


def test_groups_come_from_the_dumps(tmp_path: Path) -> None:
    ranks = [steps(4) for _ in range(4)]
    ranks[1].add("_reduce_scatter_base", 1, 4, group="7", done=False)
    ranks[3].add("_reduce_scatter_base", 1, 4, group="7", done=False)
    found = trace(tmp_path / "dumps", *ranks)
    assert {c.name: c.members.tolist() for c in found.comms} == {"default_pg": [0, 1, 2, 3], "dp": [1, 3]}
    waits = found.events[found.events["op"] == Op.WAIT]
    assert sorted(waits["rank"].tolist()) == [1, 3] and (waits["exit"] == OPEN).all()
    assert set(found.events["bytes"][found.events["op"] == Op.REDUCE_SCATTER].tolist()) == {24}
    said = verdict(found)
    assert said.state is State.UNKNOWN and said.rank is None
    assert "all 2 ranks have posted it: the network, or work before it on a GPU, is slow or stuck" in said.sentence


def test_a_different_operation_at_one_place_is_a_mismatch(tmp_path: Path) -> None:
    ranks = [steps(4) for _ in range(4)]
    for rank, dump in enumerate(ranks):
        dump.add("broadcast" if rank == 3 else "all_reduce", 5, 4, done=False)
    said = verdict(trace(tmp_path / "dumps", *ranks))
    assert said.state is State.HUNG and said.cause is Cause.MISMATCH and said.rank == 3
    assert "it called MPI_Ibcast" in said.sentence and "others called MPI_Iallreduce" in said.sentence


def test_ranks_that_wait_for_each_other_in_two_groups_are_no_proven_deadlock(tmp_path: Path) -> None:
    """Operations are asynchronous: a rank may go on although one of its operations has not ended."""
    ranks = [steps(4) for _ in range(4)]
    ranks[1].add("all_gather", 1, 4, group="7", done=False)
    for rank in (0, 2, 3):
        ranks[rank].add("all_reduce", 5, 4, done=False)
    for said in diagnose(trace(tmp_path / "dumps", *ranks)):
        assert said.state is not State.HUNG and said.cause is not Cause.DEADLOCK


def test_a_lost_entry_accuses_nobody(tmp_path: Path) -> None:
    """The buffer of rank 1 has only the newest entries: it may have made the call that rank 0 waits for."""
    ranks = [steps(4) for _ in range(4)]
    ranks[1] = Dump(overwritten=5000)
    ranks[1].add("all_gather", 40, 50, group="7")
    for rank in (0, 2, 3):
        ranks[rank].add("all_reduce", 5, 4, done=False)
    said = verdict(trace(tmp_path / "dumps", *ranks))
    assert said.state is State.UNKNOWN and "whose records of that time are lost" in said.sentence


def test_messages_and_their_coalesced_group(tmp_path: Path) -> None:
    """Only the entry of the group tells that its messages have ended."""
    ranks = [steps(4) for _ in range(4)]
    for rank, peer in ((0, 1), (1, 0)):
        ranks[rank].add(f"send {rank}->{peer}", 4, 4, done=False, p2p=True)
        ranks[rank].add(f"recv {rank}<-{peer}", 4, 4, done=False, p2p=True)
        ranks[rank].add("coalesced", 4, 4, p2p=True)
    ranks[0].add("recv 0<-2", 4, 5, done=False, p2p=True)
    found = trace(tmp_path / "dumps", *ranks)
    messages = found.events[(found.events["op"] == Op.SEND) | (found.events["op"] == Op.RECV)]
    assert [(int(m["rank"]), Op(m["op"]).name, int(m["peer"])) for m in messages] == [
        (0, "SEND", 1), (0, "RECV", 1), (0, "RECV", 2), (1, "SEND", 0), (1, "RECV", 0)
    ]  # fmt: skip
    assert (messages["flags"] & Flag.NONBLOCKING).all()
    said = verdict(found)
    assert said.state is State.LATE and said.rank == 2 and "has not called MPI_Send to rank 0" in said.sentence


@pytest.mark.parametrize("done", [True, False])
def test_coalesced_collectives_are_one(done: bool, tmp_path: Path) -> None:
    """Their parts have the number of the whole, and no state of their own."""
    ranks = [steps(4) for _ in range(4)]
    for dump in ranks:
        for _ in range(3):
            dump.add("_reduce_scatter_base", 5, 4, done=False)
        dump.add("reduce_scatter_tensor_coalesced", 5, 4, done=done)
    found = trace(tmp_path / "dumps", *ranks)
    assert (found.events["op"] == Op.REDUCE_SCATTER).sum() == 4
    assert (found.events["op"] == Op.WAIT).sum() == (0 if done else 4)


def test_a_dump_without_entries_accuses_nobody(tmp_path: Path) -> None:
    """Its rank may have made all calls: a dump may be limited to operations that have not ended."""
    ranks = [steps(4) for _ in range(3)]
    for dump in ranks:
        dump.add("all_reduce", 5, 4, done=False)
    found = trace(tmp_path / "dumps", *ranks, Dump())
    assert sorted(found.ranks) == [0, 1, 2]
    said = verdict(found)
    assert said.state is State.UNKNOWN and "rank 3, which has no trace" in said.sentence


def test_operations_behind_one_that_has_not_ended_are_not_waited_for(tmp_path: Path) -> None:
    ranks = [steps(4) for _ in range(4)]
    for rank in (0, 1, 2):
        for seq in (5, 6, 7):
            ranks[rank].add("all_reduce", seq, 4, done=False)
    ranks[3].entries[-1]["frames"] = [
        {"name": "all_reduce", "filename": "/venv/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": "step", "filename": "/home/me/train.py", "line": 44},
        {"name": "main", "filename": "/home/me/train.py", "line": 70},
    ]
    said = verdict(trace(tmp_path / "dumps", *ranks))
    assert said.state is State.LATE and said.rank == 3 and "(call 5 there)" in said.sentence
    assert "its newest call was made by step in /home/me/train.py:44" in said.evidence


# ---- pickles

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN, st.integers(0, 5))
def test_plain_values_are_read(value: object, protocol: int) -> None:
    assert plain_pickle.loads(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"Pid\n.",
        pickle.dumps(Path("/")),
    ],
    ids=["GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "PERSID", "an object"],
)
def test_code_is_refused(program: bytes) -> None:
    with pytest.raises(ValueError):
        plain_pickle.loads(program)


def test_names_that_would_control_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def dump(rank: int, ranks: str) -> None:
        one = steps(1)
        one.add("\x1b[2J", 2, 1)
        data = {"version": "2.10", "pg_config": {"0": {"name": "\x9b31m", "ranks": ranks}}, "entries": one.entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(data, protocol=2))

    def said(code: int) -> str:
        files = map(str, sorted(tmp_path.glob("nccl_trace_rank_*")))
        assert cli.main(["trace", "import", *files, "--out", str(tmp_path / "out")]) == code
        text = capsys.readouterr().err
        assert all(c.isprintable() for line in text.splitlines() for c in line), repr(text)
        return text

    dump(0, "[0, 1]")
    assert "1 calls of nccl:\N{REPLACEMENT CHARACTER}[2J are left out" in said(0)
    shutil.rmtree(tmp_path / "out")
    dump(1, "[0, 1, 2]")
    assert "its process group \N{REPLACEMENT CHARACTER}31m has other members" in said(1)
