"""The back for Open MPI: expected texts of a few generated functions, one of each form; and every function that the
core calls in the real library is there. To renew the texts: python tests/unit/wrappers/test_back.py"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from mpich_wheel import ABI, ROOT, TABLE, generator

GOLDEN = Path(__file__).with_name("golden") / "back"
NAMES = (
    "MPI_Send", "MPI_Recv", "MPI_Recv_init_c", "MPI_Testsome", "MPI_Allreduce", "MPI_Ialltoallw_c", "MPI_Gatherv_c",
    "MPI_Pack_c", "MPI_Win_lock", "MPI_Put", "MPI_Comm_split_type", "MPI_File_open", "MPI_Topo_test",
    "MPI_Group_translate_ranks", "MPI_Improbe",
)  # fmt: skip
FOLDER = ROOT / "lowerhalf/mpi/back/openmpi"
# What Open MPI has not in any version: it fails with MPI_ERR_UNSUPPORTED_OPERATION.
MISSING = {"T_event_get_info", "T_source_get_info"}


def back() -> ModuleType:
    return importlib.import_module(f"{generator().__name__}.back")


def functions() -> dict[str, object]:
    return {f.symbol: f for f in generator().read_table(TABLE).functions}


def generate(symbol: str) -> str:
    g, by_symbol = generator(), functions()
    table = g.read_table(TABLE)
    plain = symbol.removesuffix("_c")
    return str(back().call(table, by_symbol[symbol], by_symbol[plain]))


def made() -> set[str]:
    """The functions of back_calls.c."""
    g = generator()
    text = back().calls(g.read_table(TABLE), g.read_constants(ABI))
    return set(re.findall(r"^static int back_(\w+)\(", text, re.M))


def written() -> set[str]:
    texts = "".join(path.read_text() for path in FOLDER.glob("*.c"))
    return set(re.findall(r"\bOURS\((\w+), ", texts)) - {"SLOT"}


@pytest.mark.parametrize("symbol", NAMES)
def test_golden(symbol: str) -> None:
    assert generate(symbol) == (GOLDEN / f"{symbol}.c").read_text()


def test_nothing_is_both_generated_and_written() -> None:
    sessions = set(re.findall(r"\bOURS\((\w+), ", (FOLDER / "sessions.c").read_text()))  # for versions without any
    assert made() & written() - sessions == set()
    assert back().WRITTEN <= written()


def test_every_function_that_the_core_calls_is_there() -> None:
    sources = [path.read_text() for path in (ROOT / "wrappers").rglob("*.c")]
    g = generator()
    table = g.read_table(TABLE)
    sources += [g.wrapper(table, f) for f in table.functions if f.cls == "generated"]
    names = {f.name for f in table.functions}
    called = {name for text in sources for name in re.findall(r"MPY_REAL\((\w+)\)|MPY_FN_(\w+)", text) for name in name}
    assert (called & names) - made() - written() == MISSING


def test_pairs_are_all_numbers_that_differ_in_use() -> None:
    """Each group in which a value differs is translated, or its values have another meaning here."""
    untranslated = {
        "RANK", "SENTINEL",  # by functions of their own
        "LIMIT", "F_STATUS", "VERSION",  # no arguments
        "T_SAFETY", "T_ORDER", "T_HANDLE", "OFFSET",  # events, which Open MPI lacks; pointers
        "FILE",
    }  # fmt: skip
    rows = generator().read_constants(ABI)
    differ = {r.group for r in rows if isinstance(r.mpich, int) and r.openmpi[1] not in (None, r.mpich)}
    handles = importlib.import_module(f"{generator().__name__}.constants").HANDLES
    assert differ - set(back().PAIRS) - set(handles) <= untranslated


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in NAMES:
        (GOLDEN / f"{name}.c").write_text(generate(name))
