/* Partitioned communication, started before the checkpoint and finished after it; see four_ranks.h.
 *
 *     STATE_GO=FILE mpirun -n 4 manapy-launch surface_partitioned [STATE...]
 */
#include "../four_ranks.h"

enum { N = 24 };

static int value(int r, int i, int round) { return 10000 * round + 100 * r + i; }

static void parrived_all(MPI_Request request, int partitions) {
    for (int i = 0; i < partitions; i++) {
        int flag = 0;
        double until = now() + 30;
        while (!flag && now() < until) CHECK(MPI_Parrived(request, i, &flag) == MPI_SUCCESS);
        CHECK(flag);
    }
}

/* ---- a ring; the two sides divide the data differently; half of it is ready at the checkpoint ---- */

static int out[N], in[N], ring_round;
static MPI_Request ring[2];

static void ring_start(void) {
    ring_round++;
    for (int i = 0; i < N; i++) out[i] = in[i] = -1;
    CHECK(MPI_Startall(2, ring) == MPI_SUCCESS);
}
static void ring_ready(int first, int last) { /* of 8 partitions with 3 ints each */
    for (int i = 3 * first; i < 3 * (last + 1); i++) out[i] = value(rank, i, ring_round);
}
static void ring_first_half(void) {
    int list[2] = {6, 1};
    ring_start();
    ring_ready(3, 3);
    CHECK(MPI_Pready(3, ring[0]) == MPI_SUCCESS);
    ring_ready(6, 6), ring_ready(1, 1);
    CHECK(MPI_Pready_list(2, list, ring[0]) == MPI_SUCCESS);
}
static void ring_second_half(void) {
    MPI_Status statuses[2];
    int n, flag = 1;
    if (rank == 0) { /* nothing is complete before all is ready */
        MPI_Test(&ring[0], &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
    }
    ring_ready(4, 5);
    CHECK(MPI_Pready_range(4, 5, ring[0]) == MPI_SUCCESS);
    ring_ready(0, 0), ring_ready(2, 2), ring_ready(7, 7);
    MPI_Pready(0, ring[0]), MPI_Pready(2, ring[0]), MPI_Pready(7, ring[0]);
    if (ring_round % 2) parrived_all(ring[1], 2);
    CHECK(MPI_Waitall(2, ring, statuses) == MPI_SUCCESS);
    MPI_Get_count(&statuses[1], MPI_INT, &n);
    CHECK(n == N && statuses[1].MPI_SOURCE == left && statuses[1].MPI_TAG == 3);
    for (int i = 0; i < N; i++) CHECK(in[i] == value(left, i, ring_round));
    MPI_Parrived(ring[1], 1, &flag);
    CHECK(flag); /* inactive */
}

static void ring_set_up(void) {
    MPI_Psend_init(out, 8, 3, MPI_INT, right, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &ring[0]);
    MPI_Precv_init(in, 2, 12, MPI_INT, left, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &ring[1]);
    ring_first_half();
    ring_second_half();
    ring_first_half();
}
static void ring_check(void) {
    ring_second_half();
    for (int i = 0; i < 5; i++) ring_first_half(), ring_second_half();
    for (int i = 0; i < 2; i++) {
        MPI_Request_free(&ring[i]);
        CHECK(ring[i] == MPI_REQUEST_NULL);
    }
}

/* ---- two with the same source, destination and tag: matched in the order in which they were made, not started ---- */

static MPI_Comm twin;
static int pair_out[2], pair_in[2];
static MPI_Request pair_send[2], pair_receive[2];

static void pairs_start(int first) {
    for (int i = 0; i < 2; i++) pair_out[i] = value(rank, i, 7), pair_in[i] = -1;
    for (int i = 0; i < 2; i++) {
        int k = (first + i) % 2;
        MPI_Start(&pair_send[k]);
        MPI_Pready(0, pair_send[k]);
    }
}
static void pairs_finish(void) {
    CHECK(pair_in[0] == -1 && pair_in[1] == -1);
    MPI_Start(&pair_receive[0]);
    MPI_Wait(&pair_receive[0], MPI_STATUS_IGNORE);
    CHECK(pair_in[0] == value(left, 0, 7) && pair_in[1] == -1);
    MPI_Start(&pair_receive[1]);
    MPI_Wait(&pair_receive[1], MPI_STATUS_IGNORE);
    CHECK(pair_in[1] == value(left, 1, 7));
    MPI_Waitall(2, pair_send, MPI_STATUSES_IGNORE);
}
static void pairs_set_up(void) {
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &twin); /* ranks the other way round */
    for (int i = 0; i < 2; i++) {
        MPI_Psend_init(&pair_out[i], 1, 1, MPI_INT, RANKS - 1 - right, 0, twin, MPI_INFO_NULL, &pair_send[i]);
        MPI_Precv_init(&pair_in[i], 1, 1, MPI_INT, RANKS - 1 - left, 0, twin, MPI_INFO_NULL, &pair_receive[i]);
    }
    pairs_start(1); /* in flight at the checkpoint: no rank has started to receive */
}
static void pairs_check(void) {
    pairs_finish();
    pairs_start(0);
    pairs_finish();
    for (int i = 0; i < 2; i++) MPI_Request_free(&pair_send[i]), MPI_Request_free(&pair_receive[i]);
    MPI_Comm_free(&twin);
}

/* ---- many at the same time, all in progress before the first is received; received from the last to the first ---- */

enum { CROWD = 3000 };
static int crowd_out[CROWD], crowd_in[CROWD];
static MPI_Request crowd_send[CROWD], crowd_receive[CROWD];

static void crowd_start(int round) {
    for (int i = 0; i < CROWD; i++) {
        crowd_out[i] = value(rank, i % 90, round) + i, crowd_in[i] = -1;
        MPI_Start(&crowd_send[i]);
        MPI_Pready(0, crowd_send[i]);
    }
}
static void crowd_finish(int round) {
    int wrong = 0;
    for (int i = CROWD - 1; i >= 0; i--) {
        MPI_Start(&crowd_receive[i]);
        MPI_Wait(&crowd_receive[i], MPI_STATUS_IGNORE);
        wrong += crowd_in[i] != value(left, i % 90, round) + i;
    }
    MPI_Waitall(CROWD, crowd_send, MPI_STATUSES_IGNORE);
    CHECK(wrong == 0);
}
static void crowd_set_up(void) {
    for (int i = 0; i < CROWD; i++) { /* three for each tag */
        MPI_Psend_init(&crowd_out[i], 1, 1, MPI_INT, right, 20 + i / 3, MPI_COMM_WORLD, MPI_INFO_NULL, &crowd_send[i]);
        MPI_Precv_init(&crowd_in[i], 1, 1, MPI_INT, left, 20 + i / 3, MPI_COMM_WORLD, MPI_INFO_NULL, &crowd_receive[i]);
    }
    crowd_start(1);
}
static void crowd_check(void) {
    crowd_finish(1);
    crowd_start(2), crowd_finish(2);
    for (int i = 0; i < CROWD; i++) MPI_Request_free(&crowd_send[i]), MPI_Request_free(&crowd_receive[i]);
}

/* ---- much data of a type that is freed early ---- */

enum { MANY = 1 << 18 };
static int *big_out, *big_in;
static MPI_Request big[2];

static void big_start(int round) {
    for (int i = 0; i < 2 * MANY; i++) big_out[i] = value(rank, i % 90, round), big_in[i] = -1;
    MPI_Start(&big[1]);
    MPI_Start(&big[0]);
    MPI_Pready_range(0, 3, big[0]);
}
static void big_finish(int round) {
    int wrong = 0;
    MPI_Waitall(2, big, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 2 * MANY; i++) wrong += big_in[i] != (i % 2 ? -1 : value(left, i % 90, round));
    CHECK(wrong == 0);
}
static void big_set_up(void) {
    MPI_Datatype every_other, spaced;
    big_out = malloc(2 * MANY * sizeof(int)), big_in = malloc(2 * MANY * sizeof(int));
    MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &every_other);
    MPI_Type_contiguous(16, every_other, &spaced);
    MPI_Type_commit(&spaced);
    MPI_Psend_init(big_out, 4, MANY / 16 / 4, spaced, right, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &big[0]);
    MPI_Precv_init(big_in, 4, MANY / 16 / 4, spaced, left, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &big[1]);
    MPI_Type_free(&every_other);
    MPI_Type_free(&spaced);
    big_start(1);
}
static void big_check(void) {
    big_finish(1);
    for (int round = 2; round < 5; round++) big_start(round), big_finish(round);
    for (int i = 0; i < 2; i++) MPI_Request_free(&big[i]);
    free(big_out), free(big_in);
}

/* ---- wrong arguments ---- */

static MPI_Request wrong_send, wrong_receive;
static int one = 1;

static void wrong_set_up(void) {
    lenient_set_up();
    MPI_Psend_init(out, 4, 1, MPI_INT, right, 1, lenient, MPI_INFO_NULL, &wrong_send);
    MPI_Precv_init(in, 4, 1, MPI_INT, left, 1, lenient, MPI_INFO_NULL, &wrong_receive);
}

static void wrong_check(void) {
    int flag, list[2] = {0, 4};
    MPI_Request r = MPI_REQUEST_NULL;
    CHECK(class_of(MPI_Psend_init(&one, 1, 1, MPI_INT, 0, 0, MPI_COMM_NULL, MPI_INFO_NULL, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Psend_init(&one, 0, 1, MPI_INT, 0, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Psend_init(&one, 1, -1, MPI_INT, 0, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Psend_init(&one, 1, 1, MPI_DATATYPE_NULL, 0, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Psend_init(&one, 1, 1, MPI_INT, RANKS, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Psend_init(&one, 1, 1, MPI_INT, 0, -7, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_TAG);
    CHECK(class_of(MPI_Psend_init(NULL, 1, 1, MPI_INT, 0, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Psend_init(&one, 1, 1, MPI_INT, 0, 0, lenient, (MPI_Info)12345, &r)) == MPI_ERR_INFO);
    CHECK(class_of(MPI_Precv_init(&one, 1, 1, MPI_INT, MPI_ANY_SOURCE, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Precv_init(&one, 1, 1, MPI_INT, 0, MPI_ANY_TAG, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_TAG);
    CHECK(r == MPI_REQUEST_NULL);
    CHECK(class_of(MPI_Pready(0, wrong_send)) == MPI_ERR_REQUEST); /* inactive */
    CHECK(class_of(MPI_Pready(0, wrong_receive)) == MPI_ERR_REQUEST);
    CHECK(class_of(MPI_Parrived(wrong_send, 0, &flag)) == MPI_ERR_REQUEST);
    CHECK(class_of(MPI_Parrived(wrong_receive, 4, &flag)) == MPI_ERR_OTHER);
    MPI_Start(&wrong_send);
    MPI_Start(&wrong_receive);
    CHECK(class_of(MPI_Start(&wrong_send)) == MPI_ERR_REQUEST);
    CHECK(class_of(MPI_Pready(4, wrong_send)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Pready_range(2, 1, wrong_send)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Pready_range(-1, 1, wrong_send)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Pready_list(2, list, wrong_send)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Pready_list(-1, list, wrong_send)) == MPI_ERR_ARG);
    CHECK(MPI_Pready_range(0, 3, wrong_send) == MPI_SUCCESS);
    MPI_Wait(&wrong_send, MPI_STATUS_IGNORE);
    MPI_Wait(&wrong_receive, MPI_STATUS_IGNORE);
    MPI_Request_free(&wrong_send);
    MPI_Request_free(&wrong_receive);
    MPI_Comm_free(&lenient);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(ring), STATE(pairs), STATE(crowd), STATE(big), STATE(wrong)};
    return run_four_ranks(argc, argv, states, sizeof states / sizeof *states);
}
