/* Frame of programs that run for many steps, or until a file is there, and print "step N" now and then. */
#ifndef LONG_RUN_H
#define LONG_RUN_H

#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

/* Print the step. Is it the last one, on all ranks? Collective. stop_file: NULL, or a file that ends the program. */
static inline int last_step(int step, const char *stop_file, int rank, MPI_Comm comm) {
    int stop = stop_file != NULL && access(stop_file, F_OK) == 0; /* rank 0 decides */
    MPI_Bcast(&stop, 1, MPI_INT, 0, comm);
    if (rank == 0) printf("step %d\n", step);
    fflush(stdout);
    return stop;
}

#endif
