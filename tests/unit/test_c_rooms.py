"""The include graph of the C code: which folder ("room") may include headers of which. Add a new edge only on purpose.

A folder that isn't listed belongs to the room above it. Every room may include its own headers, those of
lowerhalf/include (the contracts), and those of the system."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOWER = {  # the lower rooms come first: a room includes only headers of rooms listed before it
    "base": "",
    "trace": "base",
    "trace/preload": "base trace",
    "isolate": "base trace",
    "isolate/trap": "base isolate",
    "process": "base isolate",
    "process/tcp": "base isolate",
    "process/memory": "base isolate process",
    "process/fds": "base isolate process process/memory process/tcp",
    "wire": "base isolate",
    "rdma": "base trace wire",
    "join/manager": "base isolate wire",
    "join": "base isolate join/manager wire",
    "control": "base isolate join wire",
    "mpi/back": "",
    "mpi/back/shared": "mpi/back",  # compiled into each back
    "mpi/back/openmpi": "mpi/back/shared",  # a library of its own, as is mpi/back/standard
    "mpi/back/standard": "mpi/back/shared",
    "mpi": "base isolate join join/manager mpi/back process/tcp",
    "image/file": "base",
    "image/dirty": "base image/file isolate",
    "image/lazy": "base image/file isolate isolate/trap",
    "image/write": "base image/file",
    "image/fold": "image/file image/write",
    "image": (
        "base control image/dirty image/file image/lazy image/write isolate isolate/trap join mpi process process/fds "
        "process/memory trace"
    ),
    "tree": "base control image image/file isolate isolate/trap process process/fds process/memory trace",
    "start/options": "base image/dirty join/manager",
    "start": (
        "base control image image/file isolate isolate/trap join join/manager mpi process process/fds start/options "
        "trace tree wire"
    ),
}
# The upper half meets the lower half only at lowerhalf/include. Functions of higher rooms that core calls are declared
# by core.
WRAPPERS = {
    "front": "",  # the contract of libmpi.so.12 with the fronts
    "core": "front",
    "tools": "core",
    "messages": "core",
    "datatype": "core",
    "window": "core tools",
    "file": "core tools",
    "p2p": "core messages tools",
    "environment": "core p2p tools",
    "comm": "core front p2p tools window",  # window: for its attributes
    "collective": "comm core messages p2p tools",
    "front/shared": "front",  # compiled into each front
    "front/openmpi": "front/shared",  # a library of its own, as is front/standard
    "front/openmpi/fortran": "front/openmpi",
    "front/standard": "front/shared",
}
TABLE = {
    f"{half}/{room}": {f"{half}/{to}" for to in rooms.split()}
    for half, table in (("lowerhalf", LOWER), ("wrappers", WRAPPERS))
    for room, rooms in table.items()
}
# Made by wrappers/, in the build directory.
GENERATED = {
    "abi_table.h", "back_constants.h", "back_interface.h", "back_pairs.h",
    "fortran_functions.h", "fortran_numbers.h", "front_constants.h", "front_functions.h",
    "front_interface.h", "front_objects.h", "function_index.h", "function_names.h", "functions.h", "mpich.h",
    "mpich_constants.h", "openmpi_constants.h", "recorder_calls.h",
}  # fmt: skip
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<(manapy/[^>]+)>)', re.M)
MOST_FILES = 15  # of a room, in C; more files are hard to survey


def sources(root: Path) -> list[Path]:
    files = [path for top in ("lowerhalf", "wrappers") for path in (root / top).rglob("*.[chS]")]
    return [path for path in files if "include" not in path.relative_to(root).parts]


def room_of(root: Path, path: Path) -> str:
    folders = [folder.relative_to(root).as_posix() for folder in path.resolve().parents if folder.is_relative_to(root)]
    return next((folder for folder in folders if folder in TABLE), folders[0])


def included(root: Path, path: Path) -> list[str]:
    """The rooms of the headers that a file includes; "?" and the name for a header that isn't found."""
    rooms = []
    for quoted, contract in INCLUDE.findall(path.read_text()):
        name = quoted or contract
        places = [root / "lowerhalf" / "include"]
        if quoted:
            places = [*(folder for folder in path.parents if folder.is_relative_to(root)), root / "lowerhalf", *places]
        found = [place / name for place in places if (place / name).is_file()]
        if found:
            rooms.append(room_of(root, found[0]))
        elif name not in GENERATED:
            rooms.append(f"? {name}")
    return rooms


def edges(root: Path) -> dict[tuple[str, str], str]:
    """For each pair (room, room whose header it includes), one file that does so."""
    found = {}
    for path in sources(root):
        room = room_of(root, path)
        for to in included(root, path):
            if to != room and not to.startswith("lowerhalf/include"):
                found[room, to] = path.relative_to(root).as_posix()
    return found


def test_no_edges_but_these(root: Path) -> None:
    assert {edge: file for edge, file in edges(root).items() if edge[1] not in TABLE.get(edge[0], set())} == {}


def test_no_edges_that_nobody_needs(root: Path) -> None:
    assert sorted({(room, to) for room, rooms in TABLE.items() for to in rooms} - set(edges(root))) == []


def test_no_circles() -> None:
    """Each room includes only headers of rooms that stand before it in the table."""
    order = list(TABLE)
    assert [(room, to) for room, rooms in TABLE.items() for to in rooms if order.index(to) >= order.index(room)] == []


def test_the_contracts_include_only_each_other(root: Path) -> None:
    for path in (root / "lowerhalf" / "include").rglob("*.h"):
        assert set(included(root, path)) <= {"lowerhalf/include/manapy"}, path.name


def test_a_room_is_small_enough_to_look_around_in(root: Path) -> None:
    counts: dict[str, int] = {}
    for path in sources(root):
        room = path.parent.relative_to(root).as_posix()
        counts[room] = counts.get(room, 0) + 1
    rooms = set(TABLE) - {"lowerhalf/rdma"}
    assert {room: n for room, n in counts.items() if n > MOST_FILES and room in rooms} == {}


def test_every_room_is_on_the_map(root: Path) -> None:
    text = (root / "lowerhalf" / "README.md").read_text()
    assert [room for room in LOWER if f"\n    {room}/ " not in text] == []


@pytest.mark.parametrize("line", ['#include "start/lower.h"', '# include "../start/lower.h"', '#include "missing.h"'])
def test_a_new_edge_is_found(root: Path, tmp_path: Path, line: str) -> None:
    for folder in ("lowerhalf/base", "lowerhalf/start"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lowerhalf/start/lower.h").touch()
    (tmp_path / "lowerhalf/base/now.h").write_text(f"{line}\n#include <time.h>\n")
    with pytest.raises(AssertionError, match="lowerhalf/base"):
        test_no_edges_but_these(tmp_path)
