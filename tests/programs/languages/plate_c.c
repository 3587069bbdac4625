/* A plate that warms up from one edge, in C; plate_fortran.F90 is the same computation. The ranks divide it into
 * columns, so a halo is a vector type. Each result is equal under every MPI: sums are of whole numbers, and the product
 * is an operation of the program. STEPS_HOLD in the environment: steps/steps.py. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../hold.h"

enum { ROWS = 48, COLUMNS = 24, STEPS = 400, EVERY = 20, TAG = 11, PRIME = 1000003 };
static double plate[2][ROWS][COLUMNS + 2];

static void product(void *in, void *inout, int *length, MPI_Datatype *type) {
    if (*type != MPI_LONG_LONG) MPI_Abort(MPI_COMM_WORLD, 1);
    long long *a = in, *b = inout;
    for (int i = 0; i < *length; i++) b[i] = a[i] * b[i] % PRIME;
}

static long long digest(const void *data, size_t bytes) {
    long long sum = 17;
    for (size_t i = 0; i < bytes; i++) sum = (sum * 31 + ((const unsigned char *)data)[i]) % PRIME;
    return sum + 1;
}

int main(int argc, char **argv) {
    int rank, size, left, right, received = 0, periodic = 0;
    double worst = 0;
    long long products = 1, sum = 0;
    MPI_Comm line;
    MPI_Datatype column;
    MPI_Op multiply;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &line);
    MPI_Comm_rank(line, &rank);
    MPI_Cart_shift(line, 0, 1, &left, &right);
    MPI_Type_vector(ROWS, 1, COLUMNS + 2, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    MPI_Op_create(product, 1, &multiply);
    for (int y = 0; y < ROWS; y++)
        if (left == MPI_PROC_NULL) plate[0][y][0] = plate[1][y][0] = 100.0 * (y + 1) / ROWS;
    for (int step = 1; step <= STEPS; step++) {
        double(*now)[COLUMNS + 2] = plate[step % 2], (*next)[COLUMNS + 2] = plate[1 - step % 2], change = 0;
        MPI_Request requests[4];
        MPI_Status statuses[4];
        MPI_Irecv(&now[0][0], 1, column, left, TAG, line, &requests[0]);
        MPI_Irecv(&now[0][COLUMNS + 1], 1, column, right, TAG + 1, line, &requests[1]);
        MPI_Isend(&now[0][COLUMNS], 1, column, right, TAG, line, &requests[2]);
        MPI_Isend(&now[0][1], 1, column, left, TAG + 1, line, &requests[3]);
        MPI_Waitall(4, requests, statuses);
        received += statuses[1].MPI_SOURCE == right && statuses[1].MPI_TAG == TAG + 1;
        for (int y = 1; y < ROWS - 1; y++)
            for (int x = 1; x <= COLUMNS; x++) {
                double d = 0.24 * (now[y - 1][x] + now[y + 1][x] + now[y][x - 1] + now[y][x + 1] - 4 * now[y][x]);
                next[y][x] = now[y][x] + d;
                change = d > change ? d : change;
            }
        if (step % EVERY) continue;
        long long part = digest(next, sizeof plate[0]), all = 0;
        MPI_Allreduce(&change, &worst, 1, MPI_DOUBLE, MPI_MAX, line);
        MPI_Allreduce(&part, &all, 1, MPI_LONG_LONG, multiply, line);
        MPI_Reduce(&part, &sum, 1, MPI_LONG_LONG, MPI_SUM, 0, line);
        products = products * all % PRIME;
        MPI_Bcast(&sum, 1, MPI_LONG_LONG, 0, line);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
        if (rank == 0) printf("step %d\n", step), fflush(stdout);
        hold(step);
    }
    MPI_Reduce(rank ? &received : MPI_IN_PLACE, &received, 1, MPI_INT, MPI_SUM, 0, line);
    if (rank == 0)
        printf("result: change = %a\nresult: products = %lld\nresult: sum = %lld\nresult: received = %d\n", worst,
               products, sum, received);
    MPI_Op_free(&multiply);
    MPI_Type_free(&column);
    MPI_Comm_free(&line);
    return MPI_Finalize();
}
