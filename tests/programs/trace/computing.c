/* Steps of about 10 ms of work, then an Allreduce; prints each step until it is ended. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>

enum { WORK = 1000000 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double x = rank + 1;
    for (int step = 1;; step++) {
        for (int i = 0; i < WORK; i++) x = sqrt(x + 2);
        double total;
        MPI_Allreduce(&x, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        x = total + rank;
        if (rank == 0) {
            printf("step %d residual %.17g\n", step, total);
            fflush(stdout);
        }
    }
}
