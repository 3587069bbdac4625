/* A failed request calls the error handler of its communicator, also if the call names requests of several. (MPICH
 * calls the handler of MPI_COMM_WORLD.) Prints "ok".
 */
#include <mpi.h>
#include <stdio.h>

static MPI_Comm comms[2];
static int calls[2];

static void on_error(MPI_Comm *comm, int *code, ...) {
    (void)code;
    for (int i = 0; i < 2; i++) calls[i] += *comm == comms[i];
}

/* Receives of which only the second one fails. */
static void receive(MPI_Request *requests, int *data) {
    static int sent[2];
    for (int i = 0; i < 2; i++) {
        MPI_Irecv(&data[i], 1, MPI_INT, 0, 0, comms[i], &requests[i]);
        MPI_Send(sent, 1 + i, MPI_INT, 0, 0, comms[i]);
    }
}

int main(int argc, char **argv) {
    MPI_Errhandler handler;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    int data[2], n, indices[2], flag, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int i = 0; i < 2; i++) {
        MPI_Comm_dup(MPI_COMM_SELF, &comms[i]);
        MPI_Comm_set_errhandler(comms[i], handler);
    }
    receive(requests, data);
    MPI_Waitsome(2, requests, &n, indices, statuses);
    wrong += n != 2 || calls[0] != 0 || calls[1] != 1;
    receive(requests, data);
    MPI_Testsome(2, requests, &n, indices, statuses);
    wrong += n != 2 || calls[0] != 0 || calls[1] != 2;
    receive(requests, data);
    MPI_Request_get_status(requests[1], &flag, statuses);
    wrong += !flag || calls[0] != 0 || calls[1] != 3;
    MPI_Request_get_status_all(2, requests, &flag, statuses);
    wrong += calls[0] != 0 || calls[1] != 4;
    MPI_Waitall(2, requests, statuses);
    wrong += calls[0] != 0 || calls[1] != 5;
    printf(wrong ? "%d wrong\n" : "ok\n", wrong);
    MPI_Finalize();
    return wrong != 0;
}
