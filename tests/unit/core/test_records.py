"""Named tuples without typing: the same as typing's, for the class of this test."""

from __future__ import annotations

import pickle
import typing
from typing import Any

import pytest
from manapy.core import records


def record(base: Any, name: str) -> Any:
    """A class of such tuples, which pickle finds under its name."""

    class Record(base):
        """A record."""

        __qualname__ = name
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

    return Record


Ours, Theirs = record(records.NamedTuple, "Ours"), record(typing.NamedTuple, "Theirs")


@pytest.mark.parametrize(("kind", "name"), [(Ours, "Ours"), (Theirs, "Theirs")])
def test_a_record(kind: Any, name: str) -> None:
    record = kind("a", names=("x", "y"))
    assert record == ("a", 3, ("x", "y")) and tuple(record) == record and hash(record)
    assert repr(record) == "Record(path='a', size=3, names=('x', 'y'))"
    assert record.double() == 6 and record.first == "x" and record._replace(size=5).double() == 10
    assert (kind._fields, kind._field_defaults) == (("path", "size", "names"), {"size": 3, "names": ()})
    assert (kind.__doc__, kind.__module__, kind.__qualname__) == ("A record.", __name__, name)
    assert pickle.loads(pickle.dumps(record)) == record and type(pickle.loads(pickle.dumps(record))) is kind
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(AttributeError):
        record.size = 4
    with pytest.raises(AttributeError):
        record.other = 4
