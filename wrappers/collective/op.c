/* op.c - user operations. The real library gets a thunk (manapy/op_entries.h) instead of the program's function. The
 * thunk's number identifies the operation; callback.c calls the function.
 *
 * Upper half; mpy_op_call runs with the lower TLS. No libc.
 *
 * Invariants
 *  1. A thunk belongs to one operation until nobody uses that; its code lies in the upper half, so its address survives
 *     a restart.
 *  2. The real library sees these operations in blocking calls, and in reductions with processes outside the job
 *     (fold.c does the others). MPI_Op_free frees the real one at once. The object lives as long as a request refers to
 *     it.
 */
#include "op.h"
#include "core/objects.h"
#include "datatype/datatype.h"
#include "environment/errors.h"
#include <manapy/op_entries.h>

enum { THUNKS = MPY_OP_ENTRIES };

static mpy_op_t *by_thunk[THUNKS];

void mpy_op_apply(const mpy_op_t *op, void *in, void *inout, void *count, int *datatype) {
    if (op->proxy != NULL)
        op->proxy(in, inout, op->big ? *(MPI_Count *)count : *(int *)count, *datatype, op->function);
    else
        ((void (*)(void *, void *, void *, int *))op->function)(in, inout, count, datatype);
}

typedef struct reduction {
    const mpy_op_t *op;
    void *in, *inout, *count;
    int datatype;
} reduction_t;

static void reduce(void *argument) {
    reduction_t *r = argument;
    mpy_op_apply(r->op, r->in, r->inout, r->count, &r->datatype);
}

/* Called by the thunks: (in, inout, &count, &datatype, thunk). `count` is an int or an MPI_Count; the functions take
 * pointers. */
MPY_HIDDEN void mpy_op_call(void *in, void *inout, void *count, int *datatype, uint64_t thunk) {
    reduction_t r = {by_thunk[thunk], in, inout, count, mpy_datatype_virtual(*datatype)};
    mpy_callback(reduce, &r);
}

/* In the lower half. */
static int create_real(mpy_op_t *op) {
    void *thunk = mpy_op_entries + MPY_OP_ENTRY_BYTES * op->thunk;
    return op->big ? MPY_REAL(Op_create_c)((MPI_User_function_c *)thunk, op->commute, &op->obj.real)
                   : MPY_REAL(Op_create)((MPI_User_function *)thunk, op->commute, &op->obj.real);
}

static int create(void *function, int commute, bool big, MPI_Op *handle, const char *name) {
    mpy_thread_t *t = mpy_self();
    int rc, thunk = 0;
    mpy_cross_in(t);
    mpy_op_t *op = mpy_alloc(sizeof *op);
    op->function = function;
    op->commute = commute;
    op->big = big;
    op->obj.refs = 1;
    mpy_lock(&mpy_objects_lock);
    while (thunk < THUNKS && by_thunk[thunk] != NULL) thunk++;
    if (thunk < THUNKS) by_thunk[thunk] = op;
    mpy_unlock(&mpy_objects_lock);
    if (thunk == THUNKS) MPY_LOWER->svc->die("too many user-defined operations at once (1024)", 1);
    op->thunk = thunk;
    if (handle == NULL)
        rc = MPI_ERR_ARG;
    else if (function == NULL) /* the error that the real library returns */
        rc = big ? MPY_REAL(Op_create_c)(NULL, commute, &op->obj.real)
                 : MPY_REAL(Op_create)(NULL, commute, &op->obj.real);
    else
        rc = create_real(op);
    if (rc == 0) {
        *handle = mpy_object_add(MPY_OP, &op->obj);
    } else {
        by_thunk[thunk] = NULL;
        mpy_free(op, sizeof *op);
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, mpy_or_null(rc, handle, MPI_OP_NULL), name);
}

int PMPI_Op_create(MPI_User_function *user_fn, int commute, MPI_Op *op) {
    return create((void *)user_fn, commute, false, op, "MPI_Op_create");
}
int PMPI_Op_create_c(MPI_User_function_c *user_fn, int commute, MPI_Op *op) {
    return create((void *)user_fn, commute, true, op, "MPI_Op_create_c");
}

/* MPICH's C++ library calls this right after MPI_Op_create. */
extern __attribute__((visibility("default"))) void MPII_Op_set_cxx(MPI_Op op, void (*proxy)(void));
void MPII_Op_set_cxx(MPI_Op handle, void (*proxy)(void)) {
    mpy_op_t *op = (mpy_op_t *)mpy_lookup(MPY_OP, handle);
    if (op != NULL) op->proxy = (mpy_op_proxy_t *)proxy;
}

int PMPI_Op_free(MPI_Op *handle) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_op_t *op = (mpy_op_t *)mpy_lookup(MPY_OP, *handle);
    int real = mpy_real_op(*handle);
    int rc = MPY_REAL(Op_free)(&real);
    if (rc == 0) {
        if (op != NULL) {
            mpy_object_remove(MPY_OP, op->obj.handle);
            mpy_object_unref(MPY_OP, &op->obj);
        }
        *handle = MPI_OP_NULL;
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Op_free");
}

void mpy_op_destroy(mpy_op_t *op) {
    by_thunk[op->thunk] = NULL;
    mpy_free(op, sizeof *op);
}

int mpy_op_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = 0;
    mpy_hook_in(t);
    for (int i = 0; i < THUNKS && rc == 0; i++)
        if (by_thunk[i] != NULL && mpy_lookup(MPY_OP, by_thunk[i]->obj.handle) != NULL) rc = create_real(by_thunk[i]);
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild a user-defined operation (MPI error %d)", rc);
    return -1;
}
