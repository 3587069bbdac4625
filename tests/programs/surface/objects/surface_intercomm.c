/* Inter-communicators: their constructors, every collective on them, messages, and objects that are made of them. See
 * checkpointed.h and test_surface.py; 4 ranks. */
#include "../../mpi_states.h"

static int side;      /* 0 or 1: the half of the world to which a rank belongs */
static MPI_Comm half;  /* the ranks of one side: {0, 1} and {2, 3} */

/* Is it an inter-communicator between these world ranks, seen from one of `ours`? */
static int joins(MPI_Comm comm, int nours, const int *ours, int ntheirs, const int *theirs) {
    MPI_Group world, group;
    int inter, n, good = 1, members[4] = {0, 1, 2, 3}, ranks[4];
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Comm_test_inter(comm, &inter);
    MPI_Comm_size(comm, &n);
    good &= inter && n == nours;
    MPI_Comm_remote_size(comm, &n);
    good &= n == ntheirs;
    MPI_Comm_group(comm, &group);
    MPI_Group_translate_ranks(group, nours, members, world, ranks);
    for (int i = 0; i < nours; i++) good &= ranks[i] == ours[i];
    MPI_Group_free(&group);
    MPI_Comm_remote_group(comm, &group);
    MPI_Group_translate_ranks(group, ntheirs, members, world, ranks);
    for (int i = 0; i < ntheirs; i++) good &= ranks[i] == theirs[i];
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return good;
}

static const int low[2] = {0, 1}, high[2] = {2, 3};
static int joins_halves(MPI_Comm comm) {
    return side == 0 ? joins(comm, 2, low, 2, high) : joins(comm, 2, high, 2, low);
}

/* Messages between opposite ranks, both ways. */
static void talk(MPI_Comm comm) {
    int r, n, to = -1, got;
    MPI_Status status;
    MPI_Comm_rank(comm, &r);
    MPI_Comm_remote_size(comm, &n);
    MPI_Request request;
    MPI_Irecv(&to, 1, MPI_INT, MPI_ANY_SOURCE, 5, comm, &request);
    if (r < n) MPI_Send(&rank, 1, MPI_INT, r, 5, comm);
    int size;
    MPI_Comm_size(comm, &size);
    if (r < n) {
        MPI_Wait(&request, &status);
        MPI_Get_count(&status, MPI_INT, &got);
        CHECK(got == 1 && status.MPI_SOURCE == r && to != rank);
    } else {
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
    }
}

/* ---- constructors ---- */

static MPI_Comm plain, uneven, copied, hinted, idup, parts, created, low_first, high_first, merged_again, nested;
static MPI_Request idup_request;

static void made_set_up(void) {
    MPI_Comm part;
    MPI_Group group, one;
    MPI_Info info;
    int zero = 0;
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side == 0 ? 2 : 0, 11, &plain);
    CHECK(joins_halves(plain));
    MPI_Comm_split(MPI_COMM_WORLD, rank == 3, -rank, &part); /* {2, 1, 0} and {3} */
    MPI_Intercomm_create(part, rank == 3 ? 0 : 1, MPI_COMM_WORLD, rank == 3 ? 1 : 3, 11, &uneven);
    MPI_Comm_free(&part);
    MPI_Comm_set_name(plain, "the plain one");
    MPI_Comm_dup(plain, &copied);
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_assert_exact_length", "true");
    MPI_Comm_dup_with_info(plain, info, &hinted);
    MPI_Info_free(&info);
    MPI_Comm_idup(plain, &idup, &idup_request);
    MPI_Comm_split(plain, rank % 2, 0, &parts); /* {0}|{2} and {1}|{3} */
    MPI_Comm_group(plain, &group);
    MPI_Group_incl(group, 1, &zero, &one);
    MPI_Comm_create(plain, one, &created); /* {0}|{2} */
    CHECK((created == MPI_COMM_NULL) == (rank % 2 == 1));
    MPI_Group_free(&group);
    MPI_Group_free(&one);
    MPI_Intercomm_merge(plain, side, &low_first);
    MPI_Intercomm_merge(plain, !side, &high_first);
    MPI_Intercomm_merge(uneven, rank == 3, &merged_again);
    /* the peer communicator may itself be an inter-communicator */
    MPI_Intercomm_create(half, 1, plain, 1, 3, &nested);
}

static void made_check(void) {
    char text[MPI_MAX_INFO_VAL + 1];
    int n, r, flag, value = rank;
    MPI_Info info;
    MPI_Wait(&idup_request, MPI_STATUS_IGNORE);
    MPI_Comm all[] = {plain, copied, hinted, idup, nested};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        CHECK(joins_halves(all[i]));
        talk(all[i]);
        MPI_Allreduce(&rank, &n, 1, MPI_INT, MPI_SUM, all[i]); /* of the other group */
        CHECK(n == (side == 0 ? 5 : 1));
    }
    const int three[3] = {2, 1, 0}, last[1] = {3};
    CHECK(rank == 3 ? joins(uneven, 1, last, 3, three) : joins(uneven, 3, three, 1, last));
    talk(uneven);
    MPI_Comm_get_name(plain, text, &n);
    CHECK(!strcmp(text, "the plain one"));
    MPI_Comm_get_info(hinted, &info);
    MPI_Info_get(info, "mpi_assert_exact_length", MPI_MAX_INFO_VAL, text, &flag);
    CHECK(flag && !strcmp(text, "true"));
    MPI_Info_free(&info);
    MPI_Comm_compare(plain, copied, &n);
    CHECK(n == MPI_CONGRUENT);
    int mine[1] = {rank}, opposite[1] = {(rank + 2) % 4};
    CHECK(joins(parts, 1, mine, 1, opposite));
    talk(parts);
    if (rank % 2 == 0) {
        CHECK(joins(created, 1, mine, 1, opposite));
        talk(created);
        MPI_Comm_free(&created);
    }
    MPI_Comm_rank(low_first, &r);
    CHECK(r == rank);
    MPI_Comm_rank(high_first, &r);
    CHECK(r == (rank + 2) % 4);
    MPI_Bcast(&value, 1, MPI_INT, 0, high_first);
    CHECK(value == 2);
    MPI_Comm_rank(merged_again, &r);
    CHECK(r == (rank == 3 ? 3 : 2 - rank));
    MPI_Comm late; /* constructors still work, in the restarted job too */
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side == 0 ? 2 : 0, 11, &late);
    CHECK(joins_halves(late));
    MPI_Comm *gone[] = {&late,   &plain, &copied,    &hinted,     &idup,        &nested,
                        &uneven, &parts, &low_first, &high_first, &merged_again};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        MPI_Comm_free(gone[i]);
        CHECK(*gone[i] == MPI_COMM_NULL);
    }
}

/* ---- messages: in flight, synchronous, probed, awaited ---- */

static MPI_Comm flight;
static int received = -1, sent[3];
static MPI_Request awaited, synchronous;

static void messages_set_up(void) {
    int r;
    MPI_Intercomm_create(half, 1, MPI_COMM_WORLD, side == 0 ? 3 : 1, 0, &flight);
    MPI_Comm_rank(flight, &r);
    for (int i = 0; i < 3; i++) {
        sent[i] = 100 * rank + i;
        MPI_Send(&sent[i], 1, MPI_INT, 1 - r, 20 + i, flight);
    }
    MPI_Issend(&sent[0], 1, MPI_INT, r, 30, flight, &synchronous);
    MPI_Irecv(&received, 1, MPI_INT, r, 40, flight, &awaited);
}

static void messages_check(void) {
    int r, to, flag, other;
    MPI_Status status;
    MPI_Comm_rank(flight, &r);
    other = (side == 0 ? 2 : 0) + 1 - r;
    MPI_Test(&synchronous, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag); /* no rank has received it */
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 2; i >= 0; i--) {
        MPI_Probe(1 - r, 20 + i, flight, &status);
        CHECK(status.MPI_SOURCE == 1 - r);
        MPI_Recv(&to, 1, MPI_INT, MPI_ANY_SOURCE, 20 + i, flight, &status);
        CHECK(to == 100 * other + i && status.MPI_SOURCE == 1 - r);
    }
    MPI_Recv(&to, 1, MPI_INT, r, 30, flight, MPI_STATUS_IGNORE);
    MPI_Wait(&synchronous, MPI_STATUS_IGNORE);
    CHECK(to == 100 * ((rank + 2) % 4));
    MPI_Send(&rank, 1, MPI_INT, r, 40, flight);
    MPI_Wait(&awaited, MPI_STATUS_IGNORE);
    CHECK(received == (rank + 2) % 4);
    MPI_Comm_free(&flight);
}

/* ---- collectives: before and after the restart, in every form ---- */

static MPI_Comm across;
enum { REMOTE = 2 };

/* Contribution of rank `world` for the `to`-th rank of the other group. */
static int part(int world, int to) { return 10 * world + to; }

static void collectives_set_up(void) { MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side == 0 ? 2 : 0, 1, &across); }

typedef struct buffers { int out[8], in[8], sum[8]; } buffers_t;

static const int ones[REMOTE] = {1, 1}, at[REMOTE] = {0, 1}, bytes_at[REMOTE] = {0, 4};
static const MPI_Count ones_c[REMOTE] = {1, 1};
static const MPI_Aint at_c[REMOTE] = {0, 1}, bytes_at_c[REMOTE] = {0, 4};
static const MPI_Datatype ints[REMOTE] = {MPI_INT, MPI_INT};

static buffers_t filled(void) {
    buffers_t b;
    for (int i = 0; i < 8; i++) b.out[i] = part(rank, i), b.in[i] = b.sum[i] = -1;
    return b;
}

/* in[i] is the contribution of the i-th rank of the other group for `to`. */
static void from_each(const buffers_t *b, int to) {
    for (int i = 0; i < REMOTE; i++) CHECK(b->in[i] == part((side == 0 ? 2 : 0) + i, to));
}
static void from_nobody(const buffers_t *b) { CHECK(b->in[0] == -1 && b->in[1] == -1); }
/* The sum over the other group of the contributions for `to`. */
static int sum_of(int to) { return part(side == 0 ? 2 : 0, to) + part(side == 0 ? 3 : 1, to); }

/* All to all: the same for blocking and nonblocking forms (WAIT completes). */
#define ALL_FORMS(I, WAIT, ...)                                                                                        \
    do {                                                                                                               \
        buffers_t b;                                                                                                   \
        b = filled();                                                                                                  \
        MPI_##I##llgather(b.out, 1, MPI_INT, b.in, 1, MPI_INT, across __VA_ARGS__);                                    \
        WAIT;                                                                                                          \
        from_each(&b, 0);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##llgather_c(b.out, 1, MPI_INT, b.in, 1, MPI_INT, across __VA_ARGS__);                                  \
        WAIT;                                                                                                          \
        from_each(&b, 0);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##llgatherv(b.out, 1, MPI_INT, b.in, ones, at, MPI_INT, across __VA_ARGS__);                            \
        WAIT;                                                                                                          \
        from_each(&b, 0);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##llgatherv_c(b.out, 1, MPI_INT, b.in, ones_c, at_c, MPI_INT, across __VA_ARGS__);                      \
        WAIT;                                                                                                          \
        from_each(&b, 0);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##lltoall(b.out, 1, MPI_INT, b.in, 1, MPI_INT, across __VA_ARGS__);                                     \
        WAIT;                                                                                                          \
        from_each(&b, r);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##lltoall_c(b.out, 1, MPI_INT, b.in, 1, MPI_INT, across __VA_ARGS__);                                   \
        WAIT;                                                                                                          \
        from_each(&b, r);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##lltoallv(b.out, ones, at, MPI_INT, b.in, ones, at, MPI_INT, across __VA_ARGS__);                      \
        WAIT;                                                                                                          \
        from_each(&b, r);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##lltoallv_c(b.out, ones_c, at_c, MPI_INT, b.in, ones_c, at_c, MPI_INT, across __VA_ARGS__);            \
        WAIT;                                                                                                          \
        from_each(&b, r);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##lltoallw(b.out, ones, bytes_at, ints, b.in, ones, bytes_at, ints, across __VA_ARGS__);                \
        WAIT;                                                                                                          \
        from_each(&b, r);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##lltoallw_c(b.out, ones_c, bytes_at_c, ints, b.in, ones_c, bytes_at_c, ints, across __VA_ARGS__);      \
        WAIT;                                                                                                          \
        from_each(&b, r);                                                                                              \
        b = filled();                                                                                                  \
        MPI_##I##llreduce(b.out, b.sum, 1, MPI_INT, MPI_SUM, across __VA_ARGS__);                                      \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == sum_of(0));                                                                                  \
        b = filled();                                                                                                  \
        MPI_##I##llreduce_c(b.out, b.sum, 1, MPI_INT, MPI_SUM, across __VA_ARGS__);                                    \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == sum_of(0));                                                                                  \
    } while (0)

/* Each gets as many elements as it requests: here one. The local group's number must equal that of the remote group. */
#define SCATTERED_FORMS(R, WAIT, ...)                                                                                  \
    do {                                                                                                               \
        buffers_t b;                                                                                                   \
        b = filled();                                                                                                  \
        MPI_##R##educe_scatter(b.out, b.sum, ones, MPI_INT, MPI_SUM, across __VA_ARGS__);                              \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == sum_of(r));                                                                                  \
        b = filled();                                                                                                  \
        MPI_##R##educe_scatter_c(b.out, b.sum, ones_c, MPI_INT, MPI_SUM, across __VA_ARGS__);                          \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == sum_of(r));                                                                                  \
        b = filled();                                                                                                  \
        MPI_##R##educe_scatter_block(b.out, b.sum, 1, MPI_INT, MPI_SUM, across __VA_ARGS__);                           \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == sum_of(r));                                                                                  \
        b = filled();                                                                                                  \
        MPI_##R##educe_scatter_block_c(b.out, b.sum, 1, MPI_INT, MPI_SUM, across __VA_ARGS__);                         \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == sum_of(r));                                                                                  \
    } while (0)

/* Rooted: the root is rank 0 of group `rooted` (with another one Ibcast of MPICH 5.0 delivers nothing). `root` is this
 * rank's argument. */
#define ROOTED_FORMS(BCAST, GATHER, SCATTER, REDUCE, WAIT, ...)                                                        \
    do {                                                                                                               \
        buffers_t b;                                                                                                   \
        b = filled();                                                                                                  \
        MPI_##BCAST(b.out, 2, MPI_INT, root, across __VA_ARGS__);                                                      \
        WAIT;                                                                                                          \
        CHECK(b.out[1] == part(away ? 2 * rooted : rank, 1));                                                          \
        b = filled();                                                                                                  \
        MPI_##BCAST##_c(b.out, 2, MPI_INT, root, across __VA_ARGS__);                                                  \
        WAIT;                                                                                                          \
        CHECK(b.out[1] == part(away ? 2 * rooted : rank, 1));                                                          \
        b = filled();                                                                                                  \
        MPI_##GATHER(b.out, 1, MPI_INT, b.in, 1, MPI_INT, root, across __VA_ARGS__);                                   \
        WAIT;                                                                                                          \
        gathered(&b, root);                                                                                            \
        b = filled();                                                                                                  \
        MPI_##GATHER##_c(b.out, 1, MPI_INT, b.in, 1, MPI_INT, root, across __VA_ARGS__);                               \
        WAIT;                                                                                                          \
        gathered(&b, root);                                                                                            \
        b = filled();                                                                                                  \
        MPI_##GATHER##v(b.out, 1, MPI_INT, b.in, ones, at, MPI_INT, root, across __VA_ARGS__);                         \
        WAIT;                                                                                                          \
        gathered(&b, root);                                                                                            \
        b = filled();                                                                                                  \
        MPI_##GATHER##v_c(b.out, 1, MPI_INT, b.in, ones_c, at_c, MPI_INT, root, across __VA_ARGS__);                   \
        WAIT;                                                                                                          \
        gathered(&b, root);                                                                                            \
        b = filled();                                                                                                  \
        MPI_##SCATTER(b.out, 1, MPI_INT, b.sum, 1, MPI_INT, root, across __VA_ARGS__);                                 \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == (away ? part(2 * rooted, r) : -1));                                                          \
        b = filled();                                                                                                  \
        MPI_##SCATTER##_c(b.out, 1, MPI_INT, b.sum, 1, MPI_INT, root, across __VA_ARGS__);                             \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == (away ? part(2 * rooted, r) : -1));                                                          \
        b = filled();                                                                                                  \
        MPI_##SCATTER##v(b.out, ones, at, MPI_INT, b.sum, 1, MPI_INT, root, across __VA_ARGS__);                       \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == (away ? part(2 * rooted, r) : -1));                                                          \
        b = filled();                                                                                                  \
        MPI_##SCATTER##v_c(b.out, ones_c, at_c, MPI_INT, b.sum, 1, MPI_INT, root, across __VA_ARGS__);                 \
        WAIT;                                                                                                          \
        CHECK(b.sum[0] == (away ? part(2 * rooted, r) : -1));                                                          \
        b = filled();                                                                                                  \
        MPI_##REDUCE(b.out, b.sum, 2, MPI_INT, MPI_SUM, root, across __VA_ARGS__);                                     \
        WAIT;                                                                                                          \
        CHECK(b.sum[1] == (root == MPI_ROOT ? sum_of(1) : -1));                                                        \
        b = filled();                                                                                                  \
        MPI_##REDUCE##_c(b.out, b.sum, 2, MPI_INT, MPI_SUM, root, across __VA_ARGS__);                                 \
        WAIT;                                                                                                          \
        CHECK(b.sum[1] == (root == MPI_ROOT ? sum_of(1) : -1));                                                        \
    } while (0)

static void gathered(const buffers_t *b, int root) {
    if (root == MPI_ROOT)
        from_each(b, 0);
    else
        from_nobody(b);
}

static void collectives_check(void) {
    int r;
    MPI_Request q;
    MPI_Comm_rank(across, &r);
    MPI_Barrier(across);
    ALL_FORMS(A, (void)0);
    SCATTERED_FORMS(R, (void)0);
    MPI_Ibarrier(across, &q);
    MPI_Wait(&q, MPI_STATUS_IGNORE);
#define WAIT MPI_Wait(&q, MPI_STATUS_IGNORE)
    ALL_FORMS(Ia, WAIT, , &q);
    SCATTERED_FORMS(Ir, WAIT, , &q);
    for (int rooted = 0; rooted < 2; rooted++) {
        int away = side != rooted, root = away ? 0 : r == 0 ? MPI_ROOT : MPI_PROC_NULL;
        ROOTED_FORMS(Bcast, Gather, Scatter, Reduce, (void)0);
        ROOTED_FORMS(Ibcast, Igather, Iscatter, Ireduce, WAIT, , &q);
    }
    MPI_Comm_free(&across);
}

/* ---- nonblocking collectives that are open ---- */

static MPI_Comm opened;
static MPI_Request open_requests[3];
static int open_out, open_sum, open_from[2], open_value;

static void open_set_up(void) {
    int r;
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side == 0 ? 2 : 0, 2, &opened);
    MPI_Comm_rank(opened, &r);
    open_out = rank + 1;
    open_value = rank;
    MPI_Iallreduce(&open_out, &open_sum, 1, MPI_INT, MPI_SUM, opened, &open_requests[0]);
    MPI_Iallgather(&open_out, 1, MPI_INT, open_from, 1, MPI_INT, opened, &open_requests[1]);
    MPI_Ibcast(&open_value, 1, MPI_INT, side == 1 ? 0 : r == 0 ? MPI_ROOT : MPI_PROC_NULL, opened, &open_requests[2]);
}

static void open_check(void) {
    MPI_Waitall(3, open_requests, MPI_STATUSES_IGNORE);
    CHECK(open_sum == (side == 0 ? 7 : 3) && open_from[0] == (side == 0 ? 3 : 1) && open_from[1] == open_from[0] + 1);
    CHECK(open_value == (side == 1 ? 0 : rank));
    MPI_Comm_free(&opened);
}

/* ---- a receive of the program that matches anything does not get messages of the constructors ---- */

static void wildcard_set_up(void) {}

static void wildcard_check(void) {
    MPI_Request any;
    MPI_Status status;
    MPI_Comm inter;
    int to = -1;
    MPI_Irecv(&to, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, side == 0 ? 2 : 0, 77, &inter);
    CHECK(joins_halves(inter));
    MPI_Send(&rank, 1, MPI_INT, (rank + 1) % 4, 78, MPI_COMM_WORLD);
    MPI_Wait(&any, &status);
    CHECK(to == (rank + 3) % 4 && status.MPI_TAG == 78);
    MPI_Comm_free(&inter);
}

/* ---- wrong arguments: those that all members notice, and before any rank waits ---- */

static void wrong_set_up(void) {}

static void wrong_check(void) {
    MPI_Comm inter, result, old;
    int leader = side == 0 ? 2 : 0;
    CHECK(class_of(MPI_Intercomm_create(MPI_COMM_NULL, 0, MPI_COMM_WORLD, leader, 1, &result)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Intercomm_create(half, 2, MPI_COMM_WORLD, leader, 1, &result)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Intercomm_create(half, -1, MPI_COMM_WORLD, leader, 1, &result)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, leader, -3, &result)) == MPI_ERR_TAG);
    CHECK(class_of(MPI_Intercomm_create(MPI_COMM_SELF, 0, MPI_COMM_WORLD, 4, 1, &result)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Intercomm_create(MPI_COMM_SELF, 0, MPI_COMM_WORLD, rank, 1, &result)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Intercomm_merge(MPI_COMM_NULL, 0, &result)) == MPI_ERR_COMM);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, leader, 1, &inter);
    MPI_Comm_set_errhandler(inter, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Intercomm_create(inter, 0, MPI_COMM_WORLD, leader, 1, &result)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Send(&rank, 1, MPI_INT, 2, 0, inter)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Scan(&rank, &leader, 1, MPI_INT, MPI_SUM, inter)) == MPI_ERR_COMM);
    old = inter;
    MPI_Comm_free(&inter);
    CHECK(class_of(MPI_Comm_remote_size(old, &leader)) == MPI_ERR_COMM);
}

static void set_up(void) {
    side = rank / 2;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_split(MPI_COMM_WORLD, side, 0, &half);
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(made), STATE(messages), STATE(collectives), STATE(open), STATE(wildcard), STATE(wrong),
    };
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}
