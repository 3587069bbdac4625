/* Rank 1 makes the call that the first argument names. MPI refuses it, and the error ends the job. See
 * test_refused.py. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *what = argv[1];
    int rank, flag, data[4] = {0};
    void *largest;
    MPI_Datatype type;
    MPI_Request request;

    setvbuf(stdout, NULL, _IONBF, 0);
    if (strcmp(what, "before") == 0) MPI_Barrier(MPI_COMM_WORLD);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &flag);
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(what, "after") == 0) {
        MPI_Finalize();
        if (rank == 1) MPI_Send(data, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
        return 0;
    }
    if (rank == 0) MPI_Recv(data, 1, MPI_INT, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (strcmp(what, "count") == 0) MPI_Send(data, -1, MPI_INT, 0, 7, MPI_COMM_WORLD);
    if (strcmp(what, "tag") == 0) MPI_Ssend(data, 1, MPI_INT, 0, -5, MPI_COMM_WORLD);
    if (strcmp(what, "large") == 0) MPI_Irecv(data, 1, MPI_INT, 0, INT_MAX, MPI_COMM_WORLD, &request);
    if (strcmp(what, "type") == 0) MPI_Type_vector(-1, 1, 1, MPI_INT, &type);
    if (strcmp(what, "null") == 0) MPI_Type_create_hindexed_block_c(0, 0, NULL, MPI_INT, NULL);
    if (strcmp(what, "comm") == 0) MPI_Allreduce(data, data + 1, 1, MPI_INT, MPI_SUM, MPI_COMM_NULL);
    printf("%s wasn't refused (tags up to %d)\n", what, *(int *)largest);
    MPI_Finalize();
    return 0;
}
