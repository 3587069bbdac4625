/* Point-to-point: every kind of send and every way to receive, each with int and with big counts. Messages are sent
 * before the checkpoint and received after two restarts, received before they are sent, or matched before and received
 * after; sendrecv crosses the checkpoint. See checkpointed.h and four_ranks.h.
 *
 * A message of kind k and form f has the tag 10 * f + k, and k + 1 integers that identify its sender, so no message can
 * be mistaken for another.
 */
#include "../four_ranks.h"

#include <stdbool.h>

/* The kinds below UNRECEIVED don't wait for the receiver. */
typedef enum { SEND, BSEND, IBSEND, ISEND, ISSEND, SSEND, RSEND, IRSEND, KINDS, UNRECEIVED = SSEND } kind_t;
enum { MANY = KINDS + 1 };

typedef enum { RECV, IRECV, PROBED, MRECV, IMRECV, WAYS } way_t;

static int tag_of(int big, kind_t kind) { return 10 * big + (int)kind; }

static void message(int *data, int big, kind_t kind, int sender) {
    for (int i = 0; i < MANY; i++) data[i] = i > (int)kind ? -1 : 1000 * sender + 100 * big + 10 * (int)kind + i;
}

static MPI_Request send(int big, kind_t kind, const int *data, int to, MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    int n = (int)kind + 1, tag = tag_of(big, kind), rc = -1;
    switch (kind) {
    case SEND: rc = FORM(big, MPI_Send, data, n, MPI_INT, to, tag, comm); break;
    case BSEND: rc = FORM(big, MPI_Bsend, data, n, MPI_INT, to, tag, comm); break;
    case IBSEND: rc = FORM(big, MPI_Ibsend, data, n, MPI_INT, to, tag, comm, &request); break;
    case ISEND: rc = FORM(big, MPI_Isend, data, n, MPI_INT, to, tag, comm, &request); break;
    case ISSEND: rc = FORM(big, MPI_Issend, data, n, MPI_INT, to, tag, comm, &request); break;
    case SSEND: rc = FORM(big, MPI_Ssend, data, n, MPI_INT, to, tag, comm); break;
    case RSEND: rc = FORM(big, MPI_Rsend, data, n, MPI_INT, to, tag, comm); break;
    case IRSEND: rc = FORM(big, MPI_Irsend, data, n, MPI_INT, to, tag, comm, &request); break;
    case KINDS: break;
    }
    CHECK(rc == MPI_SUCCESS);
    return request;
}

/* A message that was found but not received. */
static MPI_Message matched(way_t way, int from, int tag, MPI_Comm comm, MPI_Status *status) {
    MPI_Message found = MPI_MESSAGE_NULL;
    int flag = way == MRECV;
    if (flag) CHECK(!MPI_Mprobe(from, tag, comm, &found, status));
    while (!flag) CHECK(!MPI_Improbe(from, tag, comm, &flag, &found, status));
    CHECK(found != MPI_MESSAGE_NULL && found != MPI_MESSAGE_NO_PROC);
    return found;
}

static void matches(const MPI_Status *status, int big, kind_t kind, int sender) {
    int n = -1;
    MPI_Get_count(status, MPI_INT, &n);
    CHECK(status->MPI_SOURCE == sender && status->MPI_TAG == tag_of(big, kind) && n == (int)kind + 1);
}

static void arrived(const int *data, const MPI_Status *status, int big, kind_t kind, int sender) {
    int expected[MANY];
    message(expected, big, kind, sender);
    CHECK(!memcmp(data, expected, sizeof expected));
    matches(status, big, kind, sender);
}

static void receive(int big, way_t way, kind_t kind, int sender, MPI_Comm comm) {
    int data[MANY], tag = tag_of(big, kind), from = sender;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Message found = MPI_MESSAGE_NULL;
    MPI_Status status, probed;
    memset(data, -1, sizeof data);
    if (way == MRECV || way == IMRECV) found = matched(way, from, tag, comm, &probed);
    if (way == PROBED) {
        CHECK(!MPI_Probe(MPI_ANY_SOURCE, tag, comm, &probed));
        from = probed.MPI_SOURCE;
    }
    switch (way) {
    case RECV:
    case PROBED: CHECK(!FORM(big, MPI_Recv, data, MANY, MPI_INT, from, tag, comm, &status)); break;
    case IRECV: CHECK(!FORM(big, MPI_Irecv, data, MANY, MPI_INT, from, tag, comm, &request)); break;
    case MRECV: CHECK(!FORM(big, MPI_Mrecv, data, MANY, MPI_INT, &found, &status)); break;
    case IMRECV: CHECK(!FORM(big, MPI_Imrecv, data, MANY, MPI_INT, &found, &request)); break;
    case WAYS: break;
    }
    if (way == IRECV || way == IMRECV) CHECK(request != MPI_REQUEST_NULL && !MPI_Wait(&request, &status));
    if (way >= PROBED) matches(&probed, big, kind, sender);
    CHECK(found == MPI_MESSAGE_NULL);
    arrived(data, &status, big, kind, sender);
}

/* For each form, and for each kind less than `end`. */
#define EACH(big, kind, end)          \
    for (int big = 0; big < COUNT_FORMS; big++) \
        for (kind_t kind = 0; kind < (end); kind++)

/* ---- sent before, received after: over all ranks every kind of send meets every way to receive ---- */

static int outgoing[2][KINDS][MANY];
static MPI_Request sends[2][KINDS];
static char buffer[20000];

static void unreceived_set_up(void) {
    lenient_set_up();
    MPI_Buffer_attach(buffer, sizeof buffer);
    EACH(big, kind, KINDS) message(outgoing[big][kind], big, kind, rank);
    EACH(big, kind, UNRECEIVED) sends[big][kind] = send(big, kind, outgoing[big][kind], right, MPI_COMM_WORLD);
}

static void unreceived_check(void) {
    int flag = true;
    MPI_Test(&sends[0][ISSEND], &flag, MPI_STATUS_IGNORE);
    CHECK(!flag); /* no rank receives before the barrier */
    MPI_Barrier(MPI_COMM_WORLD);
    EACH(big, kind, UNRECEIVED) {
        MPI_Iprobe(left, tag_of(big, SSEND), MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
        receive(big, (way_t)(((int)kind + rank + big) % WAYS), kind, left, MPI_COMM_WORLD);
    }
    EACH(big, kind, UNRECEIVED) {
        CHECK((sends[big][kind] != MPI_REQUEST_NULL) == (kind == IBSEND || kind == ISEND || kind == ISSEND));
        CHECK(!MPI_Wait(&sends[big][kind], MPI_STATUS_IGNORE));
    }
}

/* ---- received before, sent after, by every kind of send; half of the receives use wildcards ---- */

static int incoming[2][KINDS][MANY];
static MPI_Request receives[2][KINDS];
static MPI_Comm own[2];

static void posted_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &own[0]);
    MPI_Comm_dup(MPI_COMM_WORLD, &own[1]);
    memset(incoming, -1, sizeof incoming);
    EACH(big, kind, KINDS) {
        int *data = incoming[big][kind], from = kind % 2 ? MPI_ANY_SOURCE : left,
            tag = kind % 3 ? tag_of(big, kind) : MPI_ANY_TAG;
        CHECK(!FORM(big, MPI_Irecv, data, MANY, MPI_INT, from, tag, own[big], &receives[big][kind]));
    }
}

static void posted_check(void) {
    MPI_Status status;
    MPI_Barrier(MPI_COMM_WORLD); /* the receivers are ready */
    EACH(big, kind, KINDS) sends[big][kind] = send(big, kind, outgoing[big][kind], right, own[big]);
    EACH(big, kind, KINDS) {
        CHECK(!MPI_Wait(&receives[big][kind], &status));
        arrived(incoming[big][kind], &status, big, kind, left);
        CHECK(!MPI_Wait(&sends[big][kind], MPI_STATUS_IGNORE));
    }
    MPI_Comm_free(&own[0]);
    MPI_Comm_free(&own[1]);
}

/* ---- matched before, received after; and matched by a receive that was started, not completed ---- */

static struct {
    MPI_Message found;
    MPI_Status probed;
    MPI_Request receive, send;
    int data[MANY];
} halves[2][UNRECEIVED];
static MPI_Comm private;

static void matched_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &private);
    EACH(big, kind, UNRECEIVED) halves[big][kind].send = send(big, kind, outgoing[big][kind], right, private);
    EACH(big, kind, UNRECEIVED) {
        halves[big][kind].found =
            matched(kind % 2 ? MRECV : IMRECV, left, tag_of(big, kind), private, &halves[big][kind].probed);
        halves[big][kind].receive = MPI_REQUEST_NULL;
        memset(halves[big][kind].data, -1, sizeof halves[big][kind].data);
        if (kind == IBSEND || kind == ISSEND)
            CHECK(!FORM(big, MPI_Imrecv, halves[big][kind].data, MANY, MPI_INT, &halves[big][kind].found,
                        &halves[big][kind].receive));
    }
}

static void matched_check(void) {
    int flag = true;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, private, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag); /* none can be matched twice */
    EACH(big, kind, UNRECEIVED) {
        MPI_Status status;
        matches(&halves[big][kind].probed, big, kind, left);
        if (halves[big][kind].receive != MPI_REQUEST_NULL) CHECK(!MPI_Wait(&halves[big][kind].receive, &status));
        else CHECK(!FORM(big, MPI_Mrecv, halves[big][kind].data, MANY, MPI_INT, &halves[big][kind].found, &status));
        CHECK(halves[big][kind].found == MPI_MESSAGE_NULL);
        arrived(halves[big][kind].data, &status, big, kind, left);
    }
    EACH(big, kind, UNRECEIVED) CHECK(!MPI_Wait(&halves[big][kind].send, MPI_STATUS_IGNORE));
    MPI_Comm_free(&private);
}

/* ---- sendrecv: ranks 0 and 2 start before, their partners 1 and 3 after; then around the ring ---- */

enum { SEPARATE = 50, REPLACING = 60, COMPLETED = 70, LONG = 50000 }; /* tags; ints: too many for an eager send */

static struct { MPI_Request requests[2]; int mine, got, replaced[LONG]; } exchanges[2];

static void sendrecv_set_up(void) {
    int partner = rank ^ 1, one = rank, other = -1;
    /* completed before the checkpoint: their sources are known although MPICH doesn't set their status */
    for (int i = 0; i < 100; i++) {
        MPI_Request done;
        CHECK(!MPI_Isendrecv(&one, 1, MPI_INT, 0, COMPLETED, &other, 1, MPI_INT, MPI_ANY_SOURCE, COMPLETED,
                             MPI_COMM_SELF, &done));
        CHECK(!MPI_Wait(&done, MPI_STATUS_IGNORE) && other == rank);
        CHECK(!MPI_Isendrecv_replace(&other, 1, MPI_INT, right, COMPLETED, left, COMPLETED, MPI_COMM_WORLD, &done));
        CHECK(!MPI_Wait(&done, MPI_STATUS_IGNORE) && other == left);
    }
    for (int big = 0; big < COUNT_FORMS; big++) {
        exchanges[big].mine = 10 * rank + big, exchanges[big].got = -1;
        for (int i = 0; i < LONG; i++) exchanges[big].replaced[i] = LONG * rank + i + big;
        if (rank % 2) continue;
        CHECK(!FORM(big, MPI_Isendrecv, &exchanges[big].mine, 1, MPI_INT, partner, SEPARATE + big, &exchanges[big].got,
                    1, MPI_INT, MPI_ANY_SOURCE, SEPARATE + big, MPI_COMM_WORLD, &exchanges[big].requests[0]));
        CHECK(!FORM(big, MPI_Isendrecv_replace, exchanges[big].replaced, LONG, MPI_INT, partner, REPLACING + big,
                    partner, REPLACING + big, MPI_COMM_WORLD, &exchanges[big].requests[1]));
    }
}

static void sendrecv_check(void) {
    int partner = rank ^ 1, n, wrong = 0;
    MPI_Status status[2];
    for (int big = 0; big < COUNT_FORMS; big++) {
        if (rank % 2) {
            CHECK(!FORM(big, MPI_Sendrecv_replace, exchanges[big].replaced, LONG, MPI_INT, partner, REPLACING + big,
                        partner, REPLACING + big, MPI_COMM_WORLD, &status[1]));
            CHECK(!FORM(big, MPI_Sendrecv, &exchanges[big].mine, 1, MPI_INT, partner, SEPARATE + big,
                        &exchanges[big].got, 1, MPI_INT, partner, SEPARATE + big, MPI_COMM_WORLD, &status[0]));
            MPI_Get_count(&status[1], MPI_INT, &n);
            CHECK(n == LONG && status[1].MPI_SOURCE == partner && status[1].MPI_TAG == REPLACING + big);
            CHECK(status[0].MPI_SOURCE == partner && status[0].MPI_TAG == SEPARATE + big);
        } else {
            CHECK(!MPI_Waitall(2, exchanges[big].requests, MPI_STATUSES_IGNORE)); /* MPICH doesn't set them */
        }
        CHECK(exchanges[big].got == 10 * partner + big);
        for (int i = 0; i < LONG; i++) wrong += exchanges[big].replaced[i] != LONG * partner + i + big;

        int mine = rank, got = -1, replaced = 100 + rank;
        MPI_Request ring[2];
        CHECK(!FORM(big, MPI_Sendrecv, &mine, 1, MPI_INT, right, 1, &got, 1, MPI_INT, left, 1, MPI_COMM_WORLD, status));
        CHECK(got == left && status->MPI_SOURCE == left);
        CHECK(!FORM(big, MPI_Sendrecv_replace, &replaced, 1, MPI_INT, right, 2, left, 2, MPI_COMM_WORLD, status));
        CHECK(replaced == 100 + left && status->MPI_TAG == 2);
        CHECK(!FORM(big, MPI_Isendrecv, &mine, 1, MPI_INT, left, 3, &got, 1, MPI_INT, right, 3, MPI_COMM_WORLD,
                    &ring[0]));
        CHECK(!FORM(big, MPI_Isendrecv_replace, &replaced, 1, MPI_INT, left, 4, right, 4, MPI_COMM_WORLD, &ring[1]));
        /* the rank's own data come back */
        CHECK(!MPI_Waitall(2, ring, status) && got == right && replaced == 100 + rank);
    }
    CHECK(wrong == 0);
}

/* ---- messages that are longer than the buffer into which they are received ---- */

enum { ROOM = 4, LENGTHS = 3, TRUNCATED_WAYS = 3 };
static const int lengths[LENGTHS] = {ROOM + 1, 2000, 100000}; /* inline, eager, by rendezvous */
static int too_long[100000];
static MPI_Request long_sends[LENGTHS][TRUNCATED_WAYS];
static MPI_Comm returning;

static void truncated_set_up(void) {
    for (int i = 0; i < lengths[LENGTHS - 1]; i++) too_long[i] = rank + i;
    MPI_Comm_dup(MPI_COMM_WORLD, &returning);
    MPI_Comm_set_errhandler(returning, MPI_ERRORS_RETURN);
    for (int i = 0; i < LENGTHS; i++)
        for (int way = 0; way < TRUNCATED_WAYS; way++)
            MPI_Isend(too_long, lengths[i], MPI_INT, right, 10 * i + way, returning, &long_sends[i][way]);
}

/* way: MPI_Recv, MPI_Irecv, MPI_Mrecv */
static int receive_truncated(int *data, int tag, int way) {
    MPI_Request request;
    MPI_Message matched_one;
    if (way == 0) return MPI_Recv(data, ROOM, MPI_INT, left, tag, returning, MPI_STATUS_IGNORE);
    if (way == 1) {
        MPI_Irecv(data, ROOM, MPI_INT, left, tag, returning, &request);
        return MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Mprobe(left, tag, returning, &matched_one, MPI_STATUS_IGNORE);
    return MPI_Mrecv(data, ROOM, MPI_INT, &matched_one, MPI_STATUS_IGNORE);
}

static void truncated_check(void) {
    for (int i = 0; i < LENGTHS; i++)
        for (int way = 0; way < TRUNCATED_WAYS; way++) {
            int data[2 * ROOM] = {0};
            CHECK(class_of(receive_truncated(data, 10 * i + way, way)) == MPI_ERR_TRUNCATE);
            for (int k = 0; k < ROOM; k++) CHECK(data[k] == left + k && data[ROOM + k] == 0);
        }
    for (int i = 0; i < LENGTHS; i++) MPI_Waitall(TRUNCATED_WAYS, long_sends[i], MPI_STATUSES_IGNORE);
    MPI_Comm_free(&returning);
}

/* ---- MPI_PROC_NULL, and calls that are refused ---- */

static MPI_Message nobody;

static void refused_set_up(void) {
    MPI_Status status;
    MPI_Mprobe(MPI_PROC_NULL, 5, MPI_COMM_WORLD, &nobody, &status);
    CHECK(nobody == MPI_MESSAGE_NO_PROC && status.MPI_SOURCE == MPI_PROC_NULL);
}

#define REFUSED(error, name, ...) CHECK(class_of(FORM(big, name, __VA_ARGS__)) == (error))

/* One of several receives that are waited for together fails before the others' messages have come. As in MPICH,
 * Waitall waits for all, and reports errors up to the first failure. */
static void one_of_several_fails(void) {
    enum { N = 4 };
    int data[2] = {rank, rank}, go = 0, got[N];
    for (int wrong = 0; wrong < N; wrong++) {
        MPI_Request r[N];
        MPI_Status s[N];
        for (int i = 0; i < N; i++) MPI_Irecv(&got[i], 1, MPI_INT, left, 30 + i, lenient, &r[i]);
        /* All are posted. */
        MPI_Sendrecv(&go, 1, MPI_INT, left, 29, &go, 1, MPI_INT, right, 29, lenient, MPI_STATUS_IGNORE);
        MPI_Send(data, 2, MPI_INT, right, 30 + wrong, lenient);
        usleep(rank % 2 ? 1000 : 4000); /* every second rank waits while only the failing message has come */
        for (int i = 0; i < N; i++)
            if (i != wrong) MPI_Send(data, 1, MPI_INT, right, 30 + i, lenient);
        CHECK(MPI_Waitall(N, r, s) == MPI_ERR_IN_STATUS);
        for (int i = 0; i < wrong; i++) {
            CHECK(r[i] == MPI_REQUEST_NULL && s[i].MPI_ERROR == MPI_SUCCESS);
            CHECK(s[i].MPI_TAG == 30 + i && got[i] == left);
        }
        CHECK(r[wrong] == MPI_REQUEST_NULL && class_of(s[wrong].MPI_ERROR) == MPI_ERR_TRUNCATE);
        for (int i = wrong + 1; i < N; i++) {
            CHECK(s[i].MPI_ERROR == MPI_ERR_PENDING && r[i] != MPI_REQUEST_NULL);
            CHECK(!MPI_Wait(&r[i], &s[i]) && got[i] == left);
        }
    }
}

/* With an invalid send they receive nothing. */
static void refused_exchanges(int big) {
    int one = rank, got = -1, flag;
    MPI_Status status;
    MPI_Request request;
    MPI_Isend(&one, 1, MPI_INT, rank, 9, lenient, &request);
    MPI_Probe(rank, 9, lenient, &status);
    REFUSED(MPI_ERR_RANK, MPI_Sendrecv, &one, 1, MPI_INT, RANKS, 9, &got, 1, MPI_INT, rank, 9, lenient, &status);
    REFUSED(MPI_ERR_TAG, MPI_Sendrecv, &one, 1, MPI_INT, rank, -5, &got, 1, MPI_INT, rank, 9, lenient, &status);
    REFUSED(MPI_ERR_TYPE, MPI_Sendrecv, &one, 1, MPI_DATATYPE_NULL, rank, 9, &got, 1, MPI_INT, rank, 9, lenient,
            &status);
    REFUSED(MPI_ERR_RANK, MPI_Sendrecv_replace, &got, 1, MPI_INT, RANKS, 9, rank, 9, lenient, &status);
    MPI_Iprobe(rank, 9, lenient, &flag, &status);
    CHECK(flag && got == -1);
    if (flag) MPI_Recv(&got, 1, MPI_INT, rank, 9, lenient, &status);
    MPI_Wait(&request, &status);
    CHECK(got == rank);
}

/* Their last 32 bits would be a count that is right. (Under Open MPI 4.1 they are no ints, as large counts.) */
static void very_negative_counts(void) {
#ifndef OPEN_MPI
    const MPI_Count count = -0xffffffffl;
    int one = rank;
    MPI_Status status;
    MPI_Request request;
    if (is_open_mpi()) return;
    CHECK(class_of(MPI_Send_c(&one, count, MPI_INT, MPI_PROC_NULL, 0, lenient)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Issend_c(&one, count, MPI_INT, MPI_PROC_NULL, 0, lenient, &request)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Recv_c(&one, count, MPI_INT, MPI_PROC_NULL, 0, lenient, &status)) == MPI_ERR_COUNT);
#endif
}

static void refused_check(void) {
    int data[2] = {rank, -1}, flag, n;
    MPI_Status status;
    MPI_Request request;
    CHECK(!MPI_Mrecv(data, 1, MPI_INT, &nobody, &status) && nobody == MPI_MESSAGE_NULL &&
          status.MPI_SOURCE == MPI_PROC_NULL && data[0] == rank);
    CHECK(!MPI_Improbe(MPI_PROC_NULL, 5, lenient, &flag, &nobody, &status) && flag && nobody == MPI_MESSAGE_NO_PROC);
    CHECK(!MPI_Imrecv(data, 1, MPI_INT, &nobody, &request) && !MPI_Wait(&request, &status) &&
          status.MPI_TAG == MPI_ANY_TAG);
    for (int big = 0; big < COUNT_FORMS; big++) {
        CHECK(!FORM(big, MPI_Ssend, data, 1, MPI_INT, MPI_PROC_NULL, 0, lenient));
        REFUSED(MPI_ERR_RANK, MPI_Send, data, 1, MPI_INT, RANKS, 0, lenient);
        REFUSED(MPI_ERR_RANK, MPI_Recv, data, 1, MPI_INT, RANKS, 0, lenient, &status);
        REFUSED(MPI_ERR_TAG, MPI_Ssend, data, 1, MPI_INT, 0, -5, lenient);
        REFUSED(MPI_ERR_TAG, MPI_Rsend, data, 1, MPI_INT, 0, MPI_ANY_TAG, lenient);
        REFUSED(MPI_ERR_COUNT, MPI_Isend, data, -1, MPI_INT, 0, 0, lenient, &request);
        REFUSED(MPI_ERR_TYPE, MPI_Irecv, data, 1, MPI_DATATYPE_NULL, 0, 0, lenient, &request);
        REFUSED(MPI_ERR_COMM, MPI_Irsend, data, 1, MPI_INT, 0, 0, MPI_COMM_NULL, &request);
        REFUSED(MPI_ERR_RANK, MPI_Sendrecv_replace, data, 1, MPI_INT, left, 0, RANKS, 0, lenient, &status);
        REFUSED(MPI_ERR_RANK, MPI_Isendrecv, data, 1, MPI_INT, RANKS, 0, data, 1, MPI_INT, left, 0, lenient, &request);
        REFUSED(MPI_ERR_REQUEST, MPI_Mrecv, data, 1, MPI_INT, &(MPI_Message){MPI_MESSAGE_NULL}, &status);
        refused_exchanges(big);
        CHECK(!FORM(big, MPI_Send, data, 2, MPI_INT, right, 8, lenient));
        REFUSED(MPI_ERR_TRUNCATE, MPI_Recv, &n, 1, MPI_INT, left, 8, lenient, &status);
    }
    one_of_several_fails();
    very_negative_counts();
    CHECK(class_of(MPI_Mprobe(RANKS, 0, lenient, &nobody, &status)) == MPI_ERR_RANK);
    void *detached;
    MPI_Buffer_detach(&detached, &n);
    CHECK(detached == buffer && n == sizeof buffer);
    MPI_Comm_free(&lenient);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(unreceived), STATE(posted),    STATE(matched),
                                     STATE(sendrecv),   STATE(truncated), STATE(refused)};
    return run_four_ranks(argc, argv, states, sizeof states / sizeof *states);
}
