/* persistent.h - what the generated wrappers of persistent collectives, persistent.c and fold.c share.
 *
 * An X_init call is kept as data (its arguments) and made by a generated function (`make`): at first and after every
 * restart.
 */
#ifndef MANAPY_PERSISTENT_H
#define MANAPY_PERSISTENT_H

#include "fold.h"
#include "core/objects.h"

typedef union mpy_argument {
    void *pointer;
    int64_t value;
} mpy_argument_t;

enum { MPY_ARGUMENTS = 9 }; /* besides communicator, info and request */

typedef enum {
    MPY_ARG_PLAIN,  /* a buffer, a count, a predefined operation */
    MPY_ARG_ROOT,
    MPY_ARG_TYPE,   /* a datatype */
    MPY_ARG_INTS,   /* arrays: of int, */
    MPY_ARG_COUNTS, /* MPI_Count or MPI_Aint, */
    MPY_ARG_TYPES,  /* datatypes */
} mpy_argument_kind_t;

typedef enum {
    MPY_LENGTH_ONE,   /* no array */
    MPY_LENGTH_LOCAL, /* of the own group */
    MPY_LENGTH_PEERS, /* of the remote group, if there is one */
    MPY_LENGTH_SENT,  /* the same; not significant with MPI_IN_PLACE to send */
    MPY_LENGTH_ROOT,  /* the same, and significant at the root only */
    MPY_LENGTH_SOURCES, MPY_LENGTH_DESTINATIONS, /* neighbours in a topology */
} mpy_argument_length_t;

typedef struct mpy_persistent_call {
    const char *name;
    uint32_t op; /* in the trace */
    int (*make)(const mpy_argument_t *a, int comm, int info, int *request); /* in the lower half, with real handles */
    int n;
    struct { uint8_t kind, length; } arguments[MPY_ARGUMENTS];
} mpy_persistent_call_t;

/* An X_init of the program, with its own handles. `fold`: what a user-defined operation adds to `call` (fold.c), or
 * NULL; it belongs to the request then, and is gone if that fails. `name` is the program's function. */
MPY_HIDDEN int mpy_persistent_init(const mpy_persistent_call_t *call, const mpy_argument_t *arguments, MPI_Comm comm,
                                   MPI_Info info, mpy_fold_t *fold, const char *name, MPI_Request *request);
/* What fold.c makes of reductions with an operation of the program (made by generate/persistent.py, like those of all
 * X_init functions). */
extern MPY_HIDDEN const mpy_persistent_call_t mpy_persistent_Allgather_init_c, mpy_persistent_Alltoallv_init_c,
    mpy_persistent_Gather_init_c;

#endif
