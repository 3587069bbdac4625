"""The backs: for each binary interface of a library below, what is written by hand and what its library lacks."""

from __future__ import annotations

from dataclasses import dataclass

from .front_families import OPEN_MPI, STANDARD, Family


@dataclass(frozen=True)
class Back:
    """A library of lowerhalf/mpi/back/FOLDER, which makes an MPI with this binary interface look like MPICH."""

    family: Family
    written: frozenset[str]  # in back/shared/*.c or back/FOLDER/*.c
    own_infos: bool = False  # the back keeps the infos itself
    own_windows: bool = False  # the program's displacements may not be those of the library's window

    @property
    def folder(self) -> str:
        return self.family.folder

    def calls_plain(self, symbol: str) -> bool:
        """Does the library lack this function with 64-bit counts? Then the plain one is called."""
        return symbol.endswith("_c") and self.family.lacking.fullmatch(symbol) is not None


# back/shared
WRITTEN = frozenset(
    "Init Init_thread Finalize Op_create Op_create_c Op_free Comm_get_attr Win_get_attr Get_processor_name Open_port "
    "Lookup_name Comm_idup Comm_idup_with_info Type_get_contents Type_get_contents_c Register_datarep "
    "Register_datarep_c Comm_spawn Comm_spawn_multiple Type_create_f90_real Type_create_f90_complex "
    "Type_create_f90_integer T_cvar_handle_alloc T_pvar_handle_alloc Error_class Error_string".split()
)

BACKS = (
    Back(
        OPEN_MPI,
        WRITTEN
        | frozenset(
            "Abort Get_count_c Type_get_envelope_c Type_get_value_index Add_error_class Add_error_code "
            "Add_error_string Remove_error_class Remove_error_code Remove_error_string Get_hw_resource_info "
            "Abi_get_info Abi_get_fortran_info Abi_get_fortran_booleans Abi_set_fortran_info "
            "Abi_set_fortran_booleans Win_allocate Win_allocate_c Win_allocate_shared Win_allocate_shared_c Win_free "
            "Win_shared_query Win_shared_query_c Win_create Win_create_c Win_create_dynamic Win_set_info "
            "Win_get_info".split()
        ),
        own_infos=True,
        own_windows=True,
    ),
    Back(STANDARD, WRITTEN | {"T_event_get_info"}),
)
