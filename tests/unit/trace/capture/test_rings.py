"""Trace files that Python wrote are read as a Trace: lost, torn, damaged or undone records; hosts with other clocks;
RDMA."""

from __future__ import annotations

import functools
import os
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manapy.core import proc
from manapy.trace.capture import clocks, format, ring_file, rings, tracefile, tsc_clock
from manapy.trace.capture.tail import Tail
from manapy.trace.hang.hang import verdicts
from manapy.trace.model import mpi_errors
from manapy.trace.model.events import ANY, NEVER, NO_PEER, OPEN, Flag, Op, Refusal, Trace
from manapy.trace.model.verdict import Cause, State

START = 1_700_000_000 * 10**9  # ns since 1970 at tick 0


def writer(folder: Path, rank: int = 0, size: int = 2, **more: int | str) -> format.Writer:
    """Return a writer whose ticks are ns."""
    made = format.Writer(folder, rank, size, **more)  # type: ignore[arg-type]
    made.sample(0, START, 5)
    made.sample(10**9, START + 10**9, 5 + 10**9)
    made.ring()
    return made


def read(*folders: Path) -> Trace:
    return rings.read(*folders)


def test_calls_become_events(tmp_path: Path) -> None:
    for rank in range(2):
        w = writer(tmp_path, rank)
        world = w.comm(11, [0, 1], name="MPI_COMM_WORLD")
        swapped = w.comm(12, [1, 0])
        w.put(op=Op.SEND, comm=swapped, peer=0, tag=7, bytes=8, enter=100, exit=200)
        w.put(op=Op.RECV, comm=world, peer=-32767, tag=-32767, flags=Flag.WILDCARD, enter=300)
    trace = read(tmp_path)
    assert (trace.size, sorted(trace.ranks), [c.name for c in trace.comms]) == (2, [0, 1], ["MPI_COMM_WORLD", ""])
    send, receive = trace.events[:2]
    assert (send["op"], send["peer"], send["tag"], send["enter"], send["exit"]) == (
        Op.SEND,
        1,
        7,
        START + 100,
        START + 200,
    )
    assert (receive["peer"], receive["exit"], receive["flags"]) == (ANY, OPEN, Flag.WILDCARD)
    assert all(r.lost == 0 and r.first_ns == 0 and not r.problems for r in trace.ranks.values())


def test_peers_in_an_intercommunicator_are_of_the_other_group(tmp_path: Path) -> None:
    w = writer(tmp_path, size=4)
    between = w.comm(5, [0, 1, 3, 2], remote=2)
    w.put(op=Op.SEND, comm=between, peer=0, enter=1, exit=2)
    w.put(op=Op.SEND, comm=between, peer=2, enter=3, exit=4)
    assert read(tmp_path).events["peer"].tolist() == [3, NO_PEER]


def test_open_calls_close_later(tmp_path: Path) -> None:
    w = writer(tmp_path)
    first = w.put(op=Op.RECV, peer=-32767, enter=10)
    reader = rings.Reader(tmp_path)
    reader.poll()
    assert reader.trace().events["exit"].tolist() == [OPEN]
    place = w.records()[first - 1 :][:1]
    place["peer"], place["exit"] = 3, 50
    w.put(op=Op.BARRIER, enter=60, exit=70)
    reader.poll()
    assert reader.trace().events["exit"].tolist() == [START + 50, START + 70]


def test_an_open_call_that_was_overwritten_has_returned(tmp_path: Path) -> None:
    w = writer(tmp_path, capacity=8)
    w.put(op=Op.RECV, enter=10)
    reader = rings.Reader(tmp_path)
    reader.poll()
    for i in range(12):
        w.put(op=Op.BARRIER, enter=100 + i, exit=101 + i)
    reader.poll()
    trace = reader.trace()
    assert trace.events["exit"][0] == START + 10 and trace.events["flags"][0] & Flag.STOPPED
    assert trace.ranks[0].lost == 4


def test_what_was_overwritten_is_counted_and_absence_not_claimed(tmp_path: Path) -> None:
    w = writer(tmp_path, capacity=16)
    for i in range(40):
        w.put(op=Op.BARRIER, enter=i, exit=i + 1)
    trace = read(tmp_path)
    assert (trace.ranks[0].lost, trace.events["seq"].tolist()) == (24, list(range(25, 41)))
    assert trace.ranks[0].first_ns == START + 24


def test_a_record_that_was_being_written_when_its_process_died(tmp_path: Path) -> None:
    w = writer(tmp_path, capacity=16)
    for i in range(20):
        w.put(op=Op.BARRIER, enter=i, exit=i + 1)
    w.records()["seq"][4] = 0  # the 21st record, which overwrites the 5th
    trace = read(tmp_path)
    assert (trace.ranks[0].lost, trace.events["seq"].tolist()) == (5, list(range(6, 21)))


def test_a_restart_takes_back_what_was_done_after_the_checkpoint(tmp_path: Path) -> None:
    old = writer(tmp_path, size=1, rings=2)
    for i in range(6):
        old.put(op=Op.BARRIER, context=i + 1, enter=i * 10, exit=i * 10 + 1)
    old.put(op=Op.RECV, enter=100)
    old.ring(1)
    old.put(1, op=Op.SEND, enter=5, exit=6)  # a call of a thread that began after the checkpoint
    new = writer(tmp_path, size=1, generation=1)
    new.head.past[0] = 4
    new.ring().first = 0  # so that the ring is set up again, to continue after `past`
    new.put(op=Op.BARRIER, context=5, enter=2000, exit=2001, flags=Flag.STOPPED)
    trace = read(tmp_path)
    assert trace.events["seq"].tolist() == [1, 2, 3, 4, 5]
    assert trace.events["generation"].tolist() == [0, 0, 0, 0, 1]
    assert trace.ranks[0].generation == 1 and trace.ranks[0].lost == 0 and trace.ranks[0].first_ns == 0


def test_without_its_past_a_restarted_rank_claims_nothing_before(tmp_path: Path) -> None:
    new = writer(tmp_path, size=1, generation=1)
    new.head.past[0] = 4
    new.ring().first = 0
    new.put(op=Op.BARRIER, enter=2000, exit=2001)
    assert read(tmp_path).ranks[0].first_ns == START + 2000


def test_pauses(tmp_path: Path) -> None:
    """Pauses are no calls. They show from when on a missing record means a missing call."""
    for rank, end in enumerate((7000, 0)):
        w = writer(tmp_path, rank)
        w.put(op=Op.PAUSE, enter=1000, exit=2000)
        w.put(op=Op.BARRIER, enter=3000, exit=3001)
        w.put(op=Op.PAUSE, enter=6000, exit=end)
    trace = read(tmp_path)
    assert trace.events["op"].tolist() == [Op.BARRIER] * 2
    for rank, end in enumerate((START + 7000, OPEN)):
        known = trace.ranks[rank]
        assert known.pauses == ((START + 1000, START + 2000), (START + 6000, end)) and known.first_ns == (
            NEVER if end == OPEN else end
        )
        assert known.paused == (end == OPEN) and not known.whole and not known.lost


def test_refused_calls(tmp_path: Path) -> None:
    """Refused calls are no calls. The first one counts; its name may continue in the next record."""

    def put(thread: int, part: bytes, at: int, error: int, more: bool = False) -> None:
        words = np.frombuffer(part.ljust(24, b"\0"), "<u8").tolist()
        fields = dict(zip(("bytes", "request", "context"), words, strict=True))
        w.put(
            thread,
            op=Op.REFUSED,
            enter=at,
            exit=at,
            tag=error,
            flags=Flag.FAILED | (Flag.MORE if more else 0),
            **fields,
        )

    w = writer(tmp_path, rings=2)
    w.put(op=Op.BARRIER, enter=1000, exit=1001)
    put(0, b"MPI_Type_create_hindexed", 3000, 12, more=True)
    put(0, b"_block_c", 3000, 12)
    w.ring(1)
    put(1, b"MPI_Send", 4000, 6)
    trace = read(tmp_path)
    assert trace.events["op"].tolist() == [Op.BARRIER]
    assert trace.ranks[0].refused == Refusal("MPI_Type_create_hindexed_block_c", 12, START + 3000)


def test_names_of_error_classes(root: Path) -> None:
    text = (root / "wrappers" / "table" / "abi.txt").read_text()
    classes = {int(number): name for name, number in re.findall(r"^ERROR (MPI_(?:T_)?ERR_\w+) +(\d+)", text, re.M)}
    assert {number: mpi_errors.name(number) for number in mpi_errors.NAMES} == classes
    assert mpi_errors.name(1000) == "error class 1000"


def test_rdma_traffic(tmp_path: Path) -> None:
    """The producer reports a queue pair from time to time. Its numbers are neither ranks nor communicators."""
    w = writer(tmp_path, producer="shift")
    device = w.comm(0x77, [], name="rxa1")
    for done in range(5):
        w.put(
            op=Op.RDMA_QP,
            comm=0x11A,
            request=10 + done,
            context=done,
            bytes=done * 4096,
            peer=0x22B,
            tag=device,
            enter=1000 * done,
            exit=1000 * done,
        )
    trace = read(tmp_path)
    events = trace.rdma
    assert not len(trace.events), "none of them is a call"
    assert [trace.devices[i] for i in events["tag"]] == ["rxa1"] * 5 and "rxa1" not in [c.name for c in trace.comms]
    assert set(events["comm"]) == {0x11A} and set(events["peer"]) == {0x22B}
    assert (events["request"] - events["context"]).tolist() == [10] * 5  # in flight
    assert (np.diff(events["bytes"]) / np.diff(events["enter"])).tolist() == [4.096] * 4  # bytes per ns


# ---- invalid files


def damaged(folder: Path, **fields: int) -> str:
    w = writer(folder, 1)
    for name, value in fields.items():
        setattr(w.head, name, value)
    w.close()
    reader = rings.Reader(folder)
    reader.poll()
    assert sorted(reader.trace().ranks) == [0], "the sound one is read"
    assert len(reader.problems) == 1
    reader.poll()
    assert len(reader.problems) == 1, "said once"
    return reader.problems[0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"magic": 1}, "not a trace of manapy"),
        ({"version": 9}, "another version"),
        ({"record_size": 32}, "another version"),
        ({"capacity": 100}, "damaged"),
        ({"rings_offset": 64}, "damaged"),
        ({"rank": 5}, "damaged"),
    ],
)
def test_foreign_and_damaged_files(tmp_path: Path, fields: dict[str, int], said: str) -> None:
    writer(tmp_path).close()
    assert said in damaged(tmp_path, **fields)


def test_a_file_that_is_truncated_while_it_is_read(tmp_path: Path) -> None:
    """The owner truncates the file while another user reads it. The reader keeps what it has read before."""
    w = writer(tmp_path, capacity=64)
    world = w.comm(11, [0, 1], name="MPI_COMM_WORLD")
    for i in range(10):
        w.put(op=Op.BARRIER, comm=world, enter=i + 1, exit=i + 2)
    reader, tail = rings.Reader(tmp_path), Tail(w.path)
    reader.poll()
    assert len(tail.new(0, tail.ring(0), 64)) == 10
    for size in (format.PAGE + 100, 0):
        os.truncate(w.path, size)
        reader.poll()
        trace = reader.trace()
        assert (len(trace.events), trace.size) == (10, 2) and not len(tail.new(0, tail.ring(0), 64))
        assert tail.head.size == 2
    assert any("truncated or overwritten while it was read" in said for said in trace.ranks[0].problems)


def test_truncated_files(tmp_path: Path) -> None:
    w = writer(tmp_path, capacity=64, size=3)
    for i in range(64):
        w.put(op=Op.BARRIER, enter=i, exit=i + 1)
    w.close()
    whole = w.path.read_bytes()
    (tmp_path / format.file_name(1)).write_bytes(whole[:1000])
    w.path.write_bytes(whole[: int(w.head.rings_offset) + format.PAGE + 10 * 64 + 20])
    reader = rings.Reader(tmp_path)
    reader.poll()
    trace = reader.trace()
    assert sorted(trace.ranks) == [0] and len(trace.events) == 10 and trace.ranks[0].lost == 54
    assert (
        trace.ranks[0].problems == [reader.problems[0]]
        and "truncated" in reader.problems[0]
        and "not even its head" in reader.problems[1]
    )


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(rings.NoTraceError, match="no trace files"):
        rings.read(tmp_path)
    (tmp_path / "rank-00000.g0.trace").write_bytes(b"")
    with pytest.raises(rings.NoTraceError, match="truncated"):
        rings.read(tmp_path)


# ---- only the newest records


def test_only_the_newest_are_asked_for(tmp_path: Path) -> None:
    """Records that are left out count as lost, so that no rank is accused of calls that can't be seen. The reader still
    keeps them."""
    w = writer(tmp_path, capacity=64, size=1)
    for i in range(1, 41):
        w.put(op=Op.BARRIER, enter=100 * i, exit=100 * i + 1)
    reader = rings.Reader(tmp_path)
    reader.poll()
    few = reader.trace(10)
    assert few.events["seq"].tolist() == list(range(31, 41))
    assert few.ranks[0].lost == 30 and few.ranks[0].first_ns == few.events["enter"][0]
    whole = reader.trace(1000)
    assert len(whole.events) == 40 and (whole.ranks[0].lost, whole.ranks[0].first_ns) == (0, 0)


def test_what_is_not_kept_is_lost(tmp_path: Path) -> None:
    """However long a job is watched, the reader never keeps fewer than `keep` records, and never more than twice as
    many plus the newest ones."""
    w = writer(tmp_path, capacity=64, size=1)
    reader = rings.Reader(tmp_path, keep=20)
    done = 0
    for _ in range(12):
        for _ in range(15):
            done += 1
            w.put(op=Op.BARRIER, enter=100 * done, exit=100 * done + 1)
        reader.poll()
        trace = reader.trace()
        assert min(done, 20) <= len(trace.events) <= 40 + 15
        assert trace.events["seq"].tolist() == list(range(done - len(trace.events) + 1, done + 1))
        assert trace.ranks[0].lost == done - len(trace.events)
        assert trace.ranks[0].first_ns == (trace.events["enter"][0] if trace.ranks[0].lost else 0)
    late = rings.Reader(tmp_path, keep=20)
    late.poll()
    assert len(late.trace().events) == 20 and late.trace().ranks[0].lost == done - 20


def test_many_ranks_share_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of an analysis depends on its window, not on the size of the recording."""
    monkeypatch.setattr(ring_file, "FEWEST", 3)
    for rank in range(4):
        w = writer(tmp_path, capacity=64, rank=rank, size=4)
        for i in range(1, 41):
            w.put(op=Op.BARRIER, enter=100 * i, exit=100 * i + 1)
    for total, each in ((40, 10), (8, 3), (1000, 40)):
        reader = rings.Reader(tmp_path, total=total)
        reader.poll()
        trace = reader.trace()
        assert [int((trace.events["rank"] == rank).sum()) for rank in range(4)] == [each] * 4
        assert set(trace.events["seq"]) == set(range(41 - each, 41))
        assert all(rank.lost == 40 - each for rank in trace.ranks.values())


# ---- while a thread writes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.data())
def test_whatever_is_overwritten_no_wrong_record_is_taken(steps: list[int], data: st.DataObject) -> None:
    """A ring has 16 places. Between polls the writer makes some calls, and stops in the middle of a record. Every
    record repeats its own seq in other fields."""
    capacity = 16
    places = np.zeros(capacity, format.RECORD)
    read = functools.partial(tracefile.taken, places.__getitem__, capacity)
    head = format.RingStruct(first=1)
    ring = ring_file.Ring(capacity)
    seq = 0
    for step in steps:
        for _ in range(step):
            seq += 1
            place = places[(seq - 1) % capacity :][:1]
            place["seq"] = 0
            if data.draw(st.booleans()) and step > 30:
                place["enter"], place["exit"] = 99, 98  # half written
                ring.poll(head, read)
            place["enter"], place["exit"], place["bytes"] = seq, seq + 1, seq
            place["seq"] = seq
            if data.draw(st.booleans()):
                ring.poll(head, read)  # before head includes it
            head.head = seq
        ring.poll(head, read)
        taken = ring.all()
        assert np.array_equal(taken["enter"], taken["seq"]) and np.array_equal(taken["bytes"], taken["seq"])
        assert np.all(np.diff(taken["seq"].astype(np.int64)) > 0)
        assert len(taken) + ring.lost == seq, "every call is there, or counted as lost"
        assert set(range(ring.whole_from, seq + 1)) <= set(taken["seq"].tolist()), "nothing is lost behind whole_from"


def test_a_writer_that_never_stops(tmp_path: Path) -> None:
    w = writer(tmp_path, capacity=64, size=1)
    end = threading.Event()

    def write() -> None:
        seq = 0
        while not end.is_set():
            seq += 1
            w.put(op=Op.BARRIER, enter=seq, exit=seq + 1, bytes=seq, request=seq)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reader = rings.Reader(tmp_path)
        for _ in range(300):
            reader.poll()
    finally:
        end.set()
        thread.join()
    reader.poll()
    trace = reader.trace()
    assert np.array_equal(trace.events["bytes"], trace.events["seq"]) and np.array_equal(
        trace.events["request"], trace.events["seq"]
    )
    assert len(trace.events) + trace.ranks[0].lost == int(w.ring().head)


# ---- clocks


def two_hosts(folder: Path, offset: int, meetings: int) -> None:
    """Return a trace of two hosts. Rank 1's host is `offset` ns ahead, and its ticks have another origin and rate.
    Every 10 ms both ranks meet in a barrier of about 20 us."""
    a = writer(folder, 0)
    b = format.Writer(folder, 1, 2, host="other", ticks_per_second=2 * 10**9)
    for t in (0, 10**9):
        b.sample(10**12 + 2 * t, START + t + offset, 77 + t)
    b.ring()
    for w in (a, b):
        w.comm(1, [0, 1])
    for i in range(meetings):
        t = i * 10_000_000
        a.put(op=Op.BARRIER, comm=0, context=i + 1, enter=t, exit=t + 20_000)
        b.put(op=Op.BARRIER, comm=0, context=i + 1, enter=10**12 + 2 * (t + 5_000), exit=10**12 + 2 * (t + 21_000))


@pytest.mark.parametrize("offset", [0, 3_000_000, -7 * 10**9])
def test_hosts_are_aligned_by_what_they_did_together(tmp_path: Path, offset: int) -> None:
    two_hosts(tmp_path, offset, 50)
    trace = read(tmp_path)
    there = trace.events[trace.events["rank"] == 1]
    true = START + np.arange(50) * 10_000_000 + 5_000
    uncertainty = trace.ranks[1].uncertainty_ns
    assert 0 < uncertainty <= 30_000 and trace.ranks[0].uncertainty_ns == 0
    assert np.all(np.abs(there["enter"] - true) <= uncertainty + 10)


def test_hosts_that_never_met_are_believed_but_not_much(tmp_path: Path) -> None:
    two_hosts(tmp_path, 3_000_000, 0)
    trace = read(tmp_path)
    assert (
        trace.ranks[1].uncertainty_ns == clocks.UNSURE and "no collective and no answer" in trace.ranks[1].problems[0]
    )


def test_a_clock_that_was_set_moves_no_call(tmp_path: Path) -> None:
    w = writer(tmp_path, size=1)
    w.sample(2 * 10**9, START + 5 * 10**9, 5 + 2 * 10**9)
    w.put(op=Op.BARRIER, enter=2 * 10**9, exit=2 * 10**9 + 1)
    trace = read(tmp_path)
    assert trace.events["enter"].tolist() == [START + 2 * 10**9]
    assert "its clock was set by +3.000 s" in trace.ranks[0].problems[0]


def test_a_clock_that_ntp_slews_while_a_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder has sampled the clocks at its start only, a day ago. Since then they have gained 0.25 s on the
    counter."""
    now, day = time.clock_gettime_ns(time.CLOCK_MONOTONIC), 86400 * 10**9
    start = int(proc.stat_fields(Path("/proc/self"))[proc.START])
    w = format.Writer(tmp_path, 0, 1, host=socket.gethostname(), pid=os.getpid(), pid_start=start)
    for later in (0, 300_000):
        w.sample(10**15 + later, START + later, now - day + later)
    w.ring()
    ticks = 10**15 + day - 250_000_000
    w.put(op=Op.BARRIER, enter=ticks - 1000, exit=ticks)
    monkeypatch.setattr(tsc_clock, "now", lambda: clocks.Sample(ticks, START + day, now))
    (event,) = read(tmp_path).events
    assert abs(int(event["exit"]) - (START + day)) < clocks.FIT
    monkeypatch.setattr(tsc_clock, "now", lambda: clocks.Sample(5, START, now))
    (event,) = read(tmp_path).events  # the clock of another machine
    assert int(event["exit"]) == START + day - 250_000_000
    w.head.samples = 1
    (event,) = read(tmp_path).events  # with one sample, any clock would fit
    assert int(event["exit"]) == START + day - 250_000_000


def test_two_machines_of_one_name(tmp_path: Path) -> None:
    writer(tmp_path)
    other = format.Writer(tmp_path, 1, 2)
    other.sample(10**15, START, 5)
    other.sample(10**15 + 10**9, START + 10**9, 5 + 10**9)
    assert "two clocks under this name" in read(tmp_path).ranks[1].problems[0]


def test_a_running_job_is_seen_as_it_was_at_one_moment(tmp_path: Path) -> None:
    """Calls that a rank has made since the look began are left out, because other ranks may have been copied before
    them."""
    start = int(proc.stat_fields(Path("/proc/self"))[proc.START])
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    later = now + 3600 * 10**9
    w = format.Writer(tmp_path, 0, 1, host=socket.gethostname(), pid=os.getpid(), pid_start=start)
    w.sample(now - 10**9, START, now - 10**9)
    w.sample(now, START + 10**9, now)
    w.ring()
    w.put(op=Op.BARRIER, enter=now - 200, exit=now - 100)
    w.put(op=Op.BARRIER, enter=now - 50, exit=later)
    w.put(op=Op.BARRIER, enter=later, exit=later + 1)
    trace = read(tmp_path)
    assert trace.events["exit"].tolist() == [START + 10**9 - 100, OPEN]
    assert trace.now - (START + 10**9) == trace.monotonic_ns - now >= 0 and trace.now < START + later - now


def test_a_ring_with_nothing_but_rdma_is_no_thread_that_could_make_a_call(tmp_path: Path) -> None:
    """SHIFT's worker makes no MPI call, so two ranks that wait for each other are a deadlock beside it."""
    for rank in range(2):
        w = writer(tmp_path, rank, rings=2)
        world = w.comm(11, [0, 1])
        w.put(op=Op.BARRIER, comm=world, context=1, enter=100, exit=200)
        w.put(op=Op.RECV, comm=world, peer=1 - rank, tag=1, enter=300)
        w.ring(1, tid=77)
        w.put(1, op=Op.RDMA_QP, comm=71, request=3, context=3, peer=72, enter=150, exit=150)
    trace = read(tmp_path)
    assert [sorted(known.threads) for known in trace.ranks.values()] == [[0], [0]] and len(trace.rdma) == 2
    trace.now = START + 60 * 10**9
    assert [(v.state, v.cause) for v in verdicts(trace)] == [(State.HUNG, Cause.DEADLOCK)]
