/* never_received.c - rank 0 sends rank 1 a message on a communicator that both then free, so no checkpoint can be made.
 * argv[1]: a file to wait for. A synchronous send that is in progress meanwhile is finished only when its message is
 * received. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, value = 5, got = 0, done = 0;
    MPI_Comm comm;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (rank == 0) {
        MPI_Send(&value, 1, MPI_INT, 1, 3, comm);
        MPI_Issend(&value, 1, MPI_INT, 1, 7, MPI_COMM_WORLD, &request);
    }
    MPI_Comm_free(&comm);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("waiting\n");
    fflush(stdout);
    while (access(argv[1], F_OK)) usleep(10000);
    if (rank == 0) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        MPI_Recv(&got, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (got != value) MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
