/* Crossed nonblocking barriers on congruent communicators. Even ranks start Ibarrier(a), then Ibarrier(b); odd ranks
 * start them in the opposite order; there is work between the two. Consider a state in which one rank has started only
 * the first and its peer only the second: neither barrier can complete. A clock that counts per group, not per
 * communicator, takes this state for safe.
 *
 *     crossed_ibarriers STEPS MICROSECONDS [FILE]            see long_run.h; at last "digest N of STEPS steps"
 */
#include "../long_run.h"

#include <stdlib.h>
#include <time.h>

static unsigned seed;

/* Take up to twice `us` microseconds: compute for a tenth, sleep for the rest. */
static void work(int us) {
    seed = seed * 1103515245 + 12345;
    long long ns = (long long)(seed >> 16) % 1000 * us;
    struct timespec begin, now, rest = {0, 2 * ns - ns / 5};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000000ll + now.tv_nsec - begin.tv_nsec < ns / 5);
    nanosleep(&rest, NULL);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 1000, us = argc > 2 ? atoi(argv[2]) : 200, rank, size;
    unsigned long digest = 0;
    MPI_Comm twins[2];
    MPI_Request r[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &twins[0]);
    MPI_Comm_dup(MPI_COMM_WORLD, &twins[1]);
    seed = (unsigned)rank;
    for (int step = 0; step < steps; step++) {
        int index, done = 0, mine = rank + step, sum = 0;
        MPI_Ibarrier(twins[rank & 1], &r[0]);
        work(us);
        MPI_Ibarrier(twins[!(rank & 1)], &r[1]);
        switch (step % 4) {
        case 0:
            work(us);
            MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
            break;
        case 1:
            while (!done) {
                MPI_Testall(2, r, &done, MPI_STATUSES_IGNORE);
                work(us / 10);
            }
            break;
        case 2:
            for (int i = 0; i < 2; i++) MPI_Waitany(2, r, &index, MPI_STATUS_IGNORE);
            break;
        case 3: /* both are open while other ranks are in a blocking one */
            MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            MPI_Wait(&r[1], MPI_STATUS_IGNORE);
            MPI_Wait(&r[0], MPI_STATUS_IGNORE);
            digest = digest * 31 + (unsigned)sum;
        }
        if (step % 50 == 0 && last_step(step, argc > 3 ? argv[3] : NULL, rank, MPI_COMM_WORLD)) steps = step + 1;
    }
    if (rank == 0) printf("digest %lu of %d steps\n", digest, steps);
    MPI_Comm_free(&twins[0]);
    MPI_Comm_free(&twins[1]);
    MPI_Finalize();
    return 0;
}
