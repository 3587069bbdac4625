"""Named tuples without typing: the same as typing's, for the classes of these tests."""

from __future__ import annotations

import pickle
import typing

import pytest
from manapy.core import records


class Ours(records.NamedTuple):
    """A record."""

    path: str
    size: int = 3
    names: tuple[str, ...] = ()

    def double(self) -> int:
        """Twice the size."""
        return 2 * self.size

    @property
    def first(self) -> str:
        """The first name."""
        return self.names[0]


class Theirs(typing.NamedTuple):
    """A record."""

    path: str
    size: int = 3
    names: tuple[str, ...] = ()

    def double(self) -> int:
        """Twice the size."""
        return 2 * self.size

    @property
    def first(self) -> str:
        """The first name."""
        return self.names[0]


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_a_record(kind: type) -> None:
    record = kind("a", names=("x", "y"))
    assert record == ("a", 3, ("x", "y")) and tuple(record) == record and hash(record)
    assert repr(record) == f"{kind.__name__}(path='a', size=3, names=('x', 'y'))"
    assert record.double() == 6 and record.first == "x" and record._replace(size=5).double() == 10
    assert (kind._fields, kind._field_defaults) == (("path", "size", "names"), {"size": 3, "names": ()})
    assert (kind.__doc__, kind.__module__, kind.__qualname__) == ("A record.", __name__, kind.__name__)
    assert pickle.loads(pickle.dumps(record)) == record and type(pickle.loads(pickle.dumps(record))) is kind
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(AttributeError):
        record.size = 4
    with pytest.raises(AttributeError):
        record.other = 4
