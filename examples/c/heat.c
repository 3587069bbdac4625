/* Heat in a rod whose ends stay at 1 and 0. Usage: heat STEPS */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 100000 }; /* of each rank */

int main(int argc, char **argv) {
    static double u[CELLS + 2], next[CELLS + 2]; /* with a border on each side */
    int rank, size;
    long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 200000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    if (rank == 0) u[0] = next[0] = 1.0;

    for (long step = 1; step <= steps; step++) {
        MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, left, 0, &u[CELLS + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Sendrecv(&u[CELLS], 1, MPI_DOUBLE, right, 0, &u[0], 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int i = 1; i <= CELLS; i++) next[i] = u[i] + 0.4 * (u[i + 1] - 2.0 * u[i] + u[i - 1]);
        double sum = 0.0, heat;
        for (int i = 1; i <= CELLS; i++) sum += u[i] = next[i];
        if (step % (steps / 20) != 0) continue;
        MPI_Reduce(&sum, &heat, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("step %ld heat %.12f\n", step, heat), fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
