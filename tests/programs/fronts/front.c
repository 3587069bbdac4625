/* States of a program whose ABI is not MPICH's: predefined handles (of Open MPI, they are in the program's own memory),
 * functions that the library calls, statuses, arrays of requests and types, constants, handles as numbers. Any number
 * of ranks. */
#include "../mpi_states.h"

/* Addresses that the linker computes. Without -fPIC these objects are in the program (copy relocations). */
static MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_SELF, MPI_COMM_NULL};
static MPI_Datatype types[] = {MPI_INT, MPI_DOUBLE, MPI_DOUBLE_INT, MPI_BYTE};
static MPI_Op ops[] = {MPI_SUM, MPI_MAX, MPI_OP_NULL};

static int right(void) { return (rank + 1) % size; }
static int left(void) { return (rank + size - 1) % size; }

/* ---- handles ---- */

static MPI_Comm half, copy;
static MPI_Datatype pair;
static MPI_Group group;

static void handles_set_up(void) {
    CHECK(!MPI_Comm_split(comms[0], rank % 2 ? 1 : MPI_UNDEFINED, 0, &half));
    CHECK((half == MPI_COMM_NULL) == (rank % 2 == 0));
    if (half != comms[2]) CHECK(!MPI_Comm_free(&half));
    CHECK(half == comms[2]);
    CHECK(!MPI_Comm_split(comms[0], rank % 2, 0, &half) && !MPI_Comm_dup(comms[0], &copy));
    CHECK(!MPI_Type_contiguous(2, types[0], &pair) && !MPI_Type_commit(&pair));
    CHECK(!MPI_Comm_group(half, &group));
}

static void numbers(void) {
#ifdef OPEN_MPI
    CHECK(MPI_Comm_f2c(MPI_Comm_c2f(copy)) == copy && MPI_Comm_f2c(MPI_Comm_c2f(comms[0])) == comms[0]);
    CHECK(MPI_Comm_c2f(MPI_COMM_WORLD) == 0 && MPI_Comm_c2f(MPI_COMM_NULL) == 2 && MPI_Op_c2f(MPI_SUM) == 3);
    CHECK(MPI_Type_f2c(MPI_Type_c2f(MPI_LONG_DOUBLE)) == MPI_LONG_DOUBLE && MPI_Type_f2c(MPI_Type_c2f(pair)) == pair);
    CHECK(MPI_Request_c2f(MPI_REQUEST_NULL) == 0 && MPI_File_c2f(MPI_FILE_NULL) == 0);
#else
    CHECK(MPI_Comm_fromint(MPI_Comm_toint(copy)) == copy && MPI_Comm_fromint(MPI_Comm_toint(comms[0])) == comms[0]);
    CHECK(MPI_Comm_toint(MPI_COMM_WORLD) == 0x101 && MPI_Op_toint(MPI_SUM) == 0x21);
    CHECK(MPI_Type_fromint(MPI_Type_toint(MPI_LONG_DOUBLE)) == MPI_LONG_DOUBLE);
    CHECK(MPI_Type_fromint(MPI_Type_toint(pair)) == pair &&
          MPI_File_fromint(MPI_File_toint(MPI_FILE_NULL)) == MPI_FILE_NULL);
#endif
}

static void handles_check(void) {
    int n, other, found[2], zero = 0;
    CHECK(!MPI_Comm_size(half, &n) && n == (size + 1 - rank % 2) / 2);
    CHECK(!MPI_Comm_compare(comms[0], copy, &n) && n == MPI_CONGRUENT);
    CHECK(!MPI_Group_size(group, &n) && !MPI_Group_translate_ranks(group, 1, &zero, MPI_GROUP_EMPTY, &other));
    CHECK(other == MPI_UNDEFINED);
    found[0] = MPI_PROC_NULL, found[1] = 0;
    CHECK(!MPI_Group_translate_ranks(group, 2, found, group, found) && found[0] == MPI_PROC_NULL && found[1] == 0);
    numbers();
    CHECK(!MPI_Comm_free(&half) && half == MPI_COMM_NULL && !MPI_Comm_free(&copy) && !MPI_Group_free(&group));
    CHECK(group == MPI_GROUP_NULL);
}

/* ---- messages: a request stays open during the checkpoint ---- */

static int token = -1;
static MPI_Request open_request, many[100];
static int many_got[100];

static void ring(MPI_Comm comm) {
    int out[4] = {rank, 7, 8, 9}, got[4] = {0}, n;
    MPI_Status statuses[2], one;
    MPI_Request both[2];
    CHECK(!MPI_Isend(out, 4, MPI_INT, right(), 5, comm, &both[0]));
    CHECK(!MPI_Irecv(got, 4, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &both[1]));
    CHECK(!MPI_Waitall(2, both, statuses) && both[0] == MPI_REQUEST_NULL && both[1] == MPI_REQUEST_NULL);
    CHECK(statuses[1].MPI_SOURCE == left() && statuses[1].MPI_TAG == 5 && got[0] == left());
    CHECK(!MPI_Get_count(&statuses[1], MPI_INT, &n) && n == 4);
    CHECK(!MPI_Test_cancelled(&statuses[1], &n) && !n);
    CHECK(!MPI_Recv(got, 1, MPI_INT, MPI_PROC_NULL, 3, comm, &one));
    CHECK(one.MPI_SOURCE == MPI_PROC_NULL && one.MPI_TAG == MPI_ANY_TAG);
    CHECK(!MPI_Sendrecv(out, 1, pair, right(), 1, got, 2, MPI_INT, left(), 1, comm, MPI_STATUS_IGNORE));
    CHECK(got[0] == left() && got[1] == 7);
    memset(&one, 0xff, sizeof one); /* of a send: only whether it was cancelled */
    CHECK(!MPI_Isend(out, 1, MPI_INT, MPI_PROC_NULL, 1, comm, &both[0]) && !MPI_Wait(&both[0], &one));
    CHECK(!MPI_Test_cancelled(&one, &n) && !n);
    CHECK(!MPI_Wait(&both[0], &one) && one.MPI_SOURCE == MPI_ANY_SOURCE && one.MPI_TAG == MPI_ANY_TAG);
}

static void messages_set_up(void) {
    CHECK(!MPI_Irecv(&token, 1, MPI_INT, left(), 77, MPI_COMM_WORLD, &open_request));
    for (int i = 0; i < 100; i++)
        CHECK(!MPI_Irecv(&many_got[i], 1, MPI_INT, left(), 100 + i, MPI_COMM_WORLD, &many[i]));
    ring(MPI_COMM_WORLD);
}

static void messages_check(void) {
    MPI_Status statuses[100];
    int done = 0, n, places[100];
    CHECK(!MPI_Send(&rank, 1, MPI_INT, right(), 77, MPI_COMM_WORLD) && !MPI_Wait(&open_request, MPI_STATUS_IGNORE));
    CHECK(token == left() && open_request == MPI_REQUEST_NULL);
    for (int i = 0; i < 100; i++) CHECK(!MPI_Send(&i, 1, MPI_INT, right(), 100 + i, MPI_COMM_WORLD));
    while (done < 100) {
        CHECK(!MPI_Waitsome(100, many, &n, places, statuses) && n > 0);
        for (int i = 0; i < n; i++)
            CHECK(statuses[i].MPI_TAG == 100 + places[i] && many[places[i]] == MPI_REQUEST_NULL);
        done += n;
    }
    for (int i = 0; i < 100; i++) CHECK(many_got[i] == i);
    CHECK(!MPI_Waitsome(100, many, &n, places, statuses) && n == MPI_UNDEFINED);
    ring(MPI_COMM_WORLD);
}

/* ---- functions that the library calls ---- */

static MPI_Op twice;
static MPI_Comm watched, child;
static int keyval, type_keyval, copied, deleted, wrong_type, caught;

static void add(void *in, void *inout, int *n, MPI_Datatype *type) {
    wrong_type |= *type != pair;
    for (int i = 0; i < 2 * *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}
static int copy_attribute(MPI_Comm comm, int key, void *extra, void *value, void *out, int *flag) {
    copied += comm == watched && key == keyval && extra == &copied;
    *(void **)out = (char *)value + 1;
    *flag = 1;
    return MPI_SUCCESS;
}
static int delete_attribute(MPI_Comm comm, int key, void *value, void *extra) {
    deleted += comm == child && key == keyval && value != NULL && extra == &copied;
    return MPI_SUCCESS;
}
static void handler(MPI_Comm *comm, int *code, ...) { caught += *comm == watched && class_of(*code) == MPI_ERR_RANK; }

static void callbacks_set_up(void) {
    MPI_Errhandler made, got;
    CHECK(!MPI_Op_create(add, 1, &twice) && !MPI_Comm_dup(MPI_COMM_WORLD, &watched));
    CHECK(!MPI_Comm_create_keyval(copy_attribute, delete_attribute, &keyval, &copied));
    CHECK(!MPI_Comm_set_attr(watched, keyval, &copied));
    CHECK(!MPI_Type_create_keyval(MPI_TYPE_DUP_FN, MPI_TYPE_NULL_DELETE_FN, &type_keyval, NULL));
    CHECK(!MPI_Type_set_attr(pair, type_keyval, &keyval));
    CHECK(!MPI_Comm_create_errhandler(handler, &made) && !MPI_Comm_set_errhandler(watched, made));
    CHECK(!MPI_Comm_get_errhandler(watched, &got) && got == made);
    CHECK(!MPI_Errhandler_free(&made) && made == MPI_ERRHANDLER_NULL && !MPI_Errhandler_free(&got));
}

static void callbacks_check(void) {
    int in[2] = {1, rank}, out[2], flag;
    void *value;
    MPI_Datatype dup;
    CHECK(!MPI_Allreduce(in, out, 1, pair, twice, MPI_COMM_WORLD) && out[0] == size && !wrong_type);
    CHECK(out[1] == size * (size - 1) / 2);
    CHECK(!MPI_Comm_dup(watched, &child) && copied == 1);
    CHECK(!MPI_Comm_get_attr(child, keyval, &value, &flag) && flag && value == (char *)&copied + 1);
    CHECK(!MPI_Type_dup(pair, &dup) && !MPI_Type_get_attr(dup, type_keyval, &value, &flag) && flag);
    CHECK(value == &keyval && !MPI_Type_free(&dup));
    MPI_Send(in, 1, MPI_INT, size, 0, watched);
    CHECK(caught == 1);
    MPI_Comm before = child;
    CHECK(!MPI_Comm_delete_attr(child, keyval) && deleted == 1 && before == child && !MPI_Comm_free(&child));
    CHECK(!MPI_Comm_free_keyval(&keyval) && keyval == MPI_KEYVAL_INVALID);
    CHECK(!MPI_Op_free(&twice) && twice == MPI_OP_NULL);
}

/* ---- constants ---- */

static MPI_Datatype block, grid;
static MPI_Win win;
static int memory[4];

static void constants_set_up(void) {
    int sizes[2] = {4, 6}, parts[2] = {2, 3}, starts[2] = {1, 1}, n[4], kind;
    int distribs[2] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE};
    int dargs[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG}, procs[2] = {2, 1};
    CHECK(!MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_FORTRAN, MPI_DOUBLE, &block));
    CHECK(!MPI_Type_create_darray(2, 1, 2, sizes, distribs, dargs, procs, MPI_ORDER_C, MPI_INT, &grid));
    CHECK(!MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &win));
    CHECK(!MPI_Type_get_envelope(types[2], &n[0], &n[1], &n[2], &kind) && kind == MPI_COMBINER_NAMED);
}

static void constants_check(void) {
    int n[3], kind, integers[20], flag, *number, class, dims[2] = {0}, periods[2] = {0}, length, source, destination;
    MPI_Aint addresses[1];
    MPI_Datatype inner;
    MPI_Comm cart;
    char text[MPI_MAX_ERROR_STRING], name[MPI_MAX_OBJECT_NAME];
    CHECK(!MPI_Type_get_envelope(block, &n[0], &n[1], &n[2], &kind) && kind == MPI_COMBINER_SUBARRAY);
    CHECK(!MPI_Type_get_contents(block, n[0], n[1], n[2], integers, addresses, &inner) && inner == MPI_DOUBLE);
    CHECK(integers[7] == MPI_ORDER_FORTRAN);
    CHECK(!MPI_Type_get_envelope(grid, &n[0], &n[1], &n[2], &kind) && kind == MPI_COMBINER_DARRAY);
    CHECK(!MPI_Type_get_contents(grid, n[0], n[1], n[2], integers, addresses, &inner) && inner == MPI_INT);
    CHECK(integers[5] == MPI_DISTRIBUTE_CYCLIC && integers[6] == MPI_DISTRIBUTE_NONE && integers[11] == MPI_ORDER_C);
    CHECK(integers[7] == MPI_DISTRIBUTE_DFLT_DARG);
    CHECK(!MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &number, &flag) && flag && *number == MPI_WIN_FLAVOR_CREATE);
    CHECK(!MPI_Win_get_attr(win, MPI_WIN_MODEL, &number, &flag) && flag);
    CHECK(*number == MPI_WIN_UNIFIED || *number == MPI_WIN_SEPARATE);
    CHECK(!MPI_Win_fence(MPI_MODE_NOPRECEDE, win) && !MPI_Put(&rank, 1, MPI_INT, right(), 1, 1, MPI_INT, win));
    CHECK(!MPI_Win_fence(MPI_MODE_NOSUCCEED | MPI_MODE_NOSTORE, win) && memory[1] == left());
    CHECK(!MPI_Win_lock(MPI_LOCK_EXCLUSIVE, right(), 0, win) && !MPI_Win_unlock(right(), win));
    CHECK(!MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &number, &flag) && flag && *number >= 32767);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Send(&rank, 1, MPI_INT, 1, 0, MPI_COMM_SELF)) == MPI_ERR_RANK);
    CHECK(class_of(MPI_Send(&rank, -1, MPI_INT, 0, 0, MPI_COMM_SELF)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Send(&rank, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_SELF)) == MPI_ERR_TYPE);
    CHECK(!MPI_Error_class(MPI_ERR_TRUNCATE, &class) && class == MPI_ERR_TRUNCATE);
    CHECK(!MPI_Error_string(MPI_ERR_TRUNCATE, text, &length) && (int)strlen(text) == length && length > 0);
    CHECK(!MPI_Add_error_class(&class) && class > MPI_ERR_LASTCODE - 20);
#ifdef OPEN_MPI /* programs compare codes with classes */
    CHECK(MPI_Send(&rank, 1, MPI_INT, 1, 0, MPI_COMM_SELF) == MPI_ERR_RANK);
#endif
    CHECK(!MPI_Dims_create(size, 2, dims) && !MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &cart));
    CHECK(!MPI_Topo_test(cart, &kind) && kind == MPI_CART && !MPI_Topo_test(MPI_COMM_WORLD, &kind));
    CHECK(kind == MPI_UNDEFINED && !MPI_Cart_shift(cart, 0, size, &source, &destination));
    CHECK(source == MPI_PROC_NULL && destination == MPI_PROC_NULL && !MPI_Comm_free(&cart));
    CHECK(!MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &cart));
    CHECK(!MPI_Comm_set_name(cart, "node") && !MPI_Comm_get_name(cart, name, &length) && !strcmp(name, "node"));
    CHECK(!MPI_Comm_free(&cart) && !MPI_Win_free(&win) && win == MPI_WIN_NULL);
    CHECK(!MPI_Type_match_size(MPI_TYPECLASS_INTEGER, 8, &inner) && !MPI_Type_size(inner, &kind) && kind == 8);
    CHECK(!MPI_Allreduce(MPI_IN_PLACE, (int[]){rank}, 1, types[0], ops[1], comms[0]));
    CHECK(!MPI_Type_free(&block) && !MPI_Type_free(&grid) && grid == MPI_DATATYPE_NULL);
}

int main(int argc, char **argv) {
    const state_t states[] = {STATE(handles), STATE(messages), STATE(callbacks), STATE(constants)};
    return run_mpi_states(argc, argv, NULL, states, sizeof states / sizeof *states);
}
