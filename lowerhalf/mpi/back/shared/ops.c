/* ops.c - user operations. The library calls a function with its own handle of the datatype, and without anything that
 * tells which operation it is. So each operation gets an entry point of its own (manapy/op_entries.h). See
 * translate.h.
 *
 * Invariants
 *  1. The core has at most as many operations at once as there are entries.
 *  2. A freed entry keeps its function until it is given out again, as late as possible: a reduction may still use it.
 */
#include "back_interface.h"

#include <manapy/lock.h>
#include <manapy/op_entries.h>
#include <stdio.h>
#include <string.h>

enum { ENTRIES = MPY_OP_ENTRIES };

static struct {
    void *function; /* the core's */
    void *op;       /* the library's; NULL: free */
    bool big;       /* the function takes an MPI_Count */
    bool wide;      /* the library gives an MPI_Count */
} entries[ENTRIES];
static uint32_t next;
static volatile uint32_t lock; /* of the entries. The library's functions that are called with it wait for nobody */

void mpy_op_call(void *in, void *inout, void *count, void **datatype, uint64_t number) {
    int type = mpy_handle_find(MPY_KIND_DATATYPE, *datatype);
    if (entries[number].big) {
        MPI_Count wide = entries[number].wide ? *(MPI_Count *)count : *(int *)count;
        ((MPI_User_function_c *)entries[number].function)(in, inout, &wide, &type);
    } else {
        ((MPI_User_function *)entries[number].function)(in, inout, count, &type);
    }
}

static int create(void *function, bool big, int commute, MPI_Op *op) {
    uint32_t i = next;
    for (uint32_t tried = 0; entries[i].op != NULL; tried++, i = (i + 1) % ENTRIES)
        if (tried == ENTRIES) return MPI_ERR_INTERN;
    next = (i + 1) % ENTRIES;
    void *theirs = NULL, *entry = mpy_op_entries + MPY_OP_ENTRY_BYTES * i;
    bool wide = big && mpy_theirs[MPY_FN_Op_create_c] != NULL;
    int rc = wide ? MPY_THEIRS(Op_create_c, entry, commute, &theirs) : MPY_THEIRS(Op_create, entry, commute, &theirs);
    if (rc != 0) return mpy_code_out(rc);
    entries[i].function = function;
    entries[i].big = big;
    entries[i].wide = wide;
    entries[i].op = theirs;
    *op = mpy_out(MPY_KIND_OP, theirs);
    return MPI_SUCCESS;
}

int mpy_op_create(void *function, bool big, int commute, MPI_Op *op) {
    if (function == NULL) return MPI_ERR_ARG;
    mpy_lock_acquire(&lock);
    int rc = create(function, big, commute, op);
    mpy_lock_release(&lock);
    return rc;
}

int mpy_op_free(MPI_Op *op) {
    void *theirs = mpy_in(MPY_KIND_OP, *op), *freed = theirs;
    mpy_lock_acquire(&lock);
    int rc = MPY_THEIRS(Op_free, &freed);
    for (int i = 0; rc == 0 && i < ENTRIES; i++)
        if (entries[i].op == theirs) entries[i].op = NULL;
    mpy_lock_release(&lock);
    mpy_inout(MPY_KIND_OP, op, freed);
    return mpy_code_out(rc);
}
