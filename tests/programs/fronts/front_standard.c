/* States of a program of the MPI-5 standard ABI, beside those of front.c: what has other numbers in that ABI only, and
 * what Open MPI's ABI does not have. Any number of ranks. */
#include "../mpi_states.h"

static int right(void) { return (rank + 1) % size; }
static int left(void) { return (rank + size - 1) % size; }

/* ---- the ABI itself ---- */

static int aint_size(void) {
    char value[MPI_MAX_INFO_VAL] = "";
    int found = 0;
    MPI_Info info;
    CHECK(!MPI_Abi_get_info(&info) && !MPI_Info_get(info, "mpi_aint_size", sizeof value - 1, value, &found) && found);
    CHECK(!MPI_Info_free(&info) && info == MPI_INFO_NULL);
    return atoi(value);
}

static void abi_set_up(void) {
    int major, minor;
    CHECK(!MPI_Abi_get_version(&major, &minor) && major == MPI_ABI_VERSION && minor == MPI_ABI_SUBVERSION);
    CHECK(!MPI_Get_version(&major, &minor) && major == MPI_VERSION && minor == MPI_SUBVERSION);
    CHECK(sizeof(MPI_Status) == 32 && aint_size() == sizeof(MPI_Aint));
}

static void abi_check(void) {
    int yes = -1, no = -1, known = 0;
    CHECK(aint_size() == sizeof(MPI_Aint));
    CHECK(!MPI_Abi_get_fortran_booleans(sizeof yes, &yes, &no, &known) && (!known || yes != no));
}

/* ---- messages ---- */

static int token = -1, got_many[70];
static MPI_Request pending[70];
static char pool[1 << 12];

static void messages_set_up(void) {
    void *address;
    int length;
    for (int i = 0; i < 70; i++)
        CHECK(!MPI_Irecv(&got_many[i], 1, MPI_INT, left(), i, MPI_COMM_WORLD, &pending[i]));
    CHECK(!MPI_Buffer_attach(pool, sizeof pool) && !MPI_Buffer_detach(&address, &length) && address == pool);
    CHECK(!MPI_Buffer_attach(MPI_BUFFER_AUTOMATIC, 0));
}

static void messages_check(void) {
    int flag, index, n, places[70];
    void *address;
    MPI_Status statuses[70], one;
    for (int i = 0; i < 70; i++) CHECK(!MPI_Bsend(&i, 1, MPI_INT, right(), i, MPI_COMM_WORLD));
    do
        CHECK(!MPI_Request_get_status_any(70, pending, &index, &flag, &one));
    while (!flag);
    CHECK(one.MPI_SOURCE == left() && one.MPI_TAG == index);
    do
        CHECK(!MPI_Request_get_status_all(70, pending, &flag, statuses));
    while (!flag);
    for (int i = 0; i < 70; i++) CHECK(statuses[i].MPI_SOURCE == left() && statuses[i].MPI_TAG == i);
    CHECK(!MPI_Request_get_status_some(70, pending, &n, places, statuses) && n == 70 &&
          pending[69] != MPI_REQUEST_NULL);
    CHECK(!MPI_Waitall(70, pending, statuses) && got_many[69] == 69);
    CHECK(!MPI_Status_set_source(&one, MPI_PROC_NULL) && !MPI_Status_get_source(&one, &n) && n == MPI_PROC_NULL);
    CHECK(!MPI_Status_set_tag(&one, MPI_ANY_TAG) && !MPI_Status_get_tag(&one, &n) && one.MPI_TAG == MPI_ANY_TAG);
    CHECK(n == MPI_ANY_TAG && !MPI_Status_set_error(&one, MPI_ERR_TRUNCATE) && one.MPI_ERROR == MPI_ERR_TRUNCATE);
    CHECK(!MPI_Status_set_elements_x(&one, MPI_INT, (MPI_Count)1 << 33));
    CHECK(!MPI_Status_set_error(&one, 333) && !MPI_Status_set_cancelled(&one, 0) && one.MPI_ERROR == 333);
    MPI_Count count;
    CHECK(!MPI_Get_elements_x(&one, MPI_INT, &count) && count == (MPI_Count)1 << 33);
    CHECK(!MPI_Buffer_detach(&address, &n) && address == MPI_BUFFER_AUTOMATIC);
    CHECK(!MPI_Isend(&rank, 1, MPI_INT, right(), 5, MPI_COMM_WORLD, &pending[0]));
    CHECK(!MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &one) && one.MPI_TAG == 5);
    CHECK(!MPI_Recv_c(&token, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &one) && token == left());
    CHECK(one.MPI_SOURCE == left() && !MPI_Wait(&pending[0], MPI_STATUS_IGNORE));
}

/* ---- counts of type MPI_Count ---- */

static MPI_Op add;
static MPI_Datatype block, grid;
static int wrong_type;

static void add_function(void *in, void *inout, MPI_Count *n, MPI_Datatype *type) {
    wrong_type |= *type != MPI_INT;
    for (MPI_Count i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static void large_set_up(void) {
    MPI_Count sizes[2] = {4, 6}, parts[2] = {2, 3}, starts[2] = {1, 1};
    int distribs[2] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE}, procs[2] = {2, 1};
    int dargs[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG};
    CHECK(!MPI_Op_create_c(add_function, 1, &add));
    CHECK(!MPI_Type_create_subarray_c(2, sizes, parts, starts, MPI_ORDER_FORTRAN, MPI_DOUBLE, &block));
    CHECK(!MPI_Type_create_darray_c(2, 1, 2, sizes, distribs, dargs, procs, MPI_ORDER_C, MPI_INT, &grid));
}

static void large_check(void) {
    int in[3] = {1, rank, 0}, out[3], kind, integers[20];
    MPI_Count n[4], counts[6];
    MPI_Aint addresses[1];
    MPI_Datatype inner;
    CHECK(!MPI_Allreduce_c(in, out, 3, MPI_INT, add, MPI_COMM_WORLD) && out[0] == size && !wrong_type);
    CHECK(!MPI_Type_get_envelope_c(block, &n[0], &n[1], &n[2], &n[3], &kind) && kind == MPI_COMBINER_SUBARRAY);
    CHECK(!MPI_Type_get_contents_c(block, n[0], n[1], n[2], n[3], integers, addresses, counts, &inner));
    CHECK(inner == MPI_DOUBLE && integers[0] == 2 && integers[1] == MPI_ORDER_FORTRAN && counts[1] == 6);
    CHECK(!MPI_Type_get_envelope_c(grid, &n[0], &n[1], &n[2], &n[3], &kind) && kind == MPI_COMBINER_DARRAY);
    CHECK(!MPI_Type_get_contents_c(grid, n[0], n[1], n[2], n[3], integers, addresses, counts, &inner));
    CHECK(inner == MPI_INT && integers[3] == MPI_DISTRIBUTE_CYCLIC && integers[4] == MPI_DISTRIBUTE_NONE);
    CHECK(integers[5] == MPI_DISTRIBUTE_DFLT_DARG && integers[9] == MPI_ORDER_C);
    CHECK(!MPI_Op_free(&add) && !MPI_Type_free(&block) && !MPI_Type_free(&grid));
}

/* ---- constants that are the same in Open MPI and MPICH ---- */

static MPI_File file;
static MPI_Win win;
static MPI_Comm copy, graph;
static char path[64];

static void constants_set_up(void) {
    void *memory;
    int provided;
    snprintf(path, sizeof path, "standard-%d", rank);
    CHECK(!MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    CHECK(!MPI_File_write(file, "0123456789", 10, MPI_CHAR, MPI_STATUS_IGNORE));
    CHECK(!MPI_Win_allocate(64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win));
    CHECK(!MPI_Comm_dup(MPI_COMM_WORLD, &copy) && !MPI_Query_thread(&provided) && provided == MPI_THREAD_SINGLE);
    int source = rank, degree = 1, target = right();
    CHECK(
        !MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &source, &degree, &target, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph));
}

static void constants_check(void) {
    int n, flag, *number, thread;
    char text[4] = "";
    MPI_Offset where;
    CHECK(!MPI_File_get_amode(file, &n) && n == (MPI_MODE_CREATE | MPI_MODE_RDWR));
    CHECK(!MPI_File_seek(file, -3, MPI_SEEK_END) && !MPI_File_get_position(file, &where) && where == 7);
    CHECK(!MPI_File_seek(file, -2, MPI_SEEK_CUR) && !MPI_File_read(file, text, 3, MPI_CHAR, MPI_STATUS_IGNORE));
    CHECK(!memcmp(text, "567", 3) && !MPI_File_seek(file, 2, MPI_SEEK_SET));
    CHECK(!MPI_File_set_view(file, 1, MPI_CHAR, MPI_CHAR, "native", MPI_INFO_NULL));
    CHECK(!MPI_File_read(file, text, 3, MPI_CHAR, MPI_STATUS_IGNORE) && !memcmp(text, "123", 3));
    CHECK(MPI_File_fromint(MPI_File_toint(file)) == file);
    CHECK(!MPI_File_close(&file) && file == MPI_FILE_NULL);
    CHECK(class_of(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL,
                                 &file)) == MPI_ERR_FILE_EXISTS);
    CHECK(!MPI_File_delete(path, MPI_INFO_NULL));
    CHECK(!MPI_Win_get_attr(win, MPI_WIN_CREATE_FLAVOR, &number, &flag) && flag && *number == MPI_WIN_FLAVOR_ALLOCATE);
    CHECK(!MPI_Win_free(&win) && !MPI_Comm_compare(copy, MPI_COMM_WORLD, &n) && n == MPI_CONGRUENT);
    CHECK(!MPI_Comm_compare(MPI_COMM_SELF, MPI_COMM_SELF, &n) && n == MPI_IDENT && !MPI_Comm_free(&copy));
    CHECK(!MPI_Topo_test(graph, &n) && n == MPI_DIST_GRAPH && !MPI_Comm_free(&graph));
    CHECK(!MPI_T_init_thread(MPI_THREAD_SINGLE, &thread) && thread >= MPI_THREAD_SINGLE &&
          thread <= MPI_THREAD_MULTIPLE);
    CHECK(MPI_T_cvar_get_index("no such variable", &n) == MPI_T_ERR_INVALID_NAME && !MPI_T_finalize());
    CHECK(!MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, (int[64]){0}, 1, MPI_INT, MPI_COMM_WORLD));
}

int main(int argc, char **argv) {
    const state_t states[] = {STATE(abi), STATE(messages), STATE(large), STATE(constants)};
    return run_mpi_states(argc, argv, lenient_set_up, states, sizeof states / sizeof *states);
}
