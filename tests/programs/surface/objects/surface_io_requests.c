/* MPI-IO: several independent nonblocking accesses that one call completes, beside messages; see checkpointed.h.
 *
 *     STATE_GO=FILE mpirun -n N manapy-launch surface_io_requests [STATE...]          N >= 2; files beside FILE
 */
#include "../../mpi_states.h"

#include <limits.h>
#include <stdbool.h>

enum { INTS = 8, WRITES = 4, READS = 4, MESSAGES = 2, REQUESTS = WRITES + READS + 2 * MESSAGES + 1 };
/* The first tag on MPI_COMM_WORLD. surface_p2p, which may be in the same process, has smaller ones. */
enum { TAGS = 1000 };
typedef struct { int values[INTS]; } row_t;
typedef struct { /* some requests, of every kind, and one that is null */
    MPI_Request requests[REQUESTS];
    row_t written[WRITES], read[READS], sent[MESSAGES], received[MESSAGES];
    int key; /* distinguishes the batches: in their rows, in the files, in tags */
} batch_t;

static MPI_File file;

static row_t row_of(int r, int key, int i) {
    row_t row;
    for (int k = 0; k < INTS; k++) row.values[k] = 100000 * r + 1000 * key + 10 * i + k;
    return row;
}
#define CHECK_ROW(ROW, R, KEY, I)                                                 \
    do {                                                                          \
        row_t expected_ = row_of(R, KEY, I);                                      \
        CHECK(memcmp(&(ROW), &expected_, sizeof expected_) == 0);                 \
    } while (0)

/* The place of row i of a batch: each rank has a block of its own. */
static MPI_Offset place(const batch_t *b, int i) { return INTS * (1000 * rank + (WRITES + READS) * b->key + i); }

static void start(batch_t *b, int key) {
    MPI_Request *r = b->requests;
    memset(b, 255, sizeof *b);
    b->key = key;
    for (int i = 0; i < READS; i++) {
        row_t row = row_of(rank, key, WRITES + i);
        MPI_File_write_at(file, place(b, WRITES + i), &row, INTS, MPI_INT, MPI_STATUS_IGNORE);
    }
    for (int i = 0; i < WRITES; i++) b->written[i] = row_of(rank, key, i);
    for (int i = 0; i < MESSAGES; i++) {
        b->sent[i] = row_of(rank, key, i);
        MPI_Irecv(&b->received[i], INTS, MPI_INT, (rank + size - 1) % size, TAGS + MESSAGES * key + i, MPI_COMM_WORLD,
                  r++);
    }
    MPI_File_seek(file, place(b, 0), MPI_SEEK_SET);
    MPI_File_iwrite(file, &b->written[0], INTS, MPI_INT, r++);
    MPI_File_iwrite(file, &b->written[1], INTS, MPI_INT, r++);
    MPI_File_iwrite_at(file, place(b, 2), &b->written[2], INTS, MPI_INT, r++);
    MPI_File_iwrite_at(file, place(b, 3), &b->written[3], INTS, MPI_INT, r++);
    *r++ = MPI_REQUEST_NULL;
    MPI_File_seek(file, place(b, WRITES), MPI_SEEK_SET);
    MPI_File_iread(file, &b->read[0], INTS, MPI_INT, r++);
    MPI_File_iread(file, &b->read[1], INTS, MPI_INT, r++);
    MPI_File_iread_at(file, place(b, WRITES + 2), &b->read[2], INTS, MPI_INT, r++);
    MPI_File_iread_at(file, place(b, WRITES + 3), &b->read[3], INTS, MPI_INT, r++);
    for (int i = 0; i < MESSAGES; i++)
        MPI_Isend(&b->sent[i], INTS, MPI_INT, (rank + 1) % size, TAGS + MESSAGES * key + i, MPI_COMM_WORLD, r++);
}

/* ---- calls that complete a batch; each returns how many requests it has completed ---- */

static int check_status(int i, const MPI_Status *status) {
    int n = -1;
    MPI_Get_count(status, MPI_INT, &n);
    bool null = i == MESSAGES + WRITES, send = i >= MESSAGES + WRITES + 1 + READS;
    if (!send) CHECK(n == (null ? 0 : INTS));
    return i >= 0 && !null;
}

static int check_all(const MPI_Status *statuses) {
    int n = 0;
    for (int i = 0; i < REQUESTS; i++) n += check_status(i, &statuses[i]);
    return n;
}

static int check_some(int n, const int *indices, const MPI_Status *statuses) {
    CHECK(n != MPI_UNDEFINED);
    for (int k = 0; k < n; k++) CHECK(check_status(indices[k], &statuses[k]) == 1);
    return n;
}

static int waitall(MPI_Request *requests) {
    MPI_Status statuses[REQUESTS];
    CHECK(MPI_Waitall(REQUESTS, requests, statuses) == MPI_SUCCESS);
    return check_all(statuses);
}

/* Not natively: MPICH 5.0.2 reads requests that it has freed. */
static int testall(MPI_Request *requests) {
    if (getenv("STATE_NATIVE")) return waitall(requests);
    MPI_Status statuses[REQUESTS];
    int done = 0;
    CHECK(MPI_Testall(REQUESTS, requests, &done, statuses) == MPI_SUCCESS);
    return done ? check_all(statuses) : 0;
}

static int waitsome(MPI_Request *requests) {
    MPI_Status statuses[REQUESTS];
    int n = 0, indices[REQUESTS];
    CHECK(MPI_Waitsome(REQUESTS, requests, &n, indices, statuses) == MPI_SUCCESS && n > 0);
    return check_some(n, indices, statuses);
}

static int testsome(MPI_Request *requests) {
    MPI_Status statuses[REQUESTS];
    int n = 0, indices[REQUESTS];
    CHECK(MPI_Testsome(REQUESTS, requests, &n, indices, statuses) == MPI_SUCCESS);
    return check_some(n, indices, statuses);
}

static int waitany(MPI_Request *requests) {
    MPI_Status status;
    int i = -1;
    CHECK(MPI_Waitany(REQUESTS, requests, &i, &status) == MPI_SUCCESS && i != MPI_UNDEFINED);
    return check_status(i, &status);
}

static int testany(MPI_Request *requests) {
    MPI_Status status;
    int i = -1, done = 0;
    CHECK(MPI_Testany(REQUESTS, requests, &i, &done, &status) == MPI_SUCCESS);
    return done ? check_status(i, &status) : 0;
}

static void complete(batch_t *b, int (*some)(MPI_Request *)) {
    for (int left = REQUESTS - 1; left > 0;) left -= some(b->requests);
    for (int i = 0; i < REQUESTS; i++) CHECK(b->requests[i] == MPI_REQUEST_NULL);
    for (int i = 0; i < READS; i++) CHECK_ROW(b->read[i], rank, b->key, WRITES + i);
    for (int i = 0; i < MESSAGES; i++) CHECK_ROW(b->received[i], (rank + size - 1) % size, b->key, i);
    for (int i = 0; i < WRITES; i++) {
        row_t row;
        MPI_File_read_at(file, place(b, i), &row, INTS, MPI_INT, MPI_STATUS_IGNORE);
        CHECK_ROW(row, rank, b->key, i);
    }
}

/* ---- a state per call: one batch before the checkpoint, one in progress at it, one after it ---- */

#define COMPLETED_BY(CALL, NUMBER)                                                \
    static batch_t CALL##_batch;                                                  \
    static void CALL##_set_up(void) {                                             \
        start(&CALL##_batch, 3 * NUMBER);                                         \
        complete(&CALL##_batch, CALL);                                            \
        start(&CALL##_batch, 3 * NUMBER + 1);                                     \
    }                                                                             \
    static void CALL##_check(void) {                                              \
        complete(&CALL##_batch, CALL);                                            \
        start(&CALL##_batch, 3 * NUMBER + 2);                                     \
        complete(&CALL##_batch, CALL);                                            \
    }
COMPLETED_BY(waitall, 0)
COMPLETED_BY(testall, 1)
COMPLETED_BY(waitsome, 2)
COMPLETED_BY(testsome, 3)
COMPLETED_BY(waitany, 4)
COMPLETED_BY(testany, 5)

static void set_up(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", getenv("STATE_GO"));
    strcpy(strrchr(path, '/'), "/requests");
    CHECK(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(waitall), STATE(testall), STATE(waitsome), STATE(testsome), STATE(waitany), STATE(testany),
    };
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}
