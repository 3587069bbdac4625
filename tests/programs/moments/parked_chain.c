/* A chain of point-to-point dependencies through ranks that park. Rank i receives from rank i - 1, which sends only
 * after its next collectives on other communicators. The ends of the chain, ranks 0 and N-1, meet in a collective of
 * their own. When rank 0 has entered it, rank N-1 is below its target there. It reaches the target only if every rank
 * between them is made to leave the collective at whose entry it has parked.
 *
 *     parked_chain STEPS MICROSECONDS [FILE]            N >= 4; see long_run.h; at last "digest N of STEPS steps"
 */
#include "../long_run.h"

#include <stdlib.h>
#include <time.h>

static int rank, size;
static unsigned seed;

static void work(int us) {
    seed = seed * 1103515245 + 12345;
    struct timespec rest = {0, (long)(seed >> 16) % 1000 * us * 2};
    nanosleep(&rest, NULL);
}

static unsigned long receive(int step) {
    unsigned long token = 0;
    int flag = 0, tag = step % 100;
    MPI_Request r;
    MPI_Status status;
    switch (step % 5) {
    case 0:
        MPI_Recv(&token, 1, MPI_UNSIGNED_LONG, rank - 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case 1:
        MPI_Irecv(&token, 1, MPI_UNSIGNED_LONG, rank - 1, tag, MPI_COMM_WORLD, &r);
        while (!flag) MPI_Test(&r, &flag, MPI_STATUS_IGNORE), work(20);
        break;
    case 2:
        MPI_Recv(&token, 1, MPI_UNSIGNED_LONG, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case 3:
        MPI_Probe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &status);
        MPI_Recv(&token, 1, MPI_UNSIGNED_LONG, status.MPI_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case 4:
        MPI_Recv_init(&token, 1, MPI_UNSIGNED_LONG, rank - 1, tag, MPI_COMM_WORLD, &r);
        MPI_Start(&r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        MPI_Request_free(&r);
    }
    return token;
}

static void send(unsigned long token, int step) {
    if (step % 3) MPI_Send(&token, 1, MPI_UNSIGNED_LONG, rank + 1, step % 100, MPI_COMM_WORLD);
    else MPI_Ssend(&token, 1, MPI_UNSIGNED_LONG, rank + 1, step % 100, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 1000, us = argc > 2 ? atoi(argv[2]) : 200;
    unsigned long token = 0;
    MPI_Comm own, ends, pair;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_SELF, &own);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 || rank == size - 1 ? 0 : MPI_UNDEFINED, 0, &ends);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 1 || rank == 2 ? 0 : MPI_UNDEFINED, 0, &pair);
    seed = (unsigned)rank;
    for (int step = 0; step < steps; step++) {
        if (rank == 2) MPI_Barrier(pair);
        if (rank > 1) token = token * 31 + receive(step);
        work(us);
        if (ends == MPI_COMM_NULL) { /* inside the chain */
            MPI_Barrier(own);
            if (rank == 1) MPI_Barrier(pair);
            token = token * 31 + (unsigned)(rank + step);
            send(token, step);
        } else {
            MPI_Bcast(&token, 1, MPI_UNSIGNED_LONG, 1, ends);
        }
        if (step % 50 == 0 && last_step(step, argc > 3 ? argv[3] : NULL, rank, MPI_COMM_WORLD)) steps = step + 1;
    }
    if (rank == 0) printf("digest %lu of %d steps\n", token, steps);
    MPI_Finalize();
    return 0;
}
