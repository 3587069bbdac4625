"""The function table and the real library: the table is complete and well-formed, and it lists what the built library
exports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from manapy.core.installation import library
from mpich_wheel import ROOT, TABLE, dynamic_symbols, generator, prefix

OURS = re.compile(r"(P?MPIX?_|MPII_|QMPI_|MPIR_(C_|Dup_fn|Err_|F08_|fortran_))")


@pytest.fixture(scope="module")
def table():  # type: ignore[no-untyped-def]
    return generator().read_table(TABLE)


# In an MPICH that was built with its C++ bindings.
CXX = {"MPII_Errhandler_set_cxx", "MPII_Op_set_cxx"}
# In some versions of MPICH (4.0), if built with Fortran bindings. The library sets these two.
FORTRAN = {"MPIR_C_MPI_UNWEIGHTED", "MPIR_C_MPI_WEIGHTS_EMPTY"}


def test_every_symbol_of_mpich_is_in_the_table(table) -> None:  # type: ignore[no-untyped-def]
    real = {name for name in dynamic_symbols(prefix() / "lib/libmpi.so.12") if OURS.match(name)}
    listed = (
        {name for f in table.functions for name in (f.symbol, "P" + f.symbol)} | set(table.data) | set(table.internal)
    )
    assert real - listed == set()
    assert listed - real == CXX | FORTRAN


def test_names_are_unique(table) -> None:  # type: ignore[no-untyped-def]
    names = [f.name for f in table.functions]
    assert len(set(names)) == len(names) < 2048  # MPY_MPI_SLOTS


def test_both_forms_of_a_function_are_treated_alike(table) -> None:  # type: ignore[no-untyped-def]
    by_name = {f.name: f for f in table.functions}
    for name, f in by_name.items():
        if (big := by_name.get(name + "_c")) is not None:
            assert (f.family, f.cls, f.clock) == (big.family, big.cls, big.clock), name


def test_blocking_collectives_count(table) -> None:  # type: ignore[no-untyped-def]
    for f in table.functions:
        if f.family in ("collective", "nbc") and f.name.removesuffix("_c") != "Reduce_local":
            assert f.clock == "comm", f.name


def test_faulty_tables_are_refused(tmp_path: Path) -> None:
    g = generator()
    for line in (
        "MPI_X manual - INT a:NOKIND",
        "MPI_X somehow - INT",
        "MPI_X manual comm INT a:INT",
        "MPI_X manual - INT nonsense",
    ):
        file = tmp_path / "t.txt"
        file.write_text(f"kind INT int\n[query]\n{line}\n")
        with pytest.raises(g.TableError):
            g.read_table(file)


def test_installed_library_defines_all_and_implements_what_the_table_says(table: Any) -> None:
    built = library("upper/libmpi.so.12")
    if built is None:
        pytest.skip("manapy's C parts are not installed")
    symbols = dynamic_symbols(built)
    listed = (
        {name for f in table.functions for name in (f.symbol, "P" + f.symbol)} | set(table.data) | set(table.internal)
    )
    offered = {"mpy_core_above", "mpy_core_end", "mpy_core_functions", "mpy_core_members", "mpy_core_unsupported"}
    assert set(symbols) == listed | offered  # front/front.h
    # Stubs are weak (generate/output.py): only "unsupported" functions may remain stubs.
    assert [f.symbol for f in table.functions if f.cls != "unsupported" and symbols["P" + f.symbol] == "W"] == []
    assert [f.symbol for f in table.functions if f.cls == "unsupported" and symbols["P" + f.symbol] != "W"] == []


def test_readme_names_no_missing_file() -> None:
    text = (ROOT / "wrappers/README.md").read_text()
    for name in re.findall(r"\b(\w+\.(?:c|h|S|py|txt))\b", text):
        places = (
            "wrappers",
            "wrappers/*",
            "wrappers/front/*",
            "wrappers/front/*/*",
            "lowerhalf/include/manapy",
            "manapy/include",
            "tests/unit",
            "tests/unit/wrappers",
        )
        generated = (
            "functions.h", "function_names.h", "function_index.h", "front_interface.h", "generated.c", "stubs.c",
        )  # fmt: skip
        assert name in generated or any(list(ROOT.glob(f"{place}/{name}")) for place in places), name
