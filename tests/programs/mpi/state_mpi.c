/* MPI objects of every kind. They are made; the job is checkpointed, killed and restarted (or not); then they are still
 * valid. See checkpointed.h.
 *
 *     STATE_GO=FILE mpirun -n N manapy-launch state_mpi [STATE...]          N >= 2
 */
#include "../checkpointed.h"

#include <mpi.h>

#include "../counted_attribute.h"

static int rank, size, total; /* total: sum of rank + 1 over the ranks */

static int sum(int value, MPI_Comm comm) {
    int result = -1;
    MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, comm);
    return result;
}

/* ---- communicators ---- */

static MPI_Comm duplicate, halves, reversed, shared, without0, created, nested;

static void communicators_set_up(void) {
    MPI_Group world, rest;
    MPI_Comm freed;
    int zero = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &halves);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    MPI_Comm_dup(halves, &nested);
    MPI_Comm_dup(duplicate, &freed);
    MPI_Comm_free(&freed);
    CHECK(freed == MPI_COMM_NULL);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_excl(world, 1, &zero, &rest);
    without0 = MPI_COMM_NULL;
    if (rank > 0) MPI_Comm_create_group(MPI_COMM_WORLD, rest, 7, &without0);
    MPI_Comm_create(MPI_COMM_WORLD, rest, &created);
    CHECK((created == MPI_COMM_NULL) == (rank == 0));
    MPI_Comm_set_name(duplicate, "the duplicate");
    MPI_Group_free(&world);
    MPI_Group_free(&rest);
}

static void communicators_check(void) {
    char name[MPI_MAX_OBJECT_NAME];
    int r, n, result, value = rank;
    CHECK(sum(rank + 1, duplicate) == total);
    MPI_Comm_rank(reversed, &r);
    CHECK(r == size - 1 - rank);
    MPI_Bcast(&value, 1, MPI_INT, 0, reversed);
    CHECK(value == size - 1);
    MPI_Comm_size(halves, &n);
    CHECK(n == (size + 1 - rank % 2) / 2 && sum(1, halves) == n && sum(1, nested) == n);
    CHECK(sum(rank % 2, halves) == n * (rank % 2));
    MPI_Comm_compare(halves, nested, &result);
    CHECK(result == MPI_CONGRUENT);
    MPI_Comm_compare(duplicate, reversed, &result);
    CHECK(result == MPI_SIMILAR);
    if (rank > 0) {
        MPI_Comm_rank(without0, &r);
        CHECK(r == rank - 1 && sum(1, without0) == size - 1 && sum(1, created) == size - 1);
    }
    MPI_Comm_get_name(duplicate, name, &n);
    CHECK(!strcmp(name, "the duplicate") && n == 13);
    MPI_Barrier(shared);
    MPI_Comm child; /* constructors still work, in the restarted job too */
    MPI_Comm_split(reversed, rank / 2, 0, &child);
    CHECK(sum(1, child) == (rank / 2 * 2 + 1 < size ? 2 : 1));
    MPI_Comm *all[] = {&child, &duplicate, &halves, &nested, &reversed, &shared};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) MPI_Comm_free(all[i]);
    if (rank > 0) MPI_Comm_free(&without0), MPI_Comm_free(&created);
}

/* ---- groups ---- */

static MPI_Group members, others, empty;

static void groups_set_up(void) {
    int zero = 0;
    MPI_Comm_group(MPI_COMM_WORLD, &members);
    MPI_Group_excl(members, 1, &zero, &others);
    MPI_Group_incl(members, 0, NULL, &empty);
}

static void groups_check(void) {
    int n, r, result, two[2] = {0, size - 2}, translated[2];
    MPI_Group_size(others, &n);
    MPI_Group_rank(others, &r);
    CHECK(n == size - 1 && r == (rank == 0 ? MPI_UNDEFINED : rank - 1) && empty == MPI_GROUP_EMPTY);
    MPI_Group_translate_ranks(others, 2, two, members, translated);
    CHECK(translated[0] == 1 && translated[1] == size - 1);
    MPI_Group joined, zero;
    MPI_Group_difference(members, others, &zero);
    MPI_Group_union(zero, others, &joined);
    MPI_Group_compare(joined, members, &result);
    CHECK(result == MPI_IDENT);
    MPI_Group *all[] = {&members, &others, &joined, &zero};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) MPI_Group_free(all[i]);
}

/* ---- datatypes ---- */

static MPI_Datatype vector, structure, subarray, darray, resized, f90, big;

static void datatypes_set_up(void) {
    MPI_Datatype pair, of[2] = {MPI_DOUBLE, MPI_DATATYPE_NULL};
    int lengths[2] = {1, 2}, sizes[2] = {8, 8}, subsizes[2] = {3, 4}, starts[2] = {1, 2}, grid[2] = {1, 1};
    int distribution[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, 2};
    MPI_Aint at[2] = {0, 16};
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_vector(3, 1, 2, pair, &vector);
    of[1] = pair;
    MPI_Type_create_struct(2, lengths, at, of, &structure);
    MPI_Type_free(&pair); /* still exists in types that are made of it */
    MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_FORTRAN, MPI_INT, &subarray);
    MPI_Type_create_darray(1, 0, 2, sizes, distribution, arguments, grid, MPI_ORDER_C, MPI_INT, &darray);
    MPI_Type_create_resized(subarray, -8, 1024, &resized);
    MPI_Type_vector_c(2, 1, 3, MPI_CHAR, &big);
    MPI_Type_set_name(resized, "resized");
    MPI_Type_create_f90_real(10, 100, &f90);
    MPI_Datatype *all[] = {&vector, &structure, &subarray, &darray, &resized, &big};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) MPI_Type_commit(all[i]);
}

static void datatypes_check(void) {
    char name[MPI_MAX_OBJECT_NAME];
    int n, integers[12], a, d, combiner, next = (rank + 1) % size, before = (rank + size - 1) % size, from[64], to[64];
    MPI_Aint addresses[2], lower, extent;
    MPI_Datatype types[2], again;
    MPI_Status status;
    MPI_Type_size(structure, &n);
    CHECK(n == 24);
    MPI_Type_size(f90, &n);
    CHECK(n == 8);
    MPI_Type_create_f90_real(10, 100, &again);
    CHECK(again == f90);
    MPI_Type_get_extent(resized, &lower, &extent);
    CHECK(lower == -8 && extent == 1024);
    MPI_Type_get_name(resized, name, &n);
    CHECK(!strcmp(name, "resized"));
    MPI_Type_get_envelope(darray, &n, &a, &d, &combiner);
    CHECK(n == 12 && a == 0 && d == 1 && combiner == MPI_COMBINER_DARRAY);
    MPI_Type_get_contents(darray, 12, 0, 1, integers, addresses, types);
    CHECK(integers[5] == MPI_DISTRIBUTE_BLOCK && integers[7] == MPI_DISTRIBUTE_DFLT_DARG && integers[8] == 2 &&
          integers[11] == MPI_ORDER_C && types[0] == MPI_INT);
    MPI_Type_get_contents(structure, 3, 2, 2, integers, addresses, types);
    MPI_Type_size(types[1], &n); /* a new reference to the freed pair */
    CHECK(integers[0] == 2 && addresses[1] == 16 && types[0] == MPI_DOUBLE && n == 8);
    MPI_Type_free(&types[1]);
    for (int i = 0; i < 64; i++) from[i] = rank * 64 + i, to[i] = -1;
    MPI_Sendrecv(from, 1, subarray, next, 3, to, 1, subarray, before, 3, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, subarray, &n);
    CHECK(n == 1 && to[2 * 8 + 1] == before * 64 + 17 && to[2 * 8] == -1 && to[2 * 8 + 4] == -1);
    MPI_Sendrecv(from, 1, vector, next, 3, to, 1, vector, before, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(to[4] == before * 64 + 4 && to[2] == -1);
    MPI_Sendrecv(from, 1, big, next, 4, to, 1, big, before, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Datatype *all[] = {&vector, &structure, &subarray, &darray, &resized, &big};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) MPI_Type_free(all[i]);
}

/* ---- operations ---- */

static MPI_Op adding, adding_pairs;
static MPI_Datatype two;

static void add(void *in, void *inout, int *n, MPI_Datatype *type) {
    int *a = in, *b = inout, bytes;
    MPI_Type_size(*type, &bytes); /* the program's own handle */
    for (int i = 0; i < *n * bytes / 4; i++) b[i] += a[i];
}

static void operations_set_up(void) {
    MPI_Op_create(add, 1, &adding);
    MPI_Op_create(add, 0, &adding_pairs);
    MPI_Type_contiguous(2, MPI_INT, &two);
    MPI_Type_commit(&two);
}

static void operations_check(void) {
    int in[2] = {rank + 1, 10 * (rank + 1)}, out[2], commutes;
    MPI_Allreduce(in, out, 2, MPI_INT, adding, MPI_COMM_WORLD);
    CHECK(out[0] == total && out[1] == 10 * total);
    MPI_Allreduce(in, out, 1, two, adding_pairs, MPI_COMM_WORLD);
    CHECK(out[0] == total && out[1] == 10 * total);
    MPI_Op_commutative(adding, &commutes);
    CHECK(commutes == 1);
    MPI_Op_commutative(adding_pairs, &commutes);
    CHECK(commutes == 0);
    MPI_Op_free(&adding);
    MPI_Op_free(&adding_pairs);
    MPI_Type_free(&two);
}

/* ---- infos, error handlers, error codes ---- */

static MPI_Info info, copy;
static MPI_Comm handled;
static int handled_errors, handled_code, added_class, added_code;

static void on_error(MPI_Comm *comm, int *code, ...) {
    CHECK(*comm == handled);
    handled_code = *code;
    handled_errors++;
}

static void infos_set_up(void) {
    MPI_Info_create(&info);
    MPI_Info_set(info, "one", "1");
    MPI_Info_set(info, "two", "zwei");
    MPI_Info_set(info, "gone", "x");
    MPI_Info_delete(info, "gone");
    MPI_Info_dup(info, &copy);
    MPI_Info_set(info, "one", "eins");
}

static void infos_check(void) {
    char key[MPI_MAX_INFO_KEY + 1], value[100];
    int n, flag;
    MPI_Info_get(info, "one", 99, value, &flag);
    CHECK(flag && !strcmp(value, "eins"));
    MPI_Info_get(copy, "one", 99, value, &flag);
    CHECK(flag && !strcmp(value, "1"));
    MPI_Info_get(info, "gone", 99, value, &flag);
    CHECK(!flag);
    MPI_Info_get_nkeys(copy, &n);
    MPI_Info_get_nthkey(copy, 1, key);
    CHECK(n == 2 && !strcmp(key, "two"));
    MPI_Info_free(&info);
    MPI_Info_free(&copy);
    CHECK(info == MPI_INFO_NULL);
}

static void errors_set_up(void) {
    MPI_Errhandler handler;
    MPI_Comm_dup(MPI_COMM_WORLD, &handled);
    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_set_errhandler(handled, handler);
    MPI_Errhandler_free(&handler); /* still exists as the communicator's handler */
    MPI_Add_error_class(&added_class);
    MPI_Add_error_code(added_class, &added_code);
    MPI_Add_error_string(added_code, "an error of the program");
}

static void errors_check(void) {
    char text[MPI_MAX_ERROR_STRING];
    int n, class;
    MPI_Send(&rank, 1, MPI_INT, size, 0, handled);
    MPI_Error_class(handled_code, &class);
    CHECK(class == MPI_ERR_RANK && handled_errors == 1);
    MPI_Comm_call_errhandler(handled, added_code);
    CHECK(handled_errors == 2 && handled_code == added_code);
    MPI_Error_string(added_code, text, &n);
    CHECK(!strcmp(text, "an error of the program"));
    MPI_Error_class(added_code, &class);
    CHECK(class == added_class);
    MPI_Comm_free(&handled);
}

/* ---- attributes ---- */

static int type_keyval;
static MPI_Comm carrier;
static MPI_Datatype carrier_type;

static void attributes_set_up(void) {
    counted_attribute_create();
    MPI_Comm_dup(MPI_COMM_WORLD, &carrier);
    MPI_Comm_set_attr(carrier, keyval, &rank);
    MPI_Type_create_keyval(MPI_TYPE_DUP_FN, MPI_TYPE_NULL_DELETE_FN, &type_keyval, NULL);
    MPI_Type_contiguous(3, MPI_INT, &carrier_type);
    MPI_Type_set_attr(carrier_type, type_keyval, &size);
    MPI_Type_set_attr(MPI_INT, type_keyval, &total);
}

static void attributes_check(void) {
    void *value;
    int flag, *bound;
    MPI_Comm again;
    MPI_Datatype type;
    MPI_Comm_get_attr(carrier, keyval, &value, &flag);
    CHECK(flag && value == &rank);
    MPI_Comm_dup(carrier, &again);
    MPI_Comm_get_attr(again, keyval, &value, &flag);
    CHECK(copies == 1 && flag && value == (char *)&rank + 1);
    MPI_Comm_free_keyval(&keyval);
    CHECK(keyval == MPI_KEYVAL_INVALID);
    MPI_Comm_free(&again);
    MPI_Comm_free(&carrier);
    CHECK(deletions == 2);
    MPI_Type_dup(carrier_type, &type);
    MPI_Type_get_attr(type, type_keyval, &value, &flag);
    CHECK(flag && value == &size);
    MPI_Type_get_attr(MPI_INT, type_keyval, &value, &flag);
    CHECK(flag && value == &total);
    MPI_Type_free(&type);
    MPI_Type_free(&carrier_type);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag);
    CHECK(flag && *bound >= 32767);
}

/* ---- memory ---- */

static char *memory;

static void memory_set_up(void) {
    MPI_Alloc_mem(100000, MPI_INFO_NULL, &memory);
    memset(memory, rank + 1, 100000);
}

static void memory_check(void) {
    CHECK(memory[0] == rank + 1 && memory[99999] == rank + 1);
    MPI_Free_mem(memory);
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(communicators), STATE(groups), STATE(datatypes),  STATE(operations),
        STATE(infos),         STATE(errors), STATE(attributes), STATE(memory),
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    total = size * (size + 1) / 2;
    int result = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    return result;
}
