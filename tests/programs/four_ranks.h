/* Frame of programs surface_*.c that are written for four ranks; see checkpointed.h. */
#ifndef FOUR_RANKS_H
#define FOUR_RANKS_H

#include "checkpointed.h"

#include <mpi.h>

enum { RANKS = 4 };

/* Calls a function's form with big counts (_c) or the one with int counts; arrays of counts and displacements are passed as void *. */
#define FORM(big, name, ...) ((big) ? name##_c(__VA_ARGS__) : name(__VA_ARGS__))

static int rank, size, left, right; /* left and right in a ring of the ranks */

/* Errors come back as codes on this one, on the world and where no communicator is known. */
static MPI_Comm lenient;

static inline void lenient_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &lenient);
    MPI_Comm_set_errhandler(lenient, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

static inline int class_of(int code) {
    int class = -1;
    MPI_Error_class(code, &class);
    return class;
}

static inline int run_four_ranks(int argc, char **argv, const state_t *states, size_t n) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != RANKS) {
        puts("needs 4 ranks");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    left = (rank + RANKS - 1) % RANKS, right = (rank + 1) % RANKS;
    int result = run_states(argc, argv, states, n);
    MPI_Finalize();
    return result;
}

#endif
