"""Writes the C sources that follow from the function table. CMake runs it; it uses only the standard library.

    python -m generate TABLE ABI_TABLE OUTPUT_DIRECTORY     in wrappers/

Output (in the build tree; never edited)
    function_index.h   slots MPY_FN_*, MPY_FN_COUNT, MPY_TABLE_HASH; for both halves
    function_names.h   mpy_function_names[]: the name of each slot and of each data symbol, for dlsym; for the lower
                       half
    functions.h        prototypes of all PMPI_ functions, pointer types mpy_fn_*_t, names of the functions that
                       generated.c calls; for the wrappers
    generated.c        wrappers of class "generated"; checks for NULL in front of manual functions
    stubs.c            weak PMPI_ functions for the rest: unsupported ones, and manual ones that nobody has written yet
    aliases.ld         MPI_X = PMPI_X for every function (linker script)
    exports.map        the symbols of libmpi.so.12
    abi_table.h        MPICH's constants that records hold, and their values in the MPI-5 standard ABI
    mpich_constants.h  MPICH's constants, for mpich.h
    openmpi_constants.h  Open MPI's numbers, for those who speak with it
    openmpi/front_* openmpi/fortran_*   of libmpi.so.40 (their generators list them)
    standard/front_*   of libmpi_abi.so.1

Modules
    function_table.py  reads table/functions.txt
    constants.py       reads table/abi.txt
    c_text.py          prototypes; the call of the real function with translated handles
    trace_record.py    how a call is recorded in the trace
    output.py          the generated files, each as one text
    recorder.py        the functions of the preloaded recorder: a second program over the same table
    libmpi/            the wrappers of libmpi.so.12
        wrappers.py    the wrapper of a generated function; its body comes from one of the next four
        collectives.py persistent.py files.py windows.py
        null_checks.py     checks of arguments: NULL where a manual function writes a value
        outside.py         calls before MPI_Init and after MPI_Finalize
    other_abis/        fronts and backs
        argument_rules.py  what both know about arguments: constants, lengths of arrays
        front.py           the fronts for other binary interfaces
        front_families.py  what the library of each one offers
        front_arguments.py how they translate the arguments of a call
        front_fortran.py   the front for Open MPI's programs in Fortran
        back.py            the backs for other MPIs (lowerhalf/mpi/back): a third program over the same table
        back_families.py   what of them is written by hand
"""

from .constants import Constant, read_constants
from .other_abis.front_arguments import differences, front_function
from .other_abis.front_families import FAMILIES
from .other_abis.front_fortran import fortran_function
from .function_table import Argument, Function, Table, TableError, read_table
from .output import main
from .libmpi.wrappers import wrapper

__all__ = [
    "FAMILIES", "Argument", "Constant", "Function", "Table", "TableError", "differences", "fortran_function",
    "front_function", "main", "read_constants", "read_table", "wrapper",
]  # fmt: skip
