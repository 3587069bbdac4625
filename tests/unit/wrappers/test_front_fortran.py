"""Our libmpi.so.40 has all that Open MPI's libraries of Fortran modules and C++ take from Open MPI's own libraries, and
all that programs in Fortran ask for in libmpi_mpifh.so.40."""

from __future__ import annotations

import re
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


INSIDE = {"mpiext_pcollreq_mpifh_dummy", "ompi_intercept_extra_state_t_class"}  # of libmpi_mpifh.so.40; nobody asks


def found(name: str) -> tuple[Path, Path, set[str]]:
    """Open MPI's library of this name, its libmpi.so.40, and the symbols of ours."""
    ours, theirs = library("upper/libmpi.so.40"), WHERE / f"lib{name}.so.40"
    if ours is None or not theirs.exists():
        pytest.skip("manapy or Debian's Open MPI is not installed (apt install libopenmpi-dev)")
    return theirs, WHERE / "libmpi.so.40", set(dynamic_symbols(ours))


@pytest.mark.parametrize("name", ["mpi_usempif08", "mpi_usempi_ignore_tkr", "mpi_cxx"])
def test_nothing_is_missing(name: str) -> None:
    theirs, real, ours = found(name)
    offered = dynamic_symbols(real).keys() | dynamic_symbols(found("mpi_mpifh")[0]).keys()
    needed = {symbol for symbol in wanted(theirs) & offered if not symbol.startswith(ELSEWHERE)}
    assert needed - ours == set()


def test_the_whole_interface_is_there() -> None:
    """In all spellings of names."""
    theirs, real, ours = found("mpi_mpifh")
    assert dynamic_symbols(theirs).keys() - ours == INSIDE
    predefined = {
        symbol for symbol in dynamic_symbols(real) if re.fullmatch(r"(?i)mpi_(fortran_\w+_|\w*fn\w*_)", symbol)
    }
    assert len(predefined) > 20 and predefined - ours == set()


def test_programs_find_it_by_its_name() -> None:
    stub = library("upper/libmpi_mpifh.so.40")
    assert stub is not None
    dynamic = subprocess.run(["readelf", "-d", str(stub)], check=True, capture_output=True, text=True).stdout
    assert "libmpi.so.40" in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
