/* Frame of programs whose threads run for many steps, or until a file is there, each with a communicator of its own.
 *
 *     PROGRAM STEPS MICROSECONDS [FILE]            see long_run.h; at last "digest N of STEPS steps"
 */
#ifndef LONG_THREADS_H
#define LONG_THREADS_H

#include "long_run.h"

#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 3 };

static int rank, size, steps, us;
static const char *stop_file;
static MPI_Comm comms[THREADS];
static unsigned long digests[THREADS];
static pthread_barrier_t together;

/* Every 50 steps the threads of all ranks meet and decide whether to continue. */
static inline void meet(int me, int step) {
    pthread_barrier_wait(&together);
    if (me == 0 && last_step(step, stop_file, rank, comms[0])) steps = step + 1;
    pthread_barrier_wait(&together);
}

/* The whole program. run: of each thread, with its number; it ends each step that is a multiple of 50 with `meet`.
 * set_up: NULL, or what is done before. */
static inline int long_threads(int argc, char **argv, void (*set_up)(void), void *(*run)(void *)) {
    int provided;
    unsigned long mine = 0, all = 0;
    pthread_t threads[THREADS];
    steps = argc > 1 ? atoi(argv[1]) : 1000, us = argc > 2 ? atoi(argv[2]) : 200;
    if (argc > 3) stop_file = argv[3];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    if (set_up) set_up();
    pthread_barrier_init(&together, NULL, THREADS);
    for (long i = 1; i < THREADS; i++) pthread_create(&threads[i], NULL, run, (void *)i);
    run(NULL);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) mine = mine * 31 + digests[i];
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("digest %lu of %d steps\n", all, steps);
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&comms[i]);
    MPI_Finalize();
    return 0;
}

#endif
