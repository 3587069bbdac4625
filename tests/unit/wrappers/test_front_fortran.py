"""Open MPI's Fortran and C++ libraries find in our libmpi.so.40 all that they take from Open MPI's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from manapy.core.installation import library
from mpich_wheel import dynamic_symbols

WHERE = Path("/usr/lib/x86_64-linux-gnu")
ELSEWHERE = ("opal_", "orte_")  # of libopen-pal.so.40, which these libraries load themselves


def wanted(path: Path) -> set[str]:
    """The symbols that a library needs from others, without their versions."""
    command = ["nm", "-D", "--undefined-only", str(path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


@pytest.mark.parametrize("name", ["mpi_mpifh", "mpi_usempif08", "mpi_usempi_ignore_tkr", "mpi_cxx"])
def test_nothing_is_missing(name: str) -> None:
    ours = library("upper/libmpi.so.40")
    theirs, real = WHERE / f"lib{name}.so.40", WHERE / "libmpi.so.40"
    if ours is None or not theirs.exists():
        pytest.skip("manapy or Debian's Open MPI is not installed (apt install libopenmpi-dev)")
    needed = {symbol for symbol in wanted(theirs) & dynamic_symbols(real).keys() if not symbol.startswith(ELSEWHERE)}
    assert needed - dynamic_symbols(ours).keys() == set()
