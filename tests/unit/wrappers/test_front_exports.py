"""The fronts: what mpi.h of Open MPI 4.1 and 5.0, and of the standard ABI, declares is exported, and each argument is
translated."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from manapy.core.installation import library
from mpich_wheel import ABI, TABLE, dynamic_symbols, generator, prefix
from test_constants import debians, newer

FUNCTION = re.compile(r"\b(P?MPIX?_[A-Z]\w*|OMPI_C_\w+)\s*\(")
OBJECT = re.compile(r"^ *extern [^;(]*?\b(ompi_\w+|MPI_F\w+);", re.M)
# Macros of mpi.h. In 4.1 their functions are exported for Fortran only.
MACROS = {"MPI_Aint_add", "MPI_Aint_diff", "PMPI_Aint_add", "PMPI_Aint_diff"}
GOLDEN = Path(__file__).with_name("golden")
NAMES = [
    *(("openmpi", f"MPI_{name}") for name in (
        "Send", "Wait", "Irecv", "Alltoallw", "Comm_split_type", "Comm_get_name", "Cart_shift", "File_open", "Info_get",
        "Type_get_envelope", "Comm_free_keyval", "Group_c2f",
    )),
    *(("standard", f"MPI_{name}") for name in (
        "Recv", "Comm_get_name", "File_open", "File_set_view", "File_seek", "Buffer_attach", "Buffer_detach",
        "Comm_compare", "Init_thread", "Type_toint", "File_fromint", "Status_set_elements", "T_source_get_info",
    )),
]  # fmt: skip


def built(name: str) -> Path:
    path = library(f"upper/{name}")
    if path is None:
        pytest.skip("manapy is not installed")
    return path


def ours() -> Path:
    return built("libmpi.so.40")


def declared(options: list[str], header: str) -> tuple[set[str], set[str]]:
    """The functions and the objects that a header declares."""
    command = ["gcc", "-E", "-P", "-x", "c", *options, "-"]
    text = subprocess.run(command, input=f"#include <{header}>\n", check=True, capture_output=True, text=True).stdout
    names = re.sub(r"__attribute__\s*\(\(.*?\)\)\s*\)?", " ", text)
    return set(FUNCTION.findall(names)) - MACROS, set(OBJECT.findall(names))


def sizes(path: Path) -> dict[str, int]:
    """The sizes of exported objects."""
    command = ["nm", "-D", "-S", "--defined-only", str(path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    words = [line.split() for line in lines]
    return {w[3].split("@")[0]: int(w[1], 16) for w in words if len(w) == 4 and w[2] in "BDRVd"}


@pytest.mark.parametrize("find", [debians, newer])
@pytest.mark.parametrize(("header", "n_functions", "n_objects"), [("mpi.h", 700, 90), ("mpi-ext.h", 10, 0)])
def test_everything_declared_is_exported(find: Any, header: str, n_functions: int, n_objects: int) -> None:
    functions, objects = declared(find().options, header)
    assert len(functions) > n_functions and len(objects) >= n_objects
    symbols = dynamic_symbols(ours())
    assert {name for name in functions if symbols.get(name) not in ("T", "W")} == set()
    assert {name for name in objects if symbols.get(name) not in ("B", "D")} == set()


def test_the_standard_abi_is_exported() -> None:
    """mpi_abi.h of MPICH 5.0 declares extensions that the library lacks (MPIX_Op_create_x). Our library has what it
    has, and the conversions of handles for Fortran."""
    functions, objects = declared([f"-I{prefix()}/include", "-DMPI_ABI"], "mpi.h")
    real, own = dynamic_symbols(prefix() / "lib/libmpi_abi.so.1"), dynamic_symbols(built("libmpi_abi.so.1"))
    assert len(functions) > 600 and not objects
    missing = {name for name in functions if own.get(name) not in ("T", "W")}
    assert {name for name in missing if not name.startswith(("MPIX_", "PMPIX_")) or name in real} == set()
    assert {name for name in real if re.match("P?MPIX?_[A-Z]", name)} - own.keys() == set()
    assert {name.rpartition("_")[2] for name in own.keys() - real.keys() if name.startswith("MPI_")} == set(
        "c2f f2c c2f08 f082c f082f f2f08 IGNORE".split()
    )


@pytest.mark.parametrize("find", [debians, newer])
def test_no_object_is_larger_than_the_programs(find) -> None:  # type: ignore[no-untyped-def]
    """The loader complains if it can't copy a whole object into the program's (ld.so(8), LD_VERBOSE)."""
    real, own = sizes(find().library), sizes(ours())
    _, objects = declared(find().options, "mpi.h")
    assert {name: (own[name], real[name]) for name in objects if own[name] > real[name]} == {}


def test_objects_can_be_in_the_program() -> None:
    """A program that isn't compiled with -fPIC has them. So the library finds them through its global offset table."""
    dynamic = subprocess.run(["readelf", "-dW", str(ours())], check=True, capture_output=True, text=True).stdout
    assert "SYMBOLIC" not in dynamic
    relocations = subprocess.run(["readelf", "-rW", str(ours())], check=True, capture_output=True, text=True).stdout
    assert re.search(r"R_X86_64_GLOB_DAT .* ompi_request_null", relocations)


def test_the_core_binds_its_own_calls() -> None:
    """The front's functions of the same names come first in the loader's search."""
    core = built("libmpi.so.12")
    relocations = subprocess.run(["readelf", "-rW", str(core)], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"R_X86_64_(?:GLOB_DAT|JUMP_SLO\w*|64) .* (P?MPI_[A-Z][a-z]\w*)", relocations) == []


def test_handles_in_fortran() -> None:
    """The column FORTRAN is what Open MPI's mpif.h says."""
    text = "".join(p.read_text() for p in (debians().library.parent / "openmpi/include").glob("mpif*handles.h"))
    real = {name: int(value) for name, value in re.findall(r"parameter \((\w+)=(\d+)\)", text)}
    assert len(real) > 80
    rows = {row.name: row.fortran for row in generator().read_constants(ABI) if row.fortran is not None}
    assert {name: (value, real.get(name)) for name, value in rows.items() if real.get(name) != value} == {}


def function(folder: str, symbol: str) -> str:
    """In C; of Open MPI's front, what is generated in Fortran, too."""
    g = generator()
    table = g.read_table(TABLE)
    f = next(f for f in table.functions if f.symbol == symbol)
    family = next(family for family in g.FAMILIES if family.folder == folder)
    own = str(g.front_function(table, f, g.differences(g.read_constants(ABI), family)))
    return f"{own}\n{g.fortran_function(table, f)}" if folder == "openmpi" and not symbol.endswith("c2f") else own


@pytest.mark.parametrize(("folder", "symbol"), NAMES)
def test_golden(folder: str, symbol: str) -> None:
    assert function(folder, symbol) == (GOLDEN / f"{folder}_{symbol}.c").read_text()


if __name__ == "__main__":
    for each in NAMES:
        (GOLDEN / f"{'_'.join(each)}.c").write_text(function(*each))
