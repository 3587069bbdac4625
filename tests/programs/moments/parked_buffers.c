/* A buffered send that is waited for while its receiver parks. Rank 0 enters a collective with rank 1, which comes to
 * it only after it has waited for its buffered send to rank 2. Rank 2 receives only after a collective with rank 3. So
 * if rank 2 has parked at the entry of that collective, it must be made to leave it.
 *
 *     parked_buffers STEPS MICROSECONDS [FILE]            4 ranks; see long_run.h; at last "digest N of STEPS steps"
 */
#include "../long_run.h"

#include <stdlib.h>
#include <time.h>

enum { LONG = 1 << 17 }; /* no MPI library sends so many longs before the receiver asks for them */

static int rank;
static unsigned seed;
static unsigned long token, tokens[LONG]; /* the first one counts */
static char room[sizeof tokens + MPI_BSEND_OVERHEAD];

static void work(int us) {
    seed = seed * 1103515245 + 12345;
    struct timespec rest = {0, (long)(seed >> 16) % 1000 * us * 2};
    nanosleep(&rest, NULL);
}

static void send(int step) {
    void *attached;
    int bytes;
    tokens[0] = token = token * 31 + (unsigned)step;
    MPI_Buffer_attach(room, sizeof room);
    MPI_Bsend(tokens, LONG, MPI_UNSIGNED_LONG, 2, 1, MPI_COMM_WORLD);
    if (step % 2) MPI_Buffer_flush();
    MPI_Buffer_detach(&attached, &bytes); /* waits, too */
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 1000, us = argc > 2 ? atoi(argv[2]) : 200;
    MPI_Comm pair;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, 0, &pair);
    seed = (unsigned)rank;
    for (int step = 0; step < steps; step++) {
        work(rank < 2 ? us : 60 * us); /* mostly, ranks 0 and 1 wait */
        if (rank == 1) send(step);
        MPI_Barrier(pair);
        if (rank == 2) {
            MPI_Recv(tokens, LONG, MPI_UNSIGNED_LONG, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            token = token * 31 + tokens[0];
        }
        if (step % 50 == 0 && last_step(step, argc > 3 ? argv[3] : NULL, rank, MPI_COMM_WORLD)) steps = step + 1;
    }
    if (rank == 2) printf("digest %lu of %d steps\n", token, steps);
    MPI_Finalize();
    return 0;
}
