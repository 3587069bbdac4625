"""Programs of MPICH's test/mpi that behave differently under manapy, and why that is not a defect."""

from __future__ import annotations

_FREED = "it uses the handle of a datatype that it has freed; natively the next datatype happens to get the same handle"

KNOWN = {  # folder/program: reason
    "datatype/indexed_misc": _FREED,
    "datatype/indexed_misc_oldapi": _FREED,
    "mpi_t/qmpi_test": "it attaches tools by QMPI, an extension of MPICH that manapy doesn't have, and says so",
}
