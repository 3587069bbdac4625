"""Any error of one rank is raised on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from manapy.fcdp.engine.collective_errors import agree, agreed, error_of
from manapy.fcdp.errors import RemoteError, SetupError


@dataclass
class Two:
    """Two ranks, one after the other: rank 1 gives its value first."""

    said: list[Any] = field(default_factory=lambda: [None])

    def allgather(self, value: Any, /) -> list[Any]:
        self.said.append(value)
        return self.said


def wrong(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (SetupError("tau must be less"), SetupError, "rank 1: tau must be less"),
        (ZeroDivisionError("by zero"), RemoteError, "rank 1: ZeroDivisionError: by zero"),
    ],
)
def test_an_error_of_one_is_an_error_of_all(error: Exception, kind: type[Exception], text: str) -> None:
    two = Two()
    with pytest.raises(type(error)) as own:
        agree(two, error_of(lambda: wrong(error)))
    assert own.value is error
    with pytest.raises(kind, match=f"^{text}$"):
        agree(two, error_of(lambda: None))


def test_no_error() -> None:
    agree(Two(), error_of(lambda: None))
    assert agreed(Two(), lambda: 7) == 7
