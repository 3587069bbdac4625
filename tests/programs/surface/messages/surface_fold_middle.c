/* A long nonblocking reduction with an operation of the program, which is at a different point on each rank: rank 0 has
 * its result, rank 1 has left it by a jump out of the operation, the others have only begun. Meanwhile the others are
 * in a barrier. See four_ranks.h. */
#include "../four_ranks.h"

#include <setjmp.h>

enum { N = 600000, PRIME = 10007, JUMP_AT = 7 /* call: after the first of some pieces */ };

typedef struct { int factor, term; } map_t; /* x -> factor * x + term: composition is associative and not commutative */

static map_t in[2][N], out[2][N];
static MPI_Request requests[2]; /* nonblocking, persistent */
static jmp_buf jump;
static int calls, jump_at;

static map_t map(int r, int i) { return (map_t){(r + 2 + i) % PRIME, (7 * r + i) % PRIME}; }
static map_t after(map_t a, map_t b) {
    return (map_t){a.factor * b.factor % PRIME, (a.term * b.factor + b.term) % PRIME};
}

static void compose(void *from, void *to, int *n, MPI_Datatype *type) {
    const map_t *a = from;
    map_t *b = to;
    (void)type;
    for (int i = 0; i < *n; i++) {
        if (i == *n / 2 && ++calls == jump_at) longjmp(jump, 1); /* in the middle: half of `to` is changed */
        b[i] = after(a[i], b[i]);
    }
}

/* MPI's own schedule can't be left in the middle. */
static int is_native(void) { return getenv("MPI4PY_MPIABI") == NULL; }

static void leave(MPI_Request *request) {
    calls = 0, jump_at = is_native() ? 0 : JUMP_AT;
    if (jump_at == 0) return;
    if (!setjmp(jump)) {
        MPI_Wait(request, MPI_STATUS_IGNORE);
        CHECK(!"jumped");
    }
    CHECK(*request != MPI_REQUEST_NULL && calls == JUMP_AT);
    jump_at = 0;
}

static void verify(const map_t *got) {
    for (int i = 0; i < N; i++) {
        map_t p = map(0, i);
        for (int r = 1; r < RANKS; r++) p = after(p, map(r, i));
        if (memcmp(&got[i], &p, sizeof p) == 0) continue;
        CHECK(!"the same");
        break;
    }
}

static void middle_set_up(void) {
    MPI_Datatype type;
    MPI_Op op;
    MPI_Type_contiguous(2, MPI_INT, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(compose, 0, &op);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < N; i++) in[k][i] = map(rank, i);
    MPI_Iallreduce(in[0], out[0], N, type, op, MPI_COMM_WORLD, &requests[0]);
    MPI_Allreduce_init(in[1], out[1], N, type, op, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]);
    MPI_Start(&requests[1]);
    for (int k = 0; k < 2; k++) {
        if (rank == 0) MPI_Wait(&requests[k], MPI_STATUS_IGNORE);
        if (rank == 1) leave(&requests[k]);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    MPI_Barrier(MPI_COMM_WORLD); /* the others are here all the time */
}

static void middle_check(void) {
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (int k = 0; k < 2; k++) verify(out[k]);
    memset(out[1], 0, sizeof out[1]);
    MPI_Start(&requests[1]);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    verify(out[1]);
    MPI_Request_free(&requests[1]);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(middle)};
    return run_four_ranks(argc, argv, states, 1);
}
