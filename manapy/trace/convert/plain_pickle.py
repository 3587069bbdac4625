"""Reads pickles that contain plain values, and nothing else.

A pickle is a program: loading one from a stranger can run any code (docs.python.org/3/library/pickle.html, "Restricting
Globals"). Plain values (None, booleans, numbers, texts, bytes, lists, tuples, dictionaries, sets) need none of the
instructions that look up a name or call something, so the first of these is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


class CodeError(ValueError):
    """The pickle names something that is not a plain value."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every name. All instructions that could call something need one."""
        raise CodeError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse references to objects elsewhere."""
        raise CodeError("it refers to an object outside")


def loads(data: bytes) -> Any:
    """Return the value of a pickle. Raises CodeError if it is no plain value, and ValueError if it is damaged."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except CodeError:
        raise
    except Exception as error:  # a damaged pickle may raise any error
        raise ValueError(f"{type(error).__name__}: {error}".replace("\n", " ")) from None
