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
            waiting.add((rank,), line)
        assert waiting.ranks == {rank for rank, _ in lines}
        assert arrived(list(waiting.take())) == sent(lines)
        assert not waiting.ranks and not list(waiting.take())


def test_one_line_for_all() -> None:
    waiting = bundle.Bundle()
    for rank in reversed(range(64)):
        waiting.add((rank,), "CHECKED 7")
    waiting.add((3,), "ROWS 7 1 0 0")
    assert list(waiting.take()) == ["LINES 0-63 CHECKED 7\t3 ROWS 7 1 0 0"]


def test_long_lines_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MESSAGE_MAX", 100)
    lines = [(rank, f"ROWS {'x' * 60} {rank}") for rank in range(5)] + [(0, "RAISE " + "y" * 200), (1, "DONE 0")]
    waiting = bundle.Bundle()
    for rank, line in lines:
        waiting.add((rank,), line)
    messages = list(waiting.take())
    assert len(messages) == 7 and arrived(messages) == sent(lines)


@pytest.mark.parametrize("text", ["LINES x CHECKED 1", "LINES 1-x A", "LINES 2-"])
def test_malformed(text: str) -> None:
    with pytest.raises(ValueError):
        list(bundle.read(text))
