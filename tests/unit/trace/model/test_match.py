"""Which records are matched with each other."""

from __future__ import annotations

import time

import numpy as np
import pytest
from traces import Builder

from manapy.trace.model.events import ANY, EVENT, OPEN, STARTS, Communicator, Flag, Op, Rank, Trace
from manapy.trace.model.match import match


def index(trace: Trace, rank: int, place: int) -> int:
    """Return the index of a rank's record."""
    return int(np.flatnonzero(trace.events["rank"] == rank)[place])


def test_messages_of_a_channel_are_matched_in_order() -> None:
    job = Builder(2)
    for i in range(3):
        job.call(0, Op.SEND, 10 * i, 10 * i + 1, peer=1, tag=7)
    job.call(0, Op.SEND, 40, 41, peer=1, tag=8)
    for i, tag in enumerate((8, 7, 7)):
        job.call(1, Op.RECV, 50 + i, 60 + i, peer=0, tag=tag)
    trace = job.trace(100)
    m = match(trace)
    pairs = [(index(trace, 0, 3), 0), (index(trace, 0, 0), 1), (index(trace, 0, 1), 2)]
    assert [(int(m.partner[index(trace, 1, i)]), i) for _, i in pairs] == pairs
    assert m.partner[index(trace, 0, 2)] == -1
    assert m.sure.all()


def test_a_nonblocking_receive_from_anybody_takes_what_its_wait_says() -> None:
    job = Builder(3)
    job.call(0, Op.RECV, 0, 1, peer=ANY, tag=-1, request=5, flags=Flag.NONBLOCKING | Flag.WILDCARD)
    job.call(0, Op.WAIT, 2, 9, peer=2, tag=4, request=5)
    job.call(1, Op.SEND, 3, 4, peer=0, tag=4)
    job.call(2, Op.SEND, 3, 4, peer=0, tag=4)
    trace = job.trace(100)
    m = match(trace)
    assert (m.post[1], m.done[0], m.partner[0]) == (0, 1, 3)
    assert (m.peer[0], m.tag[0]) == (2, 4)
    assert m.partner[2] == -1


def test_each_start_of_a_persistent_request_is_an_operation() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, 0, 1, peer=1, tag=3, request=9, flags=Flag.PERSISTENT)
    for i in range(2):
        job.call(0, Op.START, 10 * i + 2, 10 * i + 3, peer=1, tag=3, request=9, flags=Op.SEND << STARTS)
        job.call(0, Op.WAIT, 10 * i + 4, 10 * i + 5, request=9)
        job.call(1, Op.RECV, 10 * i, 10 * i + 6, peer=0, tag=3)
    trace = job.trace(100)
    m = match(trace)
    assert m.partner.tolist() == [-1, 5, -1, 6, -1, 1, 3]
    assert m.done[[1, 3]].tolist() == [2, 4]
    assert m.op[1] == Op.SEND


def persistent(job: Builder, rank: int, begins: list[int], request: int = 9) -> None:
    """Make a persistent Allreduce, and start it at these times. Each Wait begins 2 ns later and takes 3 ns."""
    job.call(rank, Op.ALLREDUCE, 0, 1, request=request, flags=Flag.PERSISTENT)
    for i, begin in enumerate(begins):
        job.call(rank, Op.START, begin, begin + 1, request=request, flags=Op.ALLREDUCE << STARTS, context=1, tag=i + 1)
        job.call(rank, Op.WAIT, begin + 2, begin + 5, request=request)


def test_starts_of_persistent_collectives_by_the_request_and_their_number() -> None:
    job = Builder(3)
    for rank, begins in enumerate(([10, 20], [12, 24], [11])):
        persistent(job, rank, begins, request=9 + rank)
    trace = job.trace(100)
    groups = match(trace).collectives
    assert list(zip(groups.seq, groups.turn, groups.missing, strict=True)) == [(1, 0, 0), (1, 1, 0), (1, 2, 1)]
    assert trace.events["rank"][groups.last].tolist() == [2, 1, 1]


def test_requests_made_at_one_place_are_one_whatever_order_they_are_started_in() -> None:
    job = Builder(2)
    for rank in range(2):
        for request in (1, 2):
            job.call(rank, Op.BARRIER, request, request, request=request, flags=Flag.PERSISTENT)
        for i, request in enumerate((1, 2) if rank == 0 else (2, 1)):
            job.call(
                rank, Op.START, 10 + i, 11 + i, request=request, flags=Op.BARRIER << STARTS, context=request, tag=1
            )
    groups = match(job.trace(100)).collectives
    assert list(zip(groups.seq, groups.turn, groups.missing, strict=True)) == [
        (1, 0, 0),
        (1, 1, 0),
        (2, 0, 0),
        (2, 1, 0),
    ]


def test_starts_of_requests_that_were_made_in_lost_records() -> None:
    job = Builder(2)
    for rank in range(2):
        persistent(job, rank, [10, 20])
    job.lose(1, 3)  # the call that made the request, and its first start
    groups = match(job.trace(100)).collectives
    assert list(zip(groups.turn, groups.missing, strict=True)) == [(0, 1), (1, 1), (2, 0)]


def test_collectives_by_communicator_and_seq_and_who_is_missing() -> None:
    job = Builder(3)
    two = job.comm(0, 2)
    for rank in range(3):
        job.call(rank, Op.BARRIER, 10 + rank, 20)
    job.call(0, Op.ALLREDUCE, 30, comm=two)
    trace = job.trace(100)
    groups = match(trace).collectives
    assert list(zip(groups.comm, groups.seq, groups.missing, strict=True)) == [(0, 1, 0), (two, 1, 1)]
    assert trace.events["rank"][groups.last].tolist() == [2, 0]


def test_a_restart_between_the_calls_of_a_collective_and_around_a_message() -> None:
    job = Builder(2)
    job.call(0, Op.SEND, 1, 2, peer=1, tag=0)
    for rank in range(2):
        job.call(rank, Op.BARRIER, 10 + rank, 20, context=4, generation=rank)
    job.call(1, Op.RECV, 30, 31, peer=0, tag=0, generation=1)
    m = match(job.trace(100))
    assert m.collectives.missing.tolist() == [0]
    assert m.partner[0] == 3


def test_lost_records_of_the_sender_shift_the_pairs_and_make_them_unsure() -> None:
    job = Builder(2)
    for i in range(5):
        job.call(0, Op.SSEND, 100 * i, 100 * i + 50, peer=1, tag=0)
        job.call(1, Op.RECV, 100 * i + 10, 100 * i + 50, peer=0, tag=0)
    job.lose(0, 2)
    trace = job.trace(1000)
    m = match(trace)
    receives = [index(trace, 1, i) for i in range(5)]
    assert m.partner[receives].tolist() == [-1, -1, 0, 1, 2]
    assert not m.sure.any()


def test_a_cancelled_receive_takes_no_message() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, 0, 1, peer=1, tag=0, request=1, flags=Flag.NONBLOCKING)
    job.call(0, Op.CANCEL, 2, 3, request=1)
    job.call(0, Op.WAIT, 4, 5, request=1)
    job.call(0, Op.RECV, 6, 9, peer=1, tag=0)
    job.call(1, Op.SEND, 7, 8, peer=0, tag=0)
    m = match(job.trace(100))
    assert m.partner[3] == 4 and m.partner[0] == -1


@pytest.mark.parametrize(
    ("peer", "tag", "unsure"),
    [(1, 0, {(1, 0)}), (ANY, 0, {(1, 0), (2, 0)}), (1, -1, {(1, 0), (1, 5)}), (ANY, -1, {(1, 0), (1, 5), (2, 0)})],
)
def test_a_cancel_of_a_receive_may_have_come_too_late(peer: int, tag: int, unsure: set[tuple[int, int]]) -> None:
    """It is not recorded whether it did. The channels from which it may have taken a message are not sure."""
    job = Builder(3)
    job.call(0, Op.RECV, 0, 1, peer=peer, tag=tag, request=1, flags=Flag.NONBLOCKING)
    job.call(0, Op.CANCEL, 2, 3, request=1)
    job.call(0, Op.WAIT, 4, 5, request=1)
    for source, number in ((1, 0), (1, 5), (2, 0)):
        job.call(0, Op.RECV, 6, 9, peer=source, tag=number)
        job.call(source, Op.SEND, 7, 8, peer=0, tag=number)
    job.call(1, Op.RECV, 9, 10, peer=2, tag=0)
    job.call(2, Op.SEND, 9, 10, peer=1, tag=0)
    trace = job.trace(100)
    m = match(trace)
    messages = np.flatnonzero((m.partner >= 0) & (m.peer == 0))
    assert {(int(trace.events["rank"][i]), int(m.tag[i])) for i in messages if not m.sure[i]} == unsure
    assert (m.sure[messages] == m.sure[m.partner[messages]]).all()
    assert m.sure[index(trace, 1, 2)] and m.sure[index(trace, 2, 1)]


@pytest.mark.parametrize("op", [Op.SEND, Op.SSEND])
def test_a_cancelled_send_goes_on(op: Op) -> None:
    job = Builder(2)
    job.call(0, op, 0, 1, peer=1, tag=0, request=1, flags=Flag.NONBLOCKING)
    job.call(0, Op.CANCEL, 2, 3, request=1)
    job.call(0, Op.WAIT, 4, 5, request=1)
    job.call(0, Op.SEND, 6, 7, peer=1, tag=0)
    for i in range(2):
        job.call(1, Op.RECV, 10 + i, 20 + i, peer=0, tag=0)
    m = match(job.trace(100))
    assert m.partner[[0, 3]].tolist() == [4, 5] and m.sure[[0, 3, 4, 5]].all()


@pytest.mark.parametrize("cut", [0, Flag.CUT])
def test_a_wildcard_whose_completion_is_not_recorded_may_have_any_message(cut: int) -> None:
    job = Builder(3)
    for i in (1, 2):
        job.call(0, Op.RECV, i, i + 1, peer=ANY, tag=3, request=i, flags=Flag.NONBLOCKING | Flag.WILDCARD)
    job.call(0, Op.WAITALL, 10, 20, peer=1, tag=3, request=1, flags=cut)
    for source in (1, 2):
        job.call(source, Op.SEND, 5, 6, peer=0, tag=3)
    job.call(2, Op.SEND, 7, 8, peer=0, tag=4)
    trace = job.trace(100)
    m = match(trace)
    assert m.partner[index(trace, 2, 0)] == -1
    assert m.sure[index(trace, 2, 0)] == (not cut) and m.sure[index(trace, 2, 1)]


def test_an_empty_trace() -> None:
    m = match(Trace(np.zeros(0, EVENT), [], 2, {}, 0))
    assert len(m.partner) == 0 and len(m.collectives.first) == 0


def test_a_million_events_take_about_a_second() -> None:
    size, rounds = 64, 2604
    per_rank = rounds * 6
    rank = np.repeat(np.arange(size), per_rank)
    events = np.zeros(size * per_rank, EVENT)
    events["rank"], events["seq"] = rank, np.tile(np.arange(1, per_rank + 1), size)
    events["op"] = np.tile([Op.SEND, Op.RECV, Op.SEND, Op.RECV, Op.ALLREDUCE, Op.BARRIER], size * rounds)
    shift = np.tile([1, -1, -1, 1, 0, 0], size * rounds)
    events["peer"] = np.where(shift != 0, (rank + shift) % size, -32768)
    events["tag"] = np.tile([1, 1, 2, 2, -1, -1], size * rounds)
    events["context"] = np.tile(
        np.stack([np.zeros(rounds)] * 4 + [2 * np.arange(rounds) + 1, 2 * np.arange(rounds) + 2], axis=1).ravel(), size
    )
    events["enter"] = events["seq"] * 1000
    events["exit"] = events["enter"] + 500
    trace = Trace(
        events, [Communicator(1, 1, np.arange(size, dtype=np.int32))], size, {r: Rank(r) for r in range(size)}, 1 << 40
    )
    begin = time.process_time()
    m = match(trace)
    assert time.process_time() - begin < 5  # alone it takes about one second
    assert (m.partner[np.isin(events["op"], (Op.SEND, Op.RECV))] >= 0).all()
    assert (m.collectives.missing == 0).all() and len(m.collectives.first) == 2 * rounds
    assert OPEN not in events["exit"]
