"""POP's metrics of traces that were written by hand, or executed by a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import SECOND, Builder, Model, barrier, compute

from manapy.trace.model.efficiency import efficiency
from manapy.trace.model.events import Op


def job(finalize: bool = True) -> Builder:
    """Of 10 s, rank 0 is useful for 8 and rank 1 for 4."""
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.INIT, 0, (1 + rank) * SECOND)
    job.call(0, Op.BARRIER, 10 * SECOND, 12 * SECOND)
    job.call(1, Op.BARRIER, 6 * SECOND, 12 * SECOND)
    if finalize:
        for rank in range(2):
            job.call(rank, Op.FINALIZE, (12 + rank) * SECOND, 20 * SECOND)
    return job


@pytest.mark.parametrize("finalize", [True, False])
def test_balance_times_communication(finalize: bool) -> None:
    found = efficiency(job(finalize).trace((30 if finalize else 12) * SECOND))
    assert found is not None and (found.begin, found.end) == (2 * SECOND, 12 * SECOND)
    assert found.load_balance == pytest.approx(6 / 8) and found.communication == pytest.approx(8 / 10)
    assert found.parallel == pytest.approx(6 / 10)


def test_an_open_call_is_not_useful() -> None:
    job = Builder(2)
    job.call(0, Op.BARRIER, 0, SECOND)
    job.call(1, Op.BARRIER, 0, SECOND)
    job.call(0, Op.BARRIER, SECOND)
    found = efficiency(job.trace(5 * SECOND))
    assert found is not None and found.load_balance == pytest.approx(0.5) and found.communication == pytest.approx(0.8)


def test_a_call_of_several_requests_counts_once_and_other_threads_do_not() -> None:
    one = job()
    one.rows[0, 0][1].update(op=int(Op.WAITALL), flags=4)
    one.rows[0, 0].insert(2, one.rows[0, 0][1] | {"flags": 0})
    one.call(1, Op.RECV, 2 * SECOND, 12 * SECOND, thread=1)
    found = efficiency(one.trace(30 * SECOND))
    assert found is not None and found.parallel == pytest.approx(6 / 10)


def test_only_time_of_which_all_is_known() -> None:
    lossy = job()
    lossy.ranks[1] = replace(lossy.ranks[1], first_ns=7 * SECOND)
    found = efficiency(lossy.trace(30 * SECOND))
    assert found is not None and found.begin == 7 * SECOND
    assert (found.load_balance, found.communication) == (pytest.approx(0.5), pytest.approx(3 / 5))
    lossy.pause(0, SECOND)
    assert efficiency(lossy.trace(30 * SECOND)) is None, "it is paused now"
    alone = job()
    del alone.rows[1, 0]
    assert efficiency(alone.trace(30 * SECOND)) is None, "a rank is not recorded"


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=1, max_size=8))
def test_between_nothing_and_all(rounds: list[tuple[int, int]]) -> None:
    programs = [[barrier(), *(step for round in rounds for step in (compute(round[r]), barrier()))] for r in range(2)]
    model = Model(programs)
    assert model.run()
    found = efficiency(model.trace(later=0))
    assert found is not None
    assert 0.5 <= found.load_balance <= 1 and 0 < found.communication <= 1 and found.parallel <= found.communication
    if all(a == b for a, b in rounds):
        assert found.load_balance == pytest.approx(1)
