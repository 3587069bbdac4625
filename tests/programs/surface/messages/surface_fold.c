/* Operations of the program in nonblocking and persistent reductions, started before the checkpoint and finished after
 * it; see four_ranks.h.
 *
 *     STATE_GO=FILE mpirun -n 4 manapy-launch surface_fold [STATE...]
 *
 * The operation is the product of 2x2 matrices modulo a prime: associative and not commutative. A matrix is in a struct
 * with a gap.
 */
#include "../four_ranks.h"

#ifndef ELEMENTS
#define ELEMENTS 5
#endif
enum { N = ELEMENTS, PRIME = 10007 };

typedef struct { int row[2], hole, other[2]; } matrix_t;

static int calls, lost_handles;

static matrix_t times(matrix_t a, matrix_t b, int hole) {
    return (matrix_t){
        {(a.row[0] * b.row[0] + a.row[1] * b.other[0]) % PRIME, (a.row[0] * b.row[1] + a.row[1] * b.other[1]) % PRIME},
        hole,
        {(a.other[0] * b.row[0] + a.other[1] * b.other[0]) % PRIME,
         (a.other[0] * b.row[1] + a.other[1] * b.other[1]) % PRIME}};
}

static matrix_t matrix(int r, int i, int round) { return (matrix_t){{r + 2, i + 1}, -1, {1 + round % 7, r * i + 1}}; }

/* Product for element i of the ranks first, first + step ... below last. */
static matrix_t product(int first, int last, int step, int i, int round) {
    matrix_t p = matrix(first, i, round);
    for (int r = first + step; r < last; r += step) p = times(p, matrix(r, i, round), -1);
    return p;
}

static int same(const matrix_t *a, matrix_t b) { return memcmp(a, &b, sizeof b) == 0; }

static void check_handle(MPI_Datatype type) {
    int bytes = 0;
    if (MPI_Type_size(type, &bytes) != MPI_SUCCESS || bytes != 4 * sizeof(int)) lost_handles++;
}
static void multiply_n(const matrix_t *in, matrix_t *inout, MPI_Count n, MPI_Datatype type) {
    check_handle(type);
    for (MPI_Count i = 0; i < n; i++) inout[i] = times(in[i], inout[i], inout[i].hole);
    calls++;
}
static void multiply(void *in, void *inout, int *n, MPI_Datatype *type) { multiply_n(in, inout, *n, *type); }
static void multiply_c(void *in, void *inout, MPI_Count *n, MPI_Datatype *type) { multiply_n(in, inout, *n, *type); }

static MPI_Datatype make_type(void) {
    MPI_Datatype type;
    MPI_Type_vector(2, 2, 3, MPI_INT, &type);
    MPI_Type_commit(&type);
    return type;
}

/* ---- the functions ---- */

typedef enum { REDUCE, ALLREDUCE, SCAN, EXSCAN, SCATTER, SCATTER_BLOCK, KINDS } kind_t;
typedef enum { SMALL, BIG, PERSISTENT, PERSISTENT_BIG, FORMS } form_t;

typedef struct reduction {
    kind_t kind;
    form_t form;
    int in_place, round;
    matrix_t in[N], out[N];
    MPI_Request request;
} reduction_t;

static const int counts[RANKS] = {1, 2, 0, 2}, at[RANKS] = {0, 1, 3, 3};
static const MPI_Count counts_c[RANKS] = {1, 2, 0, 2};

static void fill(reduction_t *x) {
    for (int i = 0; i < N; i++) {
        memset(&x->in[i], -1, sizeof x->in[i]), memset(&x->out[i], -1, sizeof x->out[i]);
        (x->in_place ? x->out : x->in)[i] = matrix(rank, i, x->round);
    }
}

static void call(reduction_t *x, MPI_Datatype type, MPI_Op op) {
    const void *in = x->in_place ? MPI_IN_PLACE : (const void *)x->in;
    void *out = x->out;
    MPI_Request *r = &x->request;
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Info info = MPI_INFO_NULL;
    if (x->kind == REDUCE && x->in_place && rank != 2) in = out, out = NULL;
    int rc = -1;
    switch (x->kind * FORMS + (int)x->form) {
    case REDUCE * FORMS + SMALL: rc = MPI_Ireduce(in, out, N, type, op, 2, comm, r); break;
    case REDUCE * FORMS + BIG: rc = MPI_Ireduce_c(in, out, N, type, op, 2, comm, r); break;
    case REDUCE * FORMS + PERSISTENT: rc = MPI_Reduce_init(in, out, N, type, op, 2, comm, info, r); break;
    case REDUCE * FORMS + PERSISTENT_BIG: rc = MPI_Reduce_init_c(in, out, N, type, op, 2, comm, info, r); break;
    case ALLREDUCE * FORMS + SMALL: rc = MPI_Iallreduce(in, out, N, type, op, comm, r); break;
    case ALLREDUCE * FORMS + BIG: rc = MPI_Iallreduce_c(in, out, N, type, op, comm, r); break;
    case ALLREDUCE * FORMS + PERSISTENT: rc = MPI_Allreduce_init(in, out, N, type, op, comm, info, r); break;
    case ALLREDUCE * FORMS + PERSISTENT_BIG: rc = MPI_Allreduce_init_c(in, out, N, type, op, comm, info, r); break;
    case SCAN * FORMS + SMALL: rc = MPI_Iscan(in, out, N, type, op, comm, r); break;
    case SCAN * FORMS + BIG: rc = MPI_Iscan_c(in, out, N, type, op, comm, r); break;
    case SCAN * FORMS + PERSISTENT: rc = MPI_Scan_init(in, out, N, type, op, comm, info, r); break;
    case SCAN * FORMS + PERSISTENT_BIG: rc = MPI_Scan_init_c(in, out, N, type, op, comm, info, r); break;
    case EXSCAN * FORMS + SMALL: rc = MPI_Iexscan(in, out, N, type, op, comm, r); break;
    case EXSCAN * FORMS + BIG: rc = MPI_Iexscan_c(in, out, N, type, op, comm, r); break;
    case EXSCAN * FORMS + PERSISTENT: rc = MPI_Exscan_init(in, out, N, type, op, comm, info, r); break;
    case EXSCAN * FORMS + PERSISTENT_BIG: rc = MPI_Exscan_init_c(in, out, N, type, op, comm, info, r); break;
    case SCATTER * FORMS + SMALL: rc = MPI_Ireduce_scatter(in, out, counts, type, op, comm, r); break;
    case SCATTER * FORMS + BIG: rc = MPI_Ireduce_scatter_c(in, out, counts_c, type, op, comm, r); break;
    case SCATTER * FORMS + PERSISTENT: rc = MPI_Reduce_scatter_init(in, out, counts, type, op, comm, info, r); break;
    case SCATTER *FORMS + PERSISTENT_BIG:
        rc = MPI_Reduce_scatter_init_c(in, out, counts_c, type, op, comm, info, r);
        break;
    case SCATTER_BLOCK * FORMS + SMALL: rc = MPI_Ireduce_scatter_block(in, out, 1, type, op, comm, r); break;
    case SCATTER_BLOCK * FORMS + BIG: rc = MPI_Ireduce_scatter_block_c(in, out, 1, type, op, comm, r); break;
    case SCATTER_BLOCK *FORMS + PERSISTENT:
        rc = MPI_Reduce_scatter_block_init(in, out, 1, type, op, comm, info, r);
        break;
    case SCATTER_BLOCK *FORMS + PERSISTENT_BIG:
        rc = MPI_Reduce_scatter_block_init_c(in, out, 1, type, op, comm, info, r);
        break;
    }
    CHECK(rc == MPI_SUCCESS);
}

static void verify(const reduction_t *x) {
    int first = 0, n = N, last = RANKS;
    switch (x->kind) {
    case REDUCE: n = rank == 2 ? N : 0; break;
    case SCAN: last = rank + 1; break;
    case EXSCAN: last = rank, n = rank == 0 ? 0 : N; break;
    case SCATTER: first = at[rank], n = counts[rank]; break;
    case SCATTER_BLOCK: first = rank, n = 1; break;
    default: break;
    }
    for (int i = 0; i < n; i++) CHECK(same(&x->out[i], product(0, last, 1, first + i, x->round)));
    for (int i = n; i < N && !x->in_place; i++) CHECK(x->out[i].row[0] == -1);
}

/* ---- every function, with and without MPI_IN_PLACE ---- */

static reduction_t all[KINDS * FORMS * 2];
enum { ALL = sizeof all / sizeof *all };

/* The operation and the type are freed while the reductions are in progress. */
static void begin_all(void) {
    MPI_Op ops[2];
    MPI_Datatype type = make_type();
    MPI_Op_create(multiply, 0, &ops[0]);
    MPI_Op_create_c(multiply_c, 0, &ops[1]);
    for (int i = 0; i < ALL; i++) {
        reduction_t *x = &all[i];
        int made = x->form >= PERSISTENT && x->round > 0;
        x->kind = i / 2 / FORMS, x->form = i / 2 % FORMS, x->in_place = i % 2, x->round++;
        fill(x);
        if (!made) call(x, type, ops[x->form % 2]);
        if (x->form >= PERSISTENT) CHECK(MPI_Start(&x->request) == MPI_SUCCESS);
    }
    MPI_Op_free(&ops[0]);
    MPI_Op_free(&ops[1]);
    MPI_Type_free(&type);
}

static void end_all(void) {
    MPI_Request requests[ALL];
    int flag, done[ALL], n;
    for (int i = 0; i < ALL; i++) requests[i] = all[i].request;
    if (all[0].round % 2) {
        for (int left = ALL; left > 0; left -= flag) MPI_Testany(ALL, requests, &n, &flag, MPI_STATUS_IGNORE);
    } else {
        for (int left = ALL; left > 0; left -= n) {
            MPI_Waitsome(ALL, requests, &n, done, MPI_STATUSES_IGNORE);
            CHECK(n > 0);
        }
    }
    for (int i = 0; i < ALL; i++) {
        verify(&all[i]);
        CHECK((requests[i] == MPI_REQUEST_NULL) == (all[i].form < PERSISTENT));
    }
    CHECK(lost_handles == 0);
}

static void every_function_set_up(void) {
    begin_all();
    end_all();
    begin_all();
}

static void every_function_check(void) {
    end_all();
    for (int i = 0; i < 3; i++) begin_all(), end_all();
    for (int i = 0; i < ALL; i++)
        if (all[i].form >= PERSISTENT) MPI_Request_free(&all[i].request);
}

/* ---- a predefined type, an empty vector ---- */

static int texts[2], text_calls;
static MPI_Request text_requests[3];

static void join(void *in, void *inout, int *n, MPI_Datatype *type) { /* concatenates decimal digits */
    int *a = in, *b = inout;
    CHECK(*type == MPI_INT);
    for (int i = 0; i < *n; i++) {
        int shift = 1;
        while (shift <= b[i]) shift *= 10;
        b[i] += a[i] * shift;
    }
    text_calls++;
}

static void plain_set_up(void) {
    static int digit;
    MPI_Op op;
    digit = rank + 1;
    MPI_Op_create(join, 0, &op);
    MPI_Iallreduce(&digit, &texts[0], 1, MPI_INT, op, MPI_COMM_WORLD, &text_requests[0]);
    MPI_Iallreduce(NULL, NULL, 0, MPI_INT, op, MPI_COMM_WORLD, &text_requests[1]);
    MPI_Iscan(&digit, &texts[1], 1, MPI_INT, op, MPI_COMM_WORLD, &text_requests[2]);
    MPI_Op_free(&op);
}
static void plain_check(void) {
    static const int scans[RANKS] = {1, 12, 123, 1234};
    MPI_Waitall(3, text_requests, MPI_STATUSES_IGNORE);
    CHECK(texts[0] == 1234 && texts[1] == scans[rank] && text_calls > 0);
}

/* ---- elements whose extent is larger than their size, and elements that begin before their address; from the last to
 * the first. The latter not with STATE_NATIVE: MPICH 5.0.2's own nonblocking reductions then write outside their
 * buffers (AddressSanitizer shows it). ---- */

typedef struct { int before, value, after; } spaced_t;
static spaced_t spaced[2][3], backwards[2][3];
static MPI_Request spaced_requests[2];

static void add_spaced(void *in, void *inout, int *n, MPI_Datatype *type) {
    MPI_Aint lb, extent;
    MPI_Type_get_extent(*type, &lb, &extent);
    for (int i = 0; i < *n; i++) *(int *)((char *)inout + i * extent) += *(int *)((char *)in + i * extent);
}

static void spaced_set_up(void) {
    MPI_Datatype forth, back;
    MPI_Op op;
    memset(spaced, -1, sizeof spaced), memset(backwards, -1, sizeof backwards);
    for (int i = 0; i < 3; i++) spaced[0][i].value = backwards[0][i].value = 10 * rank + i;
    MPI_Type_create_resized(MPI_INT, -4, sizeof(spaced_t), &forth);
    MPI_Type_create_resized(MPI_INT, 0, -(MPI_Aint)sizeof(spaced_t), &back);
    MPI_Type_commit(&forth), MPI_Type_commit(&back);
    MPI_Op_create(add_spaced, 1, &op);
    MPI_Iallreduce(&spaced[0][0].value, &spaced[1][0].value, 3, forth, op, MPI_COMM_WORLD, &spaced_requests[0]);
    spaced_requests[1] = MPI_REQUEST_NULL;
    if (!getenv("STATE_NATIVE"))
        MPI_Iallreduce(&backwards[0][2].value, &backwards[1][2].value, 3, back, op, MPI_COMM_WORLD,
                       &spaced_requests[1]);
    MPI_Op_free(&op);
    MPI_Type_free(&forth), MPI_Type_free(&back);
}
static void spaced_check(void) {
    MPI_Waitall(2, spaced_requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 3; i++) {
        CHECK(spaced[1][i].value == 60 + 4 * i && spaced[1][i].before == -1 && spaced[1][i].after == -1);
        CHECK(getenv("STATE_NATIVE") != NULL ||
              (backwards[1][i].value == 60 + 4 * i && backwards[1][i].before == -1 && backwards[1][i].after == -1));
    }
}

/* ---- inter-communicators: the contributions of the other group ---- */

static MPI_Comm half, between;
static MPI_Request inter[4];
static matrix_t given[4], got[4][4];

static void inter_begin(MPI_Datatype type, MPI_Op op) {
    int mine[2] = {rank % 2 ? 1 : 3, rank % 2 ? 3 : 1}; /* the groups divide the four elements differently */
    memset(given, -1, sizeof given), memset(got, -1, sizeof got);
    for (int i = 0; i < 4; i++) given[i] = matrix(rank, i, 3);
    void *in = given;
    MPI_Ireduce(in, got[0], 4, type, op, rank % 2 ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, between, &inter[0]);
    MPI_Iallreduce(in, got[1], 4, type, op, between, &inter[1]);
    MPI_Ireduce_scatter(in, got[2], mine, type, op, between, &inter[2]);
    MPI_Ireduce_scatter_block(in, got[3], 2, type, op, between, &inter[3]);
}
static void inter_end(void) {
    int other = 1 - rank % 2, my = rank / 2, first = rank % 2 ? my : 3 * my, n = rank % 2 ? 1 + 2 * my : 3 - 2 * my;
    MPI_Waitall(4, inter, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 4; i++)
        CHECK(rank == 0 ? same(&got[0][i], product(1, RANKS, 2, i, 3)) : got[0][i].row[0] == -1);
    for (int i = 0; i < 4; i++) CHECK(same(&got[1][i], product(other, RANKS, 2, i, 3)));
    for (int i = 0; i < 4; i++)
        CHECK(i < n ? same(&got[2][i], product(other, RANKS, 2, first + i, 3)) : got[2][i].row[0] == -1);
    for (int i = 0; i < 4; i++)
        CHECK(i < 2 ? same(&got[3][i], product(other, RANKS, 2, 2 * my + i, 3)) : got[3][i].row[0] == -1);
}
static void inter_again(void) {
    MPI_Datatype type = make_type();
    MPI_Op op;
    MPI_Op_create(multiply, 0, &op);
    inter_begin(type, op);
    MPI_Op_free(&op);
    MPI_Type_free(&type);
}
static void inter_set_up(void) {
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 5, &between);
    inter_again();
}
static void inter_check(void) {
    inter_end();
    inter_again();
    inter_end();
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
}

/* ---- wrong arguments ---- */

static MPI_Op wrong_op;

static void wrong_set_up(void) {
    lenient_set_up();
    MPI_Op_create(multiply, 1, &wrong_op);
}

static void wrong_check(void) {
    int a = 1, b = 2, bad[RANKS] = {0, 0, 0, -1};
    MPI_Request r = MPI_REQUEST_NULL;
    MPI_Datatype uncommitted;
    MPI_Type_contiguous(2, MPI_INT, &uncommitted);
    CHECK(class_of(MPI_Iallreduce(&a, &b, 1, MPI_INT, wrong_op, MPI_COMM_NULL, &r)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Iallreduce(&a, &b, 1, MPI_DATATYPE_NULL, wrong_op, lenient, &r)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Iallreduce(&a, &b, 1, uncommitted, wrong_op, lenient, &r)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Iallreduce(&a, &b, 1, MPI_INT, MPI_OP_NULL, lenient, &r)) == MPI_ERR_OP);
    CHECK(class_of(MPI_Iallreduce(&a, &a, 1, MPI_INT, wrong_op, lenient, &r)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Iallreduce(NULL, &b, 1, MPI_INT, wrong_op, lenient, &r)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Iallreduce(&a, NULL, 1, MPI_INT, wrong_op, lenient, &r)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Iallreduce(&a, MPI_IN_PLACE, 1, MPI_INT, wrong_op, lenient, &r)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Ireduce(&a, &b, 1, MPI_INT, wrong_op, RANKS, lenient, &r)) == MPI_ERR_ROOT);
    CHECK(class_of(MPI_Ireduce_scatter(&a, &b, bad, MPI_INT, wrong_op, lenient, &r)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Reduce_init(&a, &b, 1, MPI_INT, wrong_op, RANKS, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_ROOT);
    CHECK(class_of(MPI_Scan_init(&a, &b, 1, MPI_DATATYPE_NULL, wrong_op, lenient, MPI_INFO_NULL, &r)) == MPI_ERR_TYPE);
    CHECK(r == MPI_REQUEST_NULL);
    MPI_Type_free(&uncommitted);
    MPI_Op_free(&wrong_op);
    MPI_Comm_free(&lenient);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(every_function), STATE(plain), STATE(spaced), STATE(inter), STATE(wrong)};
    return run_four_ranks(argc, argv, states, sizeof states / sizeof *states);
}
