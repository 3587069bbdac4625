/* MPI-IO: files of every mode with views, pointers, hints and handlers; accesses of every kind before and after a
 * checkpoint, and in progress at it. See checkpointed.h.
 *
 *     STATE_GO=FILE mpirun -n N manapy-launch surface_io [STATE...]          N >= 2; files beside FILE
 */
#include "../../mpi_states.h"

#include <limits.h>
#include <sys/stat.h>

static char place[PATH_MAX];

/* A name beside STATE_GO. */
static char *file(const char *name) {
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", place, name);
    return path;
}

static long bytes_of(const char *name) {
    struct stat st;
    return stat(file(name), &st) == 0 ? (long)st.st_size : -1;
}

static MPI_File open_new(const char *name) {
    MPI_File f = MPI_FILE_NULL;
    CHECK(MPI_File_open(MPI_COMM_WORLD, file(name), MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &f) == MPI_SUCCESS);
    CHECK(MPI_File_set_size(f, 0) == MPI_SUCCESS);
    return f;
}

static int count_of(const MPI_Status *status) {
    int n = -1;
    MPI_Get_count(status, MPI_INT, &n);
    return n;
}

static int position(MPI_File f) {
    MPI_Offset at = -1;
    MPI_File_get_position(f, &at);
    return (int)at;
}

static int shared_position(MPI_File f) {
    MPI_Offset at = -1;
    MPI_File_get_position_shared(f, &at);
    return (int)at;
}

/* ---- blocking accesses: each writes a row of ints, and another rank's row is read back ---- */

static MPI_File blocking;

typedef struct { int values[8]; } row_t;
static row_t row_of(int r, int key) {
    row_t row;
    for (int i = 0; i < 8; i++) row.values[i] = 10000 * key + 100 * r + i;
    return row;
}
#define CHECK_ROW(ROW, R, KEY)                                                    \
    do {                                                                          \
        row_t expected_ = row_of(R, KEY);                                         \
        CHECK(memcmp(&(ROW), &expected_, sizeof expected_) == 0);                 \
        memset(&(ROW), 255, sizeof(ROW));                                         \
    } while (0)

enum { BLOCKING = 8, EXPLICIT = 4 }; /* the first ones at explicit offsets */

static int write_row(int i, MPI_Offset at, const row_t *row, MPI_Status *status) {
    MPI_File f = blocking;
    if (i >= EXPLICIT) MPI_File_seek(f, at, MPI_SEEK_SET);
    switch (i) {
    case 0: return MPI_File_write_at(f, at, row, 8, MPI_INT, status);
    case 1: return MPI_File_write_at_c(f, at, row, 8, MPI_INT, status);
    case 2: return MPI_File_write_at_all(f, at, row, 8, MPI_INT, status);
    case 3: return MPI_File_write_at_all_c(f, at, row, 8, MPI_INT, status);
    case 4: return MPI_File_write(f, row, 8, MPI_INT, status);
    case 5: return MPI_File_write_c(f, row, 8, MPI_INT, status);
    case 6: return MPI_File_write_all(f, row, 8, MPI_INT, status);
    default: return MPI_File_write_all_c(f, row, 8, MPI_INT, status);
    }
}

static int read_row(int i, MPI_Offset at, row_t *row, MPI_Status *status) {
    MPI_File f = blocking;
    if (i >= EXPLICIT) MPI_File_seek(f, at - position(f), MPI_SEEK_CUR);
    switch (i) {
    case 0: return MPI_File_read_at(f, at, row, 8, MPI_INT, status);
    case 1: return MPI_File_read_at_c(f, at, row, 8, MPI_INT, status);
    case 2: return MPI_File_read_at_all(f, at, row, 8, MPI_INT, status);
    case 3: return MPI_File_read_at_all_c(f, at, row, 8, MPI_INT, status);
    case 4: return MPI_File_read(f, row, 8, MPI_INT, status);
    case 5: return MPI_File_read_c(f, row, 8, MPI_INT, status);
    case 6: return MPI_File_read_all(f, row, 8, MPI_INT, status);
    default: return MPI_File_read_all_c(f, row, 8, MPI_INT, status);
    }
}

static void blocking_round(int key) {
    row_t in;
    MPI_Status status;
    int next = (rank + 1) % size;
    memset(&in, 255, sizeof in);
    for (int i = 0; i < BLOCKING; i++) {
        row_t out = row_of(rank, key + i);
        CHECK(write_row(i, 8 * rank, &out, &status) == MPI_SUCCESS && count_of(&status) == 8);
        if (i >= EXPLICIT) CHECK(position(blocking) == 8 * rank + 8);
        MPI_File_sync(blocking);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(read_row(i, 8 * next, &in, &status) == MPI_SUCCESS && count_of(&status) == 8);
        CHECK_ROW(in, next, key + i);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_File_seek(blocking, 0, MPI_SEEK_END);
    CHECK(position(blocking) == 8 * size);
    CHECK(MPI_File_read(blocking, &in, 8, MPI_INT, &status) == MPI_SUCCESS && count_of(&status) == 0);
    MPI_File_seek(blocking, 8 * rank + 3, MPI_SEEK_SET);
}

static void blocking_set_up(void) {
    blocking = open_new("blocking");
    MPI_File_set_view(blocking, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    blocking_round(10);
}

static void blocking_check(void) {
    CHECK(position(blocking) == 8 * rank + 3);
    int three = -1;
    MPI_File_read(blocking, &three, 1, MPI_INT, MPI_STATUS_IGNORE);
    CHECK(three == row_of(rank, 17).values[3]);
    MPI_Barrier(MPI_COMM_WORLD);
    blocking_round(20);
    CHECK(MPI_File_close(&blocking) == MPI_SUCCESS && blocking == MPI_FILE_NULL);
    CHECK(bytes_of("blocking") == 32l * size);
}

/* ---- nonblocking accesses, finished after the checkpoint ---- */

enum { INITIATED = 12 };
static MPI_File started, started_shared, loaded;
static MPI_Request requests[INITIATED], reads[INITIATED];
static row_t outgoing[INITIATED], incoming[INITIATED];

static void nonblocking_set_up(void) {
    started = open_new("started");
    started_shared = open_new("started_shared");
    loaded = open_new("loaded");
    MPI_File_set_view(started, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    MPI_File_set_view(started_shared, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    MPI_File_set_view(loaded, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    for (int i = 0; i < INITIATED; i++) outgoing[i] = row_of(rank, i);
    for (int i = 0; i < INITIATED; i++)
        MPI_File_write_at(loaded, 8 * (INITIATED * rank + i), &outgoing[i], 8, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_sync(loaded);
    MPI_Barrier(MPI_COMM_WORLD);
    /* writes: access i of a rank goes to block INITIATED * rank + i */
    MPI_Offset block = 8 * INITIATED * rank;
    row_t *o = outgoing;
    MPI_File_seek(started, block, MPI_SEEK_SET);
    MPI_File_iwrite(started, &o[0], 8, MPI_INT, &requests[0]);
    MPI_File_iwrite_c(started, &o[1], 8, MPI_INT, &requests[1]);
    MPI_File_iwrite_all(started, &o[2], 8, MPI_INT, &requests[2]);
    MPI_File_iwrite_all_c(started, &o[3], 8, MPI_INT, &requests[3]);
    MPI_File_iwrite_at(started, block + 32, &o[4], 8, MPI_INT, &requests[4]);
    MPI_File_iwrite_at_c(started, block + 40, &o[5], 8, MPI_INT, &requests[5]);
    MPI_File_iwrite_at_all(started, block + 48, &o[6], 8, MPI_INT, &requests[6]);
    MPI_File_iwrite_at_all_c(started, block + 56, &o[7], 8, MPI_INT, &requests[7]);
    MPI_File_iwrite_shared(started_shared, &o[8], 8, MPI_INT, &requests[8]);
    MPI_File_iwrite_shared_c(started_shared, &o[9], 8, MPI_INT, &requests[9]);
    requests[10] = requests[11] = MPI_REQUEST_NULL;
    CHECK(position(started) == block + 32);
    MPI_File_seek(started, 7 + rank, MPI_SEEK_SET);
    /* reads: of the next rank's blocks */
    block = 8 * INITIATED * ((rank + 1) % size);
    row_t *in = incoming;
    MPI_File_seek(loaded, block, MPI_SEEK_SET);
    MPI_File_iread(loaded, &in[0], 8, MPI_INT, &reads[0]);
    MPI_File_iread_c(loaded, &in[1], 8, MPI_INT, &reads[1]);
    MPI_File_iread_all(loaded, &in[2], 8, MPI_INT, &reads[2]);
    MPI_File_iread_all_c(loaded, &in[3], 8, MPI_INT, &reads[3]);
    MPI_File_iread_at(loaded, block + 32, &in[4], 8, MPI_INT, &reads[4]);
    MPI_File_iread_at_c(loaded, block + 40, &in[5], 8, MPI_INT, &reads[5]);
    MPI_File_iread_at_all(loaded, block + 48, &in[6], 8, MPI_INT, &reads[6]);
    MPI_File_iread_at_all_c(loaded, block + 56, &in[7], 8, MPI_INT, &reads[7]);
    MPI_File_iread_shared(loaded, &in[8], 8, MPI_INT, &reads[8]);
    MPI_File_iread_shared_c(loaded, &in[9], 8, MPI_INT, &reads[9]);
    reads[10] = reads[11] = MPI_REQUEST_NULL;
}

static void nonblocking_check(void) {
    MPI_Status statuses[INITIATED], status;
    row_t row;
    int next = (rank + 1) % size, sum = 0, total = 0;
    CHECK(position(started) == 7 + rank); /* finishing the collective ones doesn't move it */
    CHECK(MPI_Waitall(INITIATED, requests, statuses) == MPI_SUCCESS);
    for (int i = 0; i < 10; i++) CHECK(count_of(&statuses[i]) == 8 && requests[i] == MPI_REQUEST_NULL);
    for (int i = 0; i < 10; i++) {
        CHECK(MPI_Wait(&reads[i], &status) == MPI_SUCCESS && count_of(&status) == 8);
        if (i < 8) CHECK_ROW(incoming[i], next, i);
    }
    CHECK(position(loaded) == 8 * INITIATED * next + 32);
    CHECK(shared_position(started_shared) == 16 * size && shared_position(loaded) == 16 * size);
    /* It is not defined which access gets which block of the shared pointer, but each was read once, and written
     * once. */
    for (int i = 8; i < 10; i++) sum += incoming[i].values[0];
    MPI_Allreduce(&sum, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0, block = 0; k < 2 * size; k++, block++)
        total -= row_of(block / INITIATED, block % INITIATED).values[0];
    CHECK(total == 0);
    MPI_File_sync(started);
    MPI_File_sync(started_shared);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 8; i++) {
        MPI_File_read_at(started, 8 * (INITIATED * next + i), &row, 8, MPI_INT, MPI_STATUS_IGNORE);
        CHECK_ROW(row, next, i);
    }
    int seen[2] = {0, 0};
    for (int k = 0; k < 2 * size; k++) {
        MPI_File_read_at(started_shared, 8 * k, &row, 8, MPI_INT, MPI_STATUS_IGNORE);
        seen[0] += memcmp(&row, &outgoing[8], sizeof row) == 0;
        seen[1] += memcmp(&row, &outgoing[9], sizeof row) == 0;
    }
    CHECK(seen[0] == 1 && seen[1] == 1);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_close(&started);
    MPI_File_close(&started_shared);
    MPI_File_close(&loaded);
}

/* ---- the shared file pointer ---- */

static MPI_File shared;

static int write_shared(int i, const row_t *row, MPI_Status *status) {
    switch (i) {
    case 0: return MPI_File_write_ordered(shared, row, 8, MPI_INT, status);
    case 1: return MPI_File_write_ordered_c(shared, row, 8, MPI_INT, status);
    case 2: return MPI_File_write_shared(shared, row, 8, MPI_INT, status);
    default: return MPI_File_write_shared_c(shared, row, 8, MPI_INT, status);
    }
}

static int read_shared(int i, row_t *row, MPI_Status *status) {
    switch (i) {
    case 0: return MPI_File_read_ordered(shared, row, 8, MPI_INT, status);
    case 1: return MPI_File_read_ordered_c(shared, row, 8, MPI_INT, status);
    case 2: return MPI_File_read_shared(shared, row, 8, MPI_INT, status);
    default: return MPI_File_read_shared_c(shared, row, 8, MPI_INT, status);
    }
}

static void shared_round(int key) {
    for (int i = 0; i < 4; i++) {
        int ordered = i < 2, before;
        row_t out = row_of(ordered ? rank : 0, key + i), in; /* without an order all write the same */
        MPI_Status status;
        before = shared_position(shared);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(write_shared(i, &out, &status) == MPI_SUCCESS && count_of(&status) == 8);
        MPI_File_sync(shared);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(MPI_File_seek_shared(shared, before, MPI_SEEK_SET) == MPI_SUCCESS);
        CHECK(read_shared(i, &in, &status) == MPI_SUCCESS && count_of(&status) == 8);
        CHECK_ROW(in, ordered ? rank : 0, key + i);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK(shared_position(shared) == before + 8 * size);
        MPI_File_read_at(shared, before + 8 * ((rank + 1) % size), &in, 8, MPI_INT, MPI_STATUS_IGNORE);
        CHECK_ROW(in, ordered ? (rank + 1) % size : 0, key + i);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void shared_set_up(void) {
    shared = open_new("shared");
    MPI_File_set_view(shared, 4, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    shared_round(30);
}

static void shared_check(void) {
    CHECK(shared_position(shared) == 32 * size);
    MPI_Barrier(MPI_COMM_WORLD);
    shared_round(40);
    MPI_File_seek_shared(shared, -8, MPI_SEEK_CUR);
    CHECK(shared_position(shared) == 64 * size - 8);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_seek_shared(shared, 0, MPI_SEEK_END);
    CHECK(shared_position(shared) == 64 * size);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_close(&shared);
}

/* ---- split collective accesses: between their halves at the checkpoint ---- */

enum { SPLITS = 12 };
static MPI_File split[SPLITS];
static row_t split_rows[SPLITS];

/* All halves of access i; `end` tells which. */
static int split_access(int i, int end, MPI_Status *status) {
    MPI_File f = split[i];
    row_t *row = &split_rows[i];
    MPI_Offset at = 8 * rank;
    switch (2 * i + end) {
    case 0: return MPI_File_write_all_begin(f, row, 8, MPI_INT);
    case 1: return MPI_File_write_all_end(f, row, status);
    case 2: return MPI_File_write_all_begin_c(f, row, 8, MPI_INT);
    case 3: return MPI_File_write_all_end(f, row, status);
    case 4: return MPI_File_write_at_all_begin(f, at, row, 8, MPI_INT);
    case 5: return MPI_File_write_at_all_end(f, row, status);
    case 6: return MPI_File_write_at_all_begin_c(f, at, row, 8, MPI_INT);
    case 7: return MPI_File_write_at_all_end(f, row, status);
    case 8: return MPI_File_write_ordered_begin(f, row, 8, MPI_INT);
    case 9: return MPI_File_write_ordered_end(f, row, status);
    case 10: return MPI_File_write_ordered_begin_c(f, row, 8, MPI_INT);
    case 11: return MPI_File_write_ordered_end(f, row, status);
    case 12: return MPI_File_read_all_begin(f, row, 8, MPI_INT);
    case 13: return MPI_File_read_all_end(f, row, status);
    case 14: return MPI_File_read_all_begin_c(f, row, 8, MPI_INT);
    case 15: return MPI_File_read_all_end(f, row, status);
    case 16: return MPI_File_read_at_all_begin(f, at, row, 8, MPI_INT);
    case 17: return MPI_File_read_at_all_end(f, row, status);
    case 18: return MPI_File_read_at_all_begin_c(f, at, row, 8, MPI_INT);
    case 19: return MPI_File_read_at_all_end(f, row, status);
    case 20: return MPI_File_read_ordered_begin(f, row, 8, MPI_INT);
    case 21: return MPI_File_read_ordered_end(f, row, status);
    case 22: return MPI_File_read_ordered_begin_c(f, row, 8, MPI_INT);
    default: return MPI_File_read_ordered_end(f, row, status);
    }
}

static void split_set_up(void) {
    for (int i = 0; i < SPLITS; i++) {
        row_t row = row_of(rank, i);
        char name[] = "split ";
        name[5] = (char)('a' + i);
        split[i] = open_new(name);
        MPI_File_set_view(split[i], 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
        CHECK(class_of(split_access(i, 1, MPI_STATUS_IGNORE)) == MPI_ERR_IO); /* there is nothing to end */
        if (i < SPLITS / 2) {
            split_rows[i] = row;
            MPI_File_seek(split[i], 8 * rank, MPI_SEEK_SET);
        } else {
            MPI_File_write_at_all(split[i], 8 * rank, &row, 8, MPI_INT, MPI_STATUS_IGNORE);
            MPI_File_seek(split[i], 8 * rank, MPI_SEEK_SET);
        }
        CHECK(split_access(i, 0, NULL) == MPI_SUCCESS);
    }
}

static void split_check(void) {
    for (int i = 0; i < SPLITS; i++) {
        MPI_Status status;
        row_t row;
        int next = (rank + 1) % size;
        CHECK(class_of(split_access(i, 0, NULL)) == MPI_ERR_IO); /* one at a time */
        CHECK(split_access(i, 1, &status) == MPI_SUCCESS && count_of(&status) == 8);
        CHECK(class_of(split_access(i, 1, &status)) == MPI_ERR_IO);
        if (i >= SPLITS / 2) CHECK_ROW(split_rows[i], rank, i);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File_read_at(split[i], 8 * next, &row, 8, MPI_INT, MPI_STATUS_IGNORE);
        CHECK_ROW(row, next, i);
        MPI_File_close(&split[i]);
    }
}

/* ---- views ---- */

static MPI_File viewed, external;
static MPI_Datatype pairs;

static void views_set_up(void) {
    MPI_Datatype every, etype;
    int sizes[1] = {2 * size}, subsizes[1] = {2}, starts[1] = {2 * rank}, out[4];
    viewed = open_new("viewed");
    MPI_Type_create_subarray(1, sizes, subsizes, starts, MPI_ORDER_C, MPI_INT, &every);
    MPI_Type_contiguous(1, MPI_INT, &etype);
    MPI_Type_contiguous(2, MPI_INT, &pairs);
    MPI_Type_commit(&every);
    MPI_Type_commit(&etype);
    MPI_Type_commit(&pairs);
    CHECK(MPI_File_set_view(viewed, 8, etype, every, "native", MPI_INFO_NULL) == MPI_SUCCESS);
    MPI_Type_free(&every); /* still exists in the view */
    MPI_Type_free(&etype);
    for (int i = 0; i < 4; i++) out[i] = 100 * rank + i;
    MPI_File_write_all(viewed, out, 2, pairs, MPI_STATUS_IGNORE);

    external = open_new("external");
    MPI_File_set_view(external, 0, MPI_INT, MPI_INT, "external32", MPI_INFO_NULL);
    MPI_File_write_at_all(external, rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE);
}

static void views_check(void) {
    MPI_Datatype etype, filetype;
    MPI_Offset disp = -1, at = -1;
    MPI_Count big = -1;
    MPI_Aint extent = -1;
    char datarep[MPI_MAX_DATAREP_STRING] = "";
    int n = -1, in[4] = {-1, -1, -1, -1}, next = 100 * ((rank + 1) % size);
    CHECK(MPI_File_get_view(viewed, &disp, &etype, &filetype, datarep) == MPI_SUCCESS);
    CHECK(disp == 8 && !strcmp(datarep, "native"));
    MPI_Type_size(filetype, &n);
    CHECK(n == 8);
    MPI_Type_size(etype, &n);
    CHECK(n == 4);
    MPI_Type_free(&etype);
    MPI_Type_free(&filetype);
    CHECK(position(viewed) == 4);
    MPI_File_get_byte_offset(viewed, 3, &at); /* the second int of the second pair */
    CHECK(at == 8 + 8 * size + 8 * rank + 4);
    MPI_File_get_type_extent(viewed, pairs, &extent);
    MPI_File_get_type_extent_c(viewed, pairs, &big);
    CHECK(extent == 8 && big == 8);
    MPI_File_seek(viewed, 0, MPI_SEEK_SET);
    MPI_File_read_all(viewed, in, 2, pairs, MPI_STATUS_IGNORE);
    for (int i = 0; i < 4; i++) CHECK(in[i] == 100 * rank + i);
    MPI_File_set_view(viewed, 8, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
    MPI_File_read_at(viewed, 2 * (size + (rank + 1) % size), in, 2, MPI_INT, MPI_STATUS_IGNORE);
    CHECK(in[0] == next + 2 && in[1] == next + 3);
    MPI_File_get_view(viewed, &disp, &etype, &filetype, datarep);
    CHECK(etype == MPI_INT && filetype == MPI_INT);
    MPI_File_close(&viewed);
    MPI_Type_free(&pairs);

    MPI_File_get_view(external, &disp, &etype, &filetype, datarep);
    CHECK(!strcmp(datarep, "external32"));
    MPI_File_read_at(external, (rank + 1) % size, &n, 1, MPI_INT, MPI_STATUS_IGNORE);
    CHECK(n == (rank + 1) % size);
    MPI_File_set_view(external, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    MPI_File_read_at(external, 4 * rank, &n, 4, MPI_BYTE, MPI_STATUS_IGNORE);
    CHECK(n == (int)__builtin_bswap32((unsigned)rank));
    MPI_File_close(&external);
}

/* ---- other properties of a file: mode, group, hints, atomicity, size, handles ---- */

static MPI_File decorated, on_halves, on_self;
static MPI_Fint decorated_f, decorated_int;

static void properties_set_up(void) {
    MPI_Info info;
    MPI_Comm half;
    char name[32];
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_buffer_size", "1048576");
    MPI_File_open(MPI_COMM_WORLD, file("decorated"), MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_UNIQUE_OPEN, info,
                  &decorated);
    MPI_Info_set(info, "ind_rd_buffer_size", "65536");
    MPI_File_set_info(decorated, info);
    MPI_Info_free(&info);
    MPI_File_set_atomicity(decorated, 1);
    MPI_File_set_size(decorated, 1000);
    MPI_File_preallocate(decorated, 3000);
    decorated_f = MPI_File_c2f(decorated);
    decorated_int = MPI_File_toint(decorated);

    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half); /* the last one leads */
    MPI_File_open(half, file(rank % 2 ? "odd" : "even"), MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_EXCL,
                  MPI_INFO_NULL, &on_halves);
    MPI_Comm_free(&half);
    snprintf(name, sizeof name, "self%d", rank);
    CHECK(chdir(place) == 0);
    /* relative, and then to another place */
    MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &on_self);
    MPI_File_write(on_self, &rank, 1, MPI_INT, MPI_STATUS_IGNORE);
    CHECK(chdir("/") == 0);
}

static void properties_check(void) {
    MPI_Info info;
    MPI_Group group;
    MPI_Offset bytes = -1;
    char value[100];
    int amode = 0, flag = -1, n = -1;
    MPI_File_get_amode(decorated, &amode);
    CHECK(amode == (MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_UNIQUE_OPEN));
    MPI_File_get_info(decorated, &info);
    MPI_Info_get(info, "cb_buffer_size", 99, value, &flag);
    CHECK(flag && !strcmp(value, "1048576"));
    MPI_Info_get(info, "ind_rd_buffer_size", 99, value, &flag);
    CHECK(flag && !strcmp(value, "65536"));
    MPI_Info_free(&info);
    flag = -1;
    MPI_File_get_atomicity(decorated, &flag);
    CHECK(flag == 1);
    MPI_File_get_size(decorated, &bytes);
    CHECK(bytes == 3000);
    MPI_File_get_group(decorated, &group);
    MPI_Group_size(group, &n);
    CHECK(n == size);
    MPI_Group_free(&group);
    CHECK(MPI_File_f2c(decorated_f) == decorated && MPI_File_fromint(decorated_int) == decorated);
    CHECK(MPI_File_f2c(MPI_File_c2f(MPI_FILE_NULL)) == MPI_FILE_NULL && MPI_File_toint(MPI_FILE_NULL) == 0);
    MPI_File_close(&decorated);

    MPI_File_get_group(on_halves, &group);
    MPI_Group_size(group, &n);
    MPI_Group_rank(group, &flag);
    CHECK(n == (size + 1 - rank % 2) / 2 && flag == n - 1 - rank / 2);
    MPI_Group_free(&group);
    MPI_File_write_ordered(on_halves, &rank, 1, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_close(&on_halves);
    CHECK(bytes_of(rank % 2 ? "odd" : "even") == 4 * n);

    CHECK(position(on_self) == 4);
    MPI_File_seek(on_self, 0, MPI_SEEK_SET);
    MPI_File_read(on_self, &n, 1, MPI_INT, MPI_STATUS_IGNORE);
    CHECK(n == rank);
    CHECK(MPI_File_close(&on_self) == MPI_SUCCESS);
}

/* ---- modes ---- */

static MPI_File passing, appended, in_sequence;

static void modes_set_up(void) {
    MPI_Offset bytes = -1;
    MPI_File f = open_new("appended");
    MPI_File_set_size(f, 40);
    MPI_File_close(&f);
    MPI_File_open(MPI_COMM_WORLD, file("passing"), MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE,
                  MPI_INFO_NULL, &passing);
    MPI_File_write_at_all(passing, rank, &rank, 1, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_open(MPI_COMM_WORLD, file("appended"), MPI_MODE_WRONLY | MPI_MODE_APPEND, MPI_INFO_NULL, &appended);
    CHECK(position(appended) == 40);
    MPI_File_open(MPI_COMM_WORLD, file("in_sequence"), MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_SEQUENTIAL,
                  MPI_INFO_NULL, &in_sequence);
    CHECK(MPI_File_write_ordered(in_sequence, "ab", 2, MPI_CHAR, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(class_of(MPI_File_write(in_sequence, "x", 1, MPI_CHAR, MPI_STATUS_IGNORE)) == MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK(class_of(MPI_File_get_position_shared(in_sequence, &bytes)) == MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK(class_of(MPI_File_set_view(in_sequence, 0, MPI_CHAR, MPI_CHAR, "native", MPI_INFO_NULL)) == MPI_ERR_ARG);
}

static void modes_check(void) {
    int amode = 0;
    char in[3] = "";
    MPI_Offset disp = -1;
    MPI_Datatype etype, filetype;
    char datarep[MPI_MAX_DATAREP_STRING];
    CHECK(bytes_of("passing") == size);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(MPI_File_close(&passing) == MPI_SUCCESS);
    CHECK(bytes_of("passing") == -1);
    CHECK(position(appended) == 40 && shared_position(appended) == 40);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_write_ordered(appended, "zz", 2, MPI_CHAR, MPI_STATUS_IGNORE);
    MPI_File_close(&appended);
    CHECK(bytes_of("appended") == 40 + 2 * size);

    MPI_File_get_amode(in_sequence, &amode);
    CHECK(amode == (MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_SEQUENTIAL));
    CHECK(class_of(MPI_File_write_at(in_sequence, 0, "x", 1, MPI_CHAR, MPI_STATUS_IGNORE)) ==
          MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK(MPI_File_write_ordered(in_sequence, "cd", 2, MPI_CHAR, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(MPI_File_set_view(in_sequence, MPI_DISPLACEMENT_CURRENT, MPI_CHAR, MPI_CHAR, "native", MPI_INFO_NULL) ==
          MPI_SUCCESS);
    MPI_File_get_view(in_sequence, &disp, &etype, &filetype, datarep);
    CHECK(disp == 4 * size);
    MPI_File_write_shared(in_sequence, "ef", 2, MPI_CHAR, MPI_STATUS_IGNORE);
    MPI_File_close(&in_sequence);
    MPI_File_open(MPI_COMM_WORLD, file("in_sequence"), MPI_MODE_RDONLY, MPI_INFO_NULL, &in_sequence);
    for (int third = 0; third < 3; third++) {
        MPI_File_read_at(in_sequence, 2 * size * third + 2 * rank, in, 2, MPI_CHAR, MPI_STATUS_IGNORE);
        CHECK(!memcmp(in, &"abcdef"[2 * third], 2));
    }
    MPI_File_close(&in_sequence);
    CHECK(bytes_of("in_sequence") == 6 * size);
}

/* ---- error handlers, wrong arguments ---- */

static MPI_File guarded, closed;
static MPI_Errhandler guard;
static int guarded_errors, guarded_code;

static void on_error(MPI_File *f, int *code, ...) {
    CHECK(*f == guarded || *f == MPI_FILE_NULL);
    guarded_code = *code;
    guarded_errors++;
}

static void wrong_arguments(void) {
    MPI_File f = MPI_FILE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Offset at = 0;
    int n = 0;
    char garbage[4096] = {0};
    CHECK(class_of(MPI_File_open(MPI_COMM_WORLD, file("missing"), MPI_MODE_RDONLY, MPI_INFO_NULL, &f)) ==
          MPI_ERR_NO_SUCH_FILE);
    CHECK(class_of(MPI_File_open(MPI_COMM_WORLD, file("x"), MPI_MODE_RDONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &f)) ==
          MPI_ERR_AMODE);
    CHECK(class_of(MPI_File_open(MPI_COMM_WORLD, file("x"), MPI_MODE_RDWR | MPI_MODE_SEQUENTIAL, MPI_INFO_NULL, &f)) ==
          MPI_ERR_AMODE);
    CHECK(class_of(MPI_File_open(MPI_COMM_SELF, file("guarded"), MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL,
                                 MPI_INFO_NULL, &f)) == MPI_ERR_FILE_EXISTS);
    CHECK(class_of(MPI_File_open(MPI_COMM_NULL, file("x"), MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &f)) ==
          MPI_ERR_COMM);
    CHECK(class_of(MPI_File_delete(file("missing"), MPI_INFO_NULL)) == MPI_ERR_NO_SUCH_FILE);
    MPI_File wrong[] = {MPI_FILE_NULL, (MPI_File)(void *)(garbage + 1024), closed};
    for (int i = 0; i < 3; i++) {
        if (i == 2) continue; /* reads freed memory without manapy */
        CHECK(class_of(MPI_File_read(wrong[i], garbage, 1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_FILE);
        CHECK(class_of(MPI_File_write_all(wrong[i], garbage, 1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_FILE);
        CHECK(class_of(MPI_File_iread(wrong[i], garbage, 1, MPI_BYTE, &request)) == MPI_ERR_FILE &&
              request == MPI_REQUEST_NULL);
        CHECK(class_of(MPI_File_read_all_end(wrong[i], garbage, MPI_STATUS_IGNORE)) == MPI_ERR_FILE);
        CHECK(class_of(MPI_File_write_all_begin(wrong[i], garbage, 1, MPI_BYTE)) == MPI_ERR_FILE);
        CHECK(class_of(MPI_File_get_size(wrong[i], &at)) == MPI_ERR_FILE &&
              class_of(MPI_File_get_amode(wrong[i], &n)) == MPI_ERR_FILE);
        CHECK(class_of(MPI_File_set_view(wrong[i], 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL)) == MPI_ERR_FILE);
        f = wrong[i];
        CHECK(class_of(MPI_File_close(&f)) == MPI_ERR_FILE && f == wrong[i]);
    }
    CHECK(class_of(MPI_File_write(guarded, garbage, 1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_READ_ONLY);
    CHECK(class_of(MPI_File_set_size(guarded, 3)) == MPI_ERR_READ_ONLY);
    CHECK(class_of(MPI_File_read(guarded, garbage, -1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_File_read(guarded, garbage, 1, MPI_DATATYPE_NULL, MPI_STATUS_IGNORE)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_File_read_at(guarded, -1, garbage, 1, MPI_BYTE, MPI_STATUS_IGNORE)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_File_seek(guarded, -1, MPI_SEEK_SET)) == MPI_ERR_ARG &&
          class_of(MPI_File_seek(guarded, 0, 4711)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_File_set_view(guarded, 0, MPI_BYTE, MPI_BYTE, "nonsense", MPI_INFO_NULL)) ==
          MPI_ERR_UNSUPPORTED_DATAREP);
    CHECK(class_of(MPI_File_set_view(guarded, 0, MPI_INT, MPI_CHAR, "native", MPI_INFO_NULL)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_File_set_view(guarded, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL)) ==
          MPI_ERR_ARG);
}

static int no_extent(MPI_Datatype type, MPI_Aint *extent, void *extra) {
    (void)type, (void)extra;
    *extent = 1;
    return MPI_SUCCESS;
}
static int no_conversion(void *user, MPI_Datatype type, int n, void *buf, MPI_Offset at, void *extra) {
    (void)user, (void)type, (void)n, (void)buf, (void)at, (void)extra;
    return MPI_SUCCESS;
}
static int no_conversion_c(void *user, MPI_Datatype type, MPI_Count n, void *buf, MPI_Offset at, void *extra) {
    (void)user, (void)type, (void)n, (void)buf, (void)at, (void)extra;
    return MPI_SUCCESS;
}

static void errors_set_up(void) {
    MPI_File_open(MPI_COMM_SELF, file("guarded"), MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &closed);
    MPI_File f = closed;
    MPI_File_close(&f);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_open(MPI_COMM_WORLD, file("guarded"), MPI_MODE_RDONLY, MPI_INFO_NULL, &guarded);
    wrong_arguments();
    MPI_File_create_errhandler(on_error, &guard);
    MPI_File_set_errhandler(guarded, guard);
    CHECK(MPI_Register_datarep("of the test", MPI_CONVERSION_FN_NULL, MPI_CONVERSION_FN_NULL, no_extent, NULL) ==
          MPI_SUCCESS);
    CHECK(MPI_Register_datarep_c("of the test, too", MPI_CONVERSION_FN_NULL_C, MPI_CONVERSION_FN_NULL_C, no_extent,
                                 NULL) == MPI_SUCCESS);
}

static void errors_check(void) {
    MPI_Errhandler handler;
    MPI_File f;
    /* MPICH: the handler has dealt with it */
    CHECK(MPI_File_write(guarded, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    CHECK(guarded_errors == 1 && class_of(guarded_code) == MPI_ERR_READ_ONLY);
    CHECK(MPI_File_call_errhandler(guarded, MPI_ERR_IO) == MPI_SUCCESS && guarded_errors == 2 &&
          guarded_code == MPI_ERR_IO);
    MPI_File_get_errhandler(guarded, &handler);
    CHECK(handler == guard);
    MPI_Errhandler_free(&handler);
    MPI_File_get_errhandler(MPI_FILE_NULL, &handler);
    CHECK(handler == MPI_ERRORS_RETURN);
    MPI_File_set_errhandler(MPI_FILE_NULL, guard);
    f = MPI_FILE_NULL;
    CHECK(MPI_File_open(MPI_COMM_WORLD, file("missing"), MPI_MODE_RDONLY, MPI_INFO_NULL, &f) == MPI_SUCCESS &&
          f == MPI_FILE_NULL);
    CHECK(guarded_errors == 3 && class_of(guarded_code) == MPI_ERR_NO_SUCH_FILE);
    MPI_File_open(MPI_COMM_WORLD, file("guarded"), MPI_MODE_RDONLY, MPI_INFO_NULL, &f); /* inherits it */
    MPI_File_get_errhandler(f, &handler);
    CHECK(handler == guard);
    MPI_Errhandler_free(&handler);
    MPI_File_close(&f);
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    MPI_File_set_errhandler(guarded, MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&guard);
    wrong_arguments();
    CHECK(guarded_errors == 3);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN); /* MPICH uses it for the errors of the next calls */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(class_of(MPI_Register_datarep("of the test", MPI_CONVERSION_FN_NULL, MPI_CONVERSION_FN_NULL, no_extent,
                                        NULL)) == MPI_ERR_DUP_DATAREP);
    CHECK(class_of(MPI_Register_datarep_c("of the test, too", MPI_CONVERSION_FN_NULL_C, MPI_CONVERSION_FN_NULL_C,
                                          no_extent, NULL)) == MPI_ERR_DUP_DATAREP);
    CHECK(class_of(MPI_Register_datarep("another", no_conversion, no_conversion, no_extent, NULL)) ==
          MPI_ERR_UNSUPPORTED_DATAREP);
    CHECK(class_of(MPI_Register_datarep_c("another", no_conversion_c, no_conversion_c, no_extent, NULL)) ==
          MPI_ERR_UNSUPPORTED_DATAREP);
    MPI_File_close(&guarded);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) CHECK(MPI_File_delete(file("guarded"), MPI_INFO_NULL) == MPI_SUCCESS && bytes_of("guarded") == -1);
}

static void set_up(void) {
    snprintf(place, sizeof place, "%s", getenv("STATE_GO"));
    *strrchr(place, '/') = 0;
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(blocking), STATE(nonblocking), STATE(shared), STATE(split),
        STATE(views),    STATE(properties),  STATE(modes),  STATE(errors),
    };
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}
