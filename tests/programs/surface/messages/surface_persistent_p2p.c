/* Persistent point-to-point requests: made, started, completed, started again, with checkpoints and restarts between.
 * See checkpointed.h. */
#include "../../mpi_states.h"

enum { MODES = 8, BUFFER = 100000 };

static int next, previous;

/* A ring: each rank sends to the next in every mode, and receives from the previous one. The tags identify the mode. */
typedef struct {
    MPI_Request send[MODES], recv[MODES];
    int out[MODES], in[MODES];
} ring_t;

static void make(ring_t *ring, int base, int small) {
    MPI_Comm c = MPI_COMM_WORLD;
    for (int i = 0; i < MODES; i++) {
        ring->in[i] = -1;
        if (small)
            MPI_Recv_init(&ring->in[i], 1, MPI_INT, i % 2 ? MPI_ANY_SOURCE : previous, base + i, c, &ring->recv[i]);
        else MPI_Recv_init_c(&ring->in[i], 1, MPI_INT, i % 2 ? MPI_ANY_SOURCE : previous, base + i, c, &ring->recv[i]);
    }
    for (int i = 0; i < MODES; i += 4) {
        MPI_Request *s = &ring->send[i];
        int *out = &ring->out[i], tag = base + i;
        if (small) {
            MPI_Send_init(out, 1, MPI_INT, next, tag, c, s);
            MPI_Bsend_init(out + 1, 1, MPI_INT, next, tag + 1, c, s + 1);
            MPI_Ssend_init(out + 2, 1, MPI_INT, next, tag + 2, c, s + 2);
            MPI_Rsend_init(out + 3, 1, MPI_INT, next, tag + 3, c, s + 3);
        } else {
            MPI_Send_init_c(out, 1, MPI_INT, next, tag, c, s);
            MPI_Bsend_init_c(out + 1, 1, MPI_INT, next, tag + 1, c, s + 1);
            MPI_Ssend_init_c(out + 2, 1, MPI_INT, next, tag + 2, c, s + 2);
            MPI_Rsend_init_c(out + 3, 1, MPI_INT, next, tag + 3, c, s + 3);
        }
    }
}

static void start_sends(ring_t *ring, int round) {
    for (int i = 0; i < MODES; i++) ring->out[i] = 1000 * round + 100 * rank + i;
    CHECK(MPI_Startall(MODES, ring->send) == MPI_SUCCESS);
}

static void finish(ring_t *ring, int round, int base) {
    MPI_Request all[2 * MODES];
    MPI_Status statuses[2 * MODES];
    memcpy(all, ring->recv, sizeof ring->recv);
    memcpy(all + MODES, ring->send, sizeof ring->send);
    CHECK(MPI_Waitall(2 * MODES, all, statuses) == MPI_SUCCESS);
    CHECK(!memcmp(all, ring->recv, sizeof ring->recv) && !memcmp(all + MODES, ring->send, sizeof ring->send));
    for (int i = 0; i < MODES; i++) {
        int n;
        MPI_Get_count(&statuses[i], MPI_INT, &n);
        CHECK(ring->in[i] == 1000 * round + 100 * previous + i && n == 1 && statuses[i].MPI_SOURCE == previous &&
              statuses[i].MPI_TAG == base + i);
    }
}

static void end(ring_t *ring) {
    for (int i = 0; i < MODES; i++) {
        MPI_Request_free(&ring->send[i]);
        MPI_Request_free(&ring->recv[i]);
        CHECK(ring->send[i] == MPI_REQUEST_NULL && ring->recv[i] == MPI_REQUEST_NULL);
    }
}

static char buffer[BUFFER];

/* Everything in progress at the checkpoint. */
static ring_t active;

static void active_set_up(void) {
    make(&active, 100, 1);
    CHECK(MPI_Startall(MODES, active.recv) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD); /* ready sends need it */
    start_sends(&active, 1);
}

static void active_check(void) {
    finish(&active, 1, 100);
    MPI_Startall(MODES, active.recv);
    MPI_Barrier(MPI_COMM_WORLD);
    start_sends(&active, 2);
    finish(&active, 2, 100);
    end(&active);
}

/* Inactive at the checkpoint: never started, or completed once. */
static ring_t idle;

static void idle_set_up(void) {
    make(&idle, 200, 0);
    MPI_Startall(MODES, idle.recv);
    MPI_Barrier(MPI_COMM_WORLD);
    start_sends(&idle, 1);
    finish(&idle, 1, 200);
}

static void idle_check(void) {
    MPI_Status status;
    int flag = 0, index = 0, n = 0;
    memset(&status, 0x11, sizeof status);
    MPI_Test(&idle.recv[0], &flag, &status);
    CHECK(flag && idle.recv[0] != MPI_REQUEST_NULL && status.MPI_SOURCE == MPI_ANY_SOURCE &&
          status.MPI_TAG == MPI_ANY_TAG);
    MPI_Waitany(MODES, idle.recv, &index, &status);
    CHECK(index == MPI_UNDEFINED);
    MPI_Waitsome(MODES, idle.recv, &n, &index, MPI_STATUSES_IGNORE);
    CHECK(n == MPI_UNDEFINED);
    MPI_Request_get_status(idle.send[0], &flag, &status);
    CHECK(flag);
    for (int i = 0; i < MODES; i++) CHECK(MPI_Start(&idle.recv[i]) == MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    start_sends(&idle, 3);
    finish(&idle, 3, 200);
    end(&idle);
}

/* Sent before the checkpoint; receives are started after it. The messages come from the store, and a synchronous send
 * is told when its message is matched. Datatypes are freed when the requests have been made. */
static MPI_Request late_send[2], late_recv[2];
static int late_out[8], late_in[8];

static void late_set_up(void) {
    MPI_Datatype pair, spaced;
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_vector(2, 1, 2, MPI_INT, &spaced);
    MPI_Type_commit(&pair);
    MPI_Type_commit(&spaced);
    for (int i = 0; i < 8; i++) late_out[i] = 10 * rank + i, late_in[i] = -1;
    MPI_Send_init(late_out, 2, pair, next, 301, MPI_COMM_WORLD, &late_send[0]);
    MPI_Ssend_init(late_out + 4, 1, spaced, next, 302, MPI_COMM_WORLD, &late_send[1]);
    MPI_Recv_init(late_in, 2, pair, previous, 301, MPI_COMM_WORLD, &late_recv[0]);
    MPI_Recv_init(late_in + 4, 1, spaced, MPI_ANY_SOURCE, 302, MPI_COMM_WORLD, &late_recv[1]);
    MPI_Type_free(&pair);
    MPI_Type_free(&spaced);
    MPI_Startall(2, late_send);
}

static void late_check(void) {
    int index, flag = 1, seen = 0;
    MPI_Status status;
    pause_ms(50);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Test(&late_send[1], &flag, &status);
    CHECK(!flag); /* no receive has matched it */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Startall(2, late_recv);
    for (int i = 0; i < 2; i++) {
        MPI_Waitany(2, late_recv, &index, &status);
        CHECK(status.MPI_SOURCE == previous && status.MPI_TAG == 301 + index);
        seen |= 1 << index;
    }
    CHECK(seen == 3 && late_in[0] == 10 * previous && late_in[3] == 10 * previous + 3 &&
          late_in[4] == 10 * previous + 4);
    CHECK(late_in[5] == -1 && late_in[6] == 10 * previous + 6 && late_in[7] == -1);
    MPI_Waitall(2, late_send, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 2; i++) MPI_Request_free(&late_send[i]), MPI_Request_free(&late_recv[i]);
}

/* Cancelled, freed while active, MPI_PROC_NULL. Receives that were posted in order before the checkpoint match in that
 * order after it. */
static MPI_Request never, orphan, nobody, ordered[3];
static int orphan_in = -1, nothing, in_order[3];

static void ends_set_up(void) {
    MPI_Recv_init(&nothing, 1, MPI_INT, next, 401, MPI_COMM_WORLD, &never);
    MPI_Recv_init(&orphan_in, 1, MPI_INT, previous, 402, MPI_COMM_WORLD, &orphan);
    MPI_Recv_init(&nothing, 1, MPI_INT, MPI_PROC_NULL, 403, MPI_COMM_WORLD, &nobody);
    for (int i = 0; i < 3; i++)
        MPI_Recv_init(&in_order[i], 1, MPI_INT, MPI_ANY_SOURCE, i == 1 ? MPI_ANY_TAG : 404, MPI_COMM_SELF, &ordered[i]);
    MPI_Start(&never);
    MPI_Start(&orphan);
    MPI_Request_free(&orphan);
    CHECK(orphan == MPI_REQUEST_NULL);
    MPI_Start(&nobody);
    for (int i = 2; i >= 0; i--) MPI_Start(&ordered[i]); /* 2, 1, 0 */
}

static void ends_check(void) {
    MPI_Status status;
    int cancelled = 0, value = 70 + rank, flag;
    CHECK(MPI_Cancel(&never) == MPI_SUCCESS);
    MPI_Wait(&never, &status);
    MPI_Test_cancelled(&status, &cancelled);
    CHECK(cancelled && never != MPI_REQUEST_NULL);
    MPI_Start(&never);
    MPI_Cancel(&never);
    MPI_Wait(&never, MPI_STATUS_IGNORE);
    status = (MPI_Status){.MPI_SOURCE = 7, .MPI_TAG = 7, .MPI_ERROR = 7};
    MPI_Wait(&nobody, &status);
    /* as an inactive one */
    CHECK(status.MPI_SOURCE == MPI_ANY_SOURCE && status.MPI_TAG == MPI_ANY_TAG && status.MPI_ERROR == MPI_SUCCESS);
    MPI_Start(&nobody);
    MPI_Waitany(1, &nobody, &flag, &status);
    CHECK(flag == MPI_UNDEFINED && MPI_Start(&nobody) == MPI_SUCCESS);
    MPI_Waitsome(1, &nobody, &flag, (int[1]){0}, &status);
    CHECK(flag == MPI_UNDEFINED);
    MPI_Send(&value, 1, MPI_INT, next, 402, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double until = now() + 30;
    while (*(volatile int *)&orphan_in != 70 + previous && now() < until)
        MPI_Iprobe(previous, 499, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(orphan_in == 70 + previous);
    for (int i = 0; i < 3; i++) MPI_Send(&(int){i}, 1, MPI_INT, 0, 404, MPI_COMM_SELF);
    MPI_Waitall(3, ordered, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 3; i++) CHECK(in_order[i] == 2 - i);
    for (int i = 0; i < 3; i++) MPI_Request_free(&ordered[i]);
    MPI_Request_free(&never);
    MPI_Request_free(&nobody);
}

/* Wrong arguments. */
static void errors_set_up(void) {}

static void errors_check(void) {
    MPI_Request r = MPI_REQUEST_NULL, garbage = (MPI_Request)0x12345678, two[2];
    int x = 0;
    MPI_Comm c = MPI_COMM_WORLD;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Send_init(&x, 1, MPI_INT, size, 0, c, &r)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Bsend_init(&x, 1, MPI_INT, 0, -3, c, &r)) == MPI_ERR_TAG);
    CHECK(class_of(MPI_Ssend_init(&x, -1, MPI_INT, 0, 0, c, &r)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Rsend_init(&x, 1, MPI_DATATYPE_NULL, 0, 0, c, &r)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Recv_init(&x, 1, MPI_INT, 0, 0, MPI_COMM_NULL, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Recv_init(&x, 1, MPI_INT, 0, 0, (MPI_Comm)0x12345678, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Start(&r)) == MPI_ERR_REQUEST && class_of(MPI_Start(&garbage)) == MPI_ERR_REQUEST);
    MPI_Recv_init(&x, 1, MPI_INT, 0, 77, c, &r);
    CHECK(class_of(MPI_Cancel(&r)) == MPI_ERR_REQUEST);
    two[0] = r, two[1] = MPI_REQUEST_NULL;
    CHECK(class_of(MPI_Startall(2, two)) == MPI_ERR_REQUEST && class_of(MPI_Startall(-1, two)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Cancel(&r)) == MPI_ERR_REQUEST); /* still not started */
    MPI_Request_free(&r);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(active), STATE(idle), STATE(late), STATE(ends), STATE(errors)};
    MPI_Init(&argc, &argv);
    find_rank();
    next = (rank + 1) % size, previous = (rank + size - 1) % size;
    MPI_Buffer_attach(buffer, BUFFER);
    int result = run_states(argc, argv, states, sizeof states / sizeof *states);
    void *address;
    int n;
    MPI_Buffer_detach(&address, &n);
    MPI_Finalize();
    return result;
}
