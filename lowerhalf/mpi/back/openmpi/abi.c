/* abi.c - queries of the binary interface, which Open MPI lacks: the answers describe MPICH's interface, with the
 * Fortran of gfortran. See openmpi.h. */
#include "openmpi.h"

#include <string.h>

static int abi_info(MPI_Info *info) {
    static const mpy_pair_t pairs[] = {{"mpi_aint_size", "8"}, {"mpi_count_size", "8"}, {"mpi_offset_size", "8"}};
    return mpy_info_with(info, 3, pairs);
}
static int abi_fortran_info(MPI_Info *info) {
    static const mpy_pair_t sizes[] = {
        {"mpi_logical_size", "4"}, {"mpi_integer_size", "4"}, {"mpi_real_size", "4"},
        {"mpi_double_precision_size", "8"}};
#define TYPE(NAME, TYPE) {"mpi_" NAME "_supported", TYPE}
    static const struct { const char *key; MPI_Datatype type; } types[] = {
        TYPE("logical1", MPI_LOGICAL1),   TYPE("logical2", MPI_LOGICAL2),     TYPE("logical4", MPI_LOGICAL4),
        TYPE("logical8", MPI_LOGICAL8),   TYPE("logical16", MPI_LOGICAL16),   TYPE("integer1", MPI_INTEGER1),
        TYPE("integer2", MPI_INTEGER2),   TYPE("integer4", MPI_INTEGER4),     TYPE("integer8", MPI_INTEGER8),
        TYPE("integer16", MPI_INTEGER16), TYPE("real2", MPI_REAL2),           TYPE("real4", MPI_REAL4),
        TYPE("real8", MPI_REAL8),         TYPE("real16", MPI_REAL16),         TYPE("complex4", MPI_COMPLEX4),
        TYPE("complex8", MPI_COMPLEX8),   TYPE("complex16", MPI_COMPLEX16),   TYPE("complex32", MPI_COMPLEX32),
        TYPE("double_complex", MPI_DOUBLE_COMPLEX),
    };
#undef TYPE
    enum { SIZES = sizeof sizes / sizeof *sizes, TYPES = sizeof types / sizeof *types };
    mpy_pair_t pairs[SIZES + TYPES];
    memcpy(pairs, sizes, sizeof sizes);
    for (int i = 0; i < TYPES; i++) {
        int size = 0;
        void *theirs = mpy_in(MPY_KIND_DATATYPE, types[i].type);
        bool is_there = theirs != mpy_null[MPY_KIND_DATATYPE] && MPY_THEIRS(Type_size, theirs, &size) == 0 && size > 0;
        pairs[SIZES + i] = (mpy_pair_t){types[i].key, is_there ? "true" : "false"};
    }
    return mpy_info_with(info, SIZES + TYPES, pairs);
}
static int abi_booleans(int size, void *true_value, void *false_value, int *set) {
    *set = size == 4;
    if (*set) *(int *)true_value = 1, *(int *)false_value = 0;
    return MPI_SUCCESS;
}
static int abi_is_fixed(void) { return MPI_ERR_ABI; }

const mpy_ours_t mpy_ours_abi[] = {
    OURS(Abi_get_info, Init, abi_info),
    OURS(Abi_get_fortran_info, Init, abi_fortran_info),
    OURS(Abi_get_fortran_booleans, Init, abi_booleans),
    OURS(Abi_set_fortran_info, Init, abi_is_fixed),
    OURS(Abi_set_fortran_booleans, Init, abi_is_fixed),
};
const size_t mpy_ours_abi_count = sizeof mpy_ours_abi / sizeof *mpy_ours_abi;
