/* lacking.c - what Open MPI lacks, or does in a way that a program of MPICH does not expect. See openmpi.h. */
#include "openmpi.h"

#include <stdio.h>

/* ---- the end: Open MPI ends the process, whatever the communicator is ---- */

static int abort_job(MPI_Comm comm, int code) {
    void *theirs = mpy_in(MPY_KIND_COMM, comm);
    return theirs == mpy_null[MPY_KIND_COMM] ? MPI_ERR_COMM : mpy_code_out(MPY_THEIRS(Abort, theirs, code));
}

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

static const mpy_ours_t lacking[] = {
    OURS(Abort, Abort, abort_job),
    OURS(Type_get_envelope_c, Type_get_envelope, type_envelope_c),
    OURS(Get_count_c, Type_size_x, get_count_c),
    OURS(Type_get_value_index, Type_size, type_value_index),
};

bool mpy_own_open(void **functions, char *error, size_t n) {
    if (!mpy_windows_open() || !mpy_hints_open()) {
        snprintf(error, n, "out of address space for windows");
        return false;
    }
    mpy_fill(functions, lacking, sizeof lacking / sizeof *lacking);
    mpy_fill(functions, mpy_ours_abi, mpy_ours_abi_count);
    mpy_fill(functions, mpy_ours_added, mpy_ours_added_count);
    mpy_fill(functions, mpy_ours_infos, mpy_ours_infos_count);
    mpy_fill(functions, mpy_ours_hints, mpy_ours_hints_count);
    mpy_fill(functions, mpy_ours_windows, mpy_ours_windows_count);
    if (mpy_theirs[MPY_FN_Session_init] == NULL) mpy_fill(functions, mpy_ours_sessions, mpy_ours_sessions_count);
    return true;
}
