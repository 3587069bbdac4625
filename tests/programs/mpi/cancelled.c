/* Sends that are marked for cancellation go on: to the other rank, and to this one. So do receives of matched messages.
 * Prints "ok" on each rank. */
#include <mpi.h>
#include <stdio.h>

enum { SENDS = 100 };

int main(int argc, char **argv) {
    int rank, out[SENDS], in, wrong = 0, cancelled;
    MPI_Request requests[2 * SENDS], receive;
    MPI_Message message;
    MPI_Status status;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 0; i < SENDS; i++) {
        out[i] = 1000 * rank + i;
        MPI_Issend(&out[i], 1, MPI_INT, 1 - rank, i, MPI_COMM_WORLD, &requests[2 * i]);
        MPI_Isend(&out[i], 1, MPI_INT, rank, i, MPI_COMM_WORLD, &requests[2 * i + 1]);
    }
    for (int i = 0; i < 2 * SENDS; i++) MPI_Cancel(&requests[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 2 * SENDS; i++) {
        MPI_Mprobe(i % 2, i / 2, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Imrecv(&in, 1, MPI_INT, &message, &receive);
        MPI_Cancel(&receive);
        MPI_Wait(&receive, &status);
        MPI_Test_cancelled(&status, &cancelled);
        wrong += cancelled;
        wrong += in != 1000 * (i % 2) + i / 2;
    }
    for (int i = 0; i < 2 * SENDS; i++) {
        MPI_Wait(&requests[i], &status);
        MPI_Test_cancelled(&status, &cancelled);
        wrong += cancelled;
    }
    MPI_Barrier(MPI_COMM_WORLD); /* MPICH's MPI_Finalize may keep what an MPI_Issend of the other rank waits for */
    printf(wrong ? "%d wrong\n" : "ok\n", wrong);
    MPI_Finalize();
    return wrong != 0;
}
