/* Blocking collectives. Each is called with int and with big counts, with the same data and results, before the
 * checkpoint and after the restarts, on the world and on a communicator, with types and operations made before. See
 * checkpointed.h and four_ranks.h.
 *
 * Ranks send the array `out`: out[j] = 100 * rank + j. The received array is compared with a formula as a whole;
 * elements that are not received stay -1.
 */
#include "../four_ranks.h"

enum { SLOT = 8, MANY = RANKS * SLOT };

static MPI_Comm twin;
static int root; /* every rank is the root once, see each_form */
static int out[MANY], got[MANY];

static int *blank(void) { return memset(got, -1, sizeof got); }

/* The first n elements are `value`, in which i is the index; the rest is unchanged. */
#define EXPECT(n, value) \
    for (int i = 0; i < MANY; i++) CHECK(got[i] == (i < (n) ? (value) : -1))

/* For counts that differ: slot s contains the data of rank RANKS - 1 - s: in order k, `value`, or nothing. */
#define EXPECT_SLOTS(value)                                           \
    for (int place = 0; place < MANY; place++) {                      \
        int from = RANKS - 1 - place / SLOT, k = place % SLOT;        \
        CHECK(got[place] == (value));                                 \
    }

/* An array of numbers as ints, as MPI_Count and as MPI_Aint. */
typedef struct { int ints[RANKS]; MPI_Count counts[RANKS]; MPI_Aint places[RANKS]; } numbers_t;

static void set(numbers_t *n, int i, int value) { n->ints[i] = value, n->counts[i] = value, n->places[i] = value; }

static const void *counts(int big, const numbers_t *n) { return big ? (const void *)n->counts : n->ints; }

static const void *places(int big, const numbers_t *n) { return big ? (const void *)n->places : n->ints; }

/* ---- counts that are the same everywhere ---- */

static void regular(int big, MPI_Comm comm) {
    CHECK(!MPI_Barrier(comm));
    int here = rank == root;
    blank();
    if (here) memcpy(got, out, 3 * sizeof *out);
    CHECK(!FORM(big, MPI_Bcast, got, 3, MPI_INT, root, comm));
    EXPECT(3, 100 * root + i);
    CHECK(!FORM(big, MPI_Gather, out, 2, MPI_INT, blank(), 2, MPI_INT, root, comm));
    EXPECT(here ? 2 * RANKS : 0, 100 * (i / 2) + i % 2);
    CHECK(!FORM(big, MPI_Scatter, out, 2, MPI_INT, blank(), 2, MPI_INT, root, comm));
    EXPECT(2, 100 * root + 2 * rank + i);
    CHECK(!FORM(big, MPI_Reduce, out, blank(), 5, MPI_INT, MPI_SUM, root, comm));
    EXPECT(here ? 5 : 0, 600 + RANKS * i);
    CHECK(!FORM(big, MPI_Allgather, out, 2, MPI_INT, blank(), 2, MPI_INT, comm));
    EXPECT(2 * RANKS, 100 * (i / 2) + i % 2);
    CHECK(!FORM(big, MPI_Alltoall, out, 3, MPI_INT, blank(), 3, MPI_INT, comm));
    EXPECT(3 * RANKS, 100 * (i / 3) + 3 * rank + i % 3);
    CHECK(!FORM(big, MPI_Allreduce, out, blank(), 5, MPI_INT, MPI_MAX, comm));
    EXPECT(5, 300 + i);
    CHECK(!FORM(big, MPI_Scan, out, blank(), 2, MPI_INT, MPI_SUM, comm));
    EXPECT(2, 100 * (rank * (rank + 1) / 2) + (rank + 1) * i);
    CHECK(!FORM(big, MPI_Exscan, out, blank(), 2, MPI_INT, MPI_SUM, comm));
    EXPECT(rank ? 2 : 0, 100 * (rank * (rank - 1) / 2) + rank * i);
    CHECK(!FORM(big, MPI_Reduce_scatter_block, out, blank(), 2, MPI_INT, MPI_SUM, comm));
    EXPECT(2, 600 + RANKS * (2 * rank + i));
    memcpy(blank(), out, 4 * sizeof *out);
    CHECK(!FORM(big, MPI_Reduce_local, out + 4, got, 4, MPI_INT, MPI_SUM));
    EXPECT(4, 200 * rank + 2 * i + 4);
}

/* Cases run with both forms, one on the world and one on a communicator made before the checkpoint. After it they are
 * exchanged. */
static void each_form(void (*collectives)(int big, MPI_Comm comm), int after) {
    for (int big = 0; big < COUNT_FORMS; big++) {
        root = 2 * after + big;
        collectives(big, big == after ? MPI_COMM_WORLD : twin);
    }
}

static void regular_set_up(void) {
    for (int i = 0; i < MANY; i++) out[i] = 100 * rank + i;
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    each_form(regular, 0);
}

static void regular_check(void) { each_form(regular, 1); }

/* ---- counts that differ ---- */

static MPI_Datatype spaced; /* an int and a gap of the same size */

static int crossing(int from, int to) { return (from + 2 * to) % 4; } /* number of elements from one to the other */

static void irregular(int big, MPI_Comm comm) {
    numbers_t grown, sent, received, slots, reversed, slots_bytes, reversed_bytes;
    MPI_Datatype ints[RANKS], mixed[RANKS];
    for (int i = 0; i < RANKS; i++) {
        set(&grown, i, i + 1);
        set(&sent, i, crossing(rank, i));
        set(&received, i, crossing(i, rank));
        set(&slots, i, SLOT * i);
        set(&reversed, i, SLOT * (RANKS - 1 - i));
        set(&slots_bytes, i, (int)sizeof(int) * SLOT * i);
        set(&reversed_bytes, i, (int)sizeof(int) * SLOT * (RANKS - 1 - i));
        ints[i] = MPI_INT;
        mixed[i] = i % 2 ? spaced : MPI_INT;
    }
    const void *grow = counts(big, &grown), *send = counts(big, &sent), *receive = counts(big, &received);
    const void *slot = places(big, &slots), *reverse = places(big, &reversed);
    CHECK(!FORM(big, MPI_Gatherv, out, rank + 1, MPI_INT, blank(), grow, reverse, MPI_INT, root, comm));
    EXPECT_SLOTS(rank == root && k <= from ? 100 * from + k : -1);
    CHECK(!FORM(big, MPI_Scatterv, out, grow, reverse, MPI_INT, blank(), rank + 1, MPI_INT, root, comm));
    EXPECT(rank + 1, 100 * root + SLOT * (RANKS - 1 - rank) + i);
    CHECK(!FORM(big, MPI_Allgatherv, out, rank + 1, MPI_INT, blank(), grow, reverse, MPI_INT, comm));
    EXPECT_SLOTS(k <= from ? 100 * from + k : -1);
    CHECK(!FORM(big, MPI_Alltoallv, out, send, slot, MPI_INT, blank(), receive, reverse, MPI_INT, comm));
    EXPECT_SLOTS(k < crossing(from, rank) ? 100 * from + SLOT * rank + k : -1);
    slot = places(big, &slots_bytes), reverse = places(big, &reversed_bytes);
    CHECK(!FORM(big, MPI_Alltoallw, out, send, slot, ints, blank(), receive, reverse, mixed, comm));
    EXPECT_SLOTS(from % 2 ? (k % 2 == 0 && k / 2 < crossing(from, rank) ? 100 * from + SLOT * rank + k / 2 : -1)
                          : (k < crossing(from, rank) ? 100 * from + SLOT * rank + k : -1));
    CHECK(!FORM(big, MPI_Reduce_scatter, out, blank(), grow, MPI_INT, MPI_SUM, comm));
    EXPECT(rank + 1, 600 + RANKS * (rank * (rank + 1) / 2 + i));
}

static void irregular_set_up(void) {
    MPI_Datatype one;
    MPI_Type_contiguous(1, MPI_INT, &one);
    MPI_Type_create_resized(one, 0, 2 * sizeof(int), &spaced);
    MPI_Type_free(&one);
    MPI_Type_commit(&spaced);
    each_form(irregular, 0);
}

static void irregular_check(void) {
    each_form(irregular, 1);
    MPI_Type_free(&spaced);
}

/* ---- an operation of the program that is not commutative: x -> a * x + b, the left one first ---- */

typedef struct { int a, b; } affine_t;

static MPI_Op then;
static MPI_Datatype affine;

static void compose(void *first, void *second, int *n, MPI_Datatype *type) {
    affine_t *f = first, *g = second;
    CHECK(*type == affine);
    for (int i = 0; i < *n; i++) g[i] = (affine_t){f[i].a * g[i].a, g[i].a * f[i].b + g[i].b};
}

/* Rank r's is x -> (r + 2) * x + r + 1 + d. Returns those of ranks 0 to n - 1, applied to x. */
static int applied(int n, int d, int x) {
    for (int r = 0; r < n; r++) x = (r + 2) * x + r + 1 + d;
    return x;
}

#define EXPECT_APPLIED(n) \
    for (int d = 0; d < 2; d++) CHECK(result[d].b == applied(n, d, 0) && result[d].a + result[d].b == applied(n, d, 1))

static void operation(int big, MPI_Comm comm) {
    affine_t own[2] = {{rank + 2, rank + 1}, {rank + 2, rank + 2}}, block[RANKS], result[2];
    CHECK(!FORM(big, MPI_Allreduce, own, result, 2, affine, then, comm));
    EXPECT_APPLIED(RANKS);
    CHECK(!FORM(big, MPI_Scan, own, result, 2, affine, then, comm));
    EXPECT_APPLIED(rank + 1);
    CHECK(!FORM(big, MPI_Exscan, own, result, 2, affine, then, comm));
    if (rank) EXPECT_APPLIED(rank);
    CHECK(!FORM(big, MPI_Reduce, own, result, 2, affine, then, root, comm));
    if (rank == root) EXPECT_APPLIED(RANKS);
    for (int i = 0; i < RANKS; i++) block[i] = own[i % 2];
    CHECK(!FORM(big, MPI_Reduce_scatter_block, block, result, 1, affine, then, comm));
    CHECK(result[0].b == applied(RANKS, rank % 2, 0) && result[0].a + result[0].b == applied(RANKS, rank % 2, 1));
    result[0] = (affine_t){3, 0};
    CHECK(!FORM(big, MPI_Reduce_local, own, result, 1, affine, then));
    CHECK(result[0].a == 3 * (rank + 2) && result[0].b == 3 * (rank + 1));
}

static void operation_set_up(void) {
    MPI_Type_contiguous(2, MPI_INT, &affine);
    MPI_Type_commit(&affine);
    MPI_Op_create(compose, 0, &then);
    each_form(operation, 0);
}

static void operation_check(void) {
    each_form(operation, 1);
    MPI_Op_free(&then);
    MPI_Type_free(&affine);
}

/* ---- in place ---- */

static void in_place(int big, MPI_Comm comm) {
    memcpy(blank(), out, RANKS * sizeof *out);
    CHECK(!FORM(big, MPI_Alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, got, 1, MPI_INT, comm));
    EXPECT(RANKS, 100 * i + rank);
    CHECK(!FORM(big, MPI_Allreduce, MPI_IN_PLACE, got, RANKS, MPI_INT, MPI_SUM, comm));
    EXPECT(RANKS, 400 * i + 6);
    blank()[rank] = rank + 7;
    CHECK(!FORM(big, MPI_Allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, got, 1, MPI_INT, comm));
    EXPECT(RANKS, i + 7);
    blank()[rank] = rank + 7;
    CHECK(!FORM(big, MPI_Gather, rank == 3 ? MPI_IN_PLACE : got + rank, 1, MPI_INT, got, 1, MPI_INT, 3, comm));
    for (int i = 0; i < MANY; i++) CHECK(got[i] == (i == rank || (rank == 3 && i < RANKS) ? i + 7 : -1));
    CHECK(!FORM(big, MPI_Scatter, got, 1, MPI_INT, rank == 3 ? MPI_IN_PLACE : got + rank, 1, MPI_INT, 3, comm));
    CHECK(got[rank] == rank + 7);
    CHECK(!FORM(big, MPI_Scan, MPI_IN_PLACE, got + rank, 1, MPI_INT, MPI_PROD, comm));
    CHECK(got[rank] == ((int[]){7, 56, 504, 5040})[rank]);
}

static void in_place_set_up(void) { each_form(in_place, 0); }

static void in_place_check(void) { each_form(in_place, 1); }

/* ---- data too long to be sent eagerly ---- */

static void large(int big, MPI_Comm comm) {
    enum { N = 200000 };
    int *a = malloc(2 * N * sizeof *a), *b = a + N, wrong = 0;
    for (int i = 0; i < N; i++) a[i] = rank + i;
    CHECK(!FORM(big, MPI_Allreduce, a, b, N, MPI_INT, MPI_SUM, comm));
    for (int i = 0; i < N; i++) wrong += b[i] != 6 + RANKS * i;
    CHECK(!FORM(big, MPI_Alltoall, a, N / RANKS, MPI_INT, b, N / RANKS, MPI_INT, comm));
    for (int i = 0; i < N; i++) wrong += b[i] != i / (N / RANKS) + rank * (N / RANKS) + i % (N / RANKS);
    CHECK(!FORM(big, MPI_Bcast, a, N, MPI_INT, 2, comm));
    for (int i = 0; i < N; i++) wrong += a[i] != 2 + i;
    CHECK(wrong == 0);
    free(a);
}

static void large_set_up(void) { each_form(large, 0); }

static void large_check(void) { each_form(large, 1); }

/* ---- calls that are refused: before anything is sent, on all ranks alike ---- */

#define REFUSED(error, name, ...) CHECK(class_of(FORM(big, name, __VA_ARGS__)) == (error))

static void refused(int big, MPI_Comm comm) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Barrier(MPI_COMM_NULL)) == MPI_ERR_COMM);
    REFUSED(MPI_ERR_COMM, MPI_Allreduce, out, got, 1, MPI_INT, MPI_SUM, MPI_COMM_NULL);
    REFUSED(MPI_ERR_ROOT, MPI_Bcast, got, 1, MPI_INT, RANKS, comm);
    REFUSED(MPI_ERR_COUNT, MPI_Bcast, got, -1, MPI_INT, 0, comm);
    REFUSED(MPI_ERR_TYPE, MPI_Allgather, out, 1, MPI_DATATYPE_NULL, got, 1, MPI_INT, comm);
    REFUSED(MPI_ERR_OP, MPI_Allreduce, out, got, 1, MPI_INT, MPI_OP_NULL, comm);
    REFUSED(MPI_ERR_OP, MPI_Scan, out, got, 1, MPI_FLOAT, MPI_BXOR, comm);
    if (!is_open_mpi()) REFUSED(MPI_ERR_BUFFER, MPI_Allreduce, out, out, 1, MPI_INT, MPI_SUM, comm);
    REFUSED(MPI_ERR_OP, MPI_Reduce_local, out, got, 1, MPI_INT, MPI_OP_NULL);
    CHECK(!MPI_Barrier(comm)); /* the errors had no effect */
}

static void refused_set_up(void) {
    lenient_set_up();
    each_form(refused, 0);
}

static void refused_check(void) {
    each_form(refused, 1);
    MPI_Comm_free(&lenient);
    MPI_Comm_free(&twin);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(regular),  STATE(irregular), STATE(operation),
                                     STATE(in_place), STATE(large),     STATE(refused)};
    return run_four_ranks(argc, argv, states, sizeof states / sizeof *states);
}
