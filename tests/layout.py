"""Compare ctypes structures with C structures: compile a probe against a header and let it print sizes and offsets."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import compiling


def c_values(directory: Path, include: Path, header: str, expressions: Mapping[str, str]) -> dict[str, int]:
    """The value of each C expression, by its name."""
    return compiling.c_values(directory, f"#include <{header}>", expressions, f"-I{include}")


def differences(
    directory: Path,
    include: Path,
    header: str,
    structures: Mapping[str, type[ctypes.Structure]],
    prefix_only: frozenset[str] = frozenset(),
) -> list[str]:
    """The differences between Python and C, in words. structures: their names without mpy_ and _t. Those in prefix_only
    may be shorter in Python."""
    expressions, mirrored = {}, {}
    for name, structure in structures.items():
        c = f"mpy_{name}_t"
        if name not in prefix_only:
            expressions[f"sizeof {c}"] = f"sizeof({c})"
            mirrored[f"sizeof {c}"] = ctypes.sizeof(structure)
        for member, *_ in structure._fields_:
            descriptor = getattr(structure, member)
            expressions[f"{c}.{member} offset"] = f"offsetof({c}, {member})"
            mirrored[f"{c}.{member} offset"] = descriptor.offset
            expressions[f"{c}.{member} size"] = f"sizeof((({c} *)0)->{member})"
            mirrored[f"{c}.{member} size"] = descriptor.size
    actual = c_values(directory, include, header, expressions)
    return [
        f"{name}: C {actual[name]}, Python {mirrored[name]}" for name in expressions if actual[name] != mirrored[name]
    ]
