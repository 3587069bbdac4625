/* Frame of programs that run for many steps, or until a file is there, and print "step N" now and then. */
#ifndef LONG_RUN_H
#define LONG_RUN_H

#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

/* Prints the step; is it the last one, on all ranks? Collective. stop_file: NULL, or ends the program when it is there.
 */
static inline int last_step(int step, const char *stop_file, int rank, MPI_Comm comm) {
    int stop = stop_file != NULL && access(stop_file, F_OK) == 0; /* rank 0's view counts */
    MPI_Bcast(&stop, 1, MPI_INT, 0, comm);
    if (rank == 0) printf("step %d\n", step);
    fflush(stdout);
    return stop;
}

#endif
