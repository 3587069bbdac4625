"""Flat units: layout on nodes and ranks, views, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manapy.fcdp.engine.units import Layout, Unit, check, difference
from manapy.fcdp.errors import SetupError


@given(st.integers(1, 10000), st.integers(1, 9), st.integers(1, 9))
def test_shards_cover_the_unit_once(size: int, nodes: int, ranks: int) -> None:
    layout = Layout(size, nodes, ranks)
    seen = np.zeros(layout.padded, int)
    for local in range(ranks):
        part = seen[layout.slice_of(local)]
        assert part.size == layout.slice
        for node in range(nodes):
            part[layout.shard_of(node)] += 1
            assert (
                layout.chunk(local * nodes + node).start == layout.slice_of(local).start + layout.shard_of(node).start
            )
    assert (seen == 1).all()
    assert 0 <= layout.padded - size < nodes * ranks


def test_views_are_no_copies() -> None:
    unit = Unit("u", (("a", (2, 3)), ("b", (4,))))
    flat = np.arange(12.0, dtype=np.float32)
    views = unit.views(flat)
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]] and views["b"].tolist() == [6, 7, 8, 9]
    views["b"][0] = 50
    assert flat[6] == 50


@pytest.mark.parametrize(
    ("units", "error"),
    [
        ([], "there are no units"),
        ([Unit("u", (("a", (1,)),)), Unit("u", (("b", (1,)),))], "two units are called 'u'"),
        ([Unit("u", ())], "unit 'u' has no parameters"),
        ([Unit("u", (("a", (1,)), ("a", (2,))))], "two parameters of unit 'u' have the same name"),
        (
            [Unit("u", (("a", (1,)),), dtype="int32")],
            "unit 'u' is of type int32: parameters must be floating-point numbers",
        ),
        *(
            (
                [Unit("u", (("a", (1,)),), dtype=dtype)],
                f"unit 'u' is of type {dtype}: parameters must be floating-point numbers",
            )
            for dtype in ("complex64", "object", "float33")
        ),
        (
            [Unit("u", (("a", (1,)),), gathered_as="int8")],
            "unit 'u' is of type int8: parameters must be floating-point numbers",
        ),
    ],
)
def test_bad_units(units: list[Unit], error: str) -> None:
    with pytest.raises(SetupError, match=error):
        check(units)


def test_differences_are_named() -> None:
    one = (Unit("u", (("a", (1,)), ("b", (2, 2)))),)
    assert difference(one, one) is None
    assert difference(one, one * 2) == "1 units here, 2 there"
    assert difference(one, (Unit("v", one[0].parameters),)) == "unit 'u' here, 'v' there"
    assert difference(one, (Unit("u", (("a", (1,)),)),)) == "unit 'u': 2 parameters here, 1 there"
    assert (
        difference(one, (Unit("u", (("a", (1,)), ("c", (2, 2)))),))
        == "unit 'u': b of shape (2, 2) here, c of shape (2, 2) there"
    )
    assert (
        difference(one, (Unit("u", one[0].parameters, dtype="float64"),))
        == "unit 'u': trainable float32 here, trainable float64 there"
    )
    assert (
        difference(one, (Unit("u", one[0].parameters, gathered_as="float16"),))
        == "unit 'u': trainable float32 here, trainable float32 gathered as float16 there"
    )
