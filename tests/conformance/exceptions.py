"""Programs of MPICH's test/mpi that behave differently under manapy, and why that is not a defect."""

from __future__ import annotations

_FREED = "it uses the handle of a datatype that it has freed; natively the next datatype happens to get the same handle"

KNOWN = {  # folder/program: reason
    "datatype/indexed_misc": _FREED,
    "datatype/indexed_misc_oldapi": _FREED,
    "mpi_t/qmpi_test": "it attaches tools by QMPI, an extension of MPICH that manapy doesn't have, and says so",
}

_RIGHT = "Open MPI 4.1 has a defect here, and manapy gives the right result"
_SPAWN = "natively Open MPI 4.1 hangs after the program's success; under manapy MPI_Comm_spawn fails (LIMITATIONS.md)"

KNOWN_OPEN_MPI = {  # the same for programs in Fortran on Open MPI
    **dict.fromkeys(
        (
            "f77/datatype/typecntsf", "f08/datatype/typecntsf08", "f77/pt2pt/mprobef", "f08/pt2pt/mprobef08",
            "f08/subarray/test14", "f08/subarray/test15",
        ),
        _RIGHT,
    ),
    **dict.fromkeys(
        (
            "f77/spawn/spawnf", "f77/spawn/spawnargvf", "f77/spawn/spawnmultf", "f90/spawn/spawnargvf03",
            "f90/spawn/spawnmultf03", "f08/spawn/spawnf90", "f08/spawn/spawnargvf90", "f08/spawn/spawnmultf90",
            "f08/spawn/spawnargvf03", "f08/spawn/spawnmultf03",
        ),
        _SPAWN,
    ),
    "f77/io/atomicityf": "on a busy machine Open MPI 4.1 fails natively, too",
}  # fmt: skip
