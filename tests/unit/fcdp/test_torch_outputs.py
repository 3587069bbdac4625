"""The tensors that are found in what modules return."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: pip install '.[torch]'")

from torch import nn  # noqa: E402

from manapy.fcdp.pytorch.outputs import cloned, tensors_of  # noqa: E402

ONE, TWO = torch.ones(1), torch.ones(2)


@dataclass
class Box:
    inside: Any
    more: Any = None


class Slotted:
    __slots__ = ("inside", "never_set")

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Dictionary(dict):  # type: ignore[type-arg]
    """torch's containers don't know it."""


class Sequence(list):  # type: ignore[type-arg]
    """Likewise."""


class Closed:
    __slots__ = ()


@pytest.mark.parametrize(
    "tree",
    [
        [ONE, (TWO, None, 3, "text", torch.float32)],
        {"a": ONE, "b": OrderedDict(c=TWO)},
        Box([ONE, Box(TWO)]),
        Box(Slotted(ONE), Dictionary(b=TWO)),
        Box(Sequence([ONE]), UserDict(b=TWO)),
        [Box({ONE, TWO}), nn.Linear(1, 1), Box],
        Box(ONE, torch.distributions.Normal(torch.zeros(1), TWO[:1])),
    ],
)
def test_tensors_in_containers_and_objects(tree: Any) -> None:
    found, opaque = tensors_of(tree)
    assert any(tensor is ONE for tensor in found) and len(found) >= 2 and opaque is None


def test_objects_that_contain_themselves() -> None:
    box = Box(ONE)
    box.more = [box, box]
    assert tensors_of(box) == ([ONE], None)


def test_what_cannot_be_looked_into_is_named() -> None:
    assert tensors_of([1, Closed()]) == ([], "Closed")
    assert tensors_of(7) == ([], None)


def test_copies_of_some_tensors() -> None:
    first, second = cloned((ONE, TWO), lambda tensor: tensor is TWO)
    assert first is ONE and second is not TWO and torch.equal(second, TWO)
