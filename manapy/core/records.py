"""Named tuples, and the name TYPE_CHECKING, for modules that every command imports: without typing, whose import and
first NamedTuple cost 4 ms, a tenth of what `manapy checkpoint` takes.

To a type checker both are typing's. A class here is one of collections.namedtuple, with the methods of the class
statement; nothing evaluates its annotations.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Meta(type):
        """Makes the tuple from the body of a class statement."""

        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = [body.pop(field) for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key in body.keys() - {"__module__", "__slots__"}:
                setattr(made, key, body[key])
            return made

    class NamedTuple(metaclass=_Meta):
        """As typing.NamedTuple."""
