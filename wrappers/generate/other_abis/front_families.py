"""The fronts: for each binary interface, its column of the table of constants, and what its library offers besides the
functions that are generated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..constants import Constant, Value


@dataclass(frozen=True)
class Family:
    """A binary interface, and the library of wrappers/front/FOLDER that translates it."""

    folder: str
    value: Callable[[Constant], Value]  # the interface's column
    lacking: re.Pattern[str]  # functions of the core that the interface doesn't have
    manual: frozenset[str]  # written in front/shared/*.c or front/FOLDER/*.c
    # Functions that the core doesn't have, each with another one that does the same.
    same_as: dict[str, str] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()  # end the job with a line
    alone: tuple[str, ...] = ()  # symbols without a PMPI twin; written in *.c
    # Objects that mpi.h hides, with names of the core's constants: the object and its value in Fortran.
    hidden: dict[str, tuple[str, int]] = field(default_factory=dict)
    # Objects for which mpi.h has no constant; other handles of the core's types. A query returns none of them.
    nameless: dict[str, str] = field(default_factory=dict)


MANUAL = frozenset(
    "Waitall Waitany Waitsome Testall Testany Testsome Startall "
    "Op_create Comm_create_errhandler File_create_errhandler Win_create_errhandler Session_create_errhandler "
    "Errhandler_create Comm_create_keyval Type_create_keyval Win_create_keyval Keyval_create Grequest_start "
    "Comm_get_attr Attr_get Win_get_attr Type_get_contents Type_create_darray Group_translate_ranks "
    "Get_version Comm_spawn_multiple "
    "Status_c2f Status_f2c Status_c2f08 Status_f082c Status_f082f Status_f2f08 "
    "T_cvar_handle_alloc T_pvar_handle_alloc".split()
)
IGNORED_STATUSES = (
    "MPI_F_STATUS_IGNORE", "MPI_F_STATUSES_IGNORE", "MPI_F08_STATUS_IGNORE", "MPI_F08_STATUSES_IGNORE",
)  # fmt: skip

OPEN_MPI = Family(
    "openmpi",
    lambda row: row.openmpi[1],
    # until 5.0
    re.compile(
        r"MPI_\w+_c|MPI_Abi_\w+|MPI_\w+_(toint|fromint)|MPI_Status_[gs]et_(source|tag|error)|"
        r"MPI_T_(event|source)_\w+|MPI_T_category_get_(num_)?events|MPI_(Buffer|Comm|Session)_i?flush_buffer|"
        r"MPI_Buffer_i?flush|MPI_(Comm|Session)_(at|de)tach_buffer|MPI_Request_get_status_(all|any|some)|"
        r"MPI_Remove_error_\w+|MPI_Get_hw_resource_info|MPI_Type_get_value_index|MPIX_\w+"
    ),
    MANUAL | {"Get_library_version"},
    {
        f"MPIX_{name}_init": f"MPI_{name}_init"
        for name in (
            "Allgather Allgatherv Allreduce Alltoall Alltoallv Alltoallw Barrier Bcast Exscan Gather Gatherv "
            "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw Reduce "
            "Reduce_scatter Reduce_scatter_block Scan Scatter Scatterv"
        ).split()
    },
    (
        "MPIX_Comm_ack_failed", "MPIX_Comm_agree", "MPIX_Comm_failure_ack", "MPIX_Comm_failure_get_acked",
        "MPIX_Comm_get_failed", "MPIX_Comm_iagree", "MPIX_Comm_is_revoked", "MPIX_Comm_revoke", "MPIX_Comm_shrink",
        "MPI_Session_set_info",
    ),
    (
        *(f"OMPI_C_MPI_{kind}{name}" for kind in ("", "COMM_", "TYPE_", "WIN_")
          for name in ("DUP_FN", "NULL_COPY_FN", "NULL_DELETE_FN")),
        "MPIX_Query_cuda_support", "MPIX_Query_rocm_support", *IGNORED_STATUSES,
        "ompi_mpi_errors_throw_exceptions", "ompi_attr_create_keyval", "ompi_errhandler_create",
        "ompi_errhandler_invoke", "ompi_op_set_cxx_callback", "ompi_errcode_intern_lastused", "ompi_errcodes_intern",
        "ompi_registered_datareps",
    ),
    {"MPI_LB": ("ompi_mpi_lb", 4), "MPI_UB": ("ompi_mpi_ub", 3), "MPI_INTEGER16": ("ompi_mpi_integer16", 12),
     "MPI_REAL2": ("ompi_mpi_real2", 28)},
    {"ompi_mpi_ldblcplex": "MPI_C_LONG_DOUBLE_COMPLEX", "ompi_mpi_c_complex": "MPI_C_FLOAT_COMPLEX",
     "ompi_mpi_complex4": "MPI_COMPLEX4"},
)  # fmt: skip

STANDARD = Family(
    "standard",
    lambda row: row.standard,
    re.compile(r"MPIX_\w+"),
    MANUAL
    | frozenset(
        "Op_create_c Type_create_darray_c Type_get_contents_c Request_get_status_all Request_get_status_any "
        "Request_get_status_some Abi_get_version Abi_get_info Abi_get_fortran_info Abi_set_fortran_info "
        "Abi_get_fortran_booleans Abi_set_fortran_booleans T_event_get_info "
        "Status_get_source Status_get_tag Status_get_error Status_set_source Status_set_tag Status_set_error".split()
    ),
    unsupported=(  # MPICH's library has them
        "MPIX_Grequest_class_allocate", "MPIX_Grequest_class_create", "MPIX_Grequest_start", "MPIX_Type_iov",
        "MPIX_Type_iov_len",
    ),
    alone=IGNORED_STATUSES,
)  # fmt: skip

FAMILIES = (OPEN_MPI, STANDARD)
