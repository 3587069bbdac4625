/* drain.c - emptying the network before a snapshot, and re-posting what a restart has lost.
 *
 * Upper half, no libc. Runs as a hook: main thread, service stack, lower TLS between mpy_hook_in and mpy_hook_out, all
 * other threads stopped in upper code. All ranks drain together, so collectives on the private communicator are
 * allowed. This communicator exists only in the real library: the program never sees it, no object describes it, and a
 * restart creates a new one.
 *
 * Invariants
 *  1. The drain ends when four conditions hold: every message that counts as sent to us has been received; every send
 *     and every nonblocking collective has finished (the clock ensures that all members have started it); every
 *     internal message has been received; every requested piece of an offer has been received (offer.h). Then the real
 *     library holds only receives, and sends of offers, that match nothing.
 *  2. Ranks leave together, after a vote (an Iallreduce) that gives all of them the same result. A rank that has failed
 *     takes part in the vote, too. While anything moves on any rank, they continue and vote again; so there is only one
 *     vote if the network is empty from the beginning. The same happens when the checkpoint is given up elsewhere
 *     (MPY_LOWER->cancelled): all ranks learn this and fail in the next vote. In every case a rank makes all
 *     collectives that the others wait for in a drain, so the next drain finds the communicator unused.
 *  3. No slot is taken or released here except those of orphans. A thread may be stopped between taking a slot and
 *     using it, but not inside either step (invariant 1 of request.h).
 *  4. Error codes that stay in slots are classes: codes of the real library are valid only in this library.
 *  5. Without a coordinator ranks may continue separately: every wait here ends when MPY_LOWER->abandoned is set. A
 *     collective that was left may still write to its buffers. So they aren't freed, and neither is the private
 *     communicator; no drain follows.
 */
#include "request.h"
#include "drain.h"
#include "p2p.h"
#include "clock/clock.h"
#include "comm/attr.h"
#include "comm/comm.h"
#include "core/objects.h"
#include "messages/offer.h"
#include "messages/internal_messages.h"

enum { YIELD_ROUNDS = 16, LOOK_ROUNDS = 128 /* rounds in which nothing moves, before the clock is read again */ };
enum { MOVED_BYTES = 1 << 16 /* moved over TCP in a period; votes, keep-alives and the control plane need less */ };

static mpy_thread_t *hook_thread(void) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    if (t->lower_fs == 0) MPY_LOWER->svc->thread_bind(t);
    return t;
}

/* ---- the private communicator ---- */

static bool was_left; /* a collective was left before its end (invariant 5) */

/* With the lower TLS: inside MPI_Init's crossing, or a hook's. */
int mpy_p2p_init(void) {
    if (mpy_internal_messages_sent == NULL) {
        size_t size = (size_t)mpy_world->size * sizeof(uint64_t);
        mpy_internal_messages_received = mpy_alloc(size);
        mpy_internal_messages_sent = mpy_alloc(size);
        mpy_offers_received = mpy_alloc(size);
        mpy_offers_asked = mpy_alloc(size);
        mpy_p2p_counters(&mpy_p2p_threads[0]);
    }
    mpy_private_rank = mpy_world->rank;
    return MPY_REAL(Comm_dup)(mpy_world->obj.real, &mpy_private_comm);
}

/* Inside MPI_Finalize's crossing, when no drain can follow. Buffered sends were flushed before (mpy_p2p_flush). The
 * real MPI_Finalize frees the communicator: MPI_Comm_free would receive messages that nobody has requested, and then
 * Finalize would fail. */
void mpy_p2p_finalize(void) {
    mpy_orphan_reap(&mpy_p2p_threads[0]);
    if (mpy_private_comm == MPI_COMM_NULL) return;
    while (!mpy_internal_messages_all_sent()) continue;
    mpy_private_comm = MPI_COMM_NULL;
}

/* Tests a nonblocking collective on the private communicator. Returns an error, or ABANDONED (invariant 5). */
enum { ABANDONED = -1 };
static int look(int *request, int *done) {
    int rc = MPY_REAL(Test)(request, done, MPI_STATUS_IGNORE);
    if (!rc && !*done && MPY_LOWER->abandoned) was_left = true, rc = ABANDONED;
    return rc;
}
static int await(int rc, int *request) {
    for (int done = 0; !rc && !done;) rc = look(request, &done);
    return rc;
}
int mpy_drain_barrier(void) {
    int request, rc = was_left ? ABANDONED : MPY_REAL(Ibarrier)(mpy_private_comm, &request);
    return await(rc, &request);
}
int mpy_meet(char *error, uint64_t n) {
    if (was_left) {
        mpy_text_format(error, n, "the coordinator is lost");
        return -1;
    }
    mpy_thread_t *t = hook_thread();
    mpy_hook_in(t);
    int rc = MPY_LOWER->svc->meet(mpy_private_comm, error, n);
    mpy_hook_out(t);
    return rc;
}
static void drop(void *p, size_t size) {
    if (!was_left) mpy_free(p, size);
}

/* ---- one round of the drain; true if anything moved ---- */

/* True only for requests that wait for a message that nobody has sent, or for the program itself. */
static bool may_stay_open(const mpy_request_t *r) {
    switch ((mpy_request_kind_t)r->kind) {
    case MPY_REQ_RECV:
        return true;
    case MPY_REQ_SENDRECV:
        return mpy_sendrecv_sent(r);
    case MPY_REQ_FAMILY:
        return !r->family->in_drain;
    default:
        return false;
    }
}

static bool poke_slots(mpy_p2p_thread_t *th, bool *all_done) {
    bool moved = false;
    *all_done = true;
    for (uint32_t i = 0; i < mpy_request_limit; i++) {
        mpy_request_t *r = mpy_request_at(i);
        if (r->kind == MPY_REQ_FREE || r->kind == MPY_REQ_MESSAGE) continue;
        if (r->flags & (MPY_RF_COMPLETE | MPY_RF_INACTIVE | MPY_RF_SYNC | MPY_RF_NEVER)) continue;
        if (mpy_request_poke(th, r))
            moved = true;
        else if (!may_stay_open(r))
            *all_done = false;
    }
    return moved;
}

/* Invariant 4: errors of requests that a completion call or the drain has finished, and of finished sends whose receive
 * is open. (What a callback of the program returns is no code of the library.) */
static void keep_classes(void) {
    for (uint32_t i = 0; i < mpy_request_limit; i++) {
        mpy_request_t *r = mpy_request_at(i);
        bool has_error = r->kind == MPY_REQ_SENDRECV || (r->kind != MPY_REQ_FREE && r->flags & MPY_RF_COMPLETE);
        bool from_program = r->flags & MPY_RF_FAMILY && r->family->query != NULL;
        if (has_error && !from_program && r->error) MPY_REAL(Error_class)(r->error, &r->error);
    }
}

/* Counts a message that was taken after a probe. Its status may be marked as cancelled: Intel MPI's probes do that. */
static void count_probed(mpy_p2p_thread_t *th, const mpy_comm_t *c, MPI_Status *s) {
    s->count_hi_and_cancelled &= ~1;
    mpy_count_received(th, c, s);
}

/* A message for which there is no memory stays where it is. */
static bool no_memory(int *rc, bool moved) {
    *rc = MPI_ERR_NO_MEM;
    return moved;
}

/* Receives messages that the program has probed but not received. */
static bool take_probed(mpy_p2p_thread_t *th, int *rc) {
    bool moved = false;
    for (uint32_t i = 0; i < mpy_request_limit; i++) {
        mpy_request_t *r = mpy_request_at(i);
        if (r->kind != MPY_REQ_MESSAGE || r->real == MPI_MESSAGE_NULL) continue;
        mpy_stored_t *m = mpy_stored_make(r->comm, &r->status);
        if (m == NULL) return no_memory(rc, moved);
        mpy_stored_mrecv(m, &r->real);
        r->stored = m;
        r->real = MPI_MESSAGE_NULL;
        count_probed(th, r->comm, &r->status);
        moved = true;
    }
    return moved;
}

static bool take_unmatched(mpy_p2p_thread_t *th, int *rc) {
    bool moved = false;
    for (uint32_t row = 0; row < MPY_UPPER->clock.nrows; row++) {
        if (mpy_row(row)->cid == 0) continue;
        mpy_comm_t *c = mpy_comm((int)mpy_row(row)->handle);
        if (c == NULL || c->obj.real == MPI_COMM_NULL) continue; /* under construction */
        for (;;) {
            MPI_Status status;
            int found = 0, message;
            *rc = MPY_REAL(Iprobe)(MPI_ANY_SOURCE, MPI_ANY_TAG, c->obj.real, &found, &status);
            if (*rc) return moved;
            if (!found) break;
            mpy_stored_t *m = mpy_stored_make(c, &status); /* allocate first: a matched message could not be put back */
            if (m == NULL) return no_memory(rc, moved);
            *rc = MPY_REAL(Improbe)(status.MPI_SOURCE, status.MPI_TAG, c->obj.real, &found, &message, &status);
            if (*rc || !found) {
                mpy_stored_drop(m);
                return moved;
            }
            mpy_stored_mrecv(m, &message);
            count_probed(th, c, &status);
            mpy_store_append(m);
            moved = true;
        }
    }
    return moved;
}

/* ---- what each rank sent to each other rank ---- */

typedef struct column { uint64_t messages, internal, asked; } column_t; /* from one rank to another, since the start */

static uint64_t sum_sent(int world) {
    uint64_t n = 0;
    for (int i = 0; i < MPY_THREADS_MAX; i++)
        if (mpy_p2p_threads[i].sent) n += mpy_p2p_threads[i].sent[world];
    return n;
}
static uint64_t sum_received(int world) {
    uint64_t n = 0;
    for (int i = 0; i < MPY_THREADS_MAX; i++)
        if (mpy_p2p_threads[i].received) n += mpy_p2p_threads[i].received[world];
    return n;
}

/* The first rank from which something is still in progress, or -1. */
static int missing_from(const column_t *expected, int size) {
    for (int p = 0; p < size; p++)
        if (sum_received(p) != expected[p].messages ||
            mpy_internal_messages_received[p] != expected[p].internal)
            return p;
    return -1;
}

/* Have all ranks received what they have requested from us? */
static bool offers_received(const column_t *expected, int size) {
    for (int p = 0; p < size; p++)
        if (mpy_offers_received[p] != expected[p].asked) return false;
    return true;
}

/* ---- synchronous sends: which of their messages are unmatched in a store (store.c) ---- */

typedef struct notice {
    uint64_t cid, id;
    int32_t tag;
    uint32_t later;
} notice_t;

/* Has the real library finished it? One that waits for an ack has been settled by an earlier drain. */
static bool wants_notice(const mpy_request_t *r) {
    return (r->flags & (MPY_RF_COMPLETE | MPY_RF_SYNC)) == MPY_RF_COMPLETE;
}

static int count_notices(int *counts) {
    int n = 0;
    for (const mpy_request_t *r = mpy_ssend_first(); r != NULL; r = r->next) {
        if (!wants_notice(r)) continue;
        counts[mpy_peer_world(r->comm, r->peer)]++;
        n++;
    }
    return n;
}

static mpy_clock_row_t *row_of(uint64_t cid) {
    for (uint32_t i = 0; i < MPY_UPPER->clock.nrows; i++)
        if (mpy_row(i)->cid == cid) return mpy_row(i);
    return NULL;
}

static int rank_of_world(const mpy_comm_t *c, int world) {
    int n = c->remote_world ? c->remote_size : c->size;
    for (int i = 0; i < n; i++)
        if (mpy_peer_world(c, i) == world) return i;
    return MPI_PROC_NULL;
}

/* The receiver's answer: is that message in our store? If so, a match will be reported to the sender. */
static uint8_t mark_stored(const notice_t *note, int from) {
    const mpy_clock_row_t *row = row_of(note->cid);
    const mpy_comm_t *c = row ? mpy_comm((int)row->handle) : NULL;
    if (c == NULL) return 0; /* freed: it can't be matched, and the sender won't ask */
    mpy_stored_t *m = mpy_store_from_end(c, rank_of_world(c, from), note->tag, note->later);
    if (m == NULL || m->sync_id) return 0; /* matched; or, after a drain that has failed, a later message is missing */
    m->sync_id = note->id;
    m->sync_world = from;
    return 1;
}

static void prefix_sums(const int *counts, int *at, int size, int unit, int *scaled) {
    for (int p = 0, sum = 0; p < size; p++) {
        at[p] = sum * unit;
        scaled[p] = counts[p] * unit;
        sum += counts[p];
    }
}

/* An Alltoallv of bytes, with `unit` bytes for each counted element. */
static int alltoallv(const void *out, const int *out_counts, void *in, const int *in_counts, int size, int unit) {
    int *a = mpy_alloc((size_t)size * 4 * sizeof *a);
    prefix_sums(out_counts, a, size, unit, a + size);
    prefix_sums(in_counts, a + 2 * size, size, unit, a + 3 * size);
    int request;
    int rc = MPY_REAL(Ialltoallv)(out, a + size, a, MPI_BYTE, in, a + 3 * size, a + 2 * size, MPI_BYTE,
                                  mpy_private_comm, &request);
    rc = await(rc, &request);
    drop(a, (size_t)size * 4 * sizeof *a);
    return rc;
}

/* Also after a drain that has failed: the job goes on, and the real library has finished sends whose messages only this
 * drain has received. */
static int settle_ssends(int size) {
    int *counts = mpy_alloc((size_t)size * 3 * sizeof *counts), *in_counts = counts + size, *next = counts + 2 * size;
    int n = count_notices(counts), n_in = 0, request;
    int rc = MPY_REAL(Ialltoall)(counts, 1, MPI_INT, in_counts, 1, MPI_INT, mpy_private_comm, &request);
    if ((rc = await(rc, &request)) != 0) return rc; /* the collective may still use the counts, so they are not freed */
    for (int p = 0, sum = 0; p < size; sum += counts[p++]) {
        next[p] = sum;
        n_in += in_counts[p];
    }
    notice_t *out = mpy_alloc((size_t)(n + 1) * sizeof *out), *in = mpy_alloc((size_t)(n_in + 1) * sizeof *in);
    mpy_request_t **asked = mpy_alloc((size_t)(n + 1) * sizeof *asked);
    uint8_t *answers = mpy_alloc((size_t)n + 1), *given = mpy_alloc((size_t)n_in + 1);
    for (mpy_request_t *r = mpy_ssend_first(); r != NULL; r = r->next) {
        if (!wants_notice(r)) continue;
        int i = next[mpy_peer_world(r->comm, r->peer)]++;
        out[i] = (notice_t){mpy_comm_cid(r->comm), r->order, r->tag, r->later};
        asked[i] = r;
    }
    if (!rc) rc = alltoallv(out, counts, in, in_counts, size, sizeof *out);
    for (int p = 0, i = 0; p < size && !rc; p++)
        for (int k = 0; k < in_counts[p]; k++, i++) given[i] = mark_stored(&in[i], p);
    if (!rc) rc = alltoallv(given, in_counts, answers, counts, size, 1);
    for (int i = 0; i < n && !rc; i++)
        if (answers[i]) asked[i]->flags = (asked[i]->flags & ~(uint32_t)MPY_RF_COMPLETE) | MPY_RF_SYNC;
    drop(given, (size_t)n_in + 1);
    drop(answers, (size_t)n + 1);
    drop(asked, (size_t)(n + 1) * sizeof *asked);
    drop(in, (size_t)(n_in + 1) * sizeof *in);
    drop(out, (size_t)(n + 1) * sizeof *out);
    drop(counts, (size_t)size * 3 * sizeof *counts);
    return rc;
}

/* ---- emptying the network ---- */

/* This rank's part. */
typedef struct effort {
    mpy_p2p_thread_t *th;
    const column_t *expected; /* from each rank */
    int size;
    bool empty, failed; /* finished, with success or with failure */
    bool moved;         /* something has moved in this period */
    int from;           /* a rank from which something is missing, or -1 */
    int64_t period_end; /* time of the next vote; 0: no period has begun */
    uint64_t tcp_bytes; /* TCP bytes at the beginning of the period */
    char *error;
    uint64_t n;
} effort_t;

static bool is_open(const effort_t *e) { return !e->empty && !e->failed; }

static void begin_period(effort_t *e) {
    e->period_end = mpy_sys_now_ms() + 1000l * MPY_LOWER->drain_seconds;
    e->tcp_bytes = MPY_LOWER->svc->tcp_bytes();
    e->moved = false;
}

/* One round; true if anything moved. */
static bool work(effort_t *e) {
    int rc = MPI_SUCCESS;
    bool all_done, moved = poke_slots(e->th, &all_done);
    mpy_orphan_reap(e->th);
    moved |= take_probed(e->th, &rc);
    if (!rc) moved |= take_unmatched(e->th, &rc);
    moved |= mpy_ack_poll();
    if (!rc) moved |= mpy_partitioned_take(&rc);
    moved |= mpy_offers_look() | mpy_offers_take_ends();
    bool gone = mpy_internal_messages_all_sent() && offers_received(e->expected, e->size);
    e->moved |= moved;
    e->from = missing_from(e->expected, e->size);
    if (rc == MPI_ERR_NO_MEM) {
        e->failed = true;
        mpy_text_format(e->error, e->n, "there is no memory for a message in flight");
    } else if (rc) {
        e->failed = true;
        mpy_text_format(e->error, e->n, "the MPI library failed while messages were received (error %d)", rc);
    } else if (e->from < 0 && all_done && gone) {
        e->empty = true;
    } else if (MPY_LOWER->cancelled) {
        e->failed = true;
        mpy_text_format(e->error, e->n,
                        MPY_LOWER->abandoned ? "the coordinator is lost" : "the checkpoint was cancelled");
    }
    return moved;
}

static void work_until_vote(effort_t *e) {
    for (uint32_t round = 1; is_open(e); round++) {
        bool moved = work(e);
        if (round % LOOK_ROUNDS == 0) {
            if (e->period_end == 0) begin_period(e);
            if (mpy_sys_now_ms() >= e->period_end) return;
        }
        if (!moved && round > YIELD_ROUNDS) mpy_yield(round);
    }
}

typedef struct ballot { /* sums over all ranks */
    int open, moved, failed; /* number of ranks */
    int ssends;              /* number of ranks with synchronous sends */
} ballot_t;

/* The work continues during the vote: other ranks may enter it late because they need this work. */
static int vote(effort_t *e, ballot_t *mine, ballot_t *all) {
    int request, rc = ABANDONED;
    if (is_open(e) && MPY_LOWER->svc->tcp_bytes() - e->tcp_bytes >= MOVED_BYTES) e->moved = true;
    *mine = (ballot_t){is_open(e), e->moved, e->failed, mpy_ssend_first() != NULL};
    begin_period(e); /* also if this rank is empty: what it had moved must not keep the others waiting */
    if (!was_left)
        rc = MPY_REAL(Iallreduce)(mine, all, sizeof *mine / sizeof(int), MPI_INT, MPI_SUM, mpy_private_comm, &request);
    uint32_t spins = 0;
    for (int done = 0; !rc && !done;) {
        rc = look(&request, &done);
        if (!rc && !done && !(is_open(e) && work(e))) mpy_spin(&spins);
    }
    return rc;
}

/* Gives up on messages that can't be received any more (their communicator was freed). */
static void give_up(effort_t *e) {
    e->failed = true;
    if (e->from >= 0)
        mpy_text_format(e->error, e->n,
                        "a message from rank %d cannot be received (was its communicator freed before?)", e->from);
    else
        mpy_text_format(e->error, e->n,
                        "a send or a nonblocking collective does not complete although all messages were received");
}

/* Works until the last vote. Returns the error of a vote. */
static int empty_network(effort_t *e, ballot_t *mine, ballot_t *all) {
    for (;;) {
        work_until_vote(e);
        int rc = vote(e, mine, all);
        if (rc || all->failed > 0 || all->open == 0) return rc;
        if (all->moved > 0) continue;
        if (is_open(e)) give_up(e);
        return 0;
    }
}

/* ---- the hook ---- */

static int drain(mpy_p2p_thread_t *th, char *error, uint64_t n) {
    int size = mpy_world->size, request;
    size_t bytes = (size_t)size * 2 * sizeof(column_t) + 2 * sizeof(ballot_t);
    column_t *out = mpy_alloc(bytes), *expected = out + size;
    ballot_t *mine = (ballot_t *)(expected + size), *all = mine + 1;
    effort_t effort = {.th = th, .expected = expected, .size = size, .error = error, .n = n};
    for (int p = 0; p < size; p++) out[p] = (column_t){sum_sent(p), mpy_internal_messages_sent[p], mpy_offers_asked[p]};
    int rc = MPY_REAL(Ialltoall)(out, (int)sizeof *out, MPI_BYTE, expected, (int)sizeof *out, MPI_BYTE,
                                 mpy_private_comm, &request);
    rc = await(rc, &request);
    if (rc) {
        effort.failed = true;
        mpy_text_format(error, n,
                        was_left ? "the coordinator is lost"
                                 : "the MPI library failed in the exchange of message counts (error %d)",
                        rc);
    }
    rc = empty_network(&effort, mine, all);
    bool all_empty = !rc && all->failed == 0 && all->open == 0;
    if (!rc && all->ssends > 0) rc = settle_ssends(size);
    keep_classes();
    if (!effort.failed && (rc || !all_empty)) {
        effort.failed = true;
        mpy_text_format(error, n, "another rank could not empty the network");
    }
    drop(out, bytes);
    return effort.failed ? -1 : 0;
}

int mpy_p2p_drain(char *error, uint64_t n) {
    if (!mpy_mpi_is_up(MPY_UPPER)) return 0;
    mpy_thread_t *t = hook_thread();
    mpy_hook_in(t);
    int rc = drain(&mpy_p2p_threads[0], error, n);
    mpy_hook_out(t);
    return rc;
}

/* ---- after a restart ---- */

static uint64_t order_of(const void *request) { return ((const mpy_request_t *)request)->order; }

static bool is_open_receive(const mpy_request_t *r) {
    return (r->kind == MPY_REQ_RECV || r->kind == MPY_REQ_SENDRECV) &&
           !(r->flags & (MPY_RF_COMPLETE | MPY_RF_INACTIVE | MPY_RF_NEVER));
}

static int repost(mpy_request_t *r) {
    /* every member has freed it, and the drain has received everything that was sent */
    if (r->comm->obj.real == MPI_COMM_NULL) {
        r->flags |= MPY_RF_NEVER;
        return MPI_SUCCESS;
    }
    return mpy_real_irecv(r->buf, r->count, mpy_request_real_type(r), r->peer, r->tag, r->comm->obj.real, &r->real);
}

/* Will the real library get this request's tag again? (A slot that has finished may have the tag of an older one.) */
static bool needs_tag(const mpy_request_t *r) {
    bool is_persistent = r->flags & MPY_RF_FAMILY && r->family->persistent;
    return is_open_receive(r) ||
           (is_persistent && (r->kind == MPY_REQ_SEND || r->kind == MPY_REQ_SSEND || r->kind == MPY_REQ_RECV));
}

static int largest_tag(void) {
    int largest = 0;
    for (uint32_t i = 0; i < mpy_request_limit; i++) {
        const mpy_request_t *r = mpy_request_at(i);
        if (needs_tag(r) && r->tag > largest) largest = r->tag;
    }
    return largest;
}

static int rebuild(void) {
    int rc = mpy_p2p_init();
    uint32_t n = 0;
    if (rc == 0) rc = mpy_offers_rebuild();
    for (uint32_t i = 0; i < mpy_request_limit; i++) n += is_open_receive(mpy_request_at(i));
    if (rc || n == 0) return rc;
    mpy_request_t **open = mpy_alloc(n * sizeof *open);
    n = 0;
    for (uint32_t i = 0; i < mpy_request_limit; i++)
        if (is_open_receive(mpy_request_at(i))) open[n++] = mpy_request_at(i);
    mpy_sort((void **)open, n, order_of);
    for (uint32_t i = 0; i < n && !rc; i++) rc = repost(open[i]);
    mpy_free(open, n * sizeof *open);
    return rc;
}

int mpy_request_rebuild(char *error, uint64_t n) {
    if (!mpy_mpi_is_up(MPY_UPPER)) return 0;
    mpy_thread_t *t = hook_thread();
    mpy_hook_in(t);
    int tag = largest_tag(), bound = mpy_real_tag_bound(), length;
    char text[MPI_MAX_ERROR_STRING] = "";
    int rc = tag > bound ? MPI_ERR_TAG : rebuild();
    if (rc != MPI_SUCCESS && tag <= bound) MPY_REAL(Error_string)(rc, text, &length);
    mpy_hook_out(t);
    if (tag > bound)
        mpy_text_format(error, n, "a request of the program has the tag %d, but this MPI library has tags up to %d "
                        "only: restart under the MPI library under which the checkpoint was taken", tag, bound);
    else if (rc != MPI_SUCCESS)
        mpy_text_format(error, n, "a pending receive could not be posted again: %s", text);
    return rc == MPI_SUCCESS ? 0 : -1;
}
