/* clock.c - the collective clock of one rank: identities, rows, and the slow path of a collective's entry and exit.
 *
 * Upper half, upper TLS, no libc. The model of the same state machine is manapy/clock; both pass the same vectors. The
 * other side of this shared memory is the control thread: it sets phase, target and needed, and bumps and wakes
 * clock.wake; here seq, thread states and version are changed, and svc->notify() called.
 *
 * Invariants
 *  1. While a checkpoint is pending, target and version change only under clock.lock, and so do seq and states except
 *     for the plain stores of the inlines, before they read the phase, and their taking back: calls on one communicator
 *     are ordered by the program.
 *  2. A thread parks only at the entry of a collective, before it counts the call; never at an exit. Who may go:
 *     invariant 3 of manapy/clock/rank.py.
 *  3. clock.lock is only held with in_lower = 1 (invariant 1 of lock.h), and a parked thread has in_lower = 0.
 *  4. A thread that goes on has in_lower = 1 from the decision, taken under the lock, to the end of the collective:
 *     phase FROZEN, set under the same lock or seen by the re-read, can't slip in between.
 *  5. While pending, version rises with rows, with a SEQ that reaches or passes its TARGET or is taken back, and with
 *     entering or leaving a blocking collective, but not for parked, blocked and unblocked (they must not hinder a
 *     freeze). notify() follows the unlock in every case.
 *  6. SEQ counts the calls that MPI takes for made. One that fails on its arguments has not been: the library looks at
 *     them before it sends or receives anything, so the other members, which make no call that matches it, don't wait,
 *     and the program may go on. It is counted before the library can say so (or a freeze could slip in), and taken
 *     back if the class of the error is one that tells of arguments; other errors come from communication, and stay
 *     counted. If a checkpoint was requested meanwhile, the call may be in ROWS or a RAISE, and a TARGET of others by
 *     now: the coordinator is told (retracted) and asks everything again. Until then this rank's TARGETs are too high,
 *     at worst; nothing is frozen, as version has risen and the coordinator hears of it before the rank's state. Were
 *     the judgement wrong, members would differ in SEQ: no safe state is found, none that isn't safe is taken for one.
 */
#include "core/objects.h"
#include "messages/internal_messages.h"

#include <manapy/fnv.h>

#define CLOCK (&MPY_UPPER->clock)

/* ---- identities ---- */

static uint64_t order_of(const void *rank) { return (uint64_t)((int64_t)*(const int32_t *)rank - INT32_MIN); }

/* Order-independent: of the sorted world ranks. Most groups come sorted. */
uint64_t mpy_ggid(const int32_t *world, int n) {
    bool sorted = true;
    for (int i = 1; i < n && sorted; i++) sorted = world[i - 1] <= world[i];
    if (sorted) return mpy_fnv1a(world, (size_t)n * sizeof *world);

    void **ranks = mpy_alloc((size_t)n * sizeof *ranks);
    for (int i = 0; i < n; i++) ranks[i] = (void *)&world[i];
    mpy_sort(ranks, (uint32_t)n, order_of);
    uint64_t hash = MPY_FNV1A_EMPTY;
    for (int i = 0; i < n; i++) hash = mpy_fnv1a_more(hash, ranks[i], sizeof *world);
    mpy_free(ranks, (size_t)n * sizeof *ranks);
    return hash;
}

uint64_t mpy_child_cid(uint64_t parent_cid, uint64_t parent_seq, int32_t smallest_world_rank) {
    return mpy_fnv1a_words(parent_cid, parent_seq, (uint64_t)(int64_t)smallest_world_rank);
}

uint64_t mpy_group_cid(uint64_t ggid, int tag, uint64_t count) {
    return mpy_fnv1a_words(ggid, (uint64_t)(int64_t)tag, count);
}

/* ---- changing the shared state ---- */

/* Takes clock.lock in a thread that may have in_lower = 0 (invariant 3); returns what to restore. */
static uint32_t clock_lock(mpy_thread_t *t) {
    uint32_t before = t->in_lower;
    t->in_lower = 1;
    __asm__ volatile("" ::: "memory");
    mpy_lock(&CLOCK->lock);
    return before;
}
static void clock_unlock(mpy_thread_t *t, uint32_t before) {
    mpy_unlock(&CLOCK->lock);
    t->in_lower = before;
    __asm__ volatile("" ::: "memory");
}

static void set_state(mpy_thread_t *t, uint32_t state, uint64_t cid) {
    bool collective = state == MPY_STATE_IN_COLLECTIVE || t->state == MPY_STATE_IN_COLLECTIVE;
    if (collective && MPY_LOWER->phase != MPY_PHASE_NONE) CLOCK->version++;
    t->state = state;
    t->state_cid = cid;
}

/* ---- rows ---- */

static uint32_t free_rows; /* index + 1 of the first free row; the next one's is kept in its handle */
static uint32_t kept_rows; /* removed while a checkpoint was pending; their members are a copy, ours */
static uint8_t removed[MPY_ROWS_MAX / 8]; /* which these are */

static bool is_removed(uint32_t index) { return removed[index / 8] >> index % 8 & 1; }
static void set_removed(uint32_t index, bool on) {
    uint8_t bit = (uint8_t)(1u << index % 8);
    removed[index / 8] = (uint8_t)(on ? removed[index / 8] | bit : removed[index / 8] & ~bit);
}

static void row_clear(uint32_t index) { /* with the lock */
    CLOCK->rows[index] = (mpy_clock_row_t){.handle = free_rows};
    free_rows = index + 1;
}

static void rows_sweep(void) { /* with the lock, when nothing is pending */
    for (uint32_t i = 0; i < CLOCK->nrows && kept_rows > 0; i++) {
        mpy_clock_row_t *row = &CLOCK->rows[i];
        if (!is_removed(i)) continue;
        set_removed(i, false);
        mpy_free((void *)row->members, row->nmembers * sizeof *row->members);
        row_clear(i);
        kept_rows--;
    }
}

/* Both with in_lower = 1 or in a hook, and with either TLS. */
uint32_t mpy_row_add(uint64_t cid, const int32_t *world, int n, int handle) {
    uint64_t ggid = mpy_ggid(world, n);
    mpy_lock(&CLOCK->lock);
    if (CLOCK->rows == NULL) CLOCK->rows = mpy_alloc(MPY_ROWS_MAX * sizeof *CLOCK->rows);
    bool pending = MPY_LOWER->phase != MPY_PHASE_NONE;
    if (MPY_UNLIKELY(kept_rows > 0) && !pending) rows_sweep();
    uint32_t index;
    if (free_rows) {
        index = free_rows - 1;
        free_rows = CLOCK->rows[index].handle;
    } else {
        if (CLOCK->nrows == MPY_ROWS_MAX) MPY_LOWER->svc->die("too many communicators at once (65536)", 1);
        index = CLOCK->nrows++;
    }
    CLOCK->rows[index] = (mpy_clock_row_t){
        .ggid = ggid, .nmembers = (uint32_t)n, .handle = (uint32_t)handle, .members = world, .cid = cid};
    if (pending) CLOCK->version++; /* its first collective may already be somebody's target */
    mpy_unlock(&CLOCK->lock);
    if (pending) MPY_LOWER->svc->notify();
    return index;
}

void mpy_row_leave(uint32_t index) {
    mpy_lock(&CLOCK->lock);
    CLOCK->rows[index].name = NULL;
    CLOCK->rows[index].handle = MPY_ROW_FREED;
    mpy_unlock(&CLOCK->lock);
}

/* While a checkpoint is pending, the row stays until a later call finds nothing pending. The control thread may not
 * have reported yet that the row has reached its TARGET (or that it exists), and a rank that is not known to have
 * reached it is waited for. */
void mpy_row_remove(uint32_t index) {
    mpy_lock(&CLOCK->lock);
    mpy_clock_row_t *row = &CLOCK->rows[index];
    bool pending = MPY_LOWER->phase != MPY_PHASE_NONE;
    if (pending && row->seq > 0) { /* else its only call was taken back: the coordinator forgets it, too */
        int32_t *members = mpy_alloc(row->nmembers * sizeof *members);
        __builtin_memcpy(members, row->members, row->nmembers * sizeof *members);
        row->members = members;
        row->name = NULL;
        row->handle = MPY_ROW_FREED;
        set_removed(index, true);
        kept_rows++;
        CLOCK->version++;
    } else {
        row_clear(index);
        if (MPY_UNLIKELY(kept_rows > 0)) rows_sweep();
    }
    mpy_unlock(&CLOCK->lock);
    if (pending) MPY_LOWER->svc->notify();
}

/* ---- entry and exit of a collective while a checkpoint is pending ---- */

static bool is_below(const mpy_clock_row_t *row) { return row->cid != 0 && row->seq < row->target; }

static bool is_other_parked_at(const mpy_thread_t *t, uint64_t cid) {
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++) {
        const mpy_thread_t *other = &MPY_UPPER->threads[i];
        if (other != t && other->used && other->state == MPY_STATE_PARKED && other->state_cid == cid) return true;
    }
    return false;
}

/* Is a row below target that this thread, at the entry of `mine`, may have to help: its own, or one at whose entry no
 * other is parked (which would go)? */
static bool is_wanted(const mpy_thread_t *t, const mpy_clock_row_t *mine) {
    for (uint32_t i = 0; i < CLOCK->nrows; i++) {
        const mpy_clock_row_t *row = &CLOCK->rows[i];
        if (is_below(row) && (row == mine || !is_other_parked_at(t, row->cid))) return true;
    }
    return false;
}

/* A thread that others at their entries relied on has gone; while a row is still below target they look again. */
static void wake_others(const mpy_thread_t *t) {
    bool below = false, parked = false;
    for (uint32_t i = 0; i < MPY_THREADS_MAX && !parked; i++) {
        const mpy_thread_t *other = &MPY_UPPER->threads[i];
        parked = other != t && other->used && other->state == MPY_STATE_PARKED;
    }
    for (uint32_t i = 0; parked && i < CLOCK->nrows && !below; i++) below = is_below(&CLOCK->rows[i]);
    if (!below) return;
    __atomic_add_fetch(&CLOCK->wake, 1, __ATOMIC_SEQ_CST);
    mpy_lock_wake_all(&CLOCK->wake);
}

/* One decision, under the lock: true when the collective may be entered (it is counted then), false to sleep. */
static bool try_enter(mpy_thread_t *t, mpy_clock_row_t *row, bool *changed) {
    switch ((mpy_phase_t)MPY_LOWER->phase) {
    case MPY_PHASE_NONE: /* over, or given up */
        row->seq++;
        set_state(t, MPY_STATE_IN_COLLECTIVE, row->cid);
        return true;
    case MPY_PHASE_RUN:
        if (!CLOCK->needed && !is_wanted(t, row)) break;
        row->seq++;
        if (row->seq >= row->target) { /* the control thread tells the other members */
            row->target = row->seq;
            CLOCK->version++;
        }
        set_state(t, MPY_STATE_IN_COLLECTIVE, row->cid);
        wake_others(t);
        *changed = true;
        return true;
    case MPY_PHASE_INTENT:
    case MPY_PHASE_FROZEN:
        break;
    }
    if (t->state != MPY_STATE_PARKED || t->state_cid != row->cid) {
        set_state(t, MPY_STATE_PARKED, row->cid);
        *changed = true;
    }
    return false;
}

/* A thread that sleeps here or at the border (cross.c) while a checkpoint is pending; but MPI libraries make progress
 * only in calls: a message (also one of a collective that others are still in) may lie half sent here, or the put that
 * another rank's flush waits for may have to be carried out here, which even a freeze waits for. So it gives the
 * library a chance now and then. (On MPI_COMM_SELF it would look no further than this process. A probe that finds a
 * message would look no further either: an internal message that nobody takes in meanwhile.) With in_lower = 0; seldom,
 * and never on the way to a decision. */
enum { PROGRESS_MS = 20 };
static void make_progress(mpy_thread_t *t) {
    int flag;
    if (!mpy_mpi_is_up(MPY_UPPER)) return;
    t->in_lower = 1;
    __asm__ volatile("" ::: "memory");
    if (MPY_LOWER->phase != MPY_PHASE_NONE && t->lower_fs != 0) {
        mpy_hook_in(t);
        if (mpy_private_comm != MPI_COMM_NULL)
            MPY_REAL(Iprobe)(MPI_ANY_SOURCE, MPY_TAG_NOBODY, mpy_private_comm, &flag, MPI_STATUS_IGNORE);
        mpy_hook_out(t);
    }
    t->in_lower = 0;
    __asm__ volatile("" ::: "memory");
}

void mpy_clock_sleep(mpy_thread_t *t, uint32_t wake) {
    mpy_futex_wait_ms(&CLOCK->wake, wake, PROGRESS_MS);
    if (CLOCK->wake == wake) make_progress(t);
}

/* in_lower is 1 on entry (the inline set it) and on return. The inline has counted the call, which isn't decided yet:
 * taken back first, before the wait for the lock, as the control thread, which may hold it, should see as little of it
 * as may be. If it has read the higher SEQ meanwhile, it has made it the row's TARGET, too: the row is below target and
 * can't be frozen before the call that was promised is made (promise() in manapy/clock/rank.py). */
void mpy_clock_enter_slow(mpy_thread_t *t, mpy_clock_row_t *row) {
    row->seq--;
    t->state = MPY_STATE_RUNNING;
    for (;;) {
        bool changed = false;
        mpy_lock(&CLOCK->lock);
        bool go = try_enter(t, row, &changed);
        uint32_t wake = CLOCK->wake; /* read under the lock: what changes after it also wakes */
        mpy_unlock(&CLOCK->lock);
        if (changed) MPY_LOWER->svc->notify();
        if (go) return;
        t->in_lower = 0;
        __asm__ volatile("" ::: "memory");
        mpy_clock_sleep(t, wake);
        t->in_lower = 1;
        __asm__ volatile("" ::: "memory");
    }
}

/* The inline has stored RUNNING already, before it read the phase. */
void mpy_clock_leave_slow(mpy_thread_t *t) {
    uint32_t before = clock_lock(t);
    CLOCK->version++;
    clock_unlock(t, before);
    MPY_LOWER->svc->notify();
}

/* As in mpy_clock_enter_slow: who has read the higher SEQ has made it the row's TARGET. */
void mpy_clock_take_back(mpy_thread_t *t, mpy_clock_row_t *row) {
    mpy_lock(&CLOCK->lock);
    row->seq--;
    set_state(t, MPY_STATE_RUNNING, 0);
    mpy_unlock(&CLOCK->lock);
    t->in_lower = 0;
    __asm__ volatile("" ::: "memory");
    if (MPY_LOWER->phase != MPY_PHASE_NONE) MPY_LOWER->svc->notify();
}

/* Is it an error that MPI libraries find before they communicate? */
static bool is_of_arguments(int rc) {
    int class = rc;
    MPY_REAL(Error_class)(rc, &class);
    switch (class) {
    case MPI_ERR_BUFFER:
    case MPI_ERR_COUNT:
    case MPI_ERR_TYPE:
    case MPI_ERR_TAG:
    case MPI_ERR_COMM:
    case MPI_ERR_RANK:
    case MPI_ERR_ROOT:
    case MPI_ERR_GROUP:
    case MPI_ERR_OP:
    case MPI_ERR_TOPOLOGY:
    case MPI_ERR_DIMS:
    case MPI_ERR_ARG:
    case MPI_ERR_REQUEST:
    case MPI_ERR_INFO:
    case MPI_ERR_INFO_KEY:
    case MPI_ERR_INFO_VALUE:
    case MPI_ERR_SIZE:
    case MPI_ERR_DISP:
    case MPI_ERR_WIN:
    case MPI_ERR_FILE: return true;
    }
    return false;
}

bool mpy_clock_failed(mpy_clock_row_t *row, int rc) {
    if (!is_of_arguments(rc)) return false;
    mpy_lock(&CLOCK->lock);
    row->seq--;
    if (MPY_LOWER->phase != MPY_PHASE_NONE) {
        CLOCK->version++;
        CLOCK->retracted = 1;
    }
    mpy_unlock(&CLOCK->lock);
    return true;
}

/* MPI_Finalize has returned. */
void mpy_clock_finish(mpy_thread_t *t) {
    uint32_t before = clock_lock(t);
    set_state(t, MPY_STATE_FINISHED, 0);
    CLOCK->version++;
    clock_unlock(t, before);
    MPY_LOWER->svc->notify();
}

/* ---- point-to-point ---- */

static bool same_peers(const mpy_thread_t *t, const int32_t *peers, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (t->block_peers[i] != peers[i]) return false;
    return true;
}

/* `peers` are world ranks; `comm` may be NULL: nobody is waited for, who hasn't started a collective is below its
 * target there. Called again and again by a loop that keeps failing: only a change is reported. */
void mpy_clock_blocked(mpy_thread_t *t, const mpy_comm_t *comm, const int32_t *peers, uint32_t n, int all_members,
                       int mode) {
    uint64_t cid = comm != NULL ? CLOCK->rows[comm->row].cid : 0;
    if (n > MPY_PEERS_MAX) all_members = 1;
    if (all_members) n = 0;
    if (t->state == MPY_STATE_BLOCKED_P2P && t->state_cid == cid && t->block_mode == (uint32_t)mode &&
        t->block_peers_all == (uint32_t)all_members && t->nblock == n && same_peers(t, peers, n))
        return;
    uint32_t before = clock_lock(t);
    t->block_mode = (uint32_t)mode;
    t->block_peers_all = (uint32_t)all_members;
    t->nblock = n;
    for (uint32_t i = 0; i < n; i++) t->block_peers[i] = peers[i];
    set_state(t, MPY_STATE_BLOCKED_P2P, cid);
    clock_unlock(t, before);
    MPY_LOWER->svc->notify();
}

void mpy_clock_unblocked(mpy_thread_t *t) {
    if (t->state != MPY_STATE_BLOCKED_P2P) return;
    uint32_t before = clock_lock(t);
    set_state(t, MPY_STATE_RUNNING, 0);
    clock_unlock(t, before);
    MPY_LOWER->svc->notify();
}
