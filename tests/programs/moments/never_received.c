/* never_received.c - rank 0 sends rank 1 a message on a communicator that both then free; argv[1]: a file to wait
 * for. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int rank, value = 5;
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (rank == 0) MPI_Send(&value, 1, MPI_INT, 1, 3, comm);
    MPI_Comm_free(&comm);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("waiting\n");
    fflush(stdout);
    while (access(argv[1], F_OK)) usleep(10000);
    MPI_Barrier(MPI_COMM_WORLD);
    printf("ok\n");
    MPI_Finalize();
    return 0;
}
