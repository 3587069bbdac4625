/* A program with barriers, which counting_tool.c counts: one before STATE_GO exists, one after. */
#include "../checkpointed.h"
#include <mpi.h>

static void barrier_set_up(void) {
    MPI_Init(NULL, NULL);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void barrier_check(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}

MAIN(STATE(barrier))
