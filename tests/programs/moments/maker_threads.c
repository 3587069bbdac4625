/* Threads that make communicators at the same time, each from its own one, but with the same groups and the same tag.
 * Each member has to take the communicators of one thread for one.
 *
 *     maker_threads STEPS MICROSECONDS [FILE]            even size; see long_run.h; at last "digest N of STEPS steps"
 */
#include "../long_run.h"

#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 3, TAG = 5 };

static int rank, size, steps, us;
static const char *stop_file;
static MPI_Comm comms[THREADS], halves[THREADS];
static unsigned long digests[THREADS];
static pthread_barrier_t together;

/* Every 50 steps the threads of all ranks meet and decide whether to continue. */
static void meet(int me, int step) {
    pthread_barrier_wait(&together);
    if (me == 0 && last_step(step, stop_file, rank, comms[0])) steps = step + 1;
    pthread_barrier_wait(&together);
}

static MPI_Comm make(int me, int step) {
    MPI_Comm made;
    MPI_Group group;
    if (step % 2) {
        MPI_Intercomm_create(halves[me], 0, comms[me], 1 - rank % 2, TAG, &made);
        return made;
    }
    MPI_Comm_group(comms[me], &group);
    MPI_Comm_create_group(comms[me], group, TAG, &made);
    MPI_Group_free(&group);
    return made;
}

static void *run(void *argument) {
    int me = (int)(long)argument;
    unsigned seed = (unsigned)(me * 100 + rank);
    for (int step = 0; step < steps; step++) {
        unsigned long mine = (unsigned)(rank + 10 * me + 100 * step), sum;
        if (us > 0) usleep((unsigned)rand_r(&seed) % (2 * (unsigned)us));
        MPI_Comm made = make(me, step);
        if (us > 0) usleep((unsigned)rand_r(&seed) % (2 * (unsigned)us));
        MPI_Allreduce(&mine, &sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, made);
        digests[me] = digests[me] * 31 + sum;
        MPI_Comm_free(&made);
        if (step % 50 == 0) meet(me, step);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int provided;
    unsigned long mine = 0, all = 0;
    pthread_t threads[THREADS];
    steps = argc > 1 ? atoi(argv[1]) : 1000, us = argc > 2 ? atoi(argv[2]) : 200;
    if (argc > 3) stop_file = argv[3];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < THREADS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &halves[i]);
    }
    pthread_barrier_init(&together, NULL, THREADS);
    for (long i = 1; i < THREADS; i++) pthread_create(&threads[i], NULL, run, (void *)i);
    run(NULL);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) mine = mine * 31 + digests[i];
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("digest %lu of %d steps\n", all, steps);
    MPI_Finalize();
    return 0;
}
