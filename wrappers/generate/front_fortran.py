"""What libmpi.so.40 exports besides MPI, for Open MPI's Fortran library: see front/openmpi/fortran.c."""

from __future__ import annotations

INTERNALS = [
    *(f"mpi_fortran_{name}_" for name in (
        "argv_null argvs_null bottom errcodes_ignore in_place status_ignore statuses_ignore unweighted "
        "weights_empty"
    ).split()),
    "mpi_conversion_fn_null_",
    *(f"ompi_fortran_{name}" for name in (
        "argv_blank_f2c argv_count_f2c multiple_argvs_f2c string_c2f string_f2c"
    ).split()),
    *(f"ompi_attr_{name}" for name in (
        "create_keyval_aint create_keyval_fint get_aint get_fint set_aint set_fint"
    ).split()),
    *(f"ompi_{name}" for name in (
        "datatype_match_size mpi_errors_are_fatal_comm_handler mpi_param_check mpi_state status_empty"
    ).split()),
]  # fmt: skip
