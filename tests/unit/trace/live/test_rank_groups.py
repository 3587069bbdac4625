"""Groups of ranks that do the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from manapy.trace.live.rank_groups import DETAILS, groups
from manapy.trace.live.rank_rows import Row, State

CALLS = ("", "MPI_Recv from rank 1, tag 3", "MPI_Recv from rank 2, tag 3", "MPI_Barrier on world (call 2 there)")
ROW = st.builds(
    Row,
    rank=st.just(0),
    host=st.sampled_from(("", "a", "b")),
    state=st.sampled_from(list(State)),
    since_ns=st.none() | st.integers(0, 9),
    call=st.sampled_from(CALLS),
    awaited_by=st.integers(0, 2),
    sent_s=st.none() | st.just(2.0),
)


def numbered(rows: list[Row]) -> list[Row]:
    return [Row(**{**vars(row), "rank": rank}) for rank, row in enumerate(rows)]


@given(st.lists(ROW, min_size=1, max_size=30).map(numbered), st.integers(1, 12))
def test_each_rank_is_in_one_group_of_the_finest_detail_that_fits(rows: list[Row], most: int) -> None:
    found = groups(rows, most)
    assert sorted(rank for group in found for rank in group.ranks) == [row.rank for row in rows]
    assert all(rows[rank].state is group.common.state for group in found for rank in group.ranks)
    fitting = [detail for detail in DETAILS if len({detail(row) for row in rows}) <= most] or [DETAILS[-1]]
    assert len(found) == len({fitting[0](row) for row in rows})
    order = [group.common.conspicuous for group in found]
    assert order == sorted(order)


def test_what_a_group_says_of_its_ranks() -> None:
    rows = [
        Row(3, "b", State.WAITING, since_ns=5, call=CALLS[1], waits_for=(1,), calls_s=1.0, waited=0.5, sent_s=1.0),
        Row(0, "a", State.WAITING, since_ns=9, call=CALLS[1], waits_for=(1,), calls_s=3.0),
        Row(2, "a", State.WAITING, call=CALLS[2], waits_for=(2,)),
    ]
    first, second = groups(rows, 2)
    assert (first.ranks, first.hosts) == ((0, 3), ("b", "a"))
    said = first.common
    assert (said.rank, said.call, said.waits_for, said.since_ns) == (0, CALLS[1], (1,), 9)
    assert (said.calls_s, said.waited, said.sent_s) == (2.0, 0.5, 1.0)
    assert (second.ranks, second.common.since_ns, second.common.calls_s) == ((2,), None, None)
    (both,) = groups(rows, 1)
    assert (both.common.call, both.common.waits_for) == ("MPI_Recv", ())
