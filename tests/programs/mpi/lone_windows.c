/* lone_windows.c - windows that the library allocates for one process, kept over restarts: all operations, displacement
 * units, large and empty ones. MPI_Win_create may fail, but not otherwise than natively. */
#include "../mpi_states.h"

enum { INTS = 3000, LARGE = 3 << 20, TIMES = 200 };
static MPI_Win ints, bytes, large, empty, apart;
static int *cell;
static char *octet, *big, *none;
static double *own;

static void alone_in(MPI_Win win) { MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win); }

/* Each operation on cells from `at`, of which the first three are 1, 2, 3. */
static void operate(int at) {
    int put[3] = {1, 2, 3}, got[3] = {0}, add = 40, old = 0, compare = 42, swap = 7;
    MPI_Datatype every_second;
    MPI_Request request;
    MPI_Type_vector(3, 1, 2, MPI_INT, &every_second);
    MPI_Type_commit(&every_second);
    alone_in(ints);
    MPI_Put(put, 3, MPI_INT, 0, at, 3, MPI_INT, ints);
    MPI_Win_flush(0, ints);
    CHECK(cell[at] == 1 && cell[at + 1] == 2 && cell[at + 2] == 3);
    MPI_Fetch_and_op(&add, &old, MPI_INT, 0, at + 1, MPI_SUM, ints);
    MPI_Win_flush(0, ints);
    CHECK(old == 2 && cell[at + 1] == 42);
    MPI_Compare_and_swap(&swap, &compare, &old, MPI_INT, 0, at + 1, ints);
    MPI_Win_flush(0, ints);
    CHECK(old == 42 && cell[at + 1] == 7);
    MPI_Accumulate(put, 3, MPI_INT, 0, at, 3, MPI_INT, MPI_PROD, ints);
    MPI_Win_flush(0, ints);
    CHECK(cell[at] == 1 && cell[at + 1] == 14 && cell[at + 2] == 9);
    MPI_Get_accumulate(put, 3, MPI_INT, got, 3, MPI_INT, 0, at, 3, MPI_INT, MPI_REPLACE, ints);
    MPI_Win_flush(0, ints);
    CHECK(got[1] == 14 && cell[at + 1] == 2);
    MPI_Rput(put, 3, MPI_INT, 0, at + 3, 1, every_second, ints, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_flush(0, ints);
    CHECK(cell[at + 3] == 1 && cell[at + 5] == 2 && cell[at + 7] == 3);
    MPI_Rget(got, 3, MPI_INT, 0, at + 3, 1, every_second, ints, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(got[0] == 1 && got[1] == 2 && got[2] == 3);
    CHECK(class_of(MPI_Put(put, 1, MPI_INT, 0, -1, 1, MPI_INT, ints)) == MPI_ERR_DISP || !is_open_mpi());
    MPI_Win_unlock(0, ints);
    MPI_Type_free(&every_second);
}

/* Memory of freed windows is the library's again. */
static void come_and_go(void) {
    for (int i = 0; i < TIMES; i++) {
        MPI_Win win;
        char *base;
        MPI_Win_allocate(i * 100, 1, MPI_INFO_NULL, MPI_COMM_SELF, &base, &win);
        memset(base, 1, (size_t)i * 100);
        MPI_Win_free(&win);
    }
}

static void created(void) {
    MPI_Win win = MPI_WIN_NULL;
    int code = MPI_Win_create(cell, 8, 4, MPI_INFO_NULL, MPI_COMM_SELF, &win);
    CHECK(code == MPI_SUCCESS || (is_open_mpi() && class_of(code) == MPI_ERR_WIN));
    if (code == MPI_SUCCESS) MPI_Win_free(&win);
}

static void windows_set_up(void) {
    MPI_Comm mine;
    MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &mine);
    MPI_Win_allocate(INTS * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_SELF, &cell, &ints);
    MPI_Win_allocate_shared(5000, 1, MPI_INFO_NULL, MPI_COMM_SELF, &octet, &bytes);
    MPI_Win_allocate(LARGE, 16, MPI_INFO_NULL, MPI_COMM_SELF, &big, &large);
    MPI_Win_allocate(0, 1, MPI_INFO_NULL, MPI_COMM_SELF, &none, &empty);
    MPI_Win_allocate(800, 8, MPI_INFO_NULL, mine, &own, &apart);
    MPI_Comm_free(&mine);
    MPI_Win_set_errhandler(ints, MPI_ERRORS_RETURN);
    for (int i = 0; i < INTS; i++) cell[i] = i + rank;
    octet[4999] = 'z';
    memset(big, 5 + rank, LARGE);
    own[99] = 0.5 + rank;
    operate(INTS / 2);
    created();
    come_and_go();
}

static void windows_check(void) {
    MPI_Aint length;
    int unit, wrong = 0;
    char *base, byte = 0;
    for (int i = 0; i < INTS; i++) wrong += cell[i] != i + rank && (i < INTS / 2 || i >= INTS / 2 + 8);
    CHECK(!wrong && cell[INTS / 2 + 7] == 3);
    operate(INTS / 2 + 8);
    MPI_Win_shared_query(bytes, 0, &length, &unit, &base);
    CHECK(base == octet && length == 5000 && unit == 1);
    alone_in(bytes);
    MPI_Get(&byte, 1, MPI_CHAR, 0, 4999, 1, MPI_CHAR, bytes);
    MPI_Win_unlock(0, bytes);
    CHECK(byte == 'z');
    alone_in(large);
    MPI_Get(&byte, 1, MPI_CHAR, 0, LARGE / 16 - 1, 1, MPI_CHAR, large);
    MPI_Win_unlock(0, large);
    CHECK(byte == 5 + rank && big[LARGE - 1] == byte && big[0] == byte);
    CHECK(own[99] == 0.5 + rank);
    created();
    MPI_Win_free(&ints);
    MPI_Win_free(&bytes);
    MPI_Win_free(&large);
    MPI_Win_free(&empty);
    MPI_Win_free(&apart);
    come_and_go();
}

static const state_t states[] = {STATE(windows)};

int main(int argc, char **argv) {
    return run_mpi_states(argc, argv, lenient_set_up, states, sizeof states / sizeof *states);
}
