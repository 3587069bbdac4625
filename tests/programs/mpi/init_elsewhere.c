/* init_elsewhere.c - MPI_Init on a thread that is not the process's first.
 *
 *     init_elsewhere MODE      all: three threads call MPI, one of them has initialized it; one is the process's first
 *                              thread
 *                              init_ends: the thread that has called MPI_Init ends before the others
 *                              first_ends: the process's first thread ends before the others
 *
 * Runs until the file $STATE_GO exists.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static MPI_Comm comms[3];
static const char *mode;
static int failures;

static int gone_on(MPI_Comm comm) {
    int go = access(getenv("STATE_GO"), F_OK) == 0;
    MPI_Allreduce(MPI_IN_PLACE, &go, 1, MPI_INT, MPI_LAND, comm);
    return go;
}

static void *work(void *at) {
    MPI_Comm comm = comms[(long)at];
    int rank, size, sum, got, rounds = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    do {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
        int next = (rank + 1) % size, previous = (rank + size - 1) % size;
        MPI_Sendrecv(&rank, 1, MPI_INT, next, 5, &got, 1, MPI_INT, previous, 5, comm, MPI_STATUS_IGNORE);
        failures += sum != size * (size - 1) / 2 || got != previous;
        usleep(1000);
        if (at && rank == 0 && ++rounds % 64 == 0) puts("goes on"), fflush(stdout);
    } while (!gone_on(comm));
    return NULL;
}

static void *initialize(void *ready) {
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    failures += provided != MPI_THREAD_MULTIPLE;
    for (int i = 0; i < 3; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    pthread_barrier_wait(ready);
    if (strcmp(mode, "init_ends") != 0) work((void *)0l);
    return NULL;
}

static pthread_t workers[2];

static void *finish(void *unused) {
    (void)unused;
    for (int i = strcmp(mode, "init_ends") == 0; i < 2; i++) pthread_join(workers[i], NULL);
    int rank, total = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Reduce(&failures, &total, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%s\n", total ? "failed" : "ok");
    MPI_Finalize();
    exit(0);
}

int main(int argc, char **argv) {
    pthread_barrier_t ready;
    pthread_t finisher;
    int rank;
    mode = argc > 1 ? argv[1] : "all";
    pthread_barrier_init(&ready, NULL, 2);
    pthread_create(&workers[0], NULL, initialize, &ready);
    pthread_barrier_wait(&ready);
    if (strcmp(mode, "init_ends") == 0) pthread_join(workers[0], NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    pthread_create(&workers[1], NULL, work, (void *)1l);
    if (strcmp(mode, "first_ends") == 0) pthread_create(&finisher, NULL, finish, NULL);
    if (rank == 0) puts("ready"), fflush(stdout);
    if (strcmp(mode, "first_ends") == 0) pthread_exit(NULL);
    work((void *)2l);
    finish(NULL);
}
