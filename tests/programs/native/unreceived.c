/* Rank 0 sends a message that rank 1 never receives, and both call MPI_Finalize.
 *
 *     mpirun -n 2 unreceived early | met | returned | freed
 *
 * early: no rank polls the network before MPI_Finalize; met: a barrier comes before it; returned: the same, and errors
 * are returned; freed: the message is on a communicator that is freed then, where errors are returned. Each rank prints
 * whether its last call has failed. A rank whose MPI_Finalize has failed aborts.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    int rank, value = 5, rc;
    const char *mode = argc > 1 ? argv[1] : "";
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &rank);
    if (!strcmp(mode, "freed")) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (rank == 0) MPI_Send(&value, 1, MPI_INT, 1, 3, comm);
    if (strcmp(mode, "early")) MPI_Barrier(comm);
    if (!strcmp(mode, "returned") || !strcmp(mode, "freed")) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (!strcmp(mode, "freed")) {
        rc = MPI_Comm_free(&comm);
        printf("rank %d: %s\n", rank, rc ? "failed" : "succeeded");
        rc = MPI_Finalize();
    } else {
        rc = MPI_Finalize();
        printf("rank %d: %s\n", rank, rc ? "failed" : "succeeded");
        fflush(stdout);
        if (rc) abort();  // or the other rank may wait for this one in MPI_Finalize for ever
    }
    return 0;
}
