/* Several threads make communicators at the same time. Each has a communicator of its own, from which it makes them.
 * All use the same groups and the same tag. No rank may take the communicator of one thread for that of another.
 *
 *     maker_threads STEPS MICROSECONDS [FILE]            even size; see long_threads.h
 */
#include "../long_threads.h"

enum { TAG = 5 };

static MPI_Comm halves[THREADS];

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

static void set_up(void) {
    for (int i = 0; i < THREADS; i++) MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &halves[i]);
}

int main(int argc, char **argv) { return long_threads(argc, argv, set_up, run); }
