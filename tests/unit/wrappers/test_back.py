"""The backs: expected texts of a few generated functions, one of each form; and every function that the core calls in
the real library is there. To renew the texts: python tests/unit/wrappers/test_back.py"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mpich_wheel import ABI, ROOT, TABLE, generator

GOLDEN = Path(__file__).with_name("golden") / "back"
NAMES = (
    "MPI_Send", "MPI_Recv", "MPI_Recv_init_c", "MPI_Testsome", "MPI_Allreduce", "MPI_Ialltoallw_c", "MPI_Gatherv_c",
    "MPI_Pack_c", "MPI_Win_lock", "MPI_Put", "MPI_Comm_split_type", "MPI_File_open", "MPI_Topo_test",
    "MPI_Group_translate_ranks", "MPI_Improbe", "MPI_Gather_c", "MPI_Iscatter_c", "MPI_Bcast_c",
)  # fmt: skip
# Of the standard ABI.
STANDARDS = ("MPI_Recv", "MPI_Ialltoallw_c", "MPI_Comm_compare", "MPI_File_open", "MPI_Info_dup", "MPI_Put")
FAMILIES = ("openmpi", "standard")
FOLDERS = ROOT / "lowerhalf/mpi/back"
# What the library has not in any version: it fails with MPI_ERR_UNSUPPORTED_OPERATION.
MISSING = {"openmpi": {"T_event_get_info"}, "standard": set()}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{generator().__name__}.{name}")


def back(family: str) -> Any:
    return next(one for one in module("other_abis.back_families").BACKS if one.folder == family)


def generate(family: str, symbol: str) -> str:
    g, made = generator(), module("other_abis.back")
    table = g.read_table(TABLE)
    f = next(one for one in table.functions if one.symbol == symbol)
    passing = made.interface(table, g.read_constants(ABI), back(family))
    return str(made.call(passing, f, made.real_function(table, back(family), f)))


def made(family: str) -> set[str]:
    """The functions of back_calls.c."""
    g = generator()
    text = module("other_abis.back").calls(g.read_table(TABLE), g.read_constants(ABI), back(family))
    return set(re.findall(r"^static int back_(\w+)\(", text, re.M))


def written(family: str) -> set[str]:
    texts = "".join(path.read_text() for folder in ("shared", family) for path in (FOLDERS / folder).glob("*.c"))
    return set(re.findall(r"\bOURS\((\w+), ", texts)) - {"SLOT"}


def golden(family: str, symbol: str) -> Path:
    return GOLDEN / family / f"{symbol}.c"


CASES = [*(("openmpi", symbol) for symbol in NAMES), *(("standard", symbol) for symbol in STANDARDS)]


@pytest.mark.parametrize(("family", "symbol"), CASES)
def test_golden(family: str, symbol: str) -> None:
    assert generate(family, symbol) == golden(family, symbol).read_text()


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_both_generated_and_written(family: str) -> None:
    optional = FOLDERS / family / "sessions.c"  # for versions without any
    sessions = set(re.findall(r"\bOURS\((\w+), ", optional.read_text())) if optional.exists() else set()
    assert made(family) & written(family) - sessions == set()
    assert back(family).written <= written(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_function_that_the_core_calls_is_there(family: str) -> None:
    sources = [path.read_text() for path in (ROOT / "wrappers").rglob("*.c")]
    g = generator()
    table = g.read_table(TABLE)
    sources += [g.wrapper(table, f) for f in table.functions if f.cls == "generated"]
    names = {f.name for f in table.functions}
    called = {name for text in sources for name in re.findall(r"MPY_REAL\((\w+)\)|MPY_FN_(\w+)", text) for name in name}
    assert (called & names) - made(family) - written(family) == MISSING[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_are_all_numbers_that_differ_in_use(family: str) -> None:
    """Each group in which a value differs is translated, or its values have another meaning here."""
    untranslated = {
        "RANK", "TAG", "OFFSET", "SENTINEL", "T_HANDLE",  # by functions of their own, or pointers
        "LIMIT", "F_STATUS", "VERSION",  # no arguments
        "T_SAFETY",  # the core calls nothing with it
        "FILE",
    }  # fmt: skip
    rows = generator().read_constants(ABI)
    value = back(family).family.value
    differ = {r.group for r in rows if isinstance(r.mpich, int) and value(r) not in (None, r.mpich)}
    handles = module("constants").HANDLES
    assert differ - set(module("other_abis.back").PAIRS) - set(handles) <= untranslated


if __name__ == "__main__":
    for case in CASES:
        golden(*case).parent.mkdir(parents=True, exist_ok=True)
        golden(*case).write_text(generate(*case))
