"""Wait states: their length, the rank that is waited for, and waits that are not claimed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from traces import Builder

from manapy.trace.model.events import STARTS, Flag, Op
from manapy.trace.model.match import match
from manapy.trace.model.waits import Wait, Waits, blame, classify, table


def classified(job: Builder) -> Waits:
    trace = job.trace(10_000)
    return classify(trace, match(trace))


def test_a_late_sender_costs_until_it_sends_and_the_rest_is_transfer() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, 100, 180, peer=1, tag=0)
    job.call(1, Op.SEND, 150, 160, peer=0, tag=0)
    w = classified(job)
    assert (w.wait[0], w.who[0], w.kind[0], w.transfer[0]) == (50, 1, Wait.LATE_SENDER, 30)
    assert (w.wait[1], w.transfer[1]) == (0, 10)


def test_a_late_receiver_costs_only_a_send_that_blocked() -> None:
    job = Builder(2)
    job.call(0, Op.SSEND, 100, 190, peer=1, tag=0)
    job.call(0, Op.SEND, 200, 210, peer=1, tag=0)
    job.call(1, Op.RECV, 170, 190, peer=0, tag=0)
    job.call(1, Op.RECV, 400, 410, peer=0, tag=0)
    w = classified(job)
    assert w.wait.tolist() == [70, 0, 0, 0] and w.kind[0] == Wait.LATE_RECEIVER and w.who[0] == 1


def test_waits_of_collectives() -> None:
    job = Builder(3)
    for rank, enter in enumerate((100, 130, 160)):
        job.call(rank, Op.ALLREDUCE, enter, 170)
    for rank, enter in enumerate((250, 200, 210)):  # a broadcast from rank 0, which is late
        job.call(rank, Op.BCAST, enter, 260, peer=0)
    for rank, enter in enumerate((300, 310, 390)):  # a reduction to rank 0, which is early
        job.call(rank, Op.REDUCE, enter, 400 if rank == 0 else enter + 5, peer=0)
    w = classified(job)
    assert w.wait.reshape(3, 3).tolist() == [[60, 0, 90], [30, 50, 0], [0, 40, 0]]
    assert w.kind.reshape(3, 3).tolist() == [
        [Wait.WAIT_AT_NXN, 0, Wait.EARLY_ROOT],
        [Wait.WAIT_AT_NXN, Wait.LATE_ROOT, 0],
        [0, Wait.LATE_ROOT, 0],
    ]
    assert w.transfer[[0, 3, 6]].tolist() == [10, 10, 10]


def test_who_gives_to_a_root_that_is_late_waits_only_while_it_is_in_the_call() -> None:
    job = Builder(3)
    # rank 2 has already made its contribution and left when the root comes
    for rank, (enter, end) in enumerate(((200, 230), (100, 220), (110, 120))):
        job.call(rank, Op.GATHER, enter, end, peer=0)
    w = classified(job)
    assert w.wait.tolist() == [0, 100, 0] and w.kind[1] == Wait.LATE_ROOT and w.who[1] == 0


def test_of_a_nonblocking_operation_the_wait_counts() -> None:
    job = Builder(2)
    job.call(0, Op.RECV, 100, 101, peer=1, tag=0, request=1, flags=Flag.NONBLOCKING)
    job.call(0, Op.WAIT, 140, 170, request=1)
    job.call(1, Op.SEND, 160, 161, peer=0, tag=0)
    w = classified(job)
    assert w.wait.tolist() == [0, 20, 0] and w.transfer[1] == 10


def test_of_a_persistent_collective_the_wait_counts_and_making_it_waits_for_nobody() -> None:
    job = Builder(2)
    for rank, late in enumerate((0, 30)):
        job.call(rank, Op.BARRIER, late, 40 + late, request=1, flags=Flag.PERSISTENT)
        job.call(rank, Op.START, 100 + late, 101 + late, request=1, flags=Op.BARRIER << STARTS, context=1, tag=1)
        job.call(rank, Op.WAIT, 105 + late, 140, request=1)
    w = classified(job)
    assert w.wait.tolist() == [0, 0, 25, 0, 0, 0] and (w.who[2], w.kind[2], w.transfer[2]) == (1, Wait.WAIT_AT_NXN, 10)


def test_a_waitall_waits_for_its_latest() -> None:
    job = Builder(3)
    for peer in (1, 2):
        job.call(0, Op.RECV, 100, 101, peer=peer, tag=0, request=peer, flags=Flag.NONBLOCKING)
    for peer in (1, 2):
        job.call(0, Op.WAITALL, 110, 200, request=peer, flags=Flag.MORE if peer == 1 else 0)
    job.call(1, Op.SEND, 120, 121, peer=0, tag=0)
    job.call(2, Op.SEND, 190, 191, peer=0, tag=0)
    trace = job.trace(10_000)
    w = classify(trace, match(trace))
    assert w.wait[[2, 3]].tolist() == [10, 80] and w.who[3] == 2
    (row,) = [row for row in table(trace, w) if row.op is Op.WAITALL]
    assert (row.calls, row.time, row.wait, row.transfer, row.culprit) == (1, 90, 80, 10, 2)
    assert blame(trace, w)[0].tolist() == [0, 0, 80]


def test_nothing_below_the_uncertainty_of_the_clocks_but_hosts_agree_with_themselves() -> None:
    def job(hosts: int) -> Waits:
        job = Builder(2, hosts)
        job.ranks = {r: replace(k, uncertainty_ns=30) for r, k in job.ranks.items()}
        for rank in range(2):
            job.call(rank, Op.BARRIER, 100 + 50 * rank, 160)
        return classified(job)

    assert job(1).wait.tolist() == [50, 0] and job(1).uncertain == 0
    assert job(2).wait.tolist() == [0, 0] and job(2).uncertain == 1


def test_no_claim_about_a_stopped_call_or_an_incomplete_collective() -> None:
    job = Builder(2)
    job.call(0, Op.BARRIER, 100, 900, flags=Flag.STOPPED)
    job.call(1, Op.BARRIER, 800, 900)
    job.call(0, Op.BARRIER, 1000, 2000)
    assert not classified(job).wait.any()


def test_the_table_and_the_blame_add_up() -> None:
    job = Builder(2)
    for i in range(3):
        job.call(0, Op.BARRIER, 100 * i, 100 * i + 50)
        job.call(1, Op.BARRIER, 100 * i + 40, 100 * i + 50)
    trace = job.trace(1000)
    w = classify(trace, match(trace))
    first, second = table(trace, w)
    assert (first.calls, first.time, first.wait, first.transfer, first.waits) == (
        3,
        150,
        120,
        30,
        {Wait.WAIT_AT_NXN: 120},
    )
    assert (first.culprit, second.rank, second.wait, second.culprit) == (1, 1, 0, -1)
    assert np.array_equal(blame(trace, w), [[0, 120], [0, 0]])
