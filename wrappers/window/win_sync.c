/* win_sync.c - epochs: fence, lock, post-start-complete-wait, flush.
 *
 * Upper half, no libc. The real window is always open (invariant 1 of win.h), so operations can be issued at any time.
 * This file decides when the program may issue them, and what it waits for. Locks use tickets (Mellor-Crummey and
 * Scott's fair readers-writer lock): each user draws a ticket, and enters when its number is reached. If the next user
 * is a reader, too, a reader lets it in at once. So locks are granted in the order of requests, as in the real library.
 *
 * Invariants
 *  1. Every wait is a loop over words of the board. While a checkpoint is pending the loop leaves the lower half and
 *     reports which ranks it waits for: for a lock any member (the holder isn't known), for a post or a completion the
 *     rank itself.
 *  2. The remaining waits, the flushes, need only progress at the target. A stopped or parked thread provides it
 *     (clock.c).
 *  3. Errors are checked in MPICH's order: arguments first, then the epoch.
 */
#include "clock/clock.h"
#include "comm/group.h"
#include "p2p/request.h"
#include "tools/trace.h"
#include "win.h"

/* ---- the board ---- */

static void progress(const mpy_win_t *w) {
    int flag;
    MPY_REAL(Iprobe)(MPI_ANY_SOURCE, MPI_ANY_TAG, w->team.obj.real, &flag, MPI_STATUS_IGNORE);
}

enum { TURNS = MPY_BOARD_POSTS };

/* Adds to a rank's lock words and reads their old values, or only reads them. Uses a request, because the thread could
 * not leave a flush while the target computes. */
static int turns(mpy_p2p_thread_t *th, mpy_win_t *w, int rank, const uint64_t *add, uint64_t *before,
                 mpy_request_t **request) {
    static const uint64_t nothing[TURNS];
    int real, rc = MPY_REAL(Rget_accumulate)(add != NULL ? add : nothing, TURNS, MPI_UINT64_T, before, TURNS,
                                             MPI_UINT64_T, rank, 0, TURNS, MPI_UINT64_T,
                                             add != NULL ? MPI_SUM : MPI_NO_OP, w->board, &real);
    if (rc == 0) *request = mpy_request_other(th, real, NULL);
    return rc;
}

static int turns_add(mpy_win_t *w, int rank, const uint64_t *add) {
    return MPY_REAL(Accumulate)(add, TURNS, MPI_UINT64_T, rank, 0, TURNS, MPI_UINT64_T, MPI_SUM, w->board);
}

static const uint64_t ask[TURNS] = {[MPY_BOARD_USERS] = 1}, let_share[TURNS] = {[MPY_BOARD_READERS] = 1},
                      leave_shared[TURNS] = {[MPY_BOARD_WRITERS] = 1},
                      leave_exclusive[TURNS] = {[MPY_BOARD_READERS] = 1, [MPY_BOARD_WRITERS] = 1};

/* `seen`: the words as they were when the ticket was drawn. */
static int wait_turn(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_win_t *w, int rank, int how, uint64_t *seen) {
    int mine = how & MPY_TARGET_SHARED ? MPY_BOARD_READERS : MPY_BOARD_WRITERS, rc = MPI_SUCCESS;
    mpy_request_t *read;
    uint64_t ticket = seen[MPY_BOARD_USERS];
    mpy_wait_t wait = {.mode = MPY_WAIT_ANY, .comm = &w->team, .source = MPI_ANY_SOURCE};
    while (rc == 0 && seen[mine] != ticket) {
        mpy_wait_round(t, &wait);
        progress(w); /* shared memory is read without progress, but the holder of the lock may need ours */
        rc = turns(th, w, rank, NULL, seen, &read);
        if (rc == 0) rc = mpy_request_finish(t, th, read, NULL, MPI_STATUS_IGNORE);
    }
    return rc == 0 && how & MPY_TARGET_SHARED ? turns_add(w, rank, let_share) : rc;
}

static int count_up(mpy_win_t *w, int rank, MPI_Aint word) {
    static const uint64_t one = 1;
    return MPY_REAL(Accumulate)(&one, 1, MPI_UINT64_T, rank, word, 1, MPI_UINT64_T, MPI_SUM, w->board);
}

static bool has_arrived(const mpy_win_t *w, MPI_Aint word, uint64_t used) { return w->words[word] > used; }

/* Waits until `rank` has raised this word of ours above *used. */
static void await(mpy_thread_t *t, mpy_win_t *w, int rank, MPI_Aint word, const uint64_t *used) {
    mpy_wait_t wait = {.mode = MPY_WAIT_ALL, .comm = &w->team, .source = rank};
    while (!has_arrived(w, word, *used)) {
        progress(w);
        if (!has_arrived(w, word, *used)) mpy_wait_round(t, &wait);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
}

/* After a call that may have waited; upper TLS. */
static void waited(mpy_thread_t *t) {
    if (MPY_UNLIKELY(t->state != MPY_STATE_RUNNING)) mpy_clock_unblocked(t);
}

/* After a call with which a program may test whether other ranks have done something. */
static void poll_passed(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_win_t *w) {
    mpy_wait_t wait = {.mode = MPY_WAIT_ANY, .comm = &w->team, .source = MPI_ANY_SOURCE};
    mpy_poll_failed(t, th, &wait);
}

/* The fields of a call on a window that isn't collective: with one rank, or with several. */
#define TRACE_WIN(OP, RANK) .op = (OP), .comm = w->team.trace, .peer = mpy_trace_peer(RANK), .context = t->trace->mark
enum { SOME = MPI_UNDEFINED }; /* not a rank */

static mpy_trace_lock_t traced_lock(int lock_type, int assert) {
    if (assert & MPI_MODE_NOCHECK) return MPY_TRACE_LOCK_UNCHECKED;
    return lock_type == MPI_LOCK_SHARED ? MPY_TRACE_LOCK_SHARED : MPY_TRACE_LOCK_EXCLUSIVE;
}

/* ---- which epoch may follow which, as in MPICH ---- */

int mpy_win_access_slow(mpy_win_t *w, int rank) {
    if (w == NULL) return MPI_ERR_WIN;
    /* MPI_PROC_NULL, or an error that the real library finds */
    if (rank < 0 || rank >= w->team.size) return MPI_SUCCESS;
    switch ((mpy_access_t)w->access) {
    case MPY_ACCESS_NONE:
        return MPI_ERR_RMA_SYNC;
    case MPY_ACCESS_FENCED:
        w->access = MPY_ACCESS_FENCE;
        return MPI_SUCCESS;
    case MPY_ACCESS_START:
    case MPY_ACCESS_LOCK:
        return w->target[rank] != 0 ? MPI_SUCCESS : MPI_ERR_RMA_SYNC;
    case MPY_ACCESS_FENCE:
    case MPY_ACCESS_LOCK_ALL:
        break;
    }
    return MPI_SUCCESS;
}

static bool may_open(const mpy_win_t *w) { return w->access <= MPY_ACCESS_FENCED; }

static int check_rank(const mpy_win_t *w, int rank) {
    return rank >= MPI_PROC_NULL && rank < w->team.size ? MPI_SUCCESS : MPI_ERR_RANK;
}
static int check_assert(int given, int allowed) { return given & ~allowed ? MPI_ERR_ARG : MPI_SUCCESS; }

/* ---- fence ---- */

int PMPI_Win_fence(int assert, MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_fence");
    int rc = check_assert(assert, MPI_MODE_NOSTORE | MPI_MODE_NOPUT | MPI_MODE_NOPRECEDE | MPI_MODE_NOSUCCEED);
    if (rc == 0 && (w->exposed || (!may_open(w) && w->access != MPY_ACCESS_FENCE))) rc = MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Win_fence");
    mpy_thread_t *t = mpy_self();
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_WIN_FENCE, MPY_TRACE_COLLECTIVE(&w->team));
    mpy_clock_enter(t, mpy_row(w->team.row));
    mpy_cross_in_collective(t);
    if (!(assert & MPI_MODE_NOPRECEDE)) rc = MPY_REAL(Win_flush_all)(w->obj.real);
    int synchronized = MPY_REAL(Win_sync)(w->obj.real), met = MPY_REAL(Barrier)(w->team.obj.real);
    if (rc == 0) rc = synchronized != 0 ? synchronized : met;
    if (rc == 0) rc = MPY_REAL(Win_sync)(w->obj.real);
    w->access = assert & MPI_MODE_NOSUCCEED ? MPY_ACCESS_NONE : MPY_ACCESS_FENCED;
    mpy_cross_out_collective(t);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_fence");
}

/* ---- locks ---- */

static int lock_open(mpy_win_t *w, int rank, int how) {
    mpy_lock(&w->lock);
    bool ok = may_open(w) || (w->access == MPY_ACCESS_LOCK && w->target[rank] == 0);
    if (ok) {
        w->access = MPY_ACCESS_LOCK;
        w->target[rank] = (uint8_t)how;
        w->locked++;
    }
    mpy_unlock(&w->lock);
    return ok ? MPI_SUCCESS : MPI_ERR_RMA_SYNC;
}

int PMPI_Win_lock(int lock_type, int rank, int assert, MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_lock");
    int rc = check_assert(assert, MPI_MODE_NOCHECK);
    if (lock_type != MPI_LOCK_EXCLUSIVE && lock_type != MPI_LOCK_SHARED) rc = MPI_ERR_ARG;
    if (rc == 0) rc = check_rank(w, rank);
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Win_lock");
    if (rank == MPI_PROC_NULL) return MPI_SUCCESS;
    int how = (lock_type == MPI_LOCK_SHARED ? MPY_TARGET_SHARED : MPY_TARGET_EXCLUSIVE) |
              (assert &MPI_MODE_NOCHECK ? MPY_TARGET_NOCHECK : 0);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_request_t *drawn;
    uint64_t seen[TURNS];
    uint64_t record = MPY_TRACE(t, TRACE_WIN(MPY_OP_WIN_LOCK, rank), .tag = traced_lock(lock_type, assert));
    mpy_cross_in(t);
    rc = lock_open(w, rank, how);
    if (rc == 0 && !(how & MPY_TARGET_NOCHECK)) {
        rc = turns(th, w, rank, ask, seen, &drawn);
        if (rc == 0) rc = mpy_request_finish(t, th, drawn, NULL, MPI_STATUS_IGNORE);
        if (rc == 0) rc = wait_turn(t, th, w, rank, how, seen);
        if (rc == 0 && how & MPY_TARGET_SHARED) rc = MPY_REAL(Win_flush_local)(rank, w->board);
    }
    mpy_cross_out(t);
    waited(t);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_lock");
}

int PMPI_Win_unlock(int rank, MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_unlock");
    int rc = check_rank(w, rank);
    if (rc == 0 && rank == MPI_PROC_NULL) return MPI_SUCCESS;
    if (rc == 0 && (w->access != MPY_ACCESS_LOCK || w->target[rank] == 0)) rc = MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Win_unlock");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record = MPY_TRACE(t, TRACE_WIN(MPY_OP_WIN_UNLOCK, rank));
    mpy_cross_in(t);
    int how = w->target[rank], left = MPI_SUCCESS;
    rc = MPY_REAL(Win_flush)(rank, w->obj.real);
    if (!(how & MPY_TARGET_NOCHECK))
        left = turns_add(w, rank, how & MPY_TARGET_SHARED ? leave_shared : leave_exclusive);
    if (left == 0) left = MPY_REAL(Win_flush_local)(rank, w->board);
    mpy_lock(&w->lock);
    w->target[rank] = 0;
    if (--w->locked == 0) w->access = MPY_ACCESS_NONE;
    mpy_unlock(&w->lock);
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    poll_passed(t, th, w);
    if (rc == 0) rc = left;
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_unlock");
}

static int lock_all(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_win_t *w) {
    typedef struct ticket { mpy_request_t *drawn; uint64_t seen[TURNS]; } ticket_t;
    size_t bytes = (size_t)w->team.size * sizeof(ticket_t);
    ticket_t *tickets = mpy_alloc(bytes);
    int rc = MPI_SUCCESS, asked = 0;
    while (asked < w->team.size && rc == 0) {
        ticket_t *next = &tickets[asked];
        if ((rc = turns(th, w, asked, ask, next->seen, &next->drawn)) == 0) asked++;
    }
    for (int r = 0; r < asked; r++) { /* all, also after an error: they write to the tickets */
        int failed = mpy_request_finish(t, th, tickets[r].drawn, NULL, MPI_STATUS_IGNORE);
        if (rc == 0) rc = failed;
    }
    for (int r = 0; r < w->team.size && rc == 0; r++) rc = wait_turn(t, th, w, r, MPY_TARGET_SHARED, tickets[r].seen);
    if (rc == 0) rc = MPY_REAL(Win_flush_local_all)(w->board);
    mpy_free(tickets, bytes);
    return rc;
}

int PMPI_Win_lock_all(int assert, MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_lock_all");
    int rc = check_assert(assert, MPI_MODE_NOCHECK);
    if (rc == 0 && !may_open(w)) rc = MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Win_lock_all");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record = MPY_TRACE(t, TRACE_WIN(MPY_OP_WIN_LOCK, SOME), .tag = traced_lock(MPI_LOCK_SHARED, assert));
    mpy_cross_in(t);
    uint32_t before = w->access;
    w->nocheck = assert & MPI_MODE_NOCHECK;
    w->access = MPY_ACCESS_LOCK_ALL;
    if (!w->nocheck) rc = lock_all(t, th, w);
    if (rc != 0) w->access = before;
    mpy_cross_out(t);
    waited(t);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_lock_all");
}

int PMPI_Win_unlock_all(MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_unlock_all");
    if (w->access != MPY_ACCESS_LOCK_ALL) return mpy_win_error(w, MPI_ERR_RMA_SYNC, "MPI_Win_unlock_all");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record = MPY_TRACE(t, TRACE_WIN(MPY_OP_WIN_UNLOCK, SOME));
    mpy_cross_in(t);
    int rc = MPY_REAL(Win_flush_all)(w->obj.real), left = MPI_SUCCESS;
    for (int r = 0; r < w->team.size && left == 0 && !w->nocheck; r++) left = turns_add(w, r, leave_shared);
    if (left == 0) left = MPY_REAL(Win_flush_local_all)(w->board);
    w->access = MPY_ACCESS_NONE;
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    poll_passed(t, th, w);
    if (rc == 0) rc = left;
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_unlock_all");
}

/* ---- post, start, complete, wait ---- */

/* The ranks in the window of a group, to be freed with ranks_free. Adds 1 to `times` for each. With in_lower set. */
static int ranks_of(const mpy_win_t *w, MPI_Group group, int32_t **ranks, int32_t *n, uint64_t *times) {
    const mpy_group_t *g = mpy_group(group);
    int32_t size = g != NULL ? g->size : 0;
    *n = 0;
    *ranks = NULL;
    if (size == 0) return MPI_SUCCESS;
    int32_t *found = mpy_alloc((size_t)size * sizeof *found);
    for (int i = 0; i < size; i++) {
        int32_t world = g->world[i], r = 0;
        if (world < w->team.size && w->team.world[world] == world) r = world; /* the same rank as in the world */
        while (r < w->team.size && w->team.world[r] != world) r++;
        if (r == w->team.size) {
            mpy_free(found, (size_t)size * sizeof *found);
            return MPI_ERR_GROUP;
        }
        found[i] = r;
    }
    for (int i = 0; i < size; i++) times[found[i]]++;
    *n = size;
    *ranks = found;
    return MPI_SUCCESS;
}
static void ranks_free(int32_t **ranks, int32_t *n) {
    mpy_free(*ranks, (size_t)*n * sizeof **ranks);
    *ranks = NULL;
    *n = 0;
}

/* In the trace: the first record of an epoch, which has one for each rank. `times`: number of such epochs with each
 * rank. `since`: mpy_trace_look. */
typedef struct epoch { uint64_t first; int n; } epoch_t;
static epoch_t epoch_enter(mpy_thread_t *t, const mpy_win_t *w, mpy_trace_op_t op, uint64_t since, const int32_t *ranks,
                           int32_t n, const uint64_t *times) {
    epoch_t records = {.n = n == 0 ? 1 : n < MPY_TRACE_REQUESTS ? n : MPY_TRACE_REQUESTS};
    for (int i = 0; i < records.n && since != 0 && t->trace != NULL; i++) {
        mpy_trace_call_t call = {.op = op,
                                 .comm = w->team.trace,
                                 .peer = MPY_TRACE_NO_PEER,
                                 .flags = i + 1 < records.n ? MPY_TRACE_MORE
                                          : i + 1 < n       ? MPY_TRACE_CUT
                                                            : 0};
        if (n > 0) call.peer = ranks[i], call.context = times[ranks[i]];
        uint64_t seq = mpy_trace_put(t->trace, since, 0, call);
        if (i == 0) records.first = seq;
    }
    return records;
}
static void epoch_exit(mpy_thread_t *t, epoch_t records, int rc) {
    if (records.first == 0 || t->ring == NULL) return;
    uint64_t now = mpy_trace_ticks();
    for (int i = 0; i < records.n; i++)
        mpy_trace_exit_at(t->ring, records.first + (uint64_t)i, now, rc != 0 ? MPY_TRACE_FAILED : 0);
}

static bool is_group(MPI_Group group) { return group == MPI_GROUP_EMPTY || mpy_group(group) != NULL; }

static MPI_Aint post_of(int rank) { return MPY_BOARD_POSTS + rank; }
static MPI_Aint complete_of(const mpy_win_t *w, int rank) { return MPY_BOARD_POSTS + w->team.size + rank; }

int PMPI_Win_post(MPI_Group group, int assert, MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_post");
    int rc =
        is_group(group) ? check_assert(assert, MPI_MODE_NOCHECK | MPI_MODE_NOSTORE | MPI_MODE_NOPUT) : MPI_ERR_GROUP;
    if (rc == 0 && (w->exposed || w->access == MPY_ACCESS_FENCE)) rc = MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Win_post");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    rc = ranks_of(w, group, &w->posted, &w->nposted, w->exposures);
    epoch_t records = epoch_enter(t, w, MPY_OP_WIN_POST, mpy_trace_look(t), w->posted, w->nposted, w->exposures);
    if (rc == 0) w->exposed = true;
    if (rc == 0) rc = MPY_REAL(Win_sync)(w->obj.real);
    for (int i = 0; i < w->nposted && rc == 0 && !(assert & MPI_MODE_NOCHECK); i++) {
        rc = count_up(w, w->posted[i], post_of(w->team.rank));
        if (rc == 0) rc = MPY_REAL(Win_flush_local)(w->posted[i], w->board);
    }
    mpy_cross_out(t);
    epoch_exit(t, records, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_post");
}

int PMPI_Win_start(MPI_Group group, int assert, MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_start");
    int rc = is_group(group) ? check_assert(assert, MPI_MODE_NOCHECK) : MPI_ERR_GROUP;
    if (rc == 0 && !may_open(w)) rc = MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, "MPI_Win_start");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    rc = ranks_of(w, group, &w->started, &w->nstarted, w->accesses);
    epoch_t records = epoch_enter(t, w, MPY_OP_WIN_START, mpy_trace_look(t), w->started, w->nstarted, w->accesses);
    if (rc == 0) w->access = MPY_ACCESS_START;
    for (int i = 0; i < w->nstarted && rc == 0; i++) {
        int r = w->started[i];
        w->target[r] = MPY_TARGET_STARTED;
        if (assert & MPI_MODE_NOCHECK) continue; /* nobody has counted, either */
        await(t, w, r, post_of(r), &w->posts_used[r]);
        w->posts_used[r]++;
    }
    mpy_cross_out(t);
    waited(t);
    epoch_exit(t, records, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_start");
}

int PMPI_Win_complete(MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_complete");
    if (w->access != MPY_ACCESS_START) return mpy_win_error(w, MPI_ERR_RMA_SYNC, "MPI_Win_complete");
    mpy_thread_t *t = mpy_self();
    epoch_t records = epoch_enter(t, w, MPY_OP_WIN_COMPLETE, mpy_trace_look(t), w->started, w->nstarted, w->accesses);
    int rc = MPI_SUCCESS;
    mpy_cross_in(t);
    for (int i = 0; i < w->nstarted; i++) {
        int r = w->started[i];
        if (rc == 0) rc = MPY_REAL(Win_flush)(r, w->obj.real);
        if (rc == 0) rc = count_up(w, r, complete_of(w, w->team.rank));
        if (rc == 0) rc = MPY_REAL(Win_flush_local)(r, w->board);
        w->target[r] = 0;
    }
    ranks_free(&w->started, &w->nstarted);
    w->access = MPY_ACCESS_NONE;
    mpy_cross_out(t);
    epoch_exit(t, records, rc);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, "MPI_Win_complete");
}

/* All origins have completed: in the lower half. */
static void exposure_end(mpy_win_t *w) {
    for (int i = 0; i < w->nposted; i++) w->completes_used[w->posted[i]]++;
    ranks_free(&w->posted, &w->nposted);
    w->exposed = false;
    MPY_REAL(Win_sync)(w->obj.real);
}

int PMPI_Win_wait(MPI_Win win) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_wait");
    if (!w->exposed) return mpy_win_error(w, MPI_ERR_RMA_SYNC, "MPI_Win_wait");
    mpy_thread_t *t = mpy_self();
    epoch_t records = epoch_enter(t, w, MPY_OP_WIN_WAIT, mpy_trace_look(t), w->posted, w->nposted, w->exposures);
    mpy_cross_in(t);
    for (int i = 0; i < w->nposted; i++)
        await(t, w, w->posted[i], complete_of(w, w->posted[i]), &w->completes_used[w->posted[i]]);
    exposure_end(w);
    mpy_cross_out(t);
    waited(t);
    epoch_exit(t, records, MPI_SUCCESS);
    return MPI_SUCCESS;
}

int PMPI_Win_test(MPI_Win win, int *flag) {
    mpy_win_t *w = mpy_win(win);
    if (w == NULL) return mpy_win_error(NULL, MPI_ERR_WIN, "MPI_Win_test");
    if (!w->exposed) return mpy_win_error(w, MPI_ERR_RMA_SYNC, "MPI_Win_test");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_wait_t wait = {.mode = MPY_WAIT_ALL, .comm = &w->team, .source = MPI_PROC_NULL};
    uint64_t since = mpy_trace_look(t);
    mpy_cross_in(t);
    progress(w);
    for (int i = 0; i < w->nposted && wait.source == MPI_PROC_NULL; i++)
        if (!has_arrived(w, complete_of(w, w->posted[i]), w->completes_used[w->posted[i]])) wait.source = w->posted[i];
    bool done = wait.source == MPI_PROC_NULL;
    epoch_t records = {0};
    if (done) {
        records = epoch_enter(t, w, MPY_OP_WIN_WAIT, since, w->posted, w->nposted, w->exposures);
        exposure_end(w);
    }
    mpy_cross_out(t);
    if (done)
        epoch_exit(t, records, MPI_SUCCESS);
    else
        mpy_trace_missed(t, since, 0);
    *flag = done;
    if (done)
        mpy_p2p_done(t, th);
    else
        mpy_poll_failed(t, th, &wait);
    return MPI_SUCCESS;
}

/* ---- flush and sync ---- */

static bool is_locked(const mpy_win_t *w, int rank) {
    return w->access == MPY_ACCESS_LOCK_ALL ||
           (w->access == MPY_ACCESS_LOCK && (rank == MPI_PROC_NULL || w->target[rank] != 0));
}

/* Records a flush that had nothing to wait for; reads the clock once. */
static void trace_at_once(mpy_thread_t *t, const mpy_win_t *w, int rank) {
    uint64_t now = mpy_trace_ticks();
    mpy_trace_put(t->trace, now, now, (mpy_trace_call_t){TRACE_WIN(MPY_OP_WIN_FLUSH, rank)});
}

static int flush(int rank, MPI_Win win, int slot, const char *name) {
    mpy_win_t *w = mpy_win(win);
    int rc = w == NULL ? MPI_ERR_WIN : check_rank(w, rank);
    if (rc == 0 && rank != MPI_PROC_NULL && !is_locked(w, rank)) rc = MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    if (mpy_win_flushed(t, w, rank, slot == MPY_FN_Win_flush)) {
        if (MPY_LIKELY(t->trace != NULL)) trace_at_once(t, w, rank);
        poll_passed(t, th, w);
        return MPI_SUCCESS;
    }
    uint64_t record = MPY_TRACE(t, TRACE_WIN(MPY_OP_WIN_FLUSH, rank));
    mpy_cross_in(t);
    rc = ((mpy_fn_Win_flush_t)MPY_LOWER->mpi[slot])(rank, w->obj.real); /* the two functions have the same type */
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    poll_passed(t, th, w);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, name);
}

static int flush_all(MPI_Win win, int slot, const char *name) {
    mpy_win_t *w = mpy_win(win);
    int rc = w == NULL ? MPI_ERR_WIN : is_locked(w, MPI_PROC_NULL) ? MPI_SUCCESS : MPI_ERR_RMA_SYNC;
    if (MPY_UNLIKELY(rc != 0)) return mpy_win_error(w, rc, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record = MPY_TRACE(t, TRACE_WIN(MPY_OP_WIN_FLUSH, SOME));
    mpy_cross_in(t);
    rc = ((mpy_fn_Win_flush_all_t)MPY_LOWER->mpi[slot])(w->obj.real); /* the three functions have the same type */
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    poll_passed(t, th, w);
    return MPY_LIKELY(rc == 0) ? rc : mpy_win_error(w, rc, name);
}

int PMPI_Win_flush(int rank, MPI_Win win) { return flush(rank, win, MPY_FN_Win_flush, "MPI_Win_flush"); }
int PMPI_Win_flush_local(int rank, MPI_Win win) {
    return flush(rank, win, MPY_FN_Win_flush_local, "MPI_Win_flush_local");
}
int PMPI_Win_flush_all(MPI_Win win) { return flush_all(win, MPY_FN_Win_flush_all, "MPI_Win_flush_all"); }
int PMPI_Win_flush_local_all(MPI_Win win) {
    return flush_all(win, MPY_FN_Win_flush_local_all, "MPI_Win_flush_local_all");
}
int PMPI_Win_sync(MPI_Win win) { return flush_all(win, MPY_FN_Win_sync, "MPI_Win_sync"); }
