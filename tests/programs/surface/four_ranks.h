/* Frame of programs surface_*.c that are written for four ranks; see checkpointed.h. */
#ifndef FOUR_RANKS_H
#define FOUR_RANKS_H

#include "../mpi_states.h"

enum { RANKS = 4 };

/* Calls a function's form with big counts (_c), or the one with int counts. Arrays of counts and displacements are
 * passed as void *. */
#ifdef OPEN_MPI /* until 5.0 it has no big counts */
enum { COUNT_FORMS = 1 };
#define FORM(big, name, ...) ((void)(big), name(__VA_ARGS__))
#else
enum { COUNT_FORMS = 2 };
#define FORM(big, name, ...) ((big) ? name##_c(__VA_ARGS__) : name(__VA_ARGS__))
#endif

static int left, right; /* in a ring of the ranks */

static inline void four_ranks_set_up(void) {
    if (size != RANKS) {
        puts("needs 4 ranks");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    left = (rank + RANKS - 1) % RANKS, right = (rank + 1) % RANKS;
}

static inline int run_four_ranks(int argc, char **argv, const state_t *states, size_t n) {
    return run_mpi_states(argc, argv, four_ranks_set_up, states, n);
}

#endif
