/* One thread posts requests and another completes them, many times: are the slots of requests reused?
 *
 *     handed_requests ROUNDS     in each round REQUESTS receives are posted, get a message, and are completed by the
 *                                other thread; then prints "highest N", the highest number of any request
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { REQUESTS = 100, KIND_BITS = 26 }; /* below the bits that encode the kind of handle */

static int rounds;
static MPI_Request requests[REQUESTS];
static pthread_barrier_t posted, completed;

static void *complete(void *unused) {
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&posted);
        MPI_Waitall(REQUESTS, requests, MPI_STATUSES_IGNORE);
        pthread_barrier_wait(&completed);
    }
    return unused;
}

int main(int argc, char **argv) {
    int provided, in[REQUESTS];
    unsigned highest = 0;
    pthread_t other;
    rounds = argc > 1 ? atoi(argv[1]) : 1000;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    pthread_barrier_init(&posted, NULL, 2);
    pthread_barrier_init(&completed, NULL, 2);
    pthread_create(&other, NULL, complete, NULL);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < REQUESTS; i++) {
            MPI_Irecv(&in[i], 1, MPI_INT, 0, i, MPI_COMM_SELF, &requests[i]);
            unsigned number = (unsigned)requests[i] & ((1u << KIND_BITS) - 1);
            if (number > highest) highest = number;
        }
        for (int i = 0; i < REQUESTS; i++) MPI_Send(&i, 1, MPI_INT, 0, i, MPI_COMM_SELF);
        pthread_barrier_wait(&posted);
        pthread_barrier_wait(&completed);
        for (int i = 0; i < REQUESTS; i++)
            if (requests[i] != MPI_REQUEST_NULL || in[i] != i) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    pthread_join(other, NULL);
    printf("highest %u\n", highest);
    MPI_Finalize();
    return 0;
}
