/* op.h - operations of the program. See op.c. */
#ifndef MANAPY_OP_H
#define MANAPY_OP_H

#include "core/objects.h"

/* The C++ library's takes an int, in the same register. */
typedef void mpy_op_proxy_t(const void *in, void *inout, MPI_Count count, MPI_Datatype datatype, void *function);
typedef struct mpy_op {
    mpy_object_t obj;
    void *function;
    /* The proxy of a front or of MPICH's C++ library, which calls the function; NULL: it is called directly */
    mpy_op_proxy_t *proxy;
    bool big;
    int commute;
    int thunk;
} mpy_op_t;
/* Calls the program's function. *count is an int, or an MPI_Count if the operation is `big`. With the upper TLS. */
MPY_HIDDEN void mpy_op_apply(const mpy_op_t *op, void *in, void *inout, void *count, int *datatype);

MPY_HIDDEN void mpy_op_destroy(mpy_op_t *op); /* mpy_object_unref calls it when nobody uses it */
MPY_HIDDEN int mpy_op_rebuild(char *error, uint64_t n);

#endif
