/* One-sided communication: windows of all flavors with their epochs open over checkpoint and restart. See
 * checkpointed.h.
 *
 *     STATE_GO=FILE mpirun -n 4 manapy-launch surface_rma [STATE...]
 */
#include "../../mpi_states.h"

#include <pthread.h>
#include <stdint.h>

static int next, before;

static void returns(MPI_Win win) { MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN); }

/* ---- memory of the program, epochs between fences ---- */

static MPI_Win fenced, fenced_big;
static int fenced_memory[8], fenced_got, big_memory[4];
static MPI_Datatype every_other;

static void create_set_up(void) {
    MPI_Comm passing;
    MPI_Comm_dup(MPI_COMM_WORLD, &passing);
    for (int i = 0; i < 8; i++) fenced_memory[i] = 100 * rank + i;
    MPI_Win_create(fenced_memory, sizeof fenced_memory, sizeof(int), MPI_INFO_NULL, passing, &fenced);
    MPI_Win_create_c(big_memory, sizeof big_memory, 1, MPI_INFO_NULL, passing, &fenced_big);
    MPI_Comm_free(&passing); /* the windows stay */
    MPI_Type_vector(2, 1, 2, MPI_INT, &every_other);
    MPI_Type_commit(&every_other);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, fenced);
    int value = 7000 + rank;
    MPI_Put(&value, 1, MPI_INT, next, 0, 1, MPI_INT, fenced);
    MPI_Get(&fenced_got, 1, MPI_INT, before, 5, 1, MPI_INT, fenced);
    MPI_Win_fence(0, fenced); /* opens the next epoch, which the checkpoint falls into */
    CHECK(fenced_memory[0] == 7000 + before && fenced_got == 100 * before + 5);
    MPI_Win_fence(0, fenced_big);
    static int put[3]; /* still present at the closing fence */
    for (int i = 0; i < 3; i++) put[i] = 10 * rank + i;
    MPI_Put_c(put, 1, every_other, next, 0, 1, every_other, fenced_big);
}

static void create_check(void) {
    int value = 8000 + rank;
    CHECK(fenced_memory[0] == 7000 + before && fenced_memory[7] == 100 * rank + 7);
    MPI_Put(&value, 1, MPI_INT, next, 1, 1, MPI_INT, fenced);
    MPI_Accumulate(&value, 1, MPI_INT, before, 2, 1, MPI_INT, MPI_SUM, fenced);
    MPI_Win_fence(MPI_MODE_NOSTORE | MPI_MODE_NOSUCCEED, fenced);
    CHECK(fenced_memory[1] == 8000 + before && fenced_memory[2] == 100 * rank + 2 + 8000 + next);
    MPI_Win_fence(0, fenced_big);
    CHECK(big_memory[0] == 10 * before && big_memory[1] == 0 && big_memory[2] == 10 * before + 2);
    int got = -1;
    MPI_Get_c(&got, 1, MPI_INT, next, 8, 1, MPI_INT, fenced_big);
    MPI_Accumulate_c(&value, 1, MPI_INT, next, 12, 1, MPI_INT, MPI_REPLACE, fenced_big);
    MPI_Win_fence(0, fenced_big);
    CHECK(got == 10 * rank + 2 && big_memory[3] == 8000 + before);
    MPI_Type_free(&every_other);
    MPI_Win_free(&fenced);
    MPI_Win_free(&fenced_big);
    CHECK(fenced == MPI_WIN_NULL);
}

/* ---- memory of the library; lock_all held all the time ---- */

enum { LONG = 30000 };
static MPI_Win allocated, allocated_big;
static long *memory, *memory_again, flushed[LONG];
static char *memory_big;

static void allocate_set_up(void) {
    MPI_Win_allocate(LONG * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &allocated);
    MPI_Win_allocate_c(rank == 1 ? 0 : 1000 + rank, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory_big, &allocated_big);
    CHECK((memory_big == NULL) == (rank == 1));
    memory_again = memory;
    for (long i = 0; i < LONG; i++) memory[i] = rank * 1000000l + i;
    if (memory_big) memset(memory_big, 'a' + rank, 1000 + (size_t)rank);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, allocated);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, allocated_big);
    for (long i = 0; i < LONG; i++) flushed[i] = -(rank * 1000000l + i);
    /* no rank flushes it before the checkpoint */
    MPI_Put(flushed, LONG / 2, MPI_LONG, next, 0, LONG / 2, MPI_LONG, allocated);
}

static void allocate_check(void) {
    MPI_Aint *bytes;
    int *unit, flag = 0, wrong = 0;
    long *base, got = 0;
    MPI_Win_get_attr(allocated, MPI_WIN_BASE, &base, &flag);
    CHECK(flag && base == memory && memory == memory_again);
    MPI_Win_get_attr(allocated, MPI_WIN_SIZE, &bytes, &flag);
    MPI_Win_get_attr(allocated, MPI_WIN_DISP_UNIT, &unit, &flag);
    CHECK(*bytes == LONG * sizeof(long) && *unit == sizeof(long));
    MPI_Win_flush_local(next, allocated);
    MPI_Win_flush(next, allocated);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(allocated);
    for (long i = 0; i < LONG; i++)
        wrong += memory[i] != (i < LONG / 2 ? -(before * 1000000l + i) : rank * 1000000l + i);
    CHECK(wrong == 0);
    MPI_Get(&got, 1, MPI_LONG, before, LONG - 1, 1, MPI_LONG, allocated);
    MPI_Win_flush_local_all(allocated);
    CHECK(got == before * 1000000l + LONG - 1);
    MPI_Win_flush_all(allocated);
    MPI_Barrier(MPI_COMM_WORLD);
    long minus = -1;
    MPI_Put(&minus, 1, MPI_LONG, next, 3, 1, MPI_LONG, allocated);
    MPI_Win_unlock_all(allocated);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(memory[3] == -1);
    char c = 0;
    for (int i = 0; memory_big && i < 1000 + rank; i++) wrong += memory_big[i] != 'a' + rank;
    CHECK(wrong == 0);
    MPI_Get(&c, 1, MPI_CHAR, 2, 1001, 1, MPI_CHAR, allocated_big);
    MPI_Win_unlock_all(allocated_big);
    CHECK(c == 'c');
    MPI_Win_free(&allocated);
    MPI_Win_free(&allocated_big);
}

/* ---- shared memory: content and addresses ---- */

static MPI_Win shared, apart;
static int *mine, *theirs[4], *mine_apart, *theirs_apart[4];

/* Sizes that leave parts of several ranks on one page. */
static int ints_of(int r) { return r == 2 ? 0 : 700 + 37 * r; }

static void shared_set_up(void) {
    MPI_Aint bytes;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    MPI_Win_allocate_shared(ints_of(rank) * (MPI_Aint)sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &mine,
                            &shared);
    MPI_Win_allocate_shared_c(5000, 4, info, MPI_COMM_WORLD, &mine_apart, &apart);
    MPI_Info_free(&info);
    MPI_Win_lock_all(0, shared);
    for (int i = 0; i < ints_of(rank); i++) mine[i] = 10000 * rank + i;
    for (int i = 0; i < 1250; i++) mine_apart[i] = -rank;
    for (int r = 0; r < size; r++) {
        int unit;
        MPI_Aint unit_c;
        MPI_Win_shared_query(shared, r, &bytes, &unit, &theirs[r]);
        CHECK(bytes == ints_of(r) * (MPI_Aint)sizeof(int) && (bytes == 0 || unit == 4));
        MPI_Win_shared_query_c(apart, r, &bytes, &unit_c, &theirs_apart[r]);
        CHECK(bytes == 5000 && unit_c == 4);
    }
    CHECK((rank == 2 || mine == theirs[rank]) && mine_apart == theirs_apart[rank]);
    MPI_Win_sync(shared);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) theirs[3][5] = 4711;
    MPI_Win_sync(shared);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void shared_check(void) {
    int wrong = 0;
    for (int r = 0; r < size; r++) {
        MPI_Aint bytes;
        int unit, *where;
        MPI_Win_shared_query(shared, r, &bytes, &unit, &where);
        CHECK(where == theirs[r]);
        for (int i = 0; i < ints_of(r); i++) wrong += theirs[r][i] != (r == 3 && i == 5 ? 4711 : 10000 * r + i);
        for (int i = 0; i < 1250; i++) wrong += theirs_apart[r][i] != -r;
    }
    CHECK(wrong == 0);
    MPI_Win_sync(shared);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) theirs[1][2] = 99, theirs_apart[3][1249] = 98; /* still the same memory for all */
    int value = 55;
    if (rank == 3) MPI_Put(&value, 1, MPI_INT, 0, 0, 1, MPI_INT, shared), MPI_Win_flush(0, shared);
    MPI_Win_sync(shared);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(shared);
    CHECK(theirs[1][2] == 99 && theirs_apart[3][1249] == 98 && theirs[0][0] == 55);
    MPI_Win_unlock_all(shared);
    MPI_Win_free(&shared);
    MPI_Win_free(&apart);
}

/* ---- windows of one process ---- */

static MPI_Win alone, alone_shared;
static double *own, *own_shared;

static void alone_set_up(void) {
    MPI_Win_allocate(100000, 8, MPI_INFO_NULL, MPI_COMM_SELF, &own, &alone);
    MPI_Win_allocate_shared(4000, 8, MPI_INFO_NULL, MPI_COMM_SELF, &own_shared, &alone_shared);
    own[12000] = 1.5 + rank;
    own_shared[0] = 2.5 + rank;
}

static void alone_check(void) {
    MPI_Aint bytes;
    int unit;
    double *where, got = 0;
    MPI_Win_shared_query(alone_shared, MPI_PROC_NULL, &bytes, &unit, &where);
    CHECK(where == own_shared && bytes == 4000 && unit == 8 && own_shared[0] == 2.5 + rank);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, alone);
    MPI_Get(&got, 1, MPI_DOUBLE, 0, 12000, 1, MPI_DOUBLE, alone);
    MPI_Win_unlock(0, alone);
    CHECK(got == 1.5 + rank && own[12000] == got);
    MPI_Win_free(&alone);
    MPI_Win_free(&alone_shared);
}

/* ---- dynamic windows ---- */

static MPI_Win dynamic;
static int attached[3][50];
static MPI_Aint address[4];

static void dynamic_set_up(void) {
    MPI_Aint here;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &dynamic);
    for (int i = 0; i < 3; i++) MPI_Win_attach(dynamic, attached[i], sizeof attached[i]);
    MPI_Win_detach(dynamic, attached[1]);
    MPI_Get_address(&attached[2][10], &here);
    MPI_Allgather(&here, 1, MPI_AINT, address, 1, MPI_AINT, MPI_COMM_WORLD);
    attached[2][10] = rank;
    MPI_Win_attach(dynamic, attached[1], sizeof attached[1]);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, dynamic);
}

static void dynamic_check(void) {
    int value = 500 + rank, got = -1;
    MPI_Win_unlock(rank, dynamic);
    MPI_Win_lock_all(0, dynamic);
    MPI_Get(&got, 1, MPI_INT, next, address[next], 1, MPI_INT, dynamic);
    MPI_Win_flush(next, dynamic);
    CHECK(got == next);
    MPI_Put(&value, 1, MPI_INT, before, MPI_Aint_add(address[before], sizeof(int)), 1, MPI_INT, dynamic);
    MPI_Win_unlock_all(dynamic);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(attached[2][11] == 500 + next);
    for (int i = 0; i < 3; i++) MPI_Win_detach(dynamic, attached[i]);
    MPI_Win_free(&dynamic);
}

/* ---- locks: one held, one waited for ---- */

static MPI_Win locked;
static int cell[4];
static pthread_t waiter;
static volatile int asked, granted;

static void *wait_for_lock(void *unused) {
    int add = 10, got;
    asked = 1;
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, locked); /* rank 0 has it */
    granted = 1;
    MPI_Get(&got, 1, MPI_INT, 1, 0, 1, MPI_INT, locked);
    MPI_Win_flush(1, locked);
    got += add;
    MPI_Put(&got, 1, MPI_INT, 1, 0, 1, MPI_INT, locked);
    MPI_Win_unlock(1, locked);
    return unused;
}

static void locks_set_up(void) {
    MPI_Win_create(cell, sizeof cell, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &locked);
    if (rank == 0) MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, locked);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 2) {
        pthread_create(&waiter, NULL, wait_for_lock, NULL);
        WAIT_UNTIL(asked);
        pause_ms(100);
    }
    if (rank == 3) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, locked);
        MPI_Win_lock(MPI_LOCK_SHARED, 3, MPI_MODE_NOCHECK, locked);
    }
}

static void locks_check(void) {
    int got = 5;
    if (rank == 0) {
        MPI_Put(&got, 1, MPI_INT, 1, 0, 1, MPI_INT, locked);
        pause_ms(50);
        MPI_Win_unlock(1, locked);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, locked); /* together with rank 3 */
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_unlock(0, locked);
    } else {
        if (rank == 2) {
            pthread_join(waiter, NULL);
            CHECK(granted);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 3) MPI_Win_unlock(3, locked), MPI_Win_unlock(0, locked);
    MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, locked);
    MPI_Get(&got, 1, MPI_INT, 1, 0, 1, MPI_INT, locked);
    MPI_Win_unlock(1, locked);
    CHECK(got == 15);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, MPI_PROC_NULL, 0, locked);
    MPI_Win_unlock(MPI_PROC_NULL, locked);
    MPI_Win_free(&locked);
}

/* ---- post, start, complete, wait ---- */

static MPI_Win exposed;
static int target_memory[4];
static MPI_Group left, right;

static void pscw_set_up(void) {
    MPI_Group all;
    int value = 60 + rank;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &before, &left);
    MPI_Group_incl(all, 1, &next, &right);
    MPI_Group_free(&all);
    MPI_Win_create(target_memory, sizeof target_memory, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &exposed);
    MPI_Win_post(left, MPI_MODE_NOSTORE, exposed);
    MPI_Win_start(right, 0, exposed);
    MPI_Put(&value, 1, MPI_INT, next, 0, 1, MPI_INT, exposed);
    if (rank % 2) MPI_Win_complete(exposed); /* the others have their access epoch open, all have the exposure epoch */
    MPI_Barrier(MPI_COMM_WORLD);             /* it may need its target to be in an MPI call */
}

static void pscw_check(void) {
    int value = 80 + rank, flag = 0;
    if (rank % 2 == 0) {
        MPI_Put(&value, 1, MPI_INT, next, 1, 1, MPI_INT, exposed);
        MPI_Win_complete(exposed);
    }
    MPI_Win_wait(exposed);
    CHECK(target_memory[0] == 60 + before && target_memory[1] == (before % 2 ? 0 : 80 + before));
    MPI_Win_post(left, 0, exposed);
    MPI_Win_test(exposed, &flag);
    CHECK(!flag);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_start(right, 0, exposed);
    MPI_Put(&value, 1, MPI_INT, next, 2, 1, MPI_INT, exposed);
    MPI_Win_complete(exposed);
    WAIT_UNTIL(flag || (MPI_Win_test(exposed, &flag), flag));
    CHECK(target_memory[2] == 80 + before);
    MPI_Win_post(MPI_GROUP_EMPTY, 0, exposed);
    MPI_Win_start(MPI_GROUP_EMPTY, 0, exposed);
    MPI_Win_complete(exposed);
    MPI_Win_wait(exposed);
    MPI_Win_free(&exposed);
    MPI_Group_free(&left);
    MPI_Group_free(&right);
}

/* ---- requests ---- */

enum { SLOTS = 16 };
static MPI_Win requested;
static long request_memory[SLOTS], sent[8], fetched[8];
static MPI_Request requests[8];

static void requests_set_up(void) {
    for (int i = 0; i < SLOTS; i++) request_memory[i] = 10 * rank;
    for (int i = 0; i < 8; i++) sent[i] = 100 + rank;
    MPI_Win_create(request_memory, sizeof request_memory, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &requested);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, requested);
    MPI_Rput(&sent[0], 1, MPI_LONG, next, 0, 1, MPI_LONG, requested, &requests[0]);
    MPI_Rput_c(&sent[1], 1, MPI_LONG, next, 1, 1, MPI_LONG, requested, &requests[1]);
    MPI_Rget(&fetched[2], 1, MPI_LONG, next, 15, 1, MPI_LONG, requested, &requests[2]);
    MPI_Rget_c(&fetched[3], 1, MPI_LONG, before, 14, 1, MPI_LONG, requested, &requests[3]);
    MPI_Raccumulate(&sent[4], 1, MPI_LONG, next, 4, 1, MPI_LONG, MPI_SUM, requested, &requests[4]);
    MPI_Raccumulate_c(&sent[5], 1, MPI_LONG, before, 4, 1, MPI_LONG, MPI_SUM, requested, &requests[5]);
    MPI_Rget_accumulate(&sent[6], 1, MPI_LONG, &fetched[6], 1, MPI_LONG, next, 6, 1, MPI_LONG, MPI_PROD, requested,
                        &requests[6]);
    MPI_Rget_accumulate_c(&sent[7], 1, MPI_LONG, &fetched[7], 1, MPI_LONG, next, 7, 1, MPI_LONG, MPI_NO_OP, requested,
                          &requests[7]);
}

static void requests_check(void) {
    int flag = 0;
    WAIT_UNTIL(flag || (MPI_Test(&requests[2], &flag, MPI_STATUS_IGNORE), flag));
    MPI_Wait(&requests[3], MPI_STATUS_IGNORE);
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
    CHECK(requests[0] == MPI_REQUEST_NULL && fetched[2] == 10 * next && fetched[3] == 10 * before &&
          fetched[6] == 10 * next && fetched[7] == 10 * next);
    MPI_Win_unlock_all(requested);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(request_memory[0] == 100 + before && request_memory[1] == 100 + before &&
          request_memory[4] == 10 * rank + 200 + before + next);
    CHECK(request_memory[6] == 10 * rank * (100l + before) && request_memory[7] == 10 * rank);
    MPI_Win_free(&requested);
}

/* ---- atomics: a counter from which all ranks draw numbers, open over the checkpoint ---- */

static MPI_Win counting;
static long counter[3], drawn;

static void atomics_set_up(void) {
    long one = 1, result[2];
    MPI_Win_create(counter, sizeof counter, sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counting);
    MPI_Win_lock_all(0, counting);
    MPI_Fetch_and_op(&one, &drawn, MPI_LONG, 0, 0, MPI_SUM, counting);
    MPI_Win_flush(0, counting);
    MPI_Get_accumulate(&one, 1, MPI_LONG, result, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_SUM, counting);
    MPI_Win_flush(0, counting);
    CHECK(drawn >= 0 && drawn < size && result[0] >= 0 && result[0] < size);
}

static void atomics_check(void) {
    long one = 1, again = -1, result = -1, zero = 0, mark = rank + 1;
    MPI_Fetch_and_op(&one, &again, MPI_LONG, 0, 0, MPI_SUM, counting);
    MPI_Get_accumulate_c(&one, 1, MPI_LONG, &result, 1, MPI_LONG, 0, 1, 1, MPI_LONG, MPI_SUM, counting);
    MPI_Win_flush(0, counting);
    CHECK(again >= size && again < 2 * size && result >= size && result < 2 * size);
    MPI_Compare_and_swap(&mark, &zero, &result, MPI_LONG, 0, 2, counting); /* one of them wins */
    MPI_Win_unlock_all(counting);
    int wins = result == 0, winners;
    MPI_Allreduce(&wins, &winners, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(winners == 1);
    if (rank == 0) CHECK(counter[0] == 2 * size && counter[1] == 2 * size && counter[2] >= 1 && counter[2] <= size);
    MPI_Win_free(&counting);
}

/* ---- operations that manapy does itself (wrappers/window/win_direct.c), between those of the real library ---- */

enum { CELLS = 8, ROUNDS = 40 }; /* more than the flushes in a row that are not passed to the library */
static MPI_Win mixed;
static long *mixed_memory, turns;
static MPI_Datatype two_longs;

/* Only this rank writes to the next one's cells. */
static void mix(void) {
    for (int i = 0; i < ROUNDS; i++) {
        long value = 100 * rank + turns, got = -1, one = 1, pair[2] = {value, -value}, both[2] = {0};
        long words[2] = {7, rank}, read[2] = {0};
        MPI_Put(&value, 1, MPI_LONG, next, 0, 1, MPI_LONG, mixed);
        MPI_Win_flush(next, mixed);
        MPI_Get(&got, 1, MPI_LONG, next, 0, 1, MPI_LONG, mixed);
        MPI_Win_flush_local(next, mixed);
        CHECK(got == value);
        MPI_Accumulate(&one, 1, MPI_LONG, next, 1, 1, MPI_LONG, MPI_SUM, mixed);
        MPI_Win_flush(next, mixed);
        MPI_Get(&got, 1, MPI_LONG, next, 1, 1, MPI_LONG, mixed);
        MPI_Win_flush(next, mixed);
        CHECK(got == ++turns);
        MPI_Put(pair, 2, MPI_LONG, next, CELLS - 2, 2, MPI_LONG, mixed); /* to the end */
        MPI_Put(words, 1, two_longs, next, 2, 2, MPI_LONG, mixed);       /* by a derived type */
        MPI_Put(&value, 1, MPI_LONG, MPI_PROC_NULL, 0, 1, MPI_LONG, mixed);
        MPI_Win_flush_all(mixed);
        MPI_Get(both, 2, MPI_LONG, next, CELLS - 2, 2, MPI_LONG, mixed);
        MPI_Get(read, 2, MPI_LONG, next, 2, 1, two_longs, mixed);
        MPI_Win_flush(next, mixed);
        CHECK(both[0] == value && both[1] == -value && read[0] == 7 && read[1] == rank);
        MPI_Put(&turns, 1, MPI_LONG, rank, 4, 1, MPI_LONG, mixed);
        MPI_Win_flush(rank, mixed);
        CHECK(mixed_memory[4] == turns);
    }
}

static void mixed_set_up(void) {
    MPI_Win_allocate(CELLS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &mixed_memory, &mixed);
    memset(mixed_memory, 0, CELLS * sizeof(long));
    MPI_Type_contiguous(2, MPI_LONG, &two_longs);
    MPI_Type_commit(&two_longs);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, mixed); /* stays open over the checkpoint */
    mix();
}

static void mixed_check(void) {
    mix();
    MPI_Win_unlock_all(mixed);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(mixed_memory[0] == 100 * before + turns - 1 && mixed_memory[1] == turns);
    CHECK(mixed_memory[CELLS - 1] == -mixed_memory[0]);
    MPI_Type_free(&two_longs);
    MPI_Win_free(&mixed);
}

/* ---- properties of a window ---- */

static MPI_Win owned;
static MPI_Win_errhandler_function on_error;
static int win_keyval, other_keyval, deleted, handled, handled_class, owned_memory[2], owned_key;

static void on_error(MPI_Win *win, int *code, ...) {
    CHECK(*win == owned);
    handled_class = class_of(*code);
    handled++;
}

static int on_delete(MPI_Win win, int keyval, void *value, void *extra) {
    CHECK(win == owned && value == &owned_memory[deleted] && extra == &deleted);
    (void)keyval;
    deleted++;
    return MPI_SUCCESS;
}

static void belongings_set_up(void) {
    MPI_Errhandler handler;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "no_locks", "false");
    MPI_Win_create(owned_memory, sizeof owned_memory, sizeof(int), info, MPI_COMM_WORLD, &owned);
    MPI_Info_set(info, "accumulate_ordering", "none");
    MPI_Win_set_info(owned, info);
    MPI_Info_free(&info);
    MPI_Win_set_name(owned, "the window");
    MPI_Win_create_errhandler(on_error, &handler);
    MPI_Win_set_errhandler(owned, handler);
    MPI_Errhandler_free(&handler);
    MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, on_delete, &win_keyval, &deleted);
    MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, MPI_WIN_NULL_DELETE_FN, &other_keyval, NULL);
    MPI_Win_set_attr(owned, win_keyval, &owned_memory[0]);
    MPI_Win_set_attr(owned, other_keyval, &owned_key);
    MPI_Win_delete_attr(owned, other_keyval);
}

static void belongings_check(void) {
    char name[MPI_MAX_OBJECT_NAME], value[100];
    int length, flag = 0, *flavor, *model, n;
    void *attribute = NULL;
    MPI_Win_get_name(owned, name, &length);
    CHECK(!strcmp(name, "the window") && length == 10);
    MPI_Win_get_name(MPI_WIN_NULL, name, &length);
    CHECK(!strcmp(name, "MPI_WIN_NULL"));
    MPI_Win_get_attr(owned, MPI_WIN_CREATE_FLAVOR, &flavor, &flag);
    CHECK(flag && *flavor == MPI_WIN_FLAVOR_CREATE);
    MPI_Win_get_attr(owned, MPI_WIN_MODEL, &model, &flag);
    CHECK(flag && *model == MPI_WIN_UNIFIED);
    MPI_Win_get_attr(owned, win_keyval, &attribute, &flag);
    CHECK(flag && attribute == &owned_memory[0]);
    MPI_Win_get_attr(owned, other_keyval, &attribute, &flag);
    CHECK(!flag);
    MPI_Info info;
    MPI_Win_get_info(owned, &info);
    MPI_Info_get(info, "accumulate_ordering", 99, value, &flag);
    CHECK(flag && !strcmp(value, "none"));
    MPI_Info_free(&info);
    MPI_Group group, all;
    MPI_Win_get_group(owned, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_compare(group, all, &n);
    CHECK(n == MPI_IDENT);
    MPI_Group_free(&group);
    MPI_Group_free(&all);
    MPI_Errhandler handler;
    MPI_Win_get_errhandler(owned, &handler);
    CHECK(handler != MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&handler);
    MPI_Win_call_errhandler(owned, MPI_ERR_OTHER);
    CHECK(handled == 1 && handled_class == MPI_ERR_OTHER);
    MPI_Win_unlock(0, owned);
    CHECK(handled == 2 && handled_class == MPI_ERR_RMA_SYNC);
    CHECK(MPI_Win_f2c(MPI_Win_c2f(owned)) == owned && MPI_Win_fromint(MPI_Win_toint(owned)) == owned);
    MPI_Win_set_attr(owned, win_keyval, &owned_memory[1]); /* the old value is deleted */
    CHECK(deleted == 1);
    MPI_Win_free_keyval(&win_keyval);
    MPI_Win_free_keyval(&other_keyval);
    MPI_Win_free(&owned);
    CHECK(deleted == 2);
}

/* ---- wrong arguments and epochs: the errors that MPICH returns ---- */

static MPI_Win wrong;
static int wrong_memory[4];

#define EXPECT(CLASS, CALL)                                                                                    \
    do {                                                                                                       \
        int class_ = class_of(CALL);                                                                           \
        if (class_ != (CLASS)) printf("FAILED %s:%d: %s: class %d\n", __func__, __LINE__, #CALL, class_), failures++; \
    } while (0)

static void errors_set_up(void) {
    MPI_Win_create(wrong_memory, sizeof wrong_memory, 4, MPI_INFO_NULL, MPI_COMM_SELF, &wrong);
    returns(wrong);
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_complete(wrong));
    MPI_Win_fence(0, wrong);
}

static void errors_check(void) {
    MPI_Group self;
    MPI_Request request;
    MPI_Win garbage = (MPI_Win)0x12345, none;
    int v = 1, flag, *p, result;
    MPI_Comm_group(MPI_COMM_SELF, &self);
    /* the fence before the checkpoint has opened an epoch */
    EXPECT(MPI_SUCCESS, MPI_Put(&v, 1, MPI_INT, 0, 0, 1, MPI_INT, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_post(self, 0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_free(&wrong));
    EXPECT(MPI_ERR_ARG, MPI_Win_fence(1 << 20, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_fence(MPI_MODE_NOSUCCEED, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Put(&v, 1, MPI_INT, 0, 0, 1, MPI_INT, wrong));
    EXPECT(MPI_SUCCESS, MPI_Put(&v, 1, MPI_INT, MPI_PROC_NULL, 0, 1, MPI_INT, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Rget(&v, 1, MPI_INT, 0, 0, 1, MPI_INT, wrong, &request));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Fetch_and_op(&v, &result, MPI_INT, 0, 0, MPI_SUM, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_unlock(0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_unlock_all(wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_flush_all(wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_sync(wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_wait(wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_test(wrong, &flag));
    EXPECT(MPI_ERR_ARG, MPI_Win_lock(99, 0, 0, wrong));
    EXPECT(MPI_ERR_RANK, MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_fence(0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_start(self, 0, wrong));
    EXPECT(MPI_ERR_RANK, MPI_Win_flush(7, wrong));
    EXPECT(MPI_ERR_RANK, MPI_Put(&v, 1, MPI_INT, 7, 0, 1, MPI_INT, wrong));
    EXPECT(MPI_ERR_COUNT, MPI_Put(&v, -1, MPI_INT, 0, 0, 1, MPI_INT, wrong));
    EXPECT(MPI_ERR_TYPE, MPI_Put(&v, 1, MPI_DATATYPE_NULL, 0, 0, 1, MPI_INT, wrong));
    EXPECT(MPI_ERR_OP, MPI_Accumulate(&v, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_OP_NULL, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_unlock(0, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_post(self, 0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_fence(0, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_start(self, 0, wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_lock_all(0, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_complete(wrong));
    EXPECT(MPI_ERR_RMA_SYNC, MPI_Win_free(&wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_wait(wrong));
    EXPECT(MPI_ERR_KEYVAL, MPI_Win_get_attr(wrong, MPI_KEYVAL_INVALID, &p, &flag));

    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN); /* errors without a window */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    EXPECT(MPI_ERR_GROUP, MPI_Win_post(MPI_GROUP_NULL, 0, wrong));
    EXPECT(MPI_SUCCESS, MPI_Win_free(&wrong));
    MPI_Group_free(&self);
    EXPECT(MPI_ERR_WIN, MPI_Win_fence(0, garbage));
    EXPECT(MPI_ERR_WIN, MPI_Put(&v, 1, MPI_INT, 0, 0, 1, MPI_INT, garbage));
    EXPECT(MPI_ERR_WIN, MPI_Rput(&v, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_WIN_NULL, &request));
    EXPECT(MPI_ERR_WIN, MPI_Win_free(&garbage));
    EXPECT(MPI_ERR_WIN, MPI_Win_lock_all(0, MPI_WIN_NULL));
    EXPECT(MPI_ERR_COMM, MPI_Win_create(&v, 4, 4, MPI_INFO_NULL, MPI_COMM_NULL, &none));
    EXPECT(MPI_ERR_SIZE, MPI_Win_create(&v, -4, 4, MPI_INFO_NULL, MPI_COMM_SELF, &none));
    EXPECT(MPI_ERR_DISP, MPI_Win_allocate(4, 0, MPI_INFO_NULL, MPI_COMM_SELF, &p, &none));
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

static const state_t states[] = {
    STATE(create), STATE(allocate), STATE(shared), STATE(alone), STATE(dynamic), STATE(locks), STATE(pscw),
    STATE(requests), STATE(atomics), STATE(mixed), STATE(belongings), STATE(errors),
};

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    find_rank();
    next = (rank + 1) % size;
    before = (rank + size - 1) % size;
    int failed = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    return failed;
}
