"""Which folder ("room") of the C code may include headers of which, and call functions of which. Add a new edge only on
purpose.

A folder that isn't listed belongs to the room above it. Every room may include its own headers, those of
lowerhalf/include (the contracts between the halves), and those of the system; and it may call functions of the rooms
whose headers it may include. Calls are read from object files (c_symbols.py). What wrappers/generate makes of a library
other than libmpi.so.12 belongs to the room in whose library it is linked."""

from __future__ import annotations

import os
import re
from pathlib import Path

import c_symbols
import pytest
from c_symbols import circle
from compiling import build

LOWER = {  # the lower rooms come first: a room includes headers and calls functions only of rooms listed before it
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
# The upper half meets the lower half only at lowerhalf/include.
WRAPPERS = {
    "front": "",  # the contract of libmpi.so.12 with the fronts
    "core": "front",
    "messages": "core",
    "clock": "core messages",
    "tools": "clock core",
    "environment": "core tools",
    "datatype": "core environment",
    "p2p": "clock core environment messages tools",
    "window": "clock core environment p2p tools",
    "comm": "clock core datatype environment front messages p2p tools window",  # window: for its attributes
    "file": "clock comm core datatype environment p2p tools",
    "collective": "clock comm core datatype environment messages p2p tools",
    "lifetime": "clock collective comm core datatype environment file p2p tools window",
    "front/shared": "front",  # compiled into each front
    "front/openmpi": "front/shared",  # a library of its own, as is front/standard
    "front/openmpi/fortran": "front/openmpi front/shared",
    "front/standard": "front/shared",
}
TABLE = {
    f"{half}/{room}": {f"{half}/{to}" for to in rooms.split()}
    for half, table in (("lowerhalf", LOWER), ("wrappers", WRAPPERS))
    for room, rooms in table.items()
}
# Headers that rooms below their own one may include, too, and whose functions these rooms may call, wherever they are
# defined. MPI's objects need each other: each may have attributes and groups, fails with an error handler, and is freed
# when nothing refers to it any more.
FRONTS = "front/openmpi front/openmpi/fortran front/shared front/standard"
CONTRACTS = {
    "wrappers/clock/clock.h": "core",  # a thread that is stopped, or leaves a callback, is in the clock
    "wrappers/collective/op.h": "core",  # the records of objects that core frees (mpy_object_unref): also the next two
    "wrappers/comm/comm.h": "core p2p",  # p2p: the identity of a communicator whose messages are stored
    "wrappers/datatype/datatype.h": "core p2p tools",  # tools: sizes of messages; p2p: committed types
    "wrappers/environment/outside.h": "core environment",  # without a real MPI; its tables are generated
    "wrappers/lifetime/hooks.h": "core",  # put into the upper block
    "wrappers/tools/trace.h": "core",  # a longjmp out of a callback leaves open records
    "wrappers/p2p/request.h": "messages tools",  # messages are received for requests; the trace names requests
    "wrappers/environment/info.h": "core tools",  # core: infos live without MPI_Init; MPI_T returns some
    "wrappers/comm/session.h": "environment p2p",  # error handlers and attached buffers of sessions
    "wrappers/comm/attr.h": "environment datatype p2p window",  # attributes of objects; those that MPI predefines
    "wrappers/comm/group.h": "window",  # MPI_Win_get_group, groups of epochs
    "wrappers/collective/persistent.h": "comm collective",  # comm: a communicator is freed; some are generated
    "wrappers/lifetime/init.h": "comm",  # the first session initializes the real MPI
    "wrappers/front/front.h": FRONTS,  # all that libmpi.so.12 offers; its rooms define it
    # Compiled into each front, or back: what the others of each one define for it
    "wrappers/front/shared/translate.h": "front/shared",
    "wrappers/front/openmpi/openmpi.h": "front/shared",
    "wrappers/front/standard/standard.h": "front/shared",
    "generated/front_functions.h": "front/shared",
    "lowerhalf/mpi/back/shared/translate.h": "mpi/back/shared",
    "lowerhalf/mpi/back/openmpi/openmpi.h": "mpi/back/shared",
}
MPI_CALLS = {("wrappers/comm", "PMPI_Bcast"), ("wrappers/datatype", "PMPI_Type_get_extent")}  # as a program would
ABOVE_ALL = "wrappers/generated"  # the generated part of libmpi.so.12: calls all its rooms
# Calls between files that close a circle. The READMEs of lowerhalf/ and wrappers/ explain them. (caller, called)
CIRCLES = {
    # The scan asks each kind whether a descriptor is its own; the kinds use the tools of the scan.
    ("lowerhalf/process/fds/fds_scan.c", "lowerhalf/process/fds/fds_device.c"),
    ("lowerhalf/process/fds/fds_scan.c", "lowerhalf/process/fds/fds_pty.c"),
    ("lowerhalf/process/fds/fds_scan.c", "lowerhalf/process/fds/fds_tcp.c"),
    # A socket may turn out to be one of another kind, and an end of a pair may belong to another process of the tree.
    ("lowerhalf/process/fds/fds_socket.c", "lowerhalf/process/fds/fds_pair.c"),
    ("lowerhalf/process/fds/fds_socket.c", "lowerhalf/process/fds/fds_tcp.c"),
    ("lowerhalf/process/fds/fds_pair.c", "lowerhalf/process/fds/fds_tree.c"),
    # The names of the functions are generated, in the file of the generated functions.
    ("lowerhalf/trace/preload/abi.c", "lowerhalf/trace/preload/recorder_calls.c"),
    # A thread that enters from inside a callback has a record of its own.
    ("wrappers/core/cross.c", "wrappers/core/callback.c"),
    # After a restart the constructors recreate datatypes.
    ("wrappers/datatype/datatype.c", "wrappers/datatype/datatype_new.c"),
    # MPI_Wait and MPI_Test are beside the slots. They use the loops of wait.c, which use the slots.
    ("wrappers/p2p/request.c", "wrappers/p2p/wait.c"),
    # The life of a communicator ends with what belongs to it.
    ("wrappers/comm/comm.c", "wrappers/comm/comm_freed.c"),
    ("wrappers/comm/comm.c", "wrappers/comm/dynamic.c"),
    ("wrappers/comm/comm.c", "wrappers/comm/topology.c"),
    # A reduction with an operation of the program is a persistent collective that fold.c makes of others.
    ("wrappers/collective/persistent.c", "wrappers/collective/fold.c"),
    # Opening and closing a file deals with its view and its accesses.
    ("wrappers/file/file.c", "wrappers/file/file_access.c"),
    ("wrappers/file/file.c", "wrappers/file/file_view.c"),
}
# Made by wrappers/, in the build directory.
GENERATED = {
    "abi_table.h", "back_constants.h", "back_interface.h", "back_pairs.h",
    "fortran_functions.h", "fortran_numbers.h", "front_constants.h", "front_functions.h",
    "front_interface.h", "front_objects.h", "function_index.h", "function_names.h", "functions.h", "mpich.h",
    "mpich_constants.h", "openmpi_constants.h", "recorder_calls.h",
}  # fmt: skip
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
# In a source, at the beginning of a line: a function that another file defines, or a variable.
PROTOTYPE = re.compile(
    r"^(?:extern\b[^;{=(]*?\bmpy_\w+|(?!static\b|typedef\b)[A-Za-z_][\w *]*?\bmpy_\w+\s*\([^;{}=]*\))[^;{}=]*;", re.M
)
MOST_FILES = 15  # of a folder; more files are hard to survey
LARGER = {  # but these may have a few more
    "lowerhalf/rdma/objects", "manapy/chain", "manapy/ckpt/coordinator", "manapy/cli/watch", "manapy/fcdp/engine",
    "manapy/trace/hang",
}  # fmt: skip
A_FEW_MORE = 18

MADE = f"{c_symbols.GENERATED}/"

Edges = dict[tuple[str, str], str]


def sources(root: Path) -> list[Path]:
    files = [path for top in ("lowerhalf", "wrappers") for path in (root / top).rglob("*.[chS]")]
    return [path for path in files if "include" not in path.relative_to(root).parts]


def room_of(root: Path, path: Path) -> str:
    folders = [folder.relative_to(root).as_posix() for folder in path.resolve().parents if folder.is_relative_to(root)]
    return next((folder for folder in folders if folder in TABLE), folders[0])


def included(root: Path, path: Path) -> list[str]:
    """The headers of ours that a file includes, below `root`; "?" and the name for a header that isn't found."""
    headers = []
    for quoted, angle in INCLUDE.findall(path.read_text()):
        name = quoted or angle
        above = [folder for folder in path.parents if folder.is_relative_to(root)]
        places = [*above, root / "lowerhalf", root / "lowerhalf/include", root / "wrappers"]
        found = [(place / name).resolve() for place in places if (place / name).is_file()]
        if found:
            headers.append(found[0].relative_to(root.resolve()).as_posix())
        elif name not in GENERATED and (quoted or name.startswith("manapy/")):
            headers.append(f"? {name}")
    return headers


def users_of(header: str) -> set[str]:
    """The rooms that may use this header, although it isn't in a room below them."""
    half = "wrappers" if header.startswith(MADE) else header.split("/")[0]
    return {f"{half}/{user}" for user in CONTRACTS.get(header, "").split()}


def edges(root: Path) -> Edges:
    """For each pair (room, room whose header it includes), one file that does so. Without contracts."""
    found = {}
    for path in sources(root):
        room = room_of(root, path)
        for header in included(root, path):
            to = room_of(root, root / header) if not header.startswith("?") else header
            is_lent = room in users_of(header) and to not in TABLE.get(room, ())
            if to != room and not to.startswith("lowerhalf/include") and not is_lent:
                found[room, to] = path.relative_to(root).as_posix()
    return found


def room_of_file(name: str) -> str:
    """Of a file with symbols."""
    folder = name.removeprefix(MADE).rpartition("/")[0]
    if folder == "wrappers" and name.startswith(MADE):
        return ABOVE_ALL
    while folder not in TABLE and folder.count("/") > 1:
        folder = folder.rpartition("/")[0]
    return folder


def declared(root: Path) -> dict[str, set[str]]:
    """For each room, the names in the contracts that it may use."""
    found: dict[str, set[str]] = {}
    for header in CONTRACTS:
        for room in users_of(header):
            found.setdefault(room, set()).update(words(root, header))
    return found


def words(root: Path, header: str) -> set[str]:
    """All words of a contract, without its comments."""
    made = c_symbols.build_folder(root) / "generated"
    files = list(made.rglob(Path(header).name)) if header.startswith(MADE) else [root / header]
    texts = [COMMENT.sub("", path.read_text()) for path in files if path.exists()]
    return {word for text in texts for word in re.findall(r"\b\w+\b", text)}


def forbidden(root: Path) -> list[str]:
    """Calls that neither the table nor a contract allows, as "file calls name of file"."""
    calls = c_symbols.callees(c_symbols.read(root))
    contracts = declared(root)
    found = []
    for file, called in calls.items():
        room = room_of_file(file)
        for other, symbols in called.items():
            to = room_of_file(other)
            if to == room or to in TABLE.get(room, ()) or room == ABOVE_ALL:
                continue
            left = {name for name in symbols - contracts.get(room, set()) if (room, name) not in MPI_CALLS}
            found += [f"{file} calls {name} of {other}" for name in sorted(left)]
    return sorted(found)


def test_no_edges_but_these(root: Path) -> None:
    assert {edge: file for edge, file in edges(root).items() if edge[1] not in TABLE.get(edge[0], set())} == {}


def test_no_edges_that_nobody_needs(root: Path) -> None:
    assert sorted({(room, to) for room, rooms in TABLE.items() for to in rooms} - set(edges(root))) == []


def test_no_circles() -> None:
    """Each room includes only headers of rooms that stand before it in the table."""
    order = list(TABLE)
    assert [(room, to) for room, rooms in TABLE.items() for to in rooms if order.index(to) >= order.index(room)] == []


def test_no_calls_but_these(root: Path) -> None:
    assert forbidden(root) == []


def test_no_contract_that_nobody_needs(root: Path) -> None:
    """Each room that may use a contract includes it, or calls something in it that no room below it defines."""
    includes = {(room_of(root, path), header) for path in sources(root) for header in included(root, path)}
    calls = c_symbols.callees(c_symbols.read(root))
    used: dict[str, set[str]] = {}
    for file, called in calls.items():
        room = room_of_file(file)
        for other, symbols in called.items():
            if room_of_file(other) not in {room, *TABLE.get(room, ())}:
                used.setdefault(room, set()).update(symbols)
    stale = [
        (header, room)
        for header in CONTRACTS
        for room in users_of(header)
        if header.startswith(f"{room}/") or (room, header) not in includes
        if not used.get(room, set()) & words(root, header)
    ]
    assert stale == []


def test_no_circle_of_calls(root: Path) -> None:
    """Within rooms and to the rooms below; calls by a contract go up. test_layers.py looks at lowerhalf/rdma."""
    graph: dict[str, set[str]] = {}
    for file, called in c_symbols.callees(c_symbols.read(root)).items():
        room = room_of_file(file)
        if room not in ("lowerhalf/rdma", ABOVE_ALL):
            downwards = {other for other in called if room_of_file(other) in {room, *TABLE.get(room, ())}}
            graph[file.removeprefix(MADE)] = {other.removeprefix(MADE) for other in downwards}
    assert sorted(edge for edge in CIRCLES if edge[1] not in graph[edge[0]]) == []  # every listed edge still exists
    others = {file: {other for other in called if (file, other) not in CIRCLES} for file, called in graph.items()}
    assert circle(others) == []


def test_no_circle_of_includes(root: Path) -> None:
    graph = {path.relative_to(root).as_posix(): set(included(root, path)) for path in sources(root)}
    assert circle(graph) == []


def test_a_function_of_another_file_is_declared_in_a_header(root: Path) -> None:
    assert [found for path in sources(root) if path.suffix == ".c" for found in prototypes(path)] == []


def prototypes(source: Path) -> list[str]:
    return [f"{source.name}: {text}" for text in PROTOTYPE.findall(COMMENT.sub("", source.read_text()))]


def test_the_contracts_include_only_each_other(root: Path) -> None:
    for path in (root / "lowerhalf" / "include").rglob("*.h"):
        assert {header.rpartition("/")[0] for header in included(root, path)} <= {"lowerhalf/include/manapy"}, path.name


def test_a_room_is_small_enough_to_look_around_in(root: Path) -> None:
    counts: dict[str, int] = {}
    for top in ("lowerhalf", "manapy", "osu_bench", "tools", "wrappers"):
        for folder, _, names in os.walk(root / top):
            is_code = [name.endswith((".c", ".h", ".S", ".py")) for name in names]
            counts[Path(folder).relative_to(root).as_posix()] = sum(is_code)
    too_many = {folder: n for folder, n in counts.items() if n > (A_FEW_MORE if folder in LARGER else MOST_FILES)}
    assert too_many == {}
    assert [folder for folder in sorted(LARGER) if counts.get(folder, 0) <= MOST_FILES] == []


def test_every_room_is_on_the_map(root: Path) -> None:
    lower, wrappers = ((root / half / "README.md").read_text() for half in ("lowerhalf", "wrappers"))
    assert [room for room in LOWER if f"\n    {room}/ " not in lower] == []
    assert [room for room in WRAPPERS if f"\n| `{room}/` |" not in wrappers] == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree of two rooms, of which the lower one declares a function of the higher one."""
    for folder in ("lowerhalf/base", "lowerhalf/start"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lowerhalf/start/lower.h").touch()
    (tmp_path / "lowerhalf/start/lower.c").write_text("void mpy_above(void) {}\n")
    (tmp_path / "lowerhalf/base/room.h").write_text("void mpy_above(void);\n")
    return tmp_path


def compile_all(root: Path) -> None:
    """As an installation of manapy does, in build/."""
    folder = root / "build/all"
    folder.mkdir(parents=True)
    rules = []
    for number, path in enumerate(sorted((root / "lowerhalf").rglob("*.c"))):
        build(folder / f"{number}.o", path, "-c")
        rules.append(f"build {number}.o: cc {path}\n")
    (folder / "build.ninja").write_text("".join(rules))
    (folder / "install_manifest.txt").touch()


@pytest.mark.parametrize(
    "line",
    [
        '#include "start/lower.h"',
        '# include "../start/lower.h"',
        "#include <start/lower.h>",
        "#include <lowerhalf/start/lower.h>",
        '#include "missing.h"',
    ],
)
def test_a_new_edge_is_found(small: Path, line: str) -> None:
    (small / "lowerhalf/base/now.h").write_text(f"{line}\n#include <time.h>\n")
    with pytest.raises(AssertionError, match="lowerhalf/base"):
        test_no_edges_but_these(small)


def test_a_new_call_is_found(small: Path) -> None:
    source = small / "lowerhalf/base/room.c"
    source.write_text('#include "room.h"\nvoid mpy_room(void) { mpy_above(); }\n')
    assert edges(small) == {} and prototypes(source) == []
    compile_all(small)
    assert forbidden(small) == ["lowerhalf/base/room.c calls mpy_above of lowerhalf/start/lower.c"]


def test_a_circle_of_calls_is_found(small: Path) -> None:
    (small / "lowerhalf/base/a.c").write_text("void mpy_b(void); void mpy_a(void) { mpy_b(); }\n")
    (small / "lowerhalf/base/b.c").write_text("void mpy_a(void); void mpy_b(void) { mpy_a(); }\n")
    compile_all(small)
    calls = c_symbols.callees(c_symbols.read(small))
    assert set(circle({file: set(others) for file, others in calls.items()})) == {
        "lowerhalf/base/a.c",
        "lowerhalf/base/b.c",
    }


@pytest.mark.parametrize(
    "line",
    [
        "int mpy_on_stack(int (*fn)(void *), void *arg, uint64_t stack_top);",
        "long mpy_clone(const long args[5],\n               void *arg);",
        "void mpy_jump(uint64_t entry) __attribute__((noreturn));",
        "extern char **mpy_environ; /* launch.c */",
    ],
)
def test_a_prototype_in_a_source_is_found(tmp_path: Path, line: str) -> None:
    source = tmp_path / "a.c"
    source.write_text(f"/* int mpy_not_this(void); */\nstatic int mpy_own(void);\n{line}\n")
    assert len(prototypes(source)) == 1


@pytest.mark.parametrize(
    "text", ["int mpy_a(void) {\n    mpy_b();\n}\n", "int mpy_a(void) { return mpy_b(); }\n", "int mpy_word = 3;\n"]
)
def test_a_definition_is_no_prototype(tmp_path: Path, text: str) -> None:
    source = tmp_path / "a.c"
    source.write_text(text)
    assert prototypes(source) == []
