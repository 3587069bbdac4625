/* errors.c - error codes of Open MPI as MPICH's. See back.h.
 *
 * Open MPI's codes up to MPI_ERR_LASTCODE are classes; codes that a program adds follow. MPICH's classes end below 128,
 * and its added codes are above.
 *
 * Invariants
 *  1. An added code is shown as ADDED + the code, which is no class of MPICH.
 */
#include "back.h"

enum { ADDED = 0x10000 };

int mpy_class_out(int class) {
    if (class > OPENMPI_ERR_LASTCODE) return ADDED + class;
    int ours = mpy_number_out(MPY_GROUP_ERROR, class);
    return ours != class || mpy_number_in(MPY_GROUP_ERROR, class) == class ? ours : MPI_ERR_OTHER;
}

int mpy_code_out_slow(int code) { return mpy_class_out(code); }

int mpy_code_in(int code) { return code > ADDED ? code - ADDED : mpy_number_in(MPY_GROUP_ERROR, code); }
