/* A receive has failed when a checkpoint is requested, and its MPI_Waitall still waits for another one: then the error
 * is known before the checkpoint, and reported after it. See mpi_states.h.
 */
#include "../mpi_states.h"

#include <pthread.h>

static int data[2];
static MPI_Request requests[2];
static MPI_Status statuses[2];
static pthread_t waiter;
static int result;

static void *wait_for_both(void *unused) {
    result = MPI_Waitall(2, requests, statuses);
    return unused;
}

static void failed_set_up(void) {
    int long_one[2] = {rank, rank};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 2; i++) MPI_Irecv(&data[i], 1, MPI_INT, 1 - rank, i, MPI_COMM_WORLD, &requests[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Send(long_one, 2, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    pthread_create(&waiter, NULL, wait_for_both, NULL);
    pause_ms(200);
}

static void failed_check(void) {
    MPI_Send(&rank, 1, MPI_INT, 1 - rank, 1, MPI_COMM_WORLD);
    pthread_join(waiter, NULL);
    CHECK(result == MPI_ERR_IN_STATUS && class_of(statuses[0].MPI_ERROR) == MPI_ERR_TRUNCATE);
    if (requests[1] != MPI_REQUEST_NULL) CHECK(MPI_Wait(&requests[1], &statuses[1]) == MPI_SUCCESS);
    CHECK(data[1] == 1 - rank);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(failed)};
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    find_rank();
    int failed = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    return failed;
}
