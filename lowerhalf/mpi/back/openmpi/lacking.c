/* lacking.c - what Open MPI lacks, or does in a way that a program of MPICH does not expect. See openmpi.h. */
#include "openmpi.h"

/* ---- the end: Open MPI ends the process, whatever the communicator is ---- */

static int abort_job(MPI_Comm comm, int code) {
    void *theirs = mpy_in(MPY_KIND_COMM, comm);
    return theirs == mpy_null[MPY_KIND_COMM] ? MPI_ERR_COMM : mpy_code_out(MPY_THEIRS(Abort, theirs, code));
}

/* ---- the binary interface: MPICH's, whose Fortran is gfortran's ---- */

static int abi_info(MPI_Info *info) {
    static const mpy_pair_t pairs[] = {{"mpi_aint_size", "8"}, {"mpi_count_size", "8"}, {"mpi_offset_size", "8"}};
    return mpy_info_with(info, 3, pairs);
}
static int abi_fortran_info(MPI_Info *info) {
    static const mpy_pair_t pairs[] = {
        {"mpi_logical_size", "4"}, {"mpi_integer_size", "4"}, {"mpi_real_size", "4"},
        {"mpi_double_precision_size", "8"}};
    return mpy_info_with(info, 4, pairs);
}
static int abi_booleans(int size, void *true_value, void *false_value, int *set) {
    *set = size == 4;
    if (*set) *(int *)true_value = 1, *(int *)false_value = 0;
    return MPI_SUCCESS;
}
static int abi_is_fixed(void) { return MPI_ERR_ABI; }

/* ---- errors ---- */

/* Classes of MPICH that Open MPI lacks, or version 4.1 does. */
static const struct { int class; const char *text; } texts[] = {
    {MPI_ERR_PROC_ABORTED, "MPI_ERR_PROC_ABORTED: a peer process has aborted"},
    {MPI_ERR_SESSION, "MPI_ERR_SESSION: invalid session"},
    {MPI_ERR_VALUE_TOO_LARGE,
     "MPI_ERR_VALUE_TOO_LARGE: a count or displacement is too large for an int, and the MPI library (Open MPI) has no "
     "functions for larger ones"},
    {MPI_ERR_ERRHANDLER, "MPI_ERR_ERRHANDLER: invalid error handler"},
    {MPI_ERR_ABI, "MPI_ERR_ABI: error of the binary interface"},
    {MPI_ERR_UNSUPPORTED_OPERATION,
     "MPI_ERR_UNSUPPORTED_OPERATION: the MPI library (Open MPI) does not support this operation"},
};

const char *mpy_own_text(int class) {
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].class == class) return texts[i].text;
    return NULL;
}
int mpy_text_code(int class) { return mpy_code_in(class); }

/* Open MPI keeps what a program has added; predefined ones can't be removed (MPI-4.1 9.5). */
static int remove_added(int code) { return mpy_is_added(code) ? MPI_SUCCESS : MPI_ERR_OTHER; }

/* ---- datatypes ---- */

/* The core answers for derived types. */
static int type_envelope_c(MPI_Datatype type, MPI_Count *ints, MPI_Count *aints, MPI_Count *counts, MPI_Count *types,
                           int *combiner) {
    int i = 0, a = 0, t = 0;
    int rc = MPY_THEIRS(Type_get_envelope, mpy_in(MPY_KIND_DATATYPE, type), &i, &a, &t, combiner);
    if (rc != 0) return mpy_code_out(rc);
    *ints = i, *aints = a, *counts = 0, *types = t;
    *combiner = mpy_number_out(MPY_GROUP_COMBINER, *combiner);
    return MPI_SUCCESS;
}

static int get_count_c(const MPI_Status *status, MPI_Datatype type, MPI_Count *count) {
    MPI_Count size = 0, bytes = (MPI_Count)mpy_status_bytes(status);
    int rc = MPY_THEIRS(Type_size_x, mpy_in(MPY_KIND_DATATYPE, type), &size);
    if (rc == 0 && size == 0) *count = bytes == 0 ? 0 : MPI_UNDEFINED;
    else if (rc == 0) *count = bytes % size == 0 ? bytes / size : MPI_UNDEFINED;
    return mpy_code_out(rc);
}

static int type_value_index(MPI_Datatype value, MPI_Datatype index, MPI_Datatype *pair) {
    static const struct { MPI_Datatype value, pair; } pairs[] = {
        {MPI_FLOAT, MPI_FLOAT_INT}, {MPI_DOUBLE, MPI_DOUBLE_INT}, {MPI_LONG, MPI_LONG_INT},
        {MPI_SHORT, MPI_SHORT_INT}, {MPI_INT, MPI_2INT}, {MPI_LONG_DOUBLE, MPI_LONG_DOUBLE_INT},
    };
    if (mpy_in(MPY_KIND_DATATYPE, value) == mpy_null[MPY_KIND_DATATYPE] ||
        mpy_in(MPY_KIND_DATATYPE, index) == mpy_null[MPY_KIND_DATATYPE])
        return MPI_ERR_TYPE;
    *pair = MPI_DATATYPE_NULL;
    for (size_t i = 0; index == MPI_INT && i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].value == value) *pair = pairs[i].pair;
    return MPI_SUCCESS;
}

#define OURS(SLOT, NEEDS, FUNCTION) {MPY_FN_##SLOT, MPY_FN_##NEEDS, (void *)(FUNCTION)}
static const mpy_ours_t lacking[] = {
    OURS(Abort, Abort, abort_job),
    OURS(Abi_get_info, Init, abi_info),
    OURS(Abi_get_fortran_info, Init, abi_fortran_info),
    OURS(Abi_get_fortran_booleans, Init, abi_booleans),
    OURS(Abi_set_fortran_info, Init, abi_is_fixed),
    OURS(Abi_set_fortran_booleans, Init, abi_is_fixed),
    OURS(Remove_error_class, Error_class, remove_added),
    OURS(Remove_error_code, Error_class, remove_added),
    OURS(Remove_error_string, Error_class, remove_added),
    OURS(Type_get_envelope_c, Type_get_envelope, type_envelope_c),
    OURS(Get_count_c, Type_size_x, get_count_c),
    OURS(Type_get_value_index, Type_size, type_value_index),
};

void mpy_fill_own(void **functions) {
    mpy_fill(functions, lacking, sizeof lacking / sizeof *lacking);
    mpy_fill(functions, mpy_ours_infos, mpy_ours_infos_count);
    if (mpy_theirs[MPY_FN_Session_init] == NULL) mpy_fill(functions, mpy_ours_sessions, mpy_ours_sessions_count);
}
