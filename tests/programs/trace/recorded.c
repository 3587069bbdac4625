/* recorded.c - one call of each kind that is recorded; tests/integration/trace/test_trace_run.py contains the expected
 * records. Two or more ranks. With a second argument, rank 1 never enters the last barrier. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, size, x, y = 0, index, flag = 0;
    double d[10] = {0};
    MPI_Request r[4];
    MPI_Status status;
    MPI_Message message;
    MPI_Comm half, named, later;
    MPI_Win window;
    MPI_Group everybody;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    x = rank;

    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    /* nonblocking, one by one and together; a wildcard */
    MPI_Irecv(d, 10, MPI_DOUBLE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &r[0]);
    MPI_Isend(d + 5, 4, MPI_DOUBLE, next, 3, MPI_COMM_WORLD, &r[1]);
    r[2] = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &r[3]);
    MPI_Waitall(4, r, MPI_STATUSES_IGNORE);
    MPI_Irecv(&y, 1, MPI_INT, previous, 4, MPI_COMM_WORLD, &r[0]);
    MPI_Ssend(&x, 0, MPI_INT, MPI_PROC_NULL, 4, MPI_COMM_WORLD);
    MPI_Send(&x, 1, MPI_INT, next, 4, MPI_COMM_WORLD);
    MPI_Wait(&r[0], &status);
    MPI_Sendrecv(&x, 1, MPI_INT, next, 5, &y, 1, MPI_INT, previous, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    /* completed by a test that first fails */
    MPI_Irecv(&y, 1, MPI_INT, previous, 6, MPI_COMM_WORLD, &r[0]);
    MPI_Test(&r[0], &flag, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Send(&x, 1, MPI_INT, next, 6, MPI_COMM_WORLD);
    while (!flag) MPI_Test(&r[0], &flag, MPI_STATUS_IGNORE);
    /* one of two, the other one never comes */
    MPI_Irecv(&y, 1, MPI_INT, previous, 7, MPI_COMM_WORLD, &r[0]);
    MPI_Irecv(&index, 1, MPI_INT, previous, 8, MPI_COMM_WORLD, &r[1]);
    MPI_Send(&x, 1, MPI_INT, next, 7, MPI_COMM_WORLD);
    MPI_Waitany(2, r, &index, &status);
    MPI_Cancel(&r[1]);
    MPI_Wait(&r[1], MPI_STATUS_IGNORE);
    /* probes */
    MPI_Isend(&x, 1, MPI_INT, next, 9, MPI_COMM_WORLD, &r[0]);
    MPI_Probe(previous, 9, MPI_COMM_WORLD, &status);
    MPI_Mprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
    MPI_Mrecv(&y, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    /* persistent */
    MPI_Send_init(&x, 1, MPI_INT, next, 11, MPI_COMM_WORLD, &r[0]);
    MPI_Recv_init(&y, 1, MPI_INT, previous, 11, MPI_COMM_WORLD, &r[1]);
    for (int i = 0; i < 2; i++) {
        MPI_Startall(2, r);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&r[0]);
    MPI_Request_free(&r[1]);
    /* communicators */
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_dup(half, &named);
    MPI_Comm_set_name(named, "half of the world");
    MPI_Bcast(&y, 1, MPI_INT, 0, named);
    MPI_Comm_idup(MPI_COMM_WORLD, &later, &r[0]);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    MPI_Reduce(&x, &y, 1, MPI_INT, MPI_SUM, size - 1, later);
    MPI_Comm_free(&later);
    MPI_Comm_free(&named);
    /* windows */
    MPI_Win_create(d, sizeof d, sizeof *d, MPI_INFO_NULL, half, &window);
    MPI_Win_fence(0, window);
    MPI_Put(d, 1, MPI_DOUBLE, 0, 3, 1, MPI_DOUBLE, window);
    MPI_Win_fence(0, window);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Win_flush(0, window);
    MPI_Win_unlock(0, window);
    MPI_Win_get_group(window, &everybody);
    for (int i = 0; i < 2; i++) {
        MPI_Win_post(everybody, 0, window);
        MPI_Win_start(everybody, 0, window);
        MPI_Win_complete(window);
        if (i == 0) MPI_Win_wait(window);
    }
    for (flag = 0; !flag;) MPI_Win_test(window, &flag);
    MPI_Group_free(&everybody);
    MPI_Win_free(&window);
    if (argc > 1 && rank == 1) {
        printf("rank 1 stays\n");
        fflush(stdout);
        for (;;) pause();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
