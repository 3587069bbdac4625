/* MPI_Comm_disconnect waits for a send that was freed, and then the program may change what it sends. Each rank prints
 * "ok".
 */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { N = 1 << 20 }; /* more than the network takes at once */

static int data[N];

int main(int argc, char **argv) {
    int rank, wrong = 0;
    MPI_Comm comm;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    if (rank == 0) {
        for (int i = 0; i < N; i++) data[i] = i;
        MPI_Isend(data, N, MPI_INT, 1, 0, comm, &request);
        MPI_Request_free(&request);
        MPI_Comm_disconnect(&comm);
        for (int i = 0; i < N; i++) data[i] = -1;
    } else {
        usleep(200000);
        MPI_Recv(data, N, MPI_INT, 0, 0, comm, MPI_STATUS_IGNORE);
        MPI_Comm_disconnect(&comm);
        for (int i = 0; i < N; i++) wrong += data[i] != i;
    }
    puts(wrong ? "wrong" : "ok");
    MPI_Finalize();
    return wrong != 0;
}
