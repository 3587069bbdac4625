/* Persistent collectives: every X_init, started before and after; see four_ranks.h.
 *
 *     STATE_GO=FILE mpirun -n 4 manapy-launch surface_persistent_collectives [STATE...]
 */
#include "../four_ranks.h"

enum { INTS = 16, TESTS = 50 };

/* ---- every function ---- */

typedef struct test {
    int in[INTS], out[INTS], round;
    MPI_Request request;
    void (*verify)(const struct test *t);
} test_t;

/* What rank r has at in[i] in a round. */
static int value(int r, int i, int round) { return 1000 * round + 100 * r + i; }

static void start(test_t *t) {
    t->round++;
    for (int i = 0; i < INTS; i++) t->in[i] = value(rank, i, t->round), t->out[i] = -1;
    CHECK(MPI_Start(&t->request) == MPI_SUCCESS);
}

static void finish(test_t *t) {
    MPI_Request before = t->request;
    int flag = 0;
    if (t->round % 2)
        while (!flag) MPI_Test(&t->request, &flag, MPI_STATUS_IGNORE);
    else
        MPI_Wait(&t->request, MPI_STATUS_IGNORE);
    CHECK(t->request == before);
    t->verify(t);
}

/* n ints from rank r, from in[from] on, lie at out[at] */
static int came(const test_t *t, int r, int from, int at, int n) {
    for (int j = 0; j < n; j++)
        if (t->out[at + j] != value(r, from + j, t->round)) return 0;
    return 1;
}
static int summed(const test_t *t, int ranks, int from, int n) {
    for (int j = 0; j < n; j++) {
        int sum = 0;
        for (int r = 0; r < ranks; r++) sum += value(r, from + j, t->round);
        if (t->out[j] != sum) return 0;
    }
    return t->out[n] == -1;
}

static const int counts[RANKS] = {1, 2, 1, 2}, at[RANKS] = {0, 3, 6, 9};
static const MPI_Count counts_c[RANKS] = {1, 2, 1, 2};
static const MPI_Aint at_c[RANKS] = {0, 3, 6, 9};

static void check_barrier(const test_t *t) { (void)t; }
static void check_bcast(const test_t *t) {
    CHECK(rank == 1 ? t->out[0] == -1 : came(t, 1, 0, 0, 3) && t->out[3] == -1);
}
static void check_allgather(const test_t *t) {
    for (int r = 0; r < RANKS; r++) CHECK(came(t, r, 0, 2 * r, 2));
}
static void check_allgatherv(const test_t *t) {
    for (int r = 0; r < RANKS; r++) CHECK(came(t, r, 0, at[r], counts[r]));
    CHECK(t->out[1] == -1 && t->out[5] == -1);
}
static void check_alltoall(const test_t *t) {
    for (int r = 0; r < RANKS; r++) CHECK(came(t, r, 2 * rank, 2 * r, 2));
}
static void check_alltoallv(const test_t *t) {
    for (int r = 0; r < RANKS; r++) CHECK(came(t, r, 3 * rank, 4 * r, 1 + (r + rank) % 2) && t->out[4 * r + 2] == -1);
}
static void check_allreduce(const test_t *t) { CHECK(summed(t, RANKS, 0, 3)); }
static void check_scan(const test_t *t) { CHECK(summed(t, rank + 1, 0, 3)); }
static void check_exscan(const test_t *t) { CHECK(rank == 0 ? t->out[0] == -1 : summed(t, rank, 0, 3)); }
static void check_reduce(const test_t *t) { CHECK(rank == 3 ? summed(t, RANKS, 0, 3) : t->out[0] == -1); }
static void check_reduce_scatter(const test_t *t) {
    CHECK(summed(t, RANKS, (const int[]){0, 1, 3, 4}[rank], counts[rank]));
}
static void check_reduce_scatter_block(const test_t *t) { CHECK(summed(t, RANKS, 2 * rank, 2)); }
static void check_gather(const test_t *t) {
    if (rank == 2) check_allgather(t);
    else CHECK(t->out[0] == -1);
}
static void check_gatherv(const test_t *t) {
    if (rank == 1) check_allgatherv(t);
    else CHECK(t->out[0] == -1);
}
static void check_scatter(const test_t *t) { CHECK(came(t, 0, 2 * rank, 0, 2) && t->out[2] == -1); }
static void check_scatterv(const test_t *t) { CHECK(came(t, 2, at[rank], 0, counts[rank]) && t->out[2] == -1); }
/* A ring: neighbour 0 is to the left, 1 to the right; what the left one sends to its right comes from the left. */
static void check_neighbor_allgather(const test_t *t) { CHECK(came(t, left, 0, 0, 2) && came(t, right, 0, 2, 2)); }
static void check_neighbor_allgatherv(const test_t *t) {
    CHECK(came(t, left, 0, 1, 2) && came(t, right, 0, 5, 2) && t->out[3] == -1);
}
static void check_neighbor_alltoall(const test_t *t) { CHECK(came(t, left, 2, 0, 2) && came(t, right, 0, 2, 2)); }
static void check_neighbor_alltoallv(const test_t *t) {
    CHECK(came(t, left, 6, 3, 2) && came(t, right, 4, 9, 1) && t->out[10] == -1);
}

static test_t small[TESTS], big[TESTS];
static int nsmall, nbig;
static MPI_Comm ring;

static test_t *add(test_t *tests, int *n, void (*verify)(const test_t *)) {
    test_t *t = &tests[(*n)++];
    t->verify = verify;
    return t;
}
#define ADD(TESTS, CHECKS, CALL)                                \
    do {                                                        \
        test_t *t = add(TESTS, &n##TESTS, check_##CHECKS);      \
        int *in = t->in, *out = t->out;                         \
        MPI_Request *request = &t->request;                     \
        (void)in, (void)out;                                    \
        CHECK(CALL == MPI_SUCCESS);                             \
    } while (0)

/* Arrays and types are gone after the calls: they live on in the requests. */
static void make_small(MPI_Comm comm, MPI_Datatype pair, MPI_Info info) {
    int some[RANKS], to[RANKS], from[RANKS], one[RANKS] = {1, 1, 1, 1}, to_bytes[RANKS], from_bytes[RANKS];
    int ring_counts[2] = {1, 2}, ring_at[2] = {4, 6}, ring_from[2] = {2, 1}, ring_from_at[2] = {3, 9}, twos[2] = {2, 2},
        ring_gather[2] = {1, 5};
    MPI_Aint ring_bytes[2] = {16, 24}, ring_from_bytes[2] = {12, 36};
    MPI_Datatype types[RANKS], ring_types[2] = {MPI_INT, pair}, ring_from_types[2] = {pair, MPI_INT};
    for (int r = 0; r < RANKS; r++) {
        some[r] = 1 + (r + rank) % 2, to[r] = 3 * r, from[r] = 4 * r;
        to_bytes[r] = 4 * to[r], from_bytes[r] = 4 * from[r], types[r] = some[r] == 2 ? pair : MPI_INT;
    }
    ADD(small, allgather, MPI_Allgather_init(in, 2, MPI_INT, out, 2, MPI_INT, comm, info, request));
    ADD(small, allgatherv,
        MPI_Allgatherv_init(in, counts[rank], MPI_INT, out, counts, at, MPI_INT, comm, info, request));
    ADD(small, allreduce, MPI_Allreduce_init(in, out, 3, MPI_INT, MPI_SUM, comm, info, request));
    ADD(small, alltoall, MPI_Alltoall_init(in, 1, pair, out, 2, MPI_INT, comm, info, request));
    ADD(small, alltoallv, MPI_Alltoallv_init(in, some, to, MPI_INT, out, some, from, MPI_INT, comm, info, request));
    ADD(small, alltoallv,
        MPI_Alltoallw_init(in, one, to_bytes, types, out, one, from_bytes, types, comm, info, request));
    ADD(small, barrier, MPI_Barrier_init(comm, info, request));
    ADD(small, bcast, MPI_Bcast_init(rank == 1 ? in : out, 3, MPI_INT, 1, comm, info, request));
    ADD(small, exscan, MPI_Exscan_init(in, out, 3, MPI_INT, MPI_SUM, comm, info, request));
    ADD(small, gather, MPI_Gather_init(in, 2, MPI_INT, out, 1, pair, 2, comm, info, request));
    ADD(small, gatherv,
        MPI_Gatherv_init(in, counts[rank], MPI_INT, out, rank == 1 ? counts : NULL, rank == 1 ? at : NULL, MPI_INT, 1,
                         comm, info, request));
    ADD(small, neighbor_allgather, MPI_Neighbor_allgather_init(in, 2, MPI_INT, out, 2, MPI_INT, ring, info, request));
    ADD(small, neighbor_allgatherv,
        MPI_Neighbor_allgatherv_init(in, 2, MPI_INT, out, twos, ring_gather, MPI_INT, ring, info, request));
    ADD(small, neighbor_alltoall, MPI_Neighbor_alltoall_init(in, 2, MPI_INT, out, 2, MPI_INT, ring, info, request));
    ADD(small, neighbor_alltoallv,
        MPI_Neighbor_alltoallv_init(in, ring_counts, ring_at, MPI_INT, out, ring_from, ring_from_at, MPI_INT, ring,
                                    info, request));
    ADD(small, neighbor_alltoallv,
        MPI_Neighbor_alltoallw_init(in, one, ring_bytes, ring_types, out, one, ring_from_bytes, ring_from_types, ring,
                                    info, request));
    ADD(small, reduce, MPI_Reduce_init(in, out, 3, MPI_INT, MPI_SUM, 3, comm, info, request));
    ADD(small, reduce_scatter, MPI_Reduce_scatter_init(in, out, counts, MPI_INT, MPI_SUM, comm, info, request));
    ADD(small, reduce_scatter_block, MPI_Reduce_scatter_block_init(in, out, 2, MPI_INT, MPI_SUM, comm, info, request));
    ADD(small, scan, MPI_Scan_init(in, out, 3, MPI_INT, MPI_SUM, comm, info, request));
    ADD(small, scatter, MPI_Scatter_init(in, 2, MPI_INT, out, 2, MPI_INT, 0, comm, info, request));
    ADD(small, scatterv,
        MPI_Scatterv_init(in, rank == 2 ? counts : NULL, rank == 2 ? at : NULL, MPI_INT, out, counts[rank], MPI_INT, 2,
                          comm, info, request));
    memset(some, 77, sizeof some), memset(to, 77, sizeof to), memset(from, 77, sizeof from),
        memset(types, 77, sizeof types);
}

static void make_big(MPI_Comm comm, MPI_Datatype pair, MPI_Info info) {
    MPI_Count some[RANKS], one[RANKS] = {1, 1, 1, 1};
    MPI_Aint to[RANKS], from[RANKS], to_bytes[RANKS], from_bytes[RANKS];
    MPI_Count ring_counts[2] = {1, 2}, ring_from[2] = {2, 1}, twos[2] = {2, 2};
    MPI_Aint ring_at[2] = {4, 6}, ring_from_at[2] = {3, 9}, ring_gather[2] = {1, 5}, ring_bytes[2] = {16, 24},
             ring_from_bytes[2] = {12, 36};
    MPI_Datatype types[RANKS], ring_types[2] = {MPI_INT, pair}, ring_from_types[2] = {pair, MPI_INT};
    for (int r = 0; r < RANKS; r++) {
        some[r] = 1 + (r + rank) % 2, to[r] = 3 * r, from[r] = 4 * r;
        to_bytes[r] = 4 * to[r], from_bytes[r] = 4 * from[r], types[r] = some[r] == 2 ? pair : MPI_INT;
    }
    ADD(big, allgather, MPI_Allgather_init_c(in, 2, MPI_INT, out, 2, MPI_INT, comm, info, request));
    ADD(big, allgatherv,
        MPI_Allgatherv_init_c(in, counts[rank], MPI_INT, out, counts_c, at_c, MPI_INT, comm, info, request));
    ADD(big, allreduce, MPI_Allreduce_init_c(in, out, 3, MPI_INT, MPI_SUM, comm, info, request));
    ADD(big, alltoall, MPI_Alltoall_init_c(in, 1, pair, out, 2, MPI_INT, comm, info, request));
    ADD(big, alltoallv, MPI_Alltoallv_init_c(in, some, to, MPI_INT, out, some, from, MPI_INT, comm, info, request));
    ADD(big, alltoallv,
        MPI_Alltoallw_init_c(in, one, to_bytes, types, out, one, from_bytes, types, comm, info, request));
    ADD(big, bcast, MPI_Bcast_init_c(rank == 1 ? in : out, 3, MPI_INT, 1, comm, info, request));
    ADD(big, exscan, MPI_Exscan_init_c(in, out, 3, MPI_INT, MPI_SUM, comm, info, request));
    ADD(big, gather, MPI_Gather_init_c(in, 2, MPI_INT, out, 1, pair, 2, comm, info, request));
    ADD(big, gatherv,
        MPI_Gatherv_init_c(in, counts[rank], MPI_INT, out, rank == 1 ? counts_c : NULL, rank == 1 ? at_c : NULL,
                           MPI_INT, 1, comm, info, request));
    ADD(big, neighbor_allgather, MPI_Neighbor_allgather_init_c(in, 2, MPI_INT, out, 2, MPI_INT, ring, info, request));
    ADD(big, neighbor_allgatherv,
        MPI_Neighbor_allgatherv_init_c(in, 2, MPI_INT, out, twos, ring_gather, MPI_INT, ring, info, request));
    ADD(big, neighbor_alltoall, MPI_Neighbor_alltoall_init_c(in, 2, MPI_INT, out, 2, MPI_INT, ring, info, request));
    ADD(big, neighbor_alltoallv,
        MPI_Neighbor_alltoallv_init_c(in, ring_counts, ring_at, MPI_INT, out, ring_from, ring_from_at, MPI_INT, ring,
                                      info, request));
    ADD(big, neighbor_alltoallv,
        MPI_Neighbor_alltoallw_init_c(in, one, ring_bytes, ring_types, out, one, ring_from_bytes, ring_from_types, ring,
                                      info, request));
    ADD(big, reduce, MPI_Reduce_init_c(in, out, 3, MPI_INT, MPI_SUM, 3, comm, info, request));
    ADD(big, reduce_scatter, MPI_Reduce_scatter_init_c(in, out, counts_c, MPI_INT, MPI_SUM, comm, info, request));
    ADD(big, reduce_scatter_block, MPI_Reduce_scatter_block_init_c(in, out, 2, MPI_INT, MPI_SUM, comm, info, request));
    ADD(big, scan, MPI_Scan_init_c(in, out, 3, MPI_INT, MPI_SUM, comm, info, request));
    ADD(big, scatter, MPI_Scatter_init_c(in, 2, MPI_INT, out, 2, MPI_INT, 0, comm, info, request));
    ADD(big, scatterv,
        MPI_Scatterv_init_c(in, rank == 2 ? counts_c : NULL, rank == 2 ? at_c : NULL, MPI_INT, out, counts[rank],
                            MPI_INT, 2, comm, info, request));
    memset(some, 77, sizeof some), memset(to, 77, sizeof to), memset(from, 77, sizeof from),
        memset(types, 77, sizeof types);
}

/* All started in another order on each rank, then all finished. */
static void run(test_t *tests, int n) {
    for (int i = 0; i < n; i++) start(&tests[(i + rank) % n]);
    for (int i = 0; i < n; i++) finish(&tests[i]);
}

static MPI_Comm everybody;

static void every_function_set_up(void) {
    int dims[1] = {RANKS}, periods[1] = {1};
    MPI_Datatype pair;
    MPI_Info info;
    MPI_Comm_dup(MPI_COMM_WORLD, &everybody);
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &ring);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    MPI_Info_create(&info);
    MPI_Info_set(info, "manapy_test", "1");
    make_small(everybody, pair, info);
    make_big(everybody, pair, MPI_INFO_NULL);
    MPI_Type_free(&pair);
    MPI_Info_free(&info);
    run(small, nsmall);
    run(big, nbig);
    for (int i = 0; i < nsmall; i++) start(&small[i]); /* active over the checkpoint */
}

static void every_function_check(void) {
    for (int i = 0; i < nsmall; i++) finish(&small[(i + 5) % nsmall]);
    for (int round = 0; round < 3; round++) {
        run(small, nsmall);
        run(big, nbig);
    }
    for (int i = 0; i < nsmall; i++) {
        MPI_Request_free(&small[i].request);
        CHECK(small[i].request == MPI_REQUEST_NULL);
    }
    for (int i = 0; i < nbig; i++) MPI_Request_free(&big[i].request);
    MPI_Comm_free(&ring);
    MPI_Comm_free(&everybody);
}

/* ---- a barrier does wait ---- */

static MPI_Request barrier;

static void barriers_set_up(void) { MPI_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &barrier); }

static void barriers_check(void) {
    int flag, token = 0;
    if (rank > 0) {
        MPI_Start(&barrier);
        MPI_Test(&barrier, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag);
        MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    } else {
        for (int r = 1; r < size; r++) MPI_Recv(&token, 1, MPI_INT, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Start(&barrier);
    }
    MPI_Wait(&barrier, MPI_STATUS_IGNORE);
    MPI_Request_free(&barrier);
}

/* ---- MPI_IN_PLACE ---- */

static int gathered[2 * RANKS], exchanged[RANKS], total[2];
static MPI_Request in_place[3];

static void in_place_start(void) {
    for (int r = 0; r < RANKS; r++)
        gathered[2 * r] = gathered[2 * r + 1] = r == rank ? rank + 1 : -1, exchanged[r] = 10 * rank + r;
    total[0] = rank, total[1] = 1;
    CHECK(MPI_Startall(3, in_place) == MPI_SUCCESS);
}
static void in_place_finish(void) {
    CHECK(MPI_Waitall(3, in_place, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    for (int r = 0; r < RANKS; r++) CHECK(gathered[2 * r + 1] == r + 1 && exchanged[r] == 10 * r + rank);
    CHECK(total[0] == 6 && total[1] == RANKS);
}
static void in_place_set_up(void) {
    int ones[RANKS] = {1, 1, 1, 1}, at_bytes[RANKS] = {0, 4, 8, 12};
    MPI_Datatype types[RANKS] = {MPI_INT, MPI_INT, MPI_INT, MPI_INT};
    MPI_Allgather_init(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, gathered, 2, MPI_INT, MPI_COMM_WORLD, MPI_INFO_NULL,
                       &in_place[0]);
    MPI_Alltoallw_init(MPI_IN_PLACE, NULL, NULL, NULL, exchanged, ones, at_bytes, types, MPI_COMM_WORLD, MPI_INFO_NULL,
                       &in_place[1]);
    MPI_Allreduce_init(MPI_IN_PLACE, total, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &in_place[2]);
    in_place_start();
}
static void in_place_check(void) {
    in_place_finish();
    in_place_start();
    in_place_finish();
    for (int i = 0; i < 3; i++) MPI_Request_free(&in_place[i]);
}

/* ---- starts that cross on congruent communicators ---- */

static MPI_Comm twins[2];
static MPI_Request crossed[4];
static int sums[4], one = 1;

static void crossed_start(void) {
    for (int i = 0; i < 4; i++) MPI_Start(&crossed[rank % 2 ? i : 3 - i]);
}
static void crossed_finish(void) {
    int index;
    for (int i = 0; i < 4; i++) {
        MPI_Waitany(4, crossed, &index, MPI_STATUS_IGNORE);
        CHECK(index >= 0 && index < 4 && sums[index] == size);
        sums[index] = -1;
    }
    MPI_Waitany(4, crossed, &index, MPI_STATUS_IGNORE);
    CHECK(index == MPI_UNDEFINED); /* inactive ones are left out */
}
static void crossed_set_up(void) {
    for (int i = 0; i < 2; i++) MPI_Comm_dup(MPI_COMM_WORLD, &twins[i]);
    for (int i = 0; i < 4; i++)
        MPI_Allreduce_init(&one, &sums[i], 1, MPI_INT, MPI_SUM, twins[i / 2], MPI_INFO_NULL, &crossed[i]);
    crossed_start();
}
static void crossed_check(void) {
    crossed_finish();
    for (int i = 0; i < 20; i++) crossed_start(), crossed_finish();
    for (int i = 0; i < 4; i++) MPI_Request_free(&crossed[i]);
    for (int i = 0; i < 2; i++) MPI_Comm_free(&twins[i]);
}

/* ---- freed by some members only; more than one agreement about the freed ones ---- */

enum { MANY = 600 };
static MPI_Comm busy;
static MPI_Request mine[3];
static int letters[3], kept = 3;

static void freed_set_up(void) {
    MPI_Request passing;
    MPI_Comm_dup(MPI_COMM_WORLD, &busy);
    for (int i = 0; i < 3; i++) MPI_Bcast_init(&letters[i], 1, MPI_INT, i, busy, MPI_INFO_NULL, &mine[i]);
    for (int i = 0; i < MANY; i++) {
        int sum = 0;
        MPI_Allreduce_init(&one, &sum, 1, MPI_INT, MPI_SUM, busy, MPI_INFO_NULL, &passing);
        if (i % 100 == 0) {
            MPI_Start(&passing);
            MPI_Wait(&passing, MPI_STATUS_IGNORE);
            CHECK(sum == size);
        }
        MPI_Request_free(&passing);
    }
    if (rank % 2) MPI_Request_free(&mine[--kept]);
}
static void freed_check(void) {
    for (int i = 0; i < 2; i++) {
        letters[i] = rank;
        MPI_Start(&mine[i]);
        MPI_Wait(&mine[i], MPI_STATUS_IGNORE);
        CHECK(letters[i] == i);
    }
    while (kept > 0) MPI_Request_free(&mine[--kept]);
    MPI_Comm_free(&busy);
}

/* ---- inter-communicators ---- */

static MPI_Comm half, between;
static MPI_Request inter[4];
static int from_peers[4], to_peers[4], letter, scattered[2], pieces[4];

static void inter_start(void) {
    for (int i = 0; i < 4; i++) to_peers[i] = 10 * rank + i, from_peers[i] = pieces[i] = -1;
    letter = rank == 0 ? 77 : -1;
    for (int i = 0; i < 4; i++) MPI_Start(&inter[i]);
}
static void inter_finish(void) { /* even ranks are one group, odd ranks the other */
    MPI_Waitall(4, inter, MPI_STATUSES_IGNORE);
    int other = 1 - rank % 2;
    CHECK(from_peers[0] == 10 * other && from_peers[1] == 10 * (other + 2));
    CHECK(letter == (rank % 2 || rank == 0 ? 77 : -1));
    int my = rank / 2, first = my * (rank % 2 ? 1 : 2); /* of the sum over the other group's vectors */
    for (int j = 0; j < (rank % 2 ? (my ? 2 : 1) : (my ? 1 : 2)); j++)
        CHECK(scattered[j] == 10 * other + 10 * (other + 2) + 2 * (first + j));
    for (int r = 0; r < 2; r++) CHECK(pieces[2 * r] == 10 * (2 * r + other) + my);
}
static void inter_set_up(void) {
    int even[2] = {2, 1}, odd[2] = {1, 2}, ones[2] = {1, 1}, to[2] = {0, 1}, from[2] = {0, 2};
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &between);
    MPI_Allgather_init(to_peers, 1, MPI_INT, from_peers, 1, MPI_INT, between, MPI_INFO_NULL, &inter[0]);
    MPI_Bcast_init(&letter, 1, MPI_INT,
                   rank % 2    ? 0
                   : rank == 0 ? MPI_ROOT
                               : MPI_PROC_NULL,
                   between, MPI_INFO_NULL, &inter[1]);
    MPI_Reduce_scatter_init(to_peers, scattered, rank % 2 ? odd : even, MPI_INT, MPI_SUM, between, MPI_INFO_NULL,
                            &inter[2]);
    MPI_Alltoallv_init(to_peers, ones, to, MPI_INT, pieces, ones, from, MPI_INT, between, MPI_INFO_NULL, &inter[3]);
    inter_start();
}
static void inter_check(void) {
    inter_finish();
    inter_start();
    inter_finish();
    for (int i = 0; i < 4; i++) MPI_Request_free(&inter[i]);
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
}

/* ---- wrong arguments ---- */

static void wrong_set_up(void) {
    lenient_set_up();
}

static void wrong_check(void) {
    int a = 0, b = 0, none[RANKS] = {0, 0, 0, -1};
    MPI_Request r = MPI_REQUEST_NULL, active;
    MPI_Comm freed;
    MPI_Comm_dup(MPI_COMM_WORLD, &freed);
    MPI_Comm copy = freed;
    MPI_Comm_free(&freed);
    CHECK(class_of(MPI_Barrier_init(MPI_COMM_NULL, MPI_INFO_NULL, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Bcast_init(&a, 1, MPI_INT, 0, copy, MPI_INFO_NULL, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Bcast_init(&a, -1, MPI_INT, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Bcast_init(&a, 1, MPI_DATATYPE_NULL, 0, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Bcast_init(&a, 1, MPI_INT, RANKS, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_ROOT);
    CHECK(class_of(MPI_Allreduce_init(&a, &b, 1, MPI_INT, MPI_OP_NULL, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_OP);
    CHECK_IN_MPICH(class_of(MPI_Allreduce_init(&a, &a, 1, MPI_INT, MPI_SUM, lenient, MPI_INFO_NULL, &r)) ==
                   MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Reduce_scatter_init(&a, &b, none, MPI_INT, MPI_SUM, lenient, MPI_INFO_NULL, &r)) ==
          MPI_ERR_COUNT);
    CHECK_IN_MPICH(class_of(MPI_Neighbor_allgather_init(&a, 1, MPI_INT, &b, 1, MPI_INT, lenient, MPI_INFO_NULL, &r)) ==
                   MPI_ERR_TOPOLOGY);
    CHECK(class_of(MPI_Start(&r)) == MPI_ERR_REQUEST);
    CHECK(MPI_Barrier_init(lenient, MPI_INFO_NULL, &active) == MPI_SUCCESS);
    CHECK(MPI_Start(&active) == MPI_SUCCESS);
    MPI_Wait(&active, MPI_STATUS_IGNORE);
    MPI_Wait(&active, MPI_STATUS_IGNORE); /* inactive: at once */
    MPI_Request_free(&active);
    MPI_Comm_free(&lenient);
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(every_function), STATE(barriers), STATE(in_place), STATE(crossed),
        STATE(freed),          STATE(inter),    STATE(wrong),
    };
    return run_four_ranks(argc, argv, states, sizeof states / sizeof *states);
}
