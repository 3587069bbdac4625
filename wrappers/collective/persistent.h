/* persistent.h - declarations that the generated wrappers of persistent collectives, persistent.c and fold.c share.
 *
 * An X_init call is kept as data (its arguments). A generated function (`make`) makes it, first at the program's call
 * and again after every restart.
 */
#ifndef MANAPY_PERSISTENT_H
#define MANAPY_PERSISTENT_H

#include "fold.h"
#include "core/objects.h"

typedef union mpy_argument {
    void *pointer;
    int64_t value;
} mpy_argument_t;

enum { MPY_ARGUMENTS = 9 }; /* not counting communicator, info and request */

typedef enum {
    MPY_ARG_PLAIN,  /* a buffer, a count, a predefined operation */
    MPY_ARG_ROOT,
    MPY_ARG_OP,     /* an operation: of the program only with processes outside the job (fold.h) */
    MPY_ARG_TYPE,   /* a datatype */
    MPY_ARG_INTS,   /* arrays: of int, */
    MPY_ARG_COUNTS, /* MPI_Count or MPI_Aint, */
    MPY_ARG_TYPES,  /* datatypes */
} mpy_argument_kind_t;

typedef enum {
    MPY_LENGTH_ONE,   /* not an array */
    MPY_LENGTH_LOCAL, /* size of the own group */
    MPY_LENGTH_PEERS, /* size of the remote group, or of the own group if there is no remote one */
    MPY_LENGTH_SENT,  /* the same; ignored if sendbuf is MPI_IN_PLACE */
    MPY_LENGTH_ROOT,  /* the same; significant only at the root */
    MPY_LENGTH_SOURCES, MPY_LENGTH_DESTINATIONS, /* neighbours in a topology */
} mpy_argument_length_t;

typedef struct mpy_persistent_call {
    const char *name;
    uint32_t op; /* in the trace */
    int (*make)(const mpy_argument_t *a, int comm, int info, int *request); /* in the lower half, with real handles */
    int n;
    struct { uint8_t kind, length; } arguments[MPY_ARGUMENTS];
} mpy_persistent_call_t;

/* Handles an X_init of the program, with the program's handles. `fold`: what a user-defined operation adds to `call`
 * (fold.c), or NULL. It then belongs to the request, and is freed if the call fails. `name`: the program's function. */
MPY_HIDDEN int mpy_persistent_init(const mpy_persistent_call_t *call, const mpy_argument_t *arguments, MPI_Comm comm,
                                   MPI_Info info, mpy_fold_t *fold, const char *name, MPI_Request *request);
/* The calls that fold.c makes for reductions with an operation of the program. generate/libmpi/persistent.py makes
 * them, as it does for all X_init functions. */
extern MPY_HIDDEN const mpy_persistent_call_t mpy_persistent_Allgather_init_c, mpy_persistent_Alltoallv_init_c,
    mpy_persistent_Gather_init_c;

/* MPI_Comm_free in the lower half, when all members are in it. */
MPY_HIDDEN void mpy_persistent_comm_free(const mpy_comm_t *comm);
MPY_HIDDEN int mpy_persistent_rebuild(char *error, uint64_t n);

#endif
