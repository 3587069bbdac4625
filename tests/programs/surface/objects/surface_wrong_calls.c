/* Surface: collective calls that fail on their arguments on some members only. These members continue, and the others
 * make no such call. For MPI nothing has been called: later calls must match, identities of objects made later must be
 * the same on all members, and a checkpoint must not wait for any rank. See checkpointed.h and test_surface.py. */
#include "../../mpi_states.h"

/* The first class that a call may return; MPICH doesn't always return the one that the standard suggests. */
#define WRONG(call)                                             \
    do {                                                        \
        int class_ = MPI_SUCCESS, rc_ = (call);                 \
        MPI_Error_class(rc_, &class_);                          \
        CHECK(class_ != MPI_SUCCESS && class_ != MPI_ERR_OTHER); \
    } while (0)

/* (MPICH 5.0 notices other wrong calls too late, when it has communicated or counted them itself.) Each rank makes a
 * different number of wrong calls; the last one makes none. */
#define TIMES for (int k_ = rank; k_ < size - 1; k_++)

static void sum_is_right(MPI_Comm on) {
    int value = rank + 1, result = 0;
    CHECK(MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, on) == MPI_SUCCESS && result == size * (size + 1) / 2);
}

/* ---- blocking ---- */

static void blocking(void) {
    int counts[64] = {0}, none[64] = {0}, values[64];
    MPI_Count big_none[64] = {0};
    MPI_Aint nowhere[64] = {0};
    MPI_Datatype types[64], ints[64], open;
    MPI_Type_contiguous(2, MPI_INT, &open); /* not committed */
    for (int i = 0; i < 64; i++) types[i] = MPI_DATATYPE_NULL, ints[i] = MPI_INT;
    counts[size - 1] = -1;
    TIMES {
        WRONG(MPI_Bcast(values, -1, MPI_INT, 0, lenient));
        WRONG(MPI_Bcast(values, 1, MPI_INT, size, lenient));
        WRONG(MPI_Bcast(values, 1, open, 0, lenient));
        WRONG(MPI_Reduce(values, values, 1, MPI_INT, MPI_SUM, rank, lenient)); /* the same buffer twice */
        WRONG(MPI_Allreduce(MPI_IN_PLACE, values, 1, MPI_INT, MPI_OP_NULL, lenient));
        WRONG(MPI_Bcast_c(values, -1, MPI_INT, 0, lenient));
        WRONG(MPI_Alltoallw(MPI_IN_PLACE, NULL, NULL, NULL, values, counts, counts, types, lenient));
        WRONG(MPI_Alltoallw(values, none, none, ints, values, none, none, ints, lenient));
        WRONG(MPI_Alltoallw_c(values, big_none, nowhere, ints, values, big_none, nowhere, ints, lenient));
        WRONG(MPI_Allgatherv(values, 1, MPI_INT, values, counts, counts, MPI_INT, lenient));
    }
    MPI_Type_free(&open);
}

static void blocking_set_up(void) {
    blocking();
    sum_is_right(lenient);
    blocking();
}
static void blocking_check(void) {
    blocking();
    sum_is_right(lenient);
}

/* ---- nonblocking and persistent; also with an operation of the program ---- */

static MPI_Op own;
static MPI_Request started, persistent, folded;
static int token, sum, own_sum;

static void add(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static void nonblocking(void) {
    MPI_Request request = MPI_REQUEST_NULL;
    int values[64], result[64], none[64] = {0};
    MPI_Datatype ints[64];
    for (int i = 0; i < 64; i++) ints[i] = MPI_INT;
    TIMES {
        WRONG(MPI_Ialltoallw(values, none, none, ints, values, none, none, ints, lenient, &request));
        WRONG(MPI_Alltoallv_init(values, none, none, MPI_INT, values, none, none, MPI_INT, lenient, MPI_INFO_NULL,
                                 &request));
        WRONG(MPI_Alltoallw_init(values, none, none, ints, values, none, none, ints, lenient, MPI_INFO_NULL,
                                 &request));
        WRONG(MPI_Ibcast(values, -1, MPI_INT, 0, lenient, &request));
        WRONG(MPI_Ibcast(values, 1, MPI_INT, -7, lenient, &request));
        WRONG(MPI_Iallreduce(values, result, 1, MPI_DATATYPE_NULL, own, lenient, &request));
        WRONG(MPI_Ireduce(values, result, 1, MPI_INT, own, size, lenient, &request));
        WRONG(MPI_Bcast_init(values, -1, MPI_INT, 0, lenient, MPI_INFO_NULL, &request));
        WRONG(MPI_Allreduce_init(values, result, 1, MPI_INT, MPI_OP_NULL, lenient, MPI_INFO_NULL, &request));
        WRONG(MPI_Reduce_init(values, result, 1, MPI_INT, own, size, lenient, MPI_INFO_NULL, &request));
    }
}

static void nonblocking_set_up(void) {
    MPI_Op_create(add, 1, &own);
    nonblocking();
    token = rank == 1 ? 4711 : -1;
    MPI_Ibcast(&token, 1, MPI_INT, 1, lenient, &started);
    nonblocking();
    MPI_Allreduce_init(&rank, &sum, 1, MPI_INT, MPI_SUM, lenient, MPI_INFO_NULL, &persistent);
    nonblocking();
    MPI_Allreduce_init(&rank, &own_sum, 1, MPI_INT, own, lenient, MPI_INFO_NULL, &folded);
    nonblocking();
    MPI_Start(&persistent);
}

static void nonblocking_check(void) {
    MPI_Request now[] = {started, persistent};
    MPI_Waitall(2, now, MPI_STATUSES_IGNORE);
    CHECK(token == 4711 && sum == size * (size - 1) / 2);
    nonblocking();
    sum = own_sum = 0;
    MPI_Start(&folded);
    MPI_Start(&persistent);
    MPI_Wait(&persistent, MPI_STATUS_IGNORE);
    MPI_Wait(&folded, MPI_STATUS_IGNORE);
    CHECK(sum == size * (size - 1) / 2 && own_sum == sum);
    MPI_Request_free(&persistent);
    MPI_Request_free(&folded);
    MPI_Op_free(&own);
}

/* ---- constructors: an object made afterwards is the same communicator for all members ---- */

static MPI_Comm halves, grid, of_group, later;
static MPI_Group two;

static void constructors(void) {
    MPI_Comm none;
    int dims[] = {size, size}, no = 0;
    TIMES {
        WRONG(MPI_Cart_create(lenient, 2, dims, &no, 0, &none));
        WRONG(MPI_Cart_create(lenient, -1, dims, &no, 0, &none));
        WRONG(MPI_Comm_create(lenient, MPI_GROUP_NULL, &none));
        WRONG(MPI_Dist_graph_create(lenient, -1, dims, dims, dims, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &none));
        if (rank < 2) WRONG(MPI_Comm_create_group(lenient, two, -3, &none));
    }
}

static void constructors_set_up(void) {
    MPI_Group all;
    int first[] = {0, 1}, dims[] = {2, size / 2}, periods[] = {1, 1};
    MPI_Comm_group(lenient, &all);
    MPI_Group_incl(all, 2, first, &two);
    MPI_Group_free(&all);
    constructors();
    MPI_Comm_split(lenient, rank % 2, rank, &halves);
    constructors();
    MPI_Cart_create(lenient, 2, dims, periods, 0, &grid);
    constructors();
    if (rank < 2) MPI_Comm_create_group(lenient, two, 5, &of_group);
}

static void constructors_check(void) {
    int value = rank, result = -1, color = rank % 2;
    MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, halves);
    CHECK(result == 2 * color + 2);
    sum_is_right(grid);
    if (rank < 2) {
        MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, of_group);
        CHECK(result == 1);
        MPI_Comm_free(&of_group);
    }
    constructors();
    MPI_Comm_dup(lenient, &later);
    sum_is_right(later);
    if (rank < 2) {
        MPI_Comm_create_group(lenient, two, 5, &of_group);
        MPI_Comm_free(&of_group);
    }
    MPI_Comm_free(&halves);
    MPI_Comm_free(&grid);
    MPI_Comm_free(&later);
    MPI_Group_free(&two);
}

/* ---- windows and files ---- */

static MPI_Win win;
static int memory[2];
static MPI_File file;

static void others(void) {
    MPI_Win none;
    int value = 7;
    TIMES {
        WRONG(MPI_Win_create(memory, -8, 1, MPI_INFO_NULL, lenient, &none));
        WRONG(MPI_Win_create(memory, 8, 0, MPI_INFO_NULL, lenient, &none));
        if (file != MPI_FILE_NULL) WRONG(MPI_File_write_at_all(file, 0, &value, -1, MPI_INT, MPI_STATUS_IGNORE));
        if (file != MPI_FILE_NULL) WRONG(MPI_File_set_view(file, -1, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    }
}

static void windows_set_up(void) {
    char name[64];
    int pid = (int)getpid();
    file = MPI_FILE_NULL;
    MPI_Bcast(&pid, 1, MPI_INT, 0, lenient);
    snprintf(name, sizeof name, "/tmp/wrong-calls-%d", pid);
    others();
    MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, lenient, &win);
    MPI_File_open(lenient, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file);
    others();
    MPI_Win_fence(0, win);
    MPI_File_write_at_all(file, rank * (int)sizeof rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE);
}

static void windows_check(void) {
    int value = rank + 1, peer = -1, next = (rank + 1) % size;
    MPI_Put(&value, 1, MPI_INT, next, 1, 1, MPI_INT, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    CHECK(memory[1] == (rank + size - 1) % size + 1);
    others();
    MPI_File_sync(file);
    MPI_Barrier(lenient);
    MPI_File_read_at_all(file, next * (int)sizeof peer, &peer, 1, MPI_INT, MPI_STATUS_IGNORE);
    CHECK(peer == next);
    MPI_File_close(&file);
    MPI_Win_free(&win);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(blocking), STATE(nonblocking), STATE(constructors), STATE(windows)};
    return run_mpi_states(argc, argv, lenient_set_up, states, sizeof states / sizeof *states);
}
