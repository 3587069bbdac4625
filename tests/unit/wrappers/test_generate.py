"""Expected texts of a few generated wrappers, one of each form. To renew them: python
tests/unit/wrappers/test_generate.py"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from mpich_wheel import ABI, ROOT, TABLE, generator

GOLDEN = Path(__file__).with_name("golden")
NAMES = (
    "MPI_Barrier", "MPI_Allreduce_c", "MPI_Alltoallw", "MPI_Iallreduce", "MPI_Ialltoallw", "MPI_Scatterv_init_c",
    "MPI_Group_incl", "MPI_Comm_compare", "MPI_Pack",
    "MPI_File_iread_all", "MPI_File_write_ordered_begin", "MPI_File_seek", "MPI_Put",
)  # fmt: skip


def generate(symbol: str) -> str:
    g = generator()
    table = g.read_table(TABLE)
    return str(g.wrapper(table, next(f for f in table.functions if f.symbol == symbol)))


@pytest.mark.parametrize("symbol", NAMES)
def test_golden(symbol: str) -> None:
    assert generate(symbol) == (GOLDEN / f"{symbol}.c").read_text()


def test_output_is_reproducible_and_compiles(tmp_path: Path, include: Path) -> None:
    g = generator()
    for name in ("a", "b"):
        assert g.main([str(TABLE), str(ABI), str(tmp_path / name)]) == 0
    for file in (path for path in (tmp_path / "a").rglob("*") if path.is_file()):
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()
    paths = [f"-I{ROOT}/wrappers", f"-I{ROOT}/wrappers/core", f"-I{tmp_path}/a", f"-I{include}"]
    flags = ["-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-mfsgsbase", *paths]
    subprocess.run(["gcc", *flags, str(tmp_path / "a/generated.c"), str(tmp_path / "a/stubs.c")], check=True)


def test_hash_depends_on_order_and_names() -> None:
    g = generator()
    table = g.read_table(TABLE)
    before = table.hash
    table.functions[0], table.functions[1] = table.functions[1], table.functions[0]
    functions_changed = table.hash
    table.data[0], table.data[1] = table.data[1], table.data[0]
    assert len({before, functions_changed, table.hash}) == 3


if __name__ == "__main__":
    for each in NAMES:
        (GOLDEN / f"{each}.c").write_text(generate(each))
