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
    openmpi/front_* openmpi/fortran_*   of libmpi.so.40 (front.py and front_fortran.py list them)
    standard/front_*   of libmpi_abi.so.1

Modules
    function_table.py  reads table/functions.txt
    constants.py       reads table/abi.txt
    c_text.py          prototypes; the call of the real function with translated handles
    trace_record.py    how a call is recorded in the trace
    wrappers.py        the wrapper of a generated function; its body comes from one of the next four
    collectives.py persistent.py files.py windows.py
    null_checks.py     checks of arguments: NULL where a manual function writes a value
    outside.py         calls before MPI_Init and after MPI_Finalize
    output.py          the generated files, each as one text
    front.py           the fronts for other binary interfaces
    front_families.py  what the library of each one offers
    front_arguments.py how they translate the arguments of a call
    front_fortran.py   the front for Open MPI's programs in Fortran
    recorder.py        the functions of the preloaded recorder: a second program over the same table
    back.py            the backs for other MPIs (lowerhalf/mpi/back): a third one
    back_families.py   what of them is written by hand
    argument_rules.py  what fronts and backs know about arguments: constants, lengths of arrays
"""

from .constants import Constant, read_constants
from .front_arguments import differences, front_function
from .front_families import FAMILIES
from .front_fortran import fortran_function
from .function_table import Argument, Function, Table, TableError, read_table
from .output import main
from .wrappers import wrapper

__all__ = [
    "FAMILIES", "Argument", "Constant", "Function", "Table", "TableError", "differences", "fortran_function",
    "front_function", "main", "read_constants", "read_table", "wrapper",
]  # fmt: skip
