"""Identities, and the text form of every message."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manapy.clock import (
    WORLD,
    Mode,
    Row,
    State,
    Thread,
    WireError,
    child_identity,
    from_wire,
    ggid,
    group_identity,
    messages as m,
)
from manapy.clock.model import vectors

ids = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**32 - 1)
ranks = st.lists(st.integers(0, 300), unique=True, max_size=40).map(tuple)
text = st.text(max_size=12)
rows = st.builds(Row, ids, ids, small, ranks, small, text)
threads = st.builds(Thread, st.sampled_from(State), ids, st.sampled_from(Mode), ranks)


def _made(message: type[m.Message], *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[m.Message]:
    return st.tuples(*fields).map(lambda values: message(*values))


every = st.one_of(
    _made(m.Rows, small, small, st.lists(rows, max_size=4).map(tuple), st.booleans()),
    _made(m.Raise, small, small, ids, small),
    _made(m.StateReport, small, small, small, st.lists(threads, max_size=4).map(tuple)),
    _made(m.Targets, small, st.lists(st.tuples(ids, small), max_size=4).map(tuple), st.booleans()),
    _made(m.Target, small, ids, small),
    *(_made(kind, small, small) for kind in (m.Frozen, m.NotFrozen, m.Freeze)),
    *(_made(kind, small) for kind in (m.Intent, m.Advance, m.Withdraw, m.Thaw)),
    st.just(m.Done()),
    _made(m.Resume, small, st.sampled_from(["continue", "exit"]), text),
    _made(m.Abort, small, text),
)


@settings(max_examples=80, deadline=None)
@given(every)
def test_line_reads_back(msg: m.Message) -> None:
    line = msg.to_wire()
    assert from_wire(line) == msg
    assert line.isascii() and "\n" not in line and line.split(" ")[0] == msg.kind and "" not in line.split(" ")


def test_lines() -> None:
    row = Row(0xAB, 0xCD, 7, (0, 1, 2, 3, 9), 5, "rows: 1")
    assert m.Rows(1, 2, (row,)).to_wire() == "ROWS 1 2 0 1 00000000000000ab:00000000000000cd:7:0-3,9:5:rows%3A%201"
    blocked = Thread(State.BLOCKED_P2P, 0xAB, Mode.ANY)
    assert m.StateReport(1, 9, 4).to_wire() == "STATE 1 9 4 0"
    assert m.StateReport(1, 9, 4, (blocked,)).to_wire() == "STATE 1 9 4 1 blocked:00000000000000ab:any:-"
    assert m.encode_ranks((0, 4, 8, 9, 10, 11, 13, 15, 2, 1)) == "0-8/4,9-11,13,15,2,1"
    assert m.decode_ranks("3,4,5,1") == (3, 4, 5, 1)  # a writer needn't use ranges


@pytest.mark.parametrize(
    "line",
    [
        "",
        "HELLO 1",
        "RAISE 1 2",
        "ROWS 1 2 0 1",
        "ROWS 1 2 2 0",
        "STATE 1 2 1 1 asleep:0:all:-",
        "DONE 1",
        "TARGET 1 xyz 2",
    ],
)
def test_malformed(line: str) -> None:
    with pytest.raises(WireError):
        from_wire(line)


def test_identities() -> None:
    assert ggid(()) == 0xCBF29CE484222325  # FNV-1a's offset basis
    assert ggid((0,)) == 0x4D25767F9DCE13F5  # FNV-1a of four zero bytes
    assert len({ggid(p) for p in permutations((1, 2, 3))}) == 1
    assert (
        len(
            {
                WORLD,
                child_identity(WORLD, 1, 0),
                child_identity(WORLD, 1, 1),
                child_identity(WORLD, 2, 0),
                group_identity(1, 2, 3),
            }
        )
        == 5
    )


def test_vectors_file_is_current() -> None:
    """`python -m manapy.clock.model.vectors` makes it."""
    assert vectors.PATH.read_text() == vectors.text()
    found = json.loads(vectors.text())["vectors"]
    assert {v["name"] for v in found} == set(vectors.SCENARIOS)
