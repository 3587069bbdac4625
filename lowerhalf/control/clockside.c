/* clockside.c - the control thread's side of the collective clock: applies the coordinator's messages to the shared
 * memory of boundary.h and reports what the program's threads have changed there. The other side is
 * wrappers/clock/clock.c. The model of both is manapy/clock/rank.py. Lower half; libc; control thread only (init
 * and after_restart run on the main thread, while the control thread does not use the clock).
 *
 * Invariants
 *  1. phase, target and needed change only here, under clock.lock (except when phase returns to NONE). After every
 *     change clock.wake is bumped and its waiters are woken.
 *  2. membarrier(PRIVATE_EXPEDITED) runs after phase is stored and before rows or in_lower are read. So a thread whose
 *     collective this reading misses will see the new phase (invariant 3 of boundary.h).
 *  3. Every message of the coordinator counts in `applied` (only the last line of a TARGETS message of several lines)
 *     and is answered: INTENT by ROWS, FREEZE by FROZEN or NOTFROZEN, the others by STATE. Lines are sent in the order
 *     of the events: ROWS before a RAISE of one of its rows, both before STATE. One exception: while a thread is inside
 *     a collective, STATE comes before the RAISE that belongs to it.
 *  4. FROZEN is sent when phase is FROZEN, no thread is in the lower half, no thread forbids checkpoints, and version
 *     is still the one that the FREEZE named.
 *  5. Between FROZEN and mpy_clockside_end nothing here takes the lock.
 */
#define _GNU_SOURCE
#include "clockside.h"
#include "base/reason.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <manapy/boundary.h>
#include <manapy/fnv.h>
#include <manapy/lock.h>

#define CLOCK (&MPY_UPPER->clock)
#define ROWS_TEXT (MPY_LINE_MAX / 16) /* a list of rows that is longer continues on another line */

typedef struct shadow { /* what the coordinator knows of a row */
    uint64_t cid, seq;
} shadow_t;

static struct {
    uint64_t epoch;
    uint64_t applied;
    int size;
    shadow_t *shadow; /* by row index */
    uint32_t nshadow;
    uint64_t world_cid;
    uint64_t world_target; /* target of a world row that does not exist yet: the program has not loaded MPI */
    uint32_t next_row;     /* where the last search for a row ended: TARGETS names rows in about this order */
    bool disabled;         /* whether the program forbids checkpoints, as last seen */
    mpy_text_t last_state; /* the threads as last reported */
    uint64_t last_applied;
    uint32_t last_version;
    bool freezing;
    uint32_t freeze_version;
} side;

void mpy_clockside_barrier(void) {
    /* cannot fail: the process is registered */
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) < 0) __sync_synchronize();
}

bool mpy_clockside_init(int size, char *error, unsigned long n) {
    static const uint64_t world[3] = {0, 0, 0}; /* child_identity(0, 0, 0) */
    side.size = size;
    side.world_cid = mpy_fnv1a(world, sizeof world);
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0) return true;
    return mpy_refuse(error, n, "the kernel lacks membarrier(PRIVATE_EXPEDITED): %s", strerror(errno));
}

void mpy_clockside_wake(void) {
    __atomic_add_fetch(&CLOCK->wake, 1, __ATOMIC_SEQ_CST);
    mpy_lock_wake_all(&CLOCK->wake);
}

/* Under the lock. */
static void applied(void) {
    side.applied++;
    CLOCK->version++;
}

/* ---- reporting ---- */

static shadow_t *shadow_of(uint32_t index) {
    if (index >= side.nshadow) {
        uint32_t n = index + 64;
        side.shadow = realloc(side.shadow, n * sizeof *side.shadow);
        if (side.shadow == NULL) abort();
        memset(side.shadow + side.nshadow, 0, (n - side.nshadow) * sizeof *side.shadow);
        side.nshadow = n;
    }
    return &side.shadow[index];
}

static void add_ranks(mpy_text_t *t, const int32_t *ranks, uint32_t n) {
    if (n == 0) mpy_text_add(t, "-");
    for (uint32_t i = 0, j; i < n; i = j + 1) {
        int32_t step = i + 1 < n ? ranks[i + 1] - ranks[i] : 0;
        for (j = i + 1; j + 1 < n && ranks[j + 1] - ranks[j] == step; j++) {}
        if (step <= 0 || j - i < 2) j = i; /* first-last/step stands for three or more */
        mpy_text_add(t, j > i ? "%s%d-%d" : "%s%d", i > 0 ? "," : "", ranks[i], ranks[j]);
        if (j > i && step > 1) mpy_text_add(t, "/%d", step);
    }
}

/* SEQ of a row changes without the lock (invariant 1 of clock.c). Read it once and use that value throughout. */
static uint64_t read_seq(const mpy_clock_row_t *row) { return *(const volatile uint64_t *)&row->seq; }

static void add_row(mpy_text_t *t, const mpy_clock_row_t *row, uint64_t seq) {
    mpy_text_add(t, " %016" PRIx64 ":%016" PRIx64 ":%" PRIu64 ":", row->cid, row->ggid, seq);
    add_ranks(t, row->members, row->nmembers);
    mpy_text_add(t, ":%" PRIu32 ":", row->handle);
    mpy_text_add_encoded(t, row->name != NULL ? row->name : "");
}

/* The program hasn't created its world row. Report the row as if it existed, with SEQ 0, so that the coordinator waits
 * for other ranks' MPI_Init. */
static void add_absent_world(mpy_text_t *t) {
    int32_t *ranks = malloc((size_t)side.size * sizeof *ranks);
    if (ranks == NULL) abort();
    for (int i = 0; i < side.size; i++) ranks[i] = i;
    mpy_clock_row_t row = {.cid = side.world_cid,
                           .ggid = mpy_fnv1a(ranks, (size_t)side.size * sizeof *ranks),
                           .nmembers = (uint32_t)side.size,
                           .handle = 1,
                           .members = ranks,
                           .name = "MPI_COMM_WORLD"};
    add_row(t, &row, 0);
    free(ranks);
}

static void flush_rows(mpy_text_t *out, mpy_text_t *rows, uint32_t *n, bool more) {
    mpy_text_add(out, "ROWS %" PRIu64 " %" PRIu32 " %d %" PRIu32 "%s\n", side.epoch, CLOCK->version, more, *n,
                 rows->data);
    mpy_text_clear(rows);
    *n = 0;
}

/* Under the lock. Sends ROWS with the rows that the coordinator doesn't know; for INTENT all rows, even if there are
 * none. */
static void report_rows(mpy_text_t *out, bool all) {
    mpy_text_t rows = {0};
    uint32_t n = 0;
    bool world = false;
    for (uint32_t i = 0; i < CLOCK->nrows && CLOCK->rows != NULL; i++) {
        mpy_clock_row_t *row = &CLOCK->rows[i];
        shadow_t *known = shadow_of(i);
        if (row->cid == 0) {
            known->cid = 0;
            continue;
        }
        world = world || row->cid == side.world_cid;
        if (known->cid == row->cid && !all) continue;
        uint64_t seq = read_seq(row);
        *known = (shadow_t){.cid = row->cid, .seq = seq};
        if (row->cid == side.world_cid && !all) { /* already reported by add_absent_world */
            known->seq = 0;
            if (side.world_target > row->target) row->target = side.world_target, mpy_clockside_wake();
            side.world_target = 0;
            continue;
        }
        if (all) row->target = seq;
        if (rows.length > ROWS_TEXT) flush_rows(out, &rows, &n, true);
        add_row(&rows, row, seq);
        n++;
    }
    if (all && !world) {
        add_absent_world(&rows);
        n++;
    }
    if (n > 0) flush_rows(out, &rows, &n, false);
    mpy_text_free(&rows);
}

/* Under the lock. */
static void report_raises(mpy_text_t *out) {
    for (uint32_t i = 0; i < CLOCK->nrows && CLOCK->rows != NULL; i++) {
        mpy_clock_row_t *row = &CLOCK->rows[i];
        shadow_t *known = shadow_of(i);
        uint64_t seq = read_seq(row);
        if (row->cid == 0 || known->cid != row->cid || seq <= known->seq || seq < row->target) continue;
        known->seq = row->target = seq;
        mpy_text_add(out, "RAISE %" PRIu64 " %" PRIu32 " %016" PRIx64 " %" PRIu64 "\n", side.epoch, CLOCK->version,
                     row->cid, seq);
    }
}

/* ---- threads ---- */

static bool is_thread_inside(void) {
    for (unsigned i = 0; i < MPY_THREADS_MAX; i++)
        if (MPY_UPPER->threads[i].used && MPY_UPPER->threads[i].state == MPY_STATE_IN_COLLECTIVE) return true;
    return false;
}

/* `state` was read once: the thread changes it without the lock. */
static void add_thread(mpy_text_t *out, const mpy_thread_t *t, uint32_t state) {
    static const char *const names[] = {"running", "blocked", "collective", "parked", "finished"};
    bool blocked = state == MPY_STATE_BLOCKED_P2P;
    uint32_t n = blocked && !t->block_peers_all ? t->nblock : 0;
    uint64_t cid = blocked && !t->block_peers_all && n == 0 ? 0 : t->state_cid; /* 0 without peers: waits for nobody */
    mpy_text_add(out, " %s:%016" PRIx64 ":%s:", names[state], cid,
                 blocked && t->block_mode == MPY_WAIT_ANY ? "any" : "all");
    add_ranks(out, t->block_peers, n < MPY_PEERS_MAX ? n : MPY_PEERS_MAX);
}

typedef struct threads { /* the threads that aren't running, at one moment */
    mpy_text_t text; /* " thread thread ..." */
    unsigned n;
    bool inside; /* one of them is inside a collective */
} threads_t;

/* Under the lock. The program changes `disabled` without the lock (invariant 5 of boundary.h), so version rises for it
 * here. */
static void look_whether_disabled(void) {
    bool disabled = MPY_UPPER->disabled > 0;
    CLOCK->version += disabled != side.disabled;
    side.disabled = disabled;
}

/* Under the lock. */
static threads_t look_at_threads(void) {
    look_whether_disabled();
    threads_t found = {.n = 0};
    mpy_text_clear(&found.text);
    for (unsigned i = 0; i < MPY_THREADS_MAX; i++) {
        const mpy_thread_t *t = &MPY_UPPER->threads[i];
        uint32_t state = *(const volatile uint32_t *)&t->state;
        if (!t->used || state == MPY_STATE_RUNNING) continue;
        add_thread(&found.text, t, state);
        found.n++;
        found.inside = found.inside || state == MPY_STATE_IN_COLLECTIVE;
    }
    if (found.n == 0 && MPY_UPPER->mpi_finalized) {
        static const mpy_thread_t finished = {.state = MPY_STATE_FINISHED};
        add_thread(&found.text, &finished, finished.state);
        found.n = 1;
    }
    if (side.disabled) {
        mpy_text_add(&found.text, " disabled:%016x:all:-", 0);
        found.n++;
    }
    return found;
}

/* Under the lock. Takes ownership of the text. */
static void report_state(mpy_text_t *out, threads_t *found, bool always) {
    bool same = side.last_state.data != NULL && strcmp(found->text.data, side.last_state.data) == 0 &&
                side.applied == side.last_applied && CLOCK->version == side.last_version;
    if (always || !same) {
        mpy_text_add(out, "STATE %" PRIu64 " %" PRIu32 " %" PRIu64 " %u%s\n", side.epoch, CLOCK->version, side.applied,
                     found->n, found->text.data);
        mpy_text_free(&side.last_state);
        side.last_state = found->text;
        side.last_applied = side.applied, side.last_version = CLOCK->version;
        return;
    }
    mpy_text_free(&found->text);
}

/* Under the lock. Read the threads once: this reading decides the order and is what STATE reports. Otherwise, if a
 * thread left a nonblocking collective in between, STATE could say "not inside" before the RAISE. */
static void report_all(mpy_text_t *out, bool always) {
    threads_t found = look_at_threads();
    if (CLOCK->retracted) mpy_text_add(out, "RETRACT %" PRIu64 " %" PRIu32 "\n", side.epoch, CLOCK->version);
    CLOCK->retracted = 0;
    report_rows(out, false);
    /* The thread has reached the target but is still inside: without this STATE the coordinator would freeze too
     * early. */
    if (found.inside) report_state(out, &found, always);
    report_raises(out);
    if (!found.inside) report_state(out, &found, always);
}

void mpy_clockside_report(mpy_text_t *out) {
    uint32_t phase = MPY_LOWER->phase; /* only the control thread changes it */
    if (phase != MPY_PHASE_INTENT && phase != MPY_PHASE_RUN) return;
    mpy_lock_acquire(&CLOCK->lock);
    report_all(out, false);
    mpy_lock_release(&CLOCK->lock);
}

/* ---- messages of the coordinator ---- */

void mpy_clockside_intent(uint64_t epoch, mpy_text_t *out) {
    mpy_lock_acquire(&CLOCK->lock);
    MPY_LOWER->phase = MPY_PHASE_INTENT;
    mpy_clockside_barrier();
    side.epoch = epoch, side.applied = 1, side.world_target = 0, side.freezing = false;
    mpy_text_clear(&side.last_state); /* a rank counts as running until it reports otherwise */
    side.last_applied = side.applied, side.last_version = ++CLOCK->version;
    CLOCK->needed = CLOCK->retracted = 0;
    report_rows(out, true);
    threads_t found = look_at_threads();
    report_state(out, &found, false);
    mpy_lock_release(&CLOCK->lock);
    mpy_clockside_wake(); /* If this INTENT begins a new epoch: wakes threads that a freeze of the last one stopped. */
}

/* Under the lock. A row that is unknown here was freed (then every member is at its last SEQ), or it is created later
 * and then reported with ROWS. Only the world is reported before it is created. */
static void raise_target(uint64_t cid, uint64_t seq) {
    for (uint32_t k = 0; k < CLOCK->nrows && CLOCK->rows != NULL; k++) {
        uint32_t i = (side.next_row + k) % CLOCK->nrows;
        mpy_clock_row_t *row = &CLOCK->rows[i];
        if (row->cid != cid) continue;
        if (seq > row->target) row->target = seq;
        side.next_row = i + 1;
        return;
    }
    if (cid == side.world_cid && seq > side.world_target) side.world_target = seq;
}

static void finish_message(mpy_text_t *out) {
    applied();
    report_all(out, true);
    mpy_lock_release(&CLOCK->lock);
    mpy_clockside_wake();
}

void mpy_clockside_targets(bool more, char *rows, mpy_text_t *out) {
    mpy_lock_acquire(&CLOCK->lock);
    for (char *row; (row = mpy_field(&rows)) != NULL;) {
        uint64_t cid, seq;
        if (sscanf(row, "%" SCNx64 ":%" SCNu64, &cid, &seq) == 2) raise_target(cid, seq);
    }
    if (more) {
        mpy_lock_release(&CLOCK->lock);
        return;
    }
    MPY_LOWER->phase = MPY_PHASE_RUN;
    finish_message(out);
}

void mpy_clockside_target(uint64_t cid, uint64_t seq, mpy_text_t *out) {
    mpy_lock_acquire(&CLOCK->lock);
    raise_target(cid, seq);
    finish_message(out);
}

void mpy_clockside_needed(bool needed, mpy_text_t *out) {
    mpy_lock_acquire(&CLOCK->lock);
    CLOCK->needed = needed;
    finish_message(out);
}

/* ---- freezing ---- */

/* Under the lock. True if every row has reached its target, nobody needs this rank, no thread is in a collective,
 * checkpoints are allowed, and the coordinator knows this version. */
static bool is_clean(uint32_t version) {
    if (CLOCK->version != version || CLOCK->needed || MPY_UPPER->disabled || is_thread_inside()) return false;
    /* MPI_Init has not reached its target: even the world row does not exist yet */
    if (side.world_target > 0) return false;
    for (uint32_t i = 0; i < CLOCK->nrows && CLOCK->rows != NULL; i++)
        if (CLOCK->rows[i].cid != 0 && CLOCK->rows[i].seq < CLOCK->rows[i].target) return false;
    return true;
}

static void not_frozen(mpy_text_t *out) { /* under the lock */
    side.last_applied = side.applied; /* NOTFROZEN itself acknowledges the FREEZE */
    report_all(out, false);
    mpy_text_add(out, "NOTFROZEN %" PRIu64 " %" PRIu32 "\n", side.epoch, CLOCK->version);
}

void mpy_clockside_freeze(uint32_t version, mpy_text_t *out) {
    mpy_lock_acquire(&CLOCK->lock);
    side.applied++;
    bool clean = MPY_LOWER->phase == MPY_PHASE_RUN && is_clean(version);
    if (clean) {
        MPY_LOWER->phase = MPY_PHASE_FROZEN;
        side.freezing = true;
        side.freeze_version = version;
    } else {
        not_frozen(out);
    }
    mpy_lock_release(&CLOCK->lock);
    if (!clean) return;
    mpy_clockside_barrier();
    mpy_clockside_freeze_poll(out);
}

bool mpy_clockside_freezing(void) { return side.freezing; }

static bool is_thread_in_lower(void) {
    for (unsigned i = 0; i < MPY_THREADS_MAX; i++)
        if (MPY_UPPER->threads[i].in_lower && MPY_UPPER->threads[i].used) return true;
    return false;
}

void mpy_clockside_freeze_poll(mpy_text_t *out) {
    if (!side.freezing || is_thread_in_lower()) return;
    side.freezing = false;
    mpy_lock_acquire(&CLOCK->lock);
    if (is_clean(side.freeze_version)) {
        mpy_text_add(out, "FROZEN %" PRIu64 " %" PRIu32 "\n", side.epoch, side.freeze_version);
        mpy_lock_release(&CLOCK->lock);
        return;
    }
    MPY_LOWER->phase = MPY_PHASE_RUN; /* a thread finished something while it left the lower half */
    not_frozen(out);
    mpy_lock_release(&CLOCK->lock);
    mpy_clockside_wake();
}

void mpy_clockside_thaw(mpy_text_t *out) {
    mpy_lock_acquire(&CLOCK->lock);
    MPY_LOWER->phase = MPY_PHASE_RUN;
    if (side.freezing) {
        side.freezing = false;
        mpy_text_add(out, "NOTFROZEN %" PRIu64 " %" PRIu32 "\n", side.epoch, CLOCK->version);
    }
    finish_message(out);
}

void mpy_clockside_end(void) {
    side.freezing = false;
    CLOCK->needed = 0;
    MPY_LOWER->phase = MPY_PHASE_NONE;
    mpy_clockside_barrier();
    mpy_clockside_wake();
}

void mpy_clockside_after_restart(void) {
    /* No thread held the lock (wrappers/core/lock.h, invariant 1), but a thread may have been about to sleep on it. */
    CLOCK->lock = 0;
    mpy_clockside_end(); /* futex waits that the kernel restarts return at once; then the threads read the phase */
}
