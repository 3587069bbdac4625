/* Operations: predefined ones on every kind of type, and the program's in both forms, on basic and derived types. See
 * checkpointed.h.
 *
 *     STATE_GO=FILE mpirun -n N manapy-launch surface_op [STATE...]          N >= 2
 */
#include "../../mpi_states.h"

#include <complex.h>

/* ---- the program's ---- */

typedef struct { double scale, shift; } line_t; /* x -> scale x + shift */

static MPI_Datatype line_type;
static MPI_Op composing, composing_c, adding, adding_c;
static int calls, nested;

static void compose(line_t *a, line_t *b, MPI_Count n, MPI_Datatype type) {
    CHECK(type == line_type); /* the program's own handle */
    for (MPI_Count i = 0; i < n; i++) b[i] = (line_t){a[i].scale * b[i].scale, a[i].shift * b[i].scale + b[i].shift};
    calls++;
}
static void on_compose(void *a, void *b, int *n, MPI_Datatype *type) { compose(a, b, *n, *type); }
static void on_compose_c(void *a, void *b, MPI_Count *n, MPI_Datatype *type) { compose(a, b, *n, *type); }

static void add(int *a, int *b, MPI_Count n, MPI_Datatype type) {
    int bytes = 0;
    MPI_Type_size(type, &bytes); /* calls MPI while the library calls it */
    for (MPI_Count i = 0; i < n * bytes / (int)sizeof(int); i++) b[i] += a[i];
    if (nested) { /* and uses another operation */
        int one = 1, two = 2;
        nested = 0;
        MPI_Reduce_local(&one, &two, 1, MPI_INT, adding_c);
        CHECK(two == 3);
    }
}
static void on_add(void *a, void *b, int *n, MPI_Datatype *type) { add(a, b, *n, *type); }
static void on_add_c(void *a, void *b, MPI_Count *n, MPI_Datatype *type) { add(a, b, *n, *type); }

static void user_round(void) {
    int before = calls;
    line_t mine = {rank % 3 + 1, rank}, all = {0, 0}, expected = {1, 0};
    for (int r = 0; r < size; r++) expected = (line_t){expected.scale * (r % 3 + 1), expected.shift * (r % 3 + 1) + r};
    MPI_Allreduce(&mine, &all, 1, line_type, composing, MPI_COMM_WORLD);
    CHECK(all.scale == expected.scale && all.shift == expected.shift);
    all = (line_t){0, 0};
    MPI_Reduce_c(&mine, &all, 1, line_type, composing_c, size - 1, MPI_COMM_WORLD);
    if (rank == size - 1) CHECK(all.scale == expected.scale && all.shift == expected.shift);
    MPI_Barrier(MPI_COMM_WORLD);
    all = (line_t){2, 3};
    mine = (line_t){5, 7};
    MPI_Reduce_local(&mine, &all, 1, line_type, composing);
    CHECK(all.scale == 10 && all.shift == 17 && calls > before);

    int in[2] = {rank, 10 * rank}, out[2] = {-1, -1}, total = size * (size - 1) / 2;
    nested = 1;
    MPI_Allreduce(in, out, 2, MPI_INT, adding, MPI_COMM_WORLD);
    CHECK(out[0] == total && out[1] == 10 * total);
    MPI_Allreduce(in, out, 1, MPI_2INT, adding_c, MPI_COMM_WORLD);
    CHECK(out[0] == total && out[1] == 10 * total);
    MPI_Reduce_local_c(in, out, 2, MPI_INT, adding_c);
    CHECK(out[0] == total + rank && out[1] == 10 * (total + rank));
}

static void user_set_up(void) {
    MPI_Type_contiguous(2, MPI_DOUBLE, &line_type);
    MPI_Type_commit(&line_type);
    MPI_Op_create(on_compose, 0, &composing);
    MPI_Op_create_c(on_compose_c, 0, &composing_c);
    MPI_Op_create(on_add, 1, &adding);
    MPI_Op_create_c(on_add_c, 1, &adding_c);
    user_round();
}

static void user_check(void) {
    int commutes = -1;
    user_round();
    MPI_Op *all[] = {&composing, &composing_c, &adding, &adding_c};
    for (int i = 0; i < 4; i++) {
        CHECK(MPI_Op_commutative(*all[i], &commutes) == MPI_SUCCESS && commutes == (i >= 2));
        CHECK(MPI_Op_free(all[i]) == MPI_SUCCESS && *all[i] == MPI_OP_NULL);
    }
    MPI_Type_free(&line_type);
    MPI_Op_create(on_add, 1, &adding); /* the numbers of freed ones are used again */
    int one = 1, two = 2;
    MPI_Reduce_local(&one, &two, 1, MPI_INT, adding);
    CHECK(two == 3);
    MPI_Op_free(&adding);
}

/* ---- predefined ones ---- */

static MPI_Datatype kept_pair; /* a handle that is kept over the checkpoint */

static int reduced(int a, int b, MPI_Op op) {
    MPI_Reduce_local(&a, &b, 1, MPI_INT, op);
    return b;
}

static void predefined_round(void) {
    CHECK(reduced(12, 10, MPI_MAX) == 12 && reduced(12, 10, MPI_MIN) == 10 && reduced(12, 10, MPI_SUM) == 22 &&
          reduced(12, 10, MPI_PROD) == 120);
    CHECK(reduced(12, 10, MPI_BAND) == 8 && reduced(12, 10, MPI_BOR) == 14 && reduced(12, 10, MPI_BXOR) == 6);
    CHECK(reduced(12, 0, MPI_LAND) == 0 && reduced(12, 0, MPI_LOR) == 1 && reduced(12, 7, MPI_LXOR) == 0);
    struct { double value; int index; } place = {100 - rank % 2, rank}, found;
    MPI_Allreduce(&place, &found, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
    CHECK(found.value == 100 && found.index == 0);
    MPI_Allreduce(&place, &found, 1, kept_pair, MPI_MINLOC, MPI_COMM_WORLD);
    CHECK(found.value == 99 && found.index == 1);
    double complex z = 1 + 2 * I, w = 3 - I;
    MPI_Reduce_local(&z, &w, 1, MPI_C_DOUBLE_COMPLEX, MPI_PROD);
    CHECK(w == (1 + 2 * I) * (3 - I));
    long double l = 0.5L, k = 0.25L;
    MPI_Reduce_local(&l, &k, 1, MPI_LONG_DOUBLE, MPI_SUM);
    CHECK(k == 0.75L);
}

static void predefined_set_up(void) {
    kept_pair = MPI_DOUBLE_INT;
    predefined_round();
}

static void predefined_check(void) {
    int commutes = -1;
    predefined_round();
    CHECK(MPI_Op_commutative(MPI_SUM, &commutes) == MPI_SUCCESS && commutes == 1);
}

/* ---- wrong arguments ---- */

static MPI_Op kept;

static void errors_round(void) {
    MPI_Op op = MPI_SUM, null = MPI_OP_NULL;
    int commutes, in = 1, out = 2;
    CHECK(class_of(MPI_Op_free(&op)) == MPI_ERR_OP && op == MPI_SUM);
    CHECK(class_of(MPI_Op_free(&null)) == MPI_ERR_OP);
    CHECK(class_of(MPI_Op_commutative(MPI_OP_NULL, &commutes)) == MPI_ERR_OP);
    CHECK(class_of(MPI_Op_create(NULL, 1, &op)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Reduce_local(&in, &out, 1, MPI_DATATYPE_NULL, kept)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Reduce_local_c(&in, &out, 1, MPI_INT, MPI_OP_NULL)) == MPI_ERR_OP);
    CHECK(out == 2);
}

static void errors_set_up(void) {
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Op_create(on_add, 1, &kept);
    errors_round();
}

static void errors_check(void) {
    errors_round();
    CHECK(reduced(1, 2, kept) == 3);
    MPI_Op_free(&kept);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(user), STATE(predefined), STATE(errors)};
    return run_mpi_states(argc, argv, NULL, states, sizeof states / sizeof *states);
}
