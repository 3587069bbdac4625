/* Two threads receive the same messages, one with MPI_Isendrecv: of each tag one message is unreceived at the
 * checkpoint, and the other one is sent after it. Each rank prints "ready", waits for FILE, and prints "ok" at the end.
 *
 *     mpirun -n 2 stored_for_two FILE
 */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { TAGS = 3000 };

static int got[2][TAGS], wrong;
static volatile int begun[2]; /* tags that a thread has come to */

/* Both threads come to a tag at once. */
static void meet(int me, int tag) {
    begun[me] = tag + 1;
    while (begun[!me] <= tag) sched_yield();
}

static void *receive(void *unused) {
    for (int tag = 0; tag < TAGS; tag++) {
        meet(1, tag);
        MPI_Recv(&got[1][tag], 1, MPI_INT, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return unused;
}

static void exchange_all(void) {
    MPI_Request request;
    pthread_t thread;
    pthread_create(&thread, NULL, receive, NULL);
    for (int tag = 0; tag < TAGS; tag++) {
        meet(0, tag);
        MPI_Isendrecv(NULL, 0, MPI_INT, MPI_PROC_NULL, 0, &got[0][tag], 1, MPI_INT, 1, tag, MPI_COMM_WORLD, &request);
        wrong += MPI_Wait(&request, MPI_STATUS_IGNORE) != MPI_SUCCESS;
    }
    pthread_join(thread, NULL);
    for (int tag = 0; tag < TAGS; tag++) wrong += got[0][tag] + got[1][tag] != 2 * tag + 1;
}

static void send_all(int round, MPI_Request *requests) {
    static int data[2][TAGS];
    for (int tag = 0; tag < TAGS; tag++) {
        data[round][tag] = tag + round;
        MPI_Isend(&data[round][tag], 1, MPI_INT, 0, tag, MPI_COMM_WORLD, &requests[tag]);
    }
}

int main(int argc, char **argv) {
    static MPI_Request requests[2][TAGS];
    int provided, rank;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1) send_all(0, requests[0]);
    MPI_Barrier(MPI_COMM_WORLD);
    puts("ready");
    fflush(stdout);
    while (access(argv[1], F_OK)) usleep(10000);
    if (rank == 0) {
        exchange_all();
    } else {
        send_all(1, requests[1]);
        MPI_Waitall(2 * TAGS, requests[0], MPI_STATUSES_IGNORE);
    }
    printf(wrong ? "%d wrong\n" : "ok\n", wrong);
    MPI_Finalize();
    return wrong != 0;
}
