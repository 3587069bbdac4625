/* trace_calls.c - calls of all kinds for the recorder, one MODE: calls | wait FILE | overrun N. Two ranks. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, peer, out = 7, in[8];

static void *in_a_thread(void *unused) {
    (void)unused;
    MPI_Send(&out, 1, MPI_INT, rank, 77, MPI_COMM_WORLD);
    return NULL;
}

static void calls(void) {
    MPI_Request r[2];
    MPI_Comm half;
    MPI_Datatype type;
    MPI_Win win;
    pthread_t thread;
    double numbers[12] = {0};
    int index, flag = 0, *base;
    MPI_Bcast(numbers, 3, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    if (rank == 0) MPI_Send(&out, 1, MPI_INT, 1, 5, MPI_COMM_WORLD);
    else MPI_Recv(in, 8, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Irecv(in, 8, MPI_INT, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &r[0]);
    MPI_Isend(&out, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, &r[1]);
    MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    r[0] = MPI_REQUEST_NULL;
    MPI_Irecv(in, 1, MPI_INT, peer, 2, MPI_COMM_WORLD, &r[1]);
    MPI_Send(&out, 1, MPI_INT, peer, 2, MPI_COMM_WORLD);
    MPI_Waitany(2, r, &index, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&out, 1, MPI_INT, peer, 3, in, 1, MPI_INT, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Iallreduce(&out, in, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &r[0]);
    while (!flag) MPI_Test(&r[0], &flag, MPI_STATUS_IGNORE);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &half); /* the ranks are in reverse order */
    MPI_Comm_set_errhandler(half, MPI_ERRORS_RETURN);
    MPI_Send(&out, 1, MPI_INT, 5, 0, half); /* no such rank */
    MPI_Type_vector(3, 2, 4, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    if (rank == 0) MPI_Send(numbers, 1, type, 0, 4, half);
    else MPI_Recv(numbers, 1, type, 1, 4, half, MPI_STATUS_IGNORE);
    MPI_Win_allocate(sizeof(int), sizeof(int), MPI_INFO_NULL, half, &base, &win);
    MPI_Win_fence(0, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, win);
    MPI_Win_unlock(1, win);
    MPI_Win_free(&win);
    MPI_Irecv(in, 1, MPI_INT, rank, 77, MPI_COMM_WORLD, &r[0]);
    pthread_create(&thread, NULL, in_a_thread, NULL);
    pthread_join(thread, NULL);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Rank 1 waits for a message that rank 0 sends when FILE exists. */
static void wait_for(const char *file) {
    MPI_Request r[3];
    for (int i = 0; i < 5; i++) MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        puts("ready");
        fflush(stdout);
        while (access(file, F_OK)) usleep(10000);
        for (int i = 0; i < 3; i++) MPI_Send(&out, 1, MPI_INT, 1, i, MPI_COMM_WORLD);
    } else {
        for (int i = 0; i < 3; i++) MPI_Irecv(in + i, 1, MPI_INT, 0, i, MPI_COMM_WORLD, &r[i]);
        MPI_Waitall(3, r, MPI_STATUSES_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) puts("done");
}

static void overrun(int n) {
    for (int i = 0; i < n; i++) MPI_Send(&out, 1, MPI_INT, MPI_PROC_NULL, i, MPI_COMM_WORLD);
    if (rank == 0) puts("ready"), fflush(stdout);
    MPI_Recv(in, 1, MPI_INT, peer, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* for ever */
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    peer = 1 - rank;
    if (!strcmp(argv[1], "calls")) calls();
    else if (!strcmp(argv[1], "wait")) wait_for(argv[2]);
    else overrun(atoi(argv[2]));
    MPI_Finalize();
    return 0;
}
