/* Requests of every family at the same time, in threads that each have a communicator of their own: persistent,
 * nonblocking collective, generalized and ordinary ones, completed together in different ways. The threads start
 * collectives independently of one another, so a rank's report of its state covers all combinations.
 *
 *     request_threads STEPS MICROSECONDS [FILE]            see long_threads.h
 */
#include "../long_threads.h"

enum { REQUESTS = 7 };

static int on_query(void *extra, MPI_Status *status) {
    (void)extra;
    MPI_Status_set_elements(status, MPI_INT, 1);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = status->MPI_TAG = 1;
    return MPI_SUCCESS;
}
static int on_free(void *extra) {
    ++*(int *)extra;
    return MPI_SUCCESS;
}
static int on_cancel(void *extra, int complete) {
    (void)extra, (void)complete;
    return MPI_SUCCESS;
}

static void complete(MPI_Request *r, int step) {
    MPI_Status statuses[REQUESTS];
    int n, indices[REQUESTS];
    if (step % 2) {
        MPI_Waitall(REQUESTS, r, statuses);
        return;
    }
    for (int left = REQUESTS; left > 0; left -= n) MPI_Waitsome(REQUESTS, r, &n, indices, statuses);
}

static void *run(void *argument) {
    int me = (int)(long)argument, next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int out = 0, in = 0, frees = 0;
    unsigned seed = (unsigned)(me * 100 + rank);
    MPI_Comm comm = comms[me];
    MPI_Request persistent[2], r[REQUESTS];
    MPI_Send_init(&out, 1, MPI_INT, next, me, comm, &persistent[0]);
    MPI_Recv_init(&in, 1, MPI_INT, previous, me, comm, &persistent[1]);
    for (int step = 0; step < steps; step++) {
        int word = rank == step % size ? step : -1, mine = rank + step, sum = 0, flag = 0;
        int there = 1000 * rank + step, here = -1;
        out = rank + 7 * step;
        MPI_Startall(2, persistent);
        r[0] = persistent[0], r[1] = persistent[1];
        MPI_Ibcast(&word, 1, MPI_INT, step % size, comm, &r[2]);
        MPI_Iallreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, comm, &r[3]);
        MPI_Grequest_start(on_query, on_free, on_cancel, &frees, &r[4]);
        MPI_Irecv(&here, 1, MPI_INT, MPI_ANY_SOURCE, 50 + me, comm, &r[5]);
        MPI_Isend(&there, 1, MPI_INT, previous, 50 + me, comm, &r[6]);
        if (us > 0) usleep((unsigned)rand_r(&seed) % (2 * (unsigned)us));
        for (int tries = 0; step % 3 == 0 && tries < 3; tries++) MPI_Request_get_status(r[2], &flag, MPI_STATUS_IGNORE);
        MPI_Grequest_complete(r[4]);
        complete(r, step);
        int handles = (r[0] == persistent[0]) + (r[4] == MPI_REQUEST_NULL);
        digests[me] = digests[me] * 31 + (unsigned)(word + 3 * sum + 5 * in + 7 * here + 11 * frees + handles);
        if (step % 50 == 0) meet(me, step);
    }
    MPI_Request_free(&persistent[0]);
    MPI_Request_free(&persistent[1]);
    return NULL;
}

int main(int argc, char **argv) { return long_threads(argc, argv, NULL, run); }
