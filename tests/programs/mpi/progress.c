/* While a rank waits for a generalized request, or for a partitioned send that isn't ready, its other messages go on: a
 * thread that calls no MPI function until then waits until the other rank has received them. Each rank prints "ok".
 *
 *     progress FILE      FILE-N is made when the messages of case N have been received
 */
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MESSAGES = 64, LENGTH = 1 << 16 }; /* ints: more than the network takes at once */

static const char *file;
static int data[MESSAGES][LENGTH];

static void name_of(int number, char *name, size_t n) { snprintf(name, n, "%s-%d", file, number); }

static int query(void *unused, MPI_Status *status) {
    (void)unused;
    MPI_Status_set_elements(status, MPI_INT, 0);
    MPI_Status_set_cancelled(status, 0);
    return MPI_SUCCESS;
}
static int nothing(void *unused) { return unused != NULL; }
static int cancel(void *unused, int complete) { return unused != NULL && complete; }

typedef struct { int number; MPI_Request request; } case_t;

static void *finish(void *argument) {
    const case_t *c = argument;
    char name[4096];
    name_of(c->number, name, sizeof name);
    while (access(name, F_OK) != 0) usleep(1000);
    if (c->number < 2)
        MPI_Grequest_complete(c->request);
    else
        MPI_Pready(0, c->request);
    return NULL;
}

/* Case 0: Wait for a generalized request. 1: Test. 2: Wait for a partitioned send. */
static void run(int number, int rank) {
    MPI_Request requests[MESSAGES];
    case_t c = {.number = number};
    pthread_t thread;
    int one = number, flag = 0;
    char name[4096];
    if (rank == 0) {
        for (int i = 0; i < MESSAGES; i++) MPI_Isend(data[i], LENGTH, MPI_INT, 1, i, MPI_COMM_WORLD, &requests[i]);
        if (number < 2) {
            MPI_Grequest_start(query, nothing, cancel, NULL, &c.request);
        } else {
            MPI_Psend_init(&one, 1, 1, MPI_INT, 1, 99, MPI_COMM_WORLD, MPI_INFO_NULL, &c.request);
            MPI_Start(&c.request);
        }
        pthread_create(&thread, NULL, finish, &c);
        if (number == 1)
            while (!flag) MPI_Test(&c.request, &flag, MPI_STATUS_IGNORE);
        else
            MPI_Wait(&c.request, MPI_STATUS_IGNORE);
        pthread_join(thread, NULL);
        MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
    } else {
        for (int i = 0; i < MESSAGES; i++) MPI_Recv(data[i], LENGTH, MPI_INT, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        name_of(number, name, sizeof name);
        close(open(name, O_CREAT | O_WRONLY, 0600));
        if (number == 2) {
            MPI_Precv_init(&one, 1, 1, MPI_INT, 0, 99, MPI_COMM_WORLD, MPI_INFO_NULL, &c.request);
            MPI_Start(&c.request);
            MPI_Wait(&c.request, MPI_STATUS_IGNORE);
        }
    }
    if (number == 2) MPI_Request_free(&c.request);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int provided, rank;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
    file = argv[1];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int number = 0; number < 3; number++) run(number, rank);
    puts("ok");
    MPI_Finalize();
    return 0;
}
