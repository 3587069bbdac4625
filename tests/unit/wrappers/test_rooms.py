"""The includes between the rooms of wrappers/: which room may include which. A new edge must be added here on purpose."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter

from mpich_wheel import ROOT

# core is the bottom. What core calls in rooms above it (hooks.c, cross.c, callback.c), core declares.
ALLOWED = {
    "core": set(),
    "tools": {"core"},
    "messages": {"core"},
    "datatype": {"core"},
    "window": {"core", "tools"},
    "file": {"core", "tools"},
    "p2p": {"core", "tools", "messages"},
    "environment": {"core", "tools", "p2p"},
    "comm": {"core", "tools", "p2p", "window"},  # window: its attributes
    "collective": {"core", "tools", "messages", "p2p", "comm"},
}  # fmt: skip
INCLUDE = re.compile(r'^#include "(?:(\w+)/)?(\w+\.h)"', re.MULTILINE)
GENERATED = {"functions.h", "abi_table.h"}
MOST = 15  # files in a room: more are hard to oversee


def edges() -> set[tuple[str, str]]:
    found = set()
    for path in (ROOT / "wrappers").glob("*/*.[ch]"):
        for room, name in INCLUDE.findall(path.read_text()):
            target = room or path.parent.name
            assert name in GENERATED or (ROOT / "wrappers" / target / name).exists(), f"{path}: {name}"
            if name not in GENERATED and target != path.parent.name:
                found.add((path.parent.name, target))
    return found


def test_rooms_include_what_the_table_allows() -> None:
    assert edges() == {(room, used) for room, allowed in ALLOWED.items() for used in allowed}


def test_no_circle() -> None:
    tuple(TopologicalSorter(ALLOWED).static_order())  # raises CycleError


def test_rooms_are_small() -> None:
    sizes = {room: len(list((ROOT / "wrappers" / room).iterdir())) for room in ALLOWED}
    assert {room: n for room, n in sizes.items() if n > MOST} == {}
