/* fold.h - nonblocking and persistent reductions with an operation of the program: what the generated wrappers call when `op` isn't
 * predefined, and what persistent.c needs of them.
 */
#ifndef MANAPY_FOLD_H
#define MANAPY_FOLD_H

#include "runtime.h"

typedef enum { MPY_FOLD_REDUCE, MPY_FOLD_ALLREDUCE, MPY_FOLD_SCAN, MPY_FOLD_EXSCAN, MPY_FOLD_REDUCE_SCATTER, MPY_FOLD_REDUCE_SCATTER_BLOCK } mpy_fold_kind_t;

/* The arguments of the program's call. */
typedef struct mpy_reduction {
    const char *name;
    mpy_fold_kind_t kind;
    bool persistent;
    const void *sendbuf;
    void *recvbuf;
    MPI_Count count;               /* count, or recvcount of the _block forms */
    const int *recvcounts;         /* one of these two for REDUCE_SCATTER */
    const MPI_Count *recvcounts_c;
    int datatype, op, root, comm, info;
} mpy_reduction_t;

/* `op` is a live handle; nothing is counted yet. */
MPY_HIDDEN int mpy_fold(const mpy_reduction_t *a, MPI_Request *request);

typedef struct mpy_fold mpy_fold_t;
MPY_HIDDEN int mpy_fold_pack(mpy_fold_t *f);                     /* take the contribution; in the lower half */
MPY_HIDDEN int mpy_fold_finish(mpy_thread_t *t, mpy_fold_t *f); /* all contributions are there: calls the program's function; upper TLS */
MPY_HIDDEN void mpy_fold_destroy(mpy_fold_t *f);                 /* in the lower half */

#endif
