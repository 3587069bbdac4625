/* fold.h - nonblocking and persistent reductions with an operation of the program: the functions that the generated
 * wrappers call when `op` isn't predefined, and those that persistent.c needs.
 */
#ifndef MANAPY_FOLD_H
#define MANAPY_FOLD_H

#include "core/runtime.h"
#include "p2p/request.h"

struct mpy_p2p_thread;
struct mpy_request;

typedef enum {
    MPY_FOLD_REDUCE,
    MPY_FOLD_ALLREDUCE,
    MPY_FOLD_SCAN,
    MPY_FOLD_EXSCAN,
    MPY_FOLD_REDUCE_SCATTER,
    MPY_FOLD_REDUCE_SCATTER_BLOCK
} mpy_fold_kind_t;

/* The arguments of the program's call. */
typedef struct mpy_reduction {
    const char *name;
    mpy_fold_kind_t kind;
    bool persistent;
    const void *sendbuf;
    void *recvbuf;
    MPI_Count count;               /* count, or recvcount of the _block forms */
    const int *recvcounts;         /* exactly one of these two is used for REDUCE_SCATTER */
    const MPI_Count *recvcounts_c;
    int datatype, op, root, comm, info;
} mpy_reduction_t;

/* Is a reduction with this operation made here? Not with processes outside the job, which take part in the real
 * collective only: meanwhile no checkpoint is possible, so the library may call the program's function in any call. */
static inline bool mpy_folds(int comm, int op) {
    if (MPY_LIKELY(mpy_is_builtin(op)) || mpy_lookup(MPY_OP, op) == NULL) return false;
    const mpy_comm_t *c = mpy_comm(comm);
    return c == NULL || !c->foreign;
}

/* `op` is a live handle. The call has not been counted yet. */
MPY_HIDDEN int mpy_fold(const mpy_reduction_t *a, MPI_Request *request);

/* The request of a reduction that the real library makes; in the lower half. outside: with an operation of the program,
 * which is kept until the request is complete. */
MPY_HIDDEN mpy_request_t *mpy_reduction_outside(mpy_p2p_thread_t *th, int real, mpy_comm_t *c, int op);
static inline mpy_request_t *mpy_reduction_request(mpy_p2p_thread_t *th, int real, mpy_comm_t *c, int op) {
    return MPY_LIKELY(mpy_is_builtin(op)) ? mpy_request_other(th, real, c) : mpy_reduction_outside(th, real, c, op);
}

typedef struct mpy_fold mpy_fold_t;
/* In the lower half: takes the contribution. */
MPY_HIDDEN int mpy_fold_begin(mpy_fold_t *f);
/* `finish` of a family (request.h), called when the real collective is complete: calls the program's function. */
MPY_HIDDEN bool mpy_fold_finish(mpy_thread_t *t, struct mpy_p2p_thread *th, mpy_fold_t *f, int *rc);
/* `let_go` of a family; f may be NULL. Other ranks' offers for a reduction must be received. So if the program frees an
 * active request (which MPI forbids), the reduction is finished first. */
MPY_HIDDEN bool mpy_fold_let_go(mpy_thread_t *t, const mpy_fold_t *f, struct mpy_request *r);
MPY_HIDDEN void mpy_fold_destroy(mpy_fold_t *f); /* in the lower half */

#endif
