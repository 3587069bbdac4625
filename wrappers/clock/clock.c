/* clock.c - the collective clock of one rank: identities, rows, and the slow path of a collective's entry and exit.
 *
 * Upper half, upper TLS, no libc. The model of the same state machine is manapy/clock; both pass the same vectors. The
 * other side of this shared memory is the control thread: it sets phase, target and needed, bumps clock.wake and wakes
 * its waiters. This file changes seq, thread states and version, and calls svc->notify().
 *
 * Invariants
 *  1. While a checkpoint is pending, target and version change only under clock.lock. seq and states do so, too, with
 *     one exception: the inlines store them before they read the phase, and these stores may be taken back. The program
 *     orders the calls on one communicator.
 *  2. A thread parks only at the entry of a collective, before it counts the call; never at an exit. Invariant 3 of
 *     manapy/clock/rank.py says which threads may enter.
 *  3. clock.lock is only held with in_lower = 1 (invariant 1 of lock.h), and a parked thread has in_lower = 0.
 *  4. A thread that enters has in_lower = 1 from the decision, which is made under the lock, to the end of the
 *     collective. So phase FROZEN, which is set under the same lock or seen by the second reading, can't come in
 *     between.
 *  5. While pending, version rises when rows change, when a SEQ reaches or passes its TARGET or is taken back, and when
 *     a thread enters or leaves a blocking collective. It does not rise when a thread is parked, blocked or unblocked,
 *     because these must not hinder a freeze. notify() follows the unlock in every case.
 *  6. SEQ counts the calls that MPI considers made. A call that fails on its arguments has not been made: the library
 *     checks arguments before it sends or receives anything. The other members make no call that matches it, so they
 *     don't wait, and the program may continue. A call is counted before the library can report the failure (otherwise
 *     a freeze could come in between). It is taken back if the error class is one of arguments; other errors come from
 *     communication, and their calls stay counted. If a checkpoint was requested meanwhile, the call may be in ROWS or
 *     a RAISE, and may have become a TARGET of other ranks. So the coordinator is told (retracted) and asks everything
 *     again. Until then the TARGETs of this rank are at worst too high. Nothing is frozen, because version has risen,
 *     and the coordinator gets this message before the rank's state. If the judgement were wrong, members would differ
 *     in SEQ: no safe state would be found, but no unsafe state would be taken for a safe one.
 */
#include "clock.h"
#include "core/objects.h"
#include "messages/internal_messages.h"

#include <manapy/fnv.h>

#define CLOCK (&MPY_UPPER->clock)

/* ---- identities ---- */

static uint64_t order_of(const void *rank) { return (uint64_t)((int64_t)*(const int32_t *)rank - INT32_MIN); }

/* Hash of the sorted world ranks, so it does not depend on their order. Most groups are sorted already. */
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

/* Takes clock.lock in a thread that may have in_lower = 0 (invariant 3). Returns the value of in_lower to restore. */
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

static uint32_t free_rows; /* index + 1 of the first free row; a free row stores the next one in `handle` */
static uint32_t kept_rows; /* rows removed while a checkpoint was pending; their `members` are our copy */
static uint8_t removed[MPY_ROWS_MAX / 8]; /* marks the rows that kept_rows counts */

static bool is_removed(uint32_t index) { return removed[index / 8] >> index % 8 & 1; }
static void set_removed(uint32_t index, bool on) {
    uint8_t bit = (uint8_t)(1u << index % 8);
    removed[index / 8] = (uint8_t)(on ? removed[index / 8] | bit : removed[index / 8] & ~bit);
}

static void row_clear(uint32_t index) { /* with the lock */
    CLOCK->rows[index] = (mpy_clock_row_t){.handle = free_rows};
    free_rows = index + 1;
}

static void rows_sweep(void) { /* with the lock, when no checkpoint is pending */
    for (uint32_t i = 0; i < CLOCK->nrows && kept_rows > 0; i++) {
        mpy_clock_row_t *row = &CLOCK->rows[i];
        if (!is_removed(i)) continue;
        set_removed(i, false);
        mpy_free((void *)row->members, row->nmembers * sizeof *row->members);
        row_clear(i);
        kept_rows--;
    }
}

/* Call both with in_lower = 1 or in a hook. Either TLS will do. */
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
    if (pending) CLOCK->version++; /* the row's first collective may already be a target of another rank */
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
 * have reported yet that the row exists or has reached its TARGET, and the coordinator waits for a rank until it knows
 * this. */
void mpy_row_remove(uint32_t index) {
    mpy_lock(&CLOCK->lock);
    mpy_clock_row_t *row = &CLOCK->rows[index];
    bool pending = MPY_LOWER->phase != MPY_PHASE_NONE;
    /* otherwise its only call was taken back, and the coordinator forgets the row, too */
    if (pending && row->seq > 0) {
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

/* Is there a row below target that this thread, at the entry of `mine`, may have to help? Either its own row, or a row
 * at whose entry no other thread is parked (that thread would enter). */
static bool is_wanted(const mpy_thread_t *t, const mpy_clock_row_t *mine) {
    for (uint32_t i = 0; i < CLOCK->nrows; i++) {
        const mpy_clock_row_t *row = &CLOCK->rows[i];
        if (is_below(row) && (row == mine || !is_other_parked_at(t, row->cid))) return true;
    }
    return false;
}

/* A thread on which others at their entries relied has entered. While a row is still below target, the others must
 * decide again. */
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

/* Makes one decision, under the lock. True: the collective may be entered, and it is counted. False: sleep. */
static bool try_enter(mpy_thread_t *t, mpy_clock_row_t *row, bool *changed) {
    switch ((mpy_phase_t)MPY_LOWER->phase) {
    case MPY_PHASE_NONE: /* the checkpoint is finished or was given up */
        row->seq++;
        set_state(t, MPY_STATE_IN_COLLECTIVE, row->cid);
        return true;
    case MPY_PHASE_RUN:
        if (!CLOCK->needed && !is_wanted(t, row)) break;
        row->seq++;
        if (row->seq >= row->target) { /* the control thread informs the other members */
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

/* Called for a thread that sleeps here or at the border (cross.c) while a checkpoint is pending. MPI libraries make
 * progress only in calls. A message (also one of a collective that other ranks are still in) may be half sent here, or
 * another rank's flush may wait for a put that this process must carry out; even a freeze waits for that. So this gives
 * the library a chance from time to time. With in_lower = 0. Called seldom, and never on the way to a decision. It
 * probes many times: a flush may wait for 100 000 puts, and each probe carries out only a few of them. */
enum { PROGRESS_MS = 20, PROBES = 1024 };
static void make_progress(mpy_thread_t *t, uint32_t wake) {
    if (!mpy_mpi_is_up(MPY_UPPER)) return;
    t->in_lower = 1;
    __asm__ volatile("" ::: "memory");
    if (MPY_LOWER->phase != MPY_PHASE_NONE && t->lower_fs != 0) {
        mpy_hook_in(t);
        for (int left = PROBES; left > 0 && mpy_private_comm != MPI_COMM_NULL && CLOCK->wake == wake; left--)
            mpy_real_progress();
        mpy_hook_out(t);
    }
    t->in_lower = 0;
    __asm__ volatile("" ::: "memory");
}

void mpy_clock_sleep(mpy_thread_t *t, uint32_t wake) {
    mpy_futex_wait_ms(&CLOCK->wake, wake, PROGRESS_MS);
    if (CLOCK->wake == wake) make_progress(t, wake);
}

/* in_lower is 1 on entry (the inline set it) and on return. The inline has counted the call, but nothing is decided
 * yet. So first take the count back, even before waiting for the lock: the control thread may hold the lock and should
 * see as little of this count as possible. If the control thread has read the higher SEQ meanwhile, it has also made it
 * the row's TARGET. Then the row is below target and can't be frozen before the promised call is made (promise() in
 * manapy/clock/rank.py). */
void mpy_clock_enter_slow(mpy_thread_t *t, mpy_clock_row_t *row) {
    row->seq--;
    t->state = MPY_STATE_RUNNING;
    for (;;) {
        bool changed = false;
        mpy_lock(&CLOCK->lock);
        bool go = try_enter(t, row, &changed);
        uint32_t wake = CLOCK->wake; /* read under the lock: every later change also wakes */
        mpy_unlock(&CLOCK->lock);
        if (changed) MPY_LOWER->svc->notify();
        if (go) return;
        t->in_lower = 0;
        __asm__ volatile("" ::: "memory");
        mpy_offer_moment();
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

/* As in mpy_clock_enter_slow: if the control thread has read the higher SEQ, it has made it the row's TARGET. */
void mpy_clock_take_back(mpy_thread_t *t, mpy_clock_row_t *row) {
    mpy_lock(&CLOCK->lock);
    row->seq--;
    set_state(t, MPY_STATE_RUNNING, 0);
    mpy_unlock(&CLOCK->lock);
    t->in_lower = 0;
    __asm__ volatile("" ::: "memory");
    if (MPY_LOWER->phase != MPY_PHASE_NONE) MPY_LOWER->svc->notify();
}

/* Is it an error that MPI libraries detect before they communicate? */
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

/* `peers` are world ranks. `comm` may be NULL: the thread waits for nobody (a rank that hasn't started a collective is
 * below its target there). A loop that keeps failing calls this again and again, so only a change is reported. */
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
