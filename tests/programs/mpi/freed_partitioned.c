/* Partitioned requests that are freed while they are active. (Only manapy's sends finish before their receives have
 * started, and the buffer is the only sign that a freed receive has finished, so this is checked only under manapy.)
 * See mpi_states.h.
 *
 *     STATE_GO=FILE mpirun -n 2 manapy-launch freed_partitioned
 */
#include "../mpi_states.h"

enum { N = 1 << 18 }; /* more than the network takes at once */

static int peer;

/* Freeing a request looks after those that were freed before. */
static void look_after_freed(void) {
    MPI_Request request;
    MPI_Send_init(NULL, 0, MPI_INT, peer, 0, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
}

static void fill(int *data, int round) {
    for (int i = 0; i < N; i++) data[i] = round * N + i;
}
static int holds(const int *data, int round) {
    for (int i = 0; i < N; i++)
        if (data[i] != round * N + i) return 0;
    return 1;
}
static void make_send(int *data, int tag, MPI_Request *request) {
    MPI_Psend_init(data, 2, N / 2, MPI_INT, peer, tag, MPI_COMM_WORLD, MPI_INFO_NULL, request);
}
static void make_receive(int *data, int tag, MPI_Request *request) {
    MPI_Precv_init(data, 2, N / 2, MPI_INT, peer, tag, MPI_COMM_WORLD, MPI_INFO_NULL, request);
}
static void send_round(MPI_Request *request, int *data, int round) {
    fill(data, round);
    MPI_Start(request);
    MPI_Pready_range(0, 1, *request);
}

/* ---- receives: one is finished before the checkpoint, one after it ---- */

static int received[2][N];

static void receive_freed(int tag, int *data) {
    MPI_Request request;
    make_receive(data, tag, &request);
    MPI_Start(&request);
    CHECK(MPI_Request_free(&request) == MPI_SUCCESS && request == MPI_REQUEST_NULL);
}
static void send_to_freed(int tag, const int *into) {
    static int data[N];
    MPI_Request request;
    double until = now() + 30;
    look_after_freed(); /* nothing has arrived */
    make_send(data, tag, &request);
    MPI_Barrier(MPI_COMM_WORLD);
    send_round(&request, data, tag);
    while (!holds(into, tag) && now() < until) look_after_freed();
    CHECK(holds(into, tag));
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
    MPI_Barrier(MPI_COMM_WORLD);
}
static void receives_set_up(void) {
    peer = 1 - rank;
    for (int i = 0; i < 2; i++) receive_freed(1 + i, received[i]);
    send_to_freed(1, received[0]);
}
static void receives_check(void) { send_to_freed(2, received[1]); }

/* ---- sends: the last two messages are on their way when the request is freed ---- */

static int sent[N];

static void sends_set_up(void) {
    MPI_Request request;
    make_send(sent, 3, &request);
    for (int round = 1; round <= 2; round++) {
        send_round(&request, sent, round);
        if (round < 2) MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    CHECK(MPI_Request_free(&request) == MPI_SUCCESS);
    look_after_freed();
}
static void sends_check(void) {
    static int data[N];
    MPI_Request request;
    look_after_freed();
    make_receive(data, 3, &request);
    for (int round = 1; round <= 2; round++) {
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(holds(data, round));
    }
    MPI_Request_free(&request);
    MPI_Barrier(MPI_COMM_WORLD);
    look_after_freed();
}

/* ---- a receive for which nothing is ever sent ---- */

static int nothing[N];
static void unsent_set_up(void) { receive_freed(4, nothing); }
static void unsent_check(void) { look_after_freed(); }

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(receives), STATE(sends), STATE(unsent)};
    return run_mpi_states(argc, argv, NULL, states, sizeof states / sizeof *states);
}
