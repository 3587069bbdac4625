/* Nonblocking collectives: started, the job is checkpointed, killed and restarted, completed by every kind of call. See
 * checkpointed.h. */
#include "../../mpi_states.h"

enum { RANKS = 4, MANY = 24 };

static int total; /* sum of rank + 1 over the ranks */

/* ---- one of each, with the small and the big counts ---- */

typedef struct {
    MPI_Request r[MANY];
    int n;
    int mine, vector[RANKS * 2]; /* what is sent: rank + 1; and 100 * rank + i */
    int gathered[RANKS], gathered_v[RANKS * 2], sum, crossed[RANKS], crossed_v[RANKS], crossed_w[RANKS], word, before,
        at_root[RANKS], at_root_v[RANKS * 2], root_sum, part, block, until, scattered, scattered_v[2];
    int counts[RANKS], twos[RANKS], at[RANKS], at_twos[RANKS], bytes_at[RANKS];
    MPI_Count big_counts[RANKS], big_twos[RANKS];
    MPI_Aint big_at[RANKS], big_at_twos[RANKS], big_bytes_at[RANKS];
    MPI_Datatype types[RANKS];
} one_of_each_t;

static void fill(one_of_each_t *o) {
    memset(o, 0xff, sizeof *o);
    o->n = 0;
    o->mine = rank + 1;
    o->word = rank == 1 ? 4711 : 0;
    for (int i = 0; i < RANKS; i++) {
        o->vector[2 * i] = 100 * rank + 2 * i, o->vector[2 * i + 1] = 100 * rank + 2 * i + 1;
        o->big_counts[i] = o->counts[i] = 1;
        o->big_twos[i] = o->twos[i] = 2;
        o->big_at[i] = o->at[i] = i;
        o->big_at_twos[i] = o->at_twos[i] = 2 * i;
        o->big_bytes_at[i] = o->bytes_at[i] = 4 * i;
        o->types[i] = MPI_INT;
    }
}

static void values(const one_of_each_t *o) {
    CHECK(o->sum == total && o->word == 4711 && o->until == (rank + 1) * (rank + 2) / 2);
    CHECK(o->before == (rank == 0 ? -1 : rank * (rank + 1) / 2));
    CHECK(o->root_sum == (rank == 2 ? total : -1));
    CHECK(o->part == size * (size - 1) / 2 * 100 + size * rank && o->block == o->part);
    CHECK(o->scattered == 300 + rank && o->scattered_v[0] == 2 * rank && o->scattered_v[1] == 2 * rank + 1);
    for (int i = 0; i < size; i++) {
        CHECK(o->gathered[i] == i + 1 && o->crossed[i] == 100 * i + rank && o->crossed_v[i] == o->crossed[i] &&
              o->crossed_w[i] == o->crossed[i]);
        CHECK(o->gathered_v[2 * i] == 100 * i && o->gathered_v[2 * i + 1] == 100 * i + 1);
        CHECK(o->at_root[i] == (rank == 0 ? i + 1 : -1) && o->at_root_v[2 * i + 1] == (rank == 3 ? 100 * i + 1 : -1));
    }
}

static one_of_each_t small, big;

static void small_set_up(void) {
    one_of_each_t *o = &small;
    MPI_Comm c = MPI_COMM_WORLD;
    fill(o);
    MPI_Ibarrier(c, &o->r[o->n++]);
    MPI_Iallgather(&o->mine, 1, MPI_INT, o->gathered, 1, MPI_INT, c, &o->r[o->n++]);
    MPI_Iallgatherv(o->vector, 2, MPI_INT, o->gathered_v, o->twos, o->at_twos, MPI_INT, c, &o->r[o->n++]);
    MPI_Iallreduce(&o->mine, &o->sum, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Ialltoall(o->vector, 1, MPI_INT, o->crossed, 1, MPI_INT, c, &o->r[o->n++]);
    MPI_Ialltoallv(o->vector, o->counts, o->at, MPI_INT, o->crossed_v, o->counts, o->at, MPI_INT, c, &o->r[o->n++]);
    MPI_Ialltoallw(o->vector, o->counts, o->bytes_at, o->types, o->crossed_w, o->counts, o->bytes_at, o->types, c,
                   &o->r[o->n++]);
    MPI_Ibcast(&o->word, 1, MPI_INT, 1, c, &o->r[o->n++]);
    MPI_Iexscan(&o->mine, &o->before, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Iscan(&o->mine, &o->until, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Igather(&o->mine, 1, MPI_INT, o->at_root, 1, MPI_INT, 0, c, &o->r[o->n++]);
    MPI_Igatherv(o->vector, 2, MPI_INT, o->at_root_v, o->twos, o->at_twos, MPI_INT, 3, c, &o->r[o->n++]);
    MPI_Ireduce(&o->mine, &o->root_sum, 1, MPI_INT, MPI_SUM, 2, c, &o->r[o->n++]);
    MPI_Ireduce_scatter(o->vector, &o->part, o->counts, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Ireduce_scatter_block(o->vector, &o->block, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Iscatter(o->vector, 1, MPI_INT, &o->scattered, 1, MPI_INT, 3, c, &o->r[o->n++]);
    MPI_Iscatterv(o->vector, o->twos, o->at_twos, MPI_INT, o->scattered_v, 2, MPI_INT, 0, c, &o->r[o->n++]);
    for (int i = 0; i < size; i++) CHECK(o->r[i] != MPI_REQUEST_NULL);
}

static void small_check(void) {
    CHECK(MPI_Waitall(small.n, small.r, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
    for (int i = 0; i < small.n; i++) CHECK(small.r[i] == MPI_REQUEST_NULL);
    values(&small);
    small_set_up(); /* and in the restarted job */
    MPI_Status statuses[MANY];
    CHECK(MPI_Waitall(small.n, small.r, statuses) == MPI_SUCCESS);
    values(&small);
}

static void big_set_up(void) {
    one_of_each_t *o = &big;
    MPI_Comm c = MPI_COMM_WORLD;
    fill(o);
    MPI_Iallgather_c(&o->mine, 1, MPI_INT, o->gathered, 1, MPI_INT, c, &o->r[o->n++]);
    MPI_Iallgatherv_c(o->vector, 2, MPI_INT, o->gathered_v, o->big_twos, o->big_at_twos, MPI_INT, c, &o->r[o->n++]);
    MPI_Iallreduce_c(&o->mine, &o->sum, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Ialltoall_c(o->vector, 1, MPI_INT, o->crossed, 1, MPI_INT, c, &o->r[o->n++]);
    MPI_Ialltoallv_c(o->vector, o->big_counts, o->big_at, MPI_INT, o->crossed_v, o->big_counts, o->big_at, MPI_INT, c,
                     &o->r[o->n++]);
    MPI_Ialltoallw_c(o->vector, o->big_counts, o->big_bytes_at, o->types, o->crossed_w, o->big_counts, o->big_bytes_at,
                     o->types, c, &o->r[o->n++]);
    MPI_Ibcast_c(&o->word, 1, MPI_INT, 1, c, &o->r[o->n++]);
    MPI_Iexscan_c(&o->mine, &o->before, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Iscan_c(&o->mine, &o->until, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Igather_c(&o->mine, 1, MPI_INT, o->at_root, 1, MPI_INT, 0, c, &o->r[o->n++]);
    MPI_Igatherv_c(o->vector, 2, MPI_INT, o->at_root_v, o->big_twos, o->big_at_twos, MPI_INT, 3, c, &o->r[o->n++]);
    MPI_Ireduce_c(&o->mine, &o->root_sum, 1, MPI_INT, MPI_SUM, 2, c, &o->r[o->n++]);
    MPI_Ireduce_scatter_c(o->vector, &o->part, o->big_counts, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Ireduce_scatter_block_c(o->vector, &o->block, 1, MPI_INT, MPI_SUM, c, &o->r[o->n++]);
    MPI_Iscatter_c(o->vector, 1, MPI_INT, &o->scattered, 1, MPI_INT, 3, c, &o->r[o->n++]);
    MPI_Iscatterv_c(o->vector, o->big_twos, o->big_at_twos, MPI_INT, o->scattered_v, 2, MPI_INT, 0, c, &o->r[o->n++]);
}

static void big_check(void) {
    for (int i = 0; i < big.n; i++) CHECK(MPI_Wait(&big.r[i], MPI_STATUS_IGNORE) == MPI_SUCCESS);
    values(&big);
}

/* ---- neighbourhoods: a ring, with two edges from each rank to the next and one to the one before ---- */

static MPI_Comm ring;
static int from[3], to[3]; /* ranks: sources and destinations */
static struct {
    MPI_Request r[10];
    int mine, out[3], gathered[2][3], gathered_v[2][3], crossed[2][3], crossed_v[2][3], crossed_w[2][3];
    int ones[3], at[3];
    MPI_Count big_ones[3];
    MPI_Aint big_at[3], bytes_at[3];
    MPI_Datatype types[3];
} near;

static void neighbours_set_up(void) {
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, n = 0;
    to[0] = to[1] = next, to[2] = previous;
    from[0] = from[1] = previous, from[2] = next;
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 3, from, MPI_UNWEIGHTED, 3, to, MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                   &ring);
    memset(&near, 0xff, sizeof near);
    near.mine = rank + 1;
    for (int i = 0; i < 3; i++) {
        near.out[i] = 10 * (rank + 1) + i;
        near.big_ones[i] = near.ones[i] = 1;
        near.big_at[i] = near.at[i] = i;
        near.bytes_at[i] = 4 * i;
        near.types[i] = MPI_INT;
    }
    MPI_Ineighbor_allgather(&near.mine, 1, MPI_INT, near.gathered[0], 1, MPI_INT, ring, &near.r[n++]);
    MPI_Ineighbor_allgather_c(&near.mine, 1, MPI_INT, near.gathered[1], 1, MPI_INT, ring, &near.r[n++]);
    MPI_Ineighbor_allgatherv(&near.mine, 1, MPI_INT, near.gathered_v[0], near.ones, near.at, MPI_INT, ring,
                             &near.r[n++]);
    MPI_Ineighbor_allgatherv_c(&near.mine, 1, MPI_INT, near.gathered_v[1], near.big_ones, near.big_at, MPI_INT, ring,
                               &near.r[n++]);
    MPI_Ineighbor_alltoall(near.out, 1, MPI_INT, near.crossed[0], 1, MPI_INT, ring, &near.r[n++]);
    MPI_Ineighbor_alltoall_c(near.out, 1, MPI_INT, near.crossed[1], 1, MPI_INT, ring, &near.r[n++]);
    MPI_Ineighbor_alltoallv(near.out, near.ones, near.at, MPI_INT, near.crossed_v[0], near.ones, near.at, MPI_INT, ring,
                            &near.r[n++]);
    MPI_Ineighbor_alltoallv_c(near.out, near.big_ones, near.big_at, MPI_INT, near.crossed_v[1], near.big_ones,
                              near.big_at, MPI_INT, ring, &near.r[n++]);
    MPI_Ineighbor_alltoallw(near.out, near.ones, near.bytes_at, near.types, near.crossed_w[0], near.ones, near.bytes_at,
                            near.types, ring, &near.r[n++]);
    MPI_Ineighbor_alltoallw_c(near.out, near.big_ones, near.bytes_at, near.types, near.crossed_w[1], near.big_ones,
                              near.bytes_at, near.types, ring, &near.r[n++]);
}

static void neighbours_check(void) {
    MPI_Waitall(10, near.r, MPI_STATUSES_IGNORE);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) {
            int expected = 10 * (from[i] + 1) + i;
            CHECK(near.gathered[k][i] == from[i] + 1 && near.gathered_v[k][i] == from[i] + 1);
            CHECK(near.crossed[k][i] == expected && near.crossed_v[k][i] == expected &&
                  near.crossed_w[k][i] == expected);
        }
    MPI_Comm_free(&ring);
}

/* ---- every way to complete one ---- */

static MPI_Request ways[MANY];
static int words[MANY];

static void completions_set_up(void) {
    for (int i = 0; i < MANY; i++) {
        words[i] = rank == i % size ? 1000 + i : 0;
        MPI_Ibcast(&words[i], 1, MPI_INT, i % size, MPI_COMM_WORLD, &ways[i]);
    }
}

static void completions_check(void) {
    int flag = 0, index, n, indices[MANY], done = 0, seen[MANY] = {0};
    MPI_Status status, statuses[MANY];
    MPI_Wait(&ways[0], &status);
    while (!flag) MPI_Test(&ways[1], &flag, MPI_STATUS_IGNORE);
    CHECK(ways[0] == MPI_REQUEST_NULL && ways[1] == MPI_REQUEST_NULL && words[0] == 1000 && words[1] == 1001);
    for (flag = 0; !flag;) MPI_Request_get_status(ways[2], &flag, &status);
    CHECK(ways[2] != MPI_REQUEST_NULL && words[2] == 1002);
    MPI_Waitany(4, ways, &index, &status);
    CHECK((index == 2 || index == 3) && ways[index] == MPI_REQUEST_NULL && words[index] == 1000 + index);
    for (flag = 0; !flag;) MPI_Testany(4, ways, &index, &flag, &status);
    CHECK((index == 2 || index == 3) && ways[index] == MPI_REQUEST_NULL && words[index] == 1000 + index);
    MPI_Testany(4, ways, &index, &flag, &status);
    CHECK(flag && index == MPI_UNDEFINED);
    for (flag = 0; !flag;) MPI_Testall(4, ways + 4, &flag, statuses);
    for (int i = 4; i < 8; i++) CHECK(ways[i] == MPI_REQUEST_NULL && words[i] == 1000 + i);
    while (done < 8) {
        if (done % 2) MPI_Waitsome(8, ways + 8, &n, indices, statuses);
        else MPI_Testsome(8, ways + 8, &n, indices, MPI_STATUSES_IGNORE);
        for (int k = 0; k < n; k++) {
            CHECK(!seen[indices[k]] && words[8 + indices[k]] == 1008 + indices[k]);
            seen[indices[k]] = 1;
            done++;
        }
    }
    MPI_Waitsome(8, ways + 8, &n, indices, statuses);
    CHECK(n == MPI_UNDEFINED);
    for (flag = 0; !flag;) MPI_Request_get_status_all(MANY - 16, ways + 16, &flag, statuses);
    MPI_Request_get_status_any(MANY - 16, ways + 16, &index, &flag, &status);
    CHECK(flag && index == 0);
    MPI_Request_get_status_some(MANY - 16, ways + 16, &n, indices, statuses);
    CHECK(n == MANY - 16);
    MPI_Waitall(MANY - 16, ways + 16, statuses);
    for (int i = 16; i < MANY; i++) CHECK(ways[i] == MPI_REQUEST_NULL && words[i] == 1000 + i);
}

/* ---- mixed with point-to-point; on communicators that go; with types that go; on congruent communicators crossed ----
 */

static MPI_Request mixed[8];
static int mixed_in[2], mixed_out, pairs[4], column[4], crossed_sum[2];
static MPI_Comm twins[2], part;

static void mixed_set_up(void) {
    MPI_Datatype pair, spaced;
    MPI_Comm gone;
    MPI_Comm_dup(MPI_COMM_WORLD, &gone);
    MPI_Comm_dup(MPI_COMM_WORLD, &twins[0]);
    MPI_Comm_dup(MPI_COMM_WORLD, &twins[1]);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &part);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_vector(2, 1, 2, MPI_INT, &spaced);
    MPI_Type_commit(&pair);
    MPI_Type_commit(&spaced);
    mixed_out = rank;
    mixed_in[0] = mixed_in[1] = -1;
    for (int i = 0; i < 4; i++) pairs[i] = rank == 0 ? i + 1 : 0, column[i] = rank == 0 ? i + 1 : 0;
    MPI_Irecv(&mixed_in[0], 1, MPI_INT, (rank + 1) % size, 5, MPI_COMM_WORLD, &mixed[0]);
    MPI_Irecv(&mixed_in[1], 1, MPI_INT, MPI_ANY_SOURCE, 6, MPI_COMM_WORLD, &mixed[1]); /* sent in check */
    MPI_Ibcast(pairs, 2, pair, 0, gone, &mixed[2]);
    MPI_Ibcast(column, 1, spaced, 0, MPI_COMM_WORLD, &mixed[3]);
    MPI_Isend(&mixed_out, 1, MPI_INT, (rank + size - 1) % size, 5, MPI_COMM_WORLD, &mixed[4]);
    for (int i = 0; i < 2; i++) { /* even ranks start them in one order, odd ones in the other */
        int k = i ^ (rank & 1);
        MPI_Iallreduce(&mixed_out, &crossed_sum[k], 1, MPI_INT, MPI_SUM, twins[k], &mixed[5 + k]);
    }
    MPI_Ibarrier(part, &mixed[7]);
    MPI_Type_free(&pair);
    MPI_Type_free(&spaced);
    MPI_Comm_free(&gone);
}

static void mixed_check(void) {
    MPI_Status statuses[8];
    int n;
    MPI_Send(&mixed_out, 1, MPI_INT, (rank + 1) % size, 6, MPI_COMM_WORLD);
    CHECK(MPI_Waitall(8, mixed, statuses) == MPI_SUCCESS);
    CHECK(mixed_in[0] == (rank + 1) % size && statuses[0].MPI_SOURCE == mixed_in[0] && statuses[0].MPI_TAG == 5);
    CHECK(mixed_in[1] == (rank + size - 1) % size && statuses[1].MPI_SOURCE == mixed_in[1]);
    MPI_Get_count(&statuses[1], MPI_INT, &n);
    CHECK(n == 1);
    CHECK(pairs[0] == 1 && pairs[3] == 4 && column[0] == 1 && column[1] == (rank == 0 ? 2 : 0) && column[2] == 3);
    CHECK(crossed_sum[0] == size * (size - 1) / 2 && crossed_sum[1] == crossed_sum[0]);
    MPI_Comm_free(&twins[0]);
    MPI_Comm_free(&twins[1]);
    MPI_Comm_free(&part);
}

/* ---- arrays of types, derived ones and MPI_IN_PLACE ---- */

static MPI_Request in_place[3];
static int all_in_place[4], sum_in_place, exchanged[2][8];

static void in_place_set_up(void) {
    static int counts[RANKS], bytes_at[RANKS];
    MPI_Datatype types[RANKS]; /* theirs may change when the call has completed, our translations live longer */
    static MPI_Datatype kept[RANKS];
    MPI_Type_contiguous(2, MPI_INT, &types[0]);
    MPI_Type_commit(&types[0]);
    for (int i = 0; i < size; i++)
        kept[i] = types[0], counts[i] = 1, bytes_at[i] = 8 * i, all_in_place[i] = i == rank ? i : -1;
    for (int i = 0; i < 2 * size; i++) exchanged[0][i] = 100 * rank + i;
    sum_in_place = rank + 1;
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all_in_place, 1, MPI_INT, MPI_COMM_WORLD, &in_place[0]);
    MPI_Iallreduce(MPI_IN_PLACE, &sum_in_place, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &in_place[1]);
    MPI_Ialltoallw(exchanged[0], counts, bytes_at, kept, exchanged[1], counts, bytes_at, kept, MPI_COMM_WORLD,
                   &in_place[2]);
    MPI_Type_free(&types[0]);
}

static void in_place_check(void) {
    for (int i = 0; i < 3; i++) MPI_Wait(&in_place[i], MPI_STATUS_IGNORE);
    CHECK(sum_in_place == total);
    for (int i = 0; i < size; i++)
        CHECK(all_in_place[i] == i && exchanged[1][2 * i] == 100 * i + 2 * rank &&
              exchanged[1][2 * i + 1] == 100 * i + 2 * rank + 1);
}

/* ---- wrong arguments, on all ranks alike ---- */

static void errors_set_up(void) {}

static void errors_check(void) {
    MPI_Request r = MPI_REQUEST_NULL, finished;
    MPI_Comm freed;
    int value = 0, counts[RANKS] = {1, 1, 1, 1};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Ibarrier(MPI_COMM_NULL, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Ibarrier((MPI_Comm)0x12345678, &r)) == MPI_ERR_COMM);
    MPI_Comm_dup(MPI_COMM_SELF, &freed);
    MPI_Comm stale = freed;
    MPI_Comm_free(&freed);
    CHECK(class_of(MPI_Ibarrier(stale, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Ibcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD, &r)) == MPI_ERR_ROOT);
    CHECK(class_of(MPI_Ibcast(&value, -1, MPI_INT, 0, MPI_COMM_WORLD, &r)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Ibcast(&value, 1, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD, &r)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Iallreduce(&value, counts, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD, &r)) == MPI_ERR_OP);
    CHECK(class_of(MPI_Iallreduce(&value, counts, 1, MPI_INT, (MPI_Op)0x12345678, MPI_COMM_WORLD, &r)) == MPI_ERR_OP);
    CHECK_IN_MPICH(class_of(MPI_Ineighbor_allgather(&value, 1, MPI_INT, counts, 1, MPI_INT, MPI_COMM_WORLD, &r)) ==
                   MPI_ERR_TOPOLOGY);
    CHECK(r == MPI_REQUEST_NULL);
    MPI_Ibarrier(MPI_COMM_WORLD, &r);
    finished = r;
    CHECK(class_of(MPI_Start(&finished)) == MPI_ERR_REQUEST); /* not a persistent one */
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    finished = (MPI_Request)0x12345678;
    CHECK(class_of(MPI_Wait(&finished, MPI_STATUS_IGNORE)) == MPI_ERR_REQUEST);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
}

static void set_up(void) { total = size * (size + 1) / 2; }

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(small), STATE(big), STATE(neighbours), STATE(completions), STATE(mixed), STATE(in_place), STATE(errors),
    };
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}
