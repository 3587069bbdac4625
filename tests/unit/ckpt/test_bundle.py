"""Bundles: every line arrives once, and the lines of a rank in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manapy.ckpt import bundle

LINES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["CHECKED 1", "STOPPED 1", "STATE 1 2 3 0"])))


def arrived(messages: list[str]) -> dict[int, list[str]]:
    """The lines of each rank, in order."""
    found: dict[int, list[str]] = {}
    for message in messages:
        for ranks, line in bundle.read(message):
            assert len(set(ranks)) == len(ranks)
            for rank in ranks:
                found.setdefault(rank, []).append(line)
    return found


def sent(lines: list[tuple[int, str]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for rank, line in lines:
        found.setdefault(rank, []).append(line)
    return found


@given(LINES, LINES)
def test_order_of_each_rank(first: list[tuple[int, str]], second: list[tuple[int, str]]) -> None:
    waiting = bundle.Bundle()
    for lines in first, second:
        for rank, line in lines:
            waiting.add(rank, line)
        assert waiting.ranks == {rank for rank, _ in lines}
        assert arrived(list(waiting.take())) == sent(lines)
        assert not waiting.ranks and not list(waiting.take())


def test_one_line_for_all() -> None:
    waiting = bundle.Bundle()
    for rank in reversed(range(64)):
        waiting.add(rank, "CHECKED 7")
    waiting.add(3, "ROWS 7 1 0 0")
    assert list(waiting.take()) == ["LINES 0-63 CHECKED 7\t3 ROWS 7 1 0 0"]


@given(LINES, st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.sampled_from(["STOP 1", "CHECKED 1"]))))
def test_lines_for_many_ranks(single: list[tuple[int, str]], many: list[tuple[set[int], str]]) -> None:
    waiting = bundle.Bundle()
    for rank, line in single:
        waiting.add(rank, line)
    for ranks, line in many:
        waiting.add_all(list(ranks), line)
    lines = single + [(rank, line) for ranks, line in many for rank in ranks]
    assert arrived(list(waiting.take())) == sent(lines)


def test_what_ranks_have_of_their_own_parts_no_lines() -> None:
    """Each rank says something of its own between two lines that all say."""
    waiting = bundle.Bundle()
    for rank in range(3):
        for line in ("STOPPED 1", f"DONE {rank}", "DRAINED 1"):
            waiting.add(rank, line)
    assert list(waiting.take()) == ["LINES 0-2 STOPPED 1\t0 DONE 0\t1 DONE 1\t2 DONE 2\t0-2 DRAINED 1"]


def test_long_lines_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MESSAGE_MAX", 100)
    lines = [(rank, f"ROWS {'x' * 60} {rank}") for rank in range(5)] + [(0, "RAISE " + "y" * 200), (1, "DONE 0")]
    waiting = bundle.Bundle()
    for rank, line in lines:
        waiting.add(rank, line)
    messages = list(waiting.take())
    assert len(messages) == 7 and arrived(messages) == sent(lines)


@pytest.mark.parametrize("text", ["LINES x CHECKED 1", "LINES 1-x A", "LINES 2-"])
def test_malformed(text: str) -> None:
    with pytest.raises(ValueError):
        list(bundle.read(text))
