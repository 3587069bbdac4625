/* wait.c - how a blocking call waits, and what it reports to the protocol meanwhile.
 *
 * Upper half, no libc. While no checkpoint is pending, a wait runs inside the lower half, in one crossing. While one is
 * pending, each round of tests is a crossing of its own, so that phase FROZEN stops the thread in upper code. After
 * about a millisecond the thread reports that it is blocked, and which ranks it waits for, so that the coordinator can
 * let a parked peer advance.
 *
 * Invariants
 *  1. A call that makes progress takes back the reported wait (mpy_p2p_done), in any phase.
 *  2. Waiting for all of several requests: the report names the peers that must act. It names wildcards only if nothing
 *     else is open. Waiting for any of them: it names all peers that could satisfy one. If there are none at all, this
 *     is reported, too: the rank isn't running.
 *  3. A request that a round has finished is recorded in its slot before the thread leaves the lower half.
 */
#include "request.h"
#include "p2p.h"
#include "clock/clock.h"

enum {
    ROUNDS_AWAKE = 16,   /* rounds that only yield the processor; later rounds sleep for NAP_NS */
    ROUNDS_SILENT = 26,  /* rounds before the first report: about 1 ms */
    ROUNDS_REPORT = 16,  /* rounds between later reports, because the peers may have changed */
    POLLS_SILENT = 16,   /* failing polls of the program before the first report ... */
    POLLS_SILENT_MS = 20, /* ... or the time for which they have been failing */
    NAP_NS = 50000,
    HEAVY_SHORT_NS = 1,     /* sleep of a heavy yield, as in MPICH ... */
    HEAVY_LONG_NS = 200000, /* ... and after HEAVY_ROUNDS, which take about 0.1 s */
    HEAVY_ROUNDS = 1000,
    PEERS_MANY = MPY_PEERS_MAX + 1,
};

/* ---- which ranks a thread waits for ---- */

typedef struct mpy_wait_peers {
    int32_t world[MPY_PEERS_MAX];
    uint32_t n; /* PEERS_MANY: too many to list */
    const mpy_comm_t *comm;     /* communicator of the first peer */
    const mpy_comm_t *wildcard; /* communicator of a wildcard receive; the world if there are several */
    bool one_comm;
} mpy_wait_peers_t;

static void peer_add(mpy_wait_peers_t *p, const mpy_comm_t *c, const mpy_comm_t *row_of, int rank) {
    if (rank == MPI_ANY_SOURCE) p->wildcard = p->wildcard == NULL || p->wildcard == row_of ? row_of : mpy_world;
    if (rank < 0) return; /* waiting for MPI_PROC_NULL is waiting for nobody */
    int32_t world = mpy_peer_world(c, rank);
    if (world == MPY_FOREIGN) return;
    if (p->comm == NULL) p->comm = row_of;
    p->one_comm &= p->comm == row_of;
    uint32_t n = p->n < MPY_PEERS_MAX ? p->n : MPY_PEERS_MAX;
    for (uint32_t i = 0; i < n; i++)
        if (p->world[i] == world) return;
    if (n < MPY_PEERS_MAX) p->world[n] = world;
    p->n = n + 1;
}

void mpy_wait_peer(mpy_wait_peers_t *p, const mpy_request_t *r, int rank) {
    /* other freed communicators keep their row while a request exists */
    bool rowless = r->flags & MPY_RF_REF_COMM && r->comm->foreign;
    peer_add(p, r->comm, rowless ? mpy_world : r->comm, rank);
}

static void peer_add_request(mpy_wait_peers_t *p, const mpy_request_t *r) {
    if (r->flags & MPY_RF_FAMILY && r->family->peers) {
        r->family->peers(p, r);
        return;
    }
    switch ((mpy_request_kind_t)r->kind) {
    case MPY_REQ_SEND:
    case MPY_REQ_SSEND:
    case MPY_REQ_MRECV:
        mpy_wait_peer(p, r, r->peer);
        break;
    case MPY_REQ_RECV:
        if (!(r->flags & MPY_RF_NEVER)) mpy_wait_peer(p, r, r->peer);
        break;
    case MPY_REQ_OTHER: /* members that haven't started it are below target, so they run anyway */
    case MPY_REQ_SENDRECV: /* their families know */
    case MPY_REQ_FAMILY:
    case MPY_REQ_FREE:
    case MPY_REQ_MESSAGE:
        break;
    }
}

static void report(mpy_thread_t *t, const mpy_wait_t *w) {
    if (w->source == MPY_ALL_MEMBERS) {
        mpy_clock_blocked(t, w->comm, NULL, 0, 1, MPY_WAIT_ALL);
        return;
    }
    mpy_wait_peers_t p = {.one_comm = true};
    if (w->handles == NULL) peer_add(&p, w->comm, w->comm, w->source);
    for (int i = 0; w->handles != NULL && i < w->n; i++) {
        const mpy_request_t *r = mpy_request(w->handles[i]);
        if (r != NULL && !(r->flags & (MPY_RF_COMPLETE | MPY_RF_INACTIVE))) peer_add_request(&p, r);
    }
    const mpy_comm_t *members = p.one_comm ? p.comm ? p.comm : p.wildcard : mpy_world;
    if (p.n == 0 && p.wildcard == NULL)
        mpy_clock_blocked(t, NULL, NULL, 0, 0, MPY_WAIT_ALL);
    else if (w->mode == MPY_WAIT_ANY && (p.wildcard != NULL || p.n == PEERS_MANY))
        mpy_clock_blocked(t, members, NULL, 0, 1, MPY_WAIT_ANY);
    else if (p.n == 0)
        mpy_clock_blocked(t, p.wildcard, NULL, 0, 1, MPY_WAIT_ANY);
    else if (p.n == PEERS_MANY)
        /* the other peers follow when these have finished */
        mpy_clock_blocked(t, members, p.world, MPY_PEERS_MAX, 0, MPY_WAIT_ALL);
    else
        mpy_clock_blocked(t, p.comm, p.world, p.n, 0, w->mode);
}

/* ---- waiting ---- */

static void nap(long ns) {
    const struct timespec time = {0, ns};
    mpy_sys(SYS_nanosleep, &time, NULL);
}

void mpy_yield(uint32_t round) {
    if (MPY_LOWER->heavy_yield)
        nap(round < HEAVY_ROUNDS ? HEAVY_SHORT_NS : HEAVY_LONG_NS);
    else
        mpy_sys(SYS_sched_yield);
}

void mpy_wait_round(mpy_thread_t *t, mpy_wait_t *w) {
    if (MPY_LIKELY(MPY_LOWER->phase == MPY_PHASE_NONE && t->state == MPY_STATE_RUNNING)) {
        mpy_spin(&w->spins);
        return;
    }
    mpy_cross_out(t);
    if (MPY_LOWER->phase == MPY_PHASE_NONE) {
        mpy_clock_unblocked(t);
        w->rounds = 0;
    } else {
        if (w->rounds >= ROUNDS_SILENT && (w->rounds - ROUNDS_SILENT) % ROUNDS_REPORT == 0) report(t, w);
        if (w->rounds++ < ROUNDS_AWAKE)
            mpy_sys(SYS_sched_yield);
        else
            nap(NAP_NS);
    }
    mpy_cross_in(t);
}

void mpy_poll_failed_slow(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_wait_t *w) {
    int64_t now = mpy_sys_now_ms();
    if (th->fails++ == 0) th->failing_since = now;
    /* A program that sleeps between its polls seldom polls, but it is blocked, too. */
    if (th->fails % POLLS_SILENT == 0 || now - th->failing_since >= POLLS_SILENT_MS) report(t, w);
}

/* ---- finishing one slot ---- */

bool mpy_request_poke(mpy_p2p_thread_t *th, mpy_request_t *r) {
    if (r->flags & MPY_RF_SYNC) mpy_ack_poll();
    if (r->flags & (MPY_RF_COMPLETE | MPY_RF_INACTIVE)) return true;
    if (r->flags & (MPY_RF_SYNC | MPY_RF_NEVER)) return false;
    if (r->flags & MPY_RF_FAMILY && r->family->poke) {
        if (!r->family->poke(th, r)) return false;
        r->flags |= MPY_RF_COMPLETE;
        return true;
    }

    MPI_Status status;
    mpy_status_empty(&status); /* for a send the library sets only "cancelled" */
    int done = 0;
    int rc = MPY_REAL(Test)(&r->real, &done, &status);
    if (!done && !rc) return false;
    if (!(r->flags & MPY_RF_CANCEL && status.count_hi_and_cancelled & 1)) mpy_count_request(th, r, &status, rc);
    r->status = status;
    r->error = rc;
    r->flags |= MPY_RF_COMPLETE;
    return true;
}

bool mpy_request_ready(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    if (!mpy_request_poke(th, r)) return false;
    if (!(r->flags & MPY_RF_FAMILY) || r->family->finish == NULL) return true;
    if (r->flags & (MPY_RF_INACTIVE | MPY_RF_FINISHED)) return true;
    if (r->error == 0 && !r->family->finish(t, th, r)) return false;
    r->flags |= MPY_RF_FINISHED; /* not if finish leaves by longjmp: then it is called again (invariant 2 of fold.c) */
    return true;
}

/* In the lower half, but leaves it for callbacks. */
void mpy_request_tell_slow(mpy_thread_t *t, mpy_request_t *r, bool last) {
    const mpy_request_family_t *f = r->family;
    bool dispose = last && !f->persistent && f->dispose;
    if (r->flags & MPY_RF_INACTIVE || !(f->query || dispose)) return;
    mpy_cross_out(t);
    if (f->query) r->error = f->query(t, r, &r->status);
    if (dispose) r->error = f->dispose(t, r);
    mpy_cross_in(t);
}

/* Puts a persistent request back into its state before Start. */
static void deactivate(mpy_request_t *r) {
    if (r->flags & MPY_RF_LISTED) mpy_ssend_remove(r);
    r->flags = (r->flags & ((uint32_t)MPY_RF_FAMILY | MPY_RF_REF_COMM | MPY_RF_REF_TYPE)) | MPY_RF_INACTIVE;
    r->real = MPI_REQUEST_NULL;
    r->error = MPI_SUCCESS;
    mpy_status_empty(&r->status);
}

int mpy_request_collect(mpy_p2p_thread_t *th, mpy_request_t *r, int *handle, MPI_Status *status) {
    int rc = r->error;
    if (r->flags & MPY_RF_INACTIVE) {
        mpy_status_empty(status); /* including MPI_ERROR, which mpy_status_copy doesn't change */
        return rc;
    }
    mpy_status_copy(status, &r->status);
    if (r->flags & MPY_RF_FAMILY && r->family->persistent) {
        deactivate(r);
        return rc;
    }
    mpy_request_release(th, r);
    if (handle != NULL) *handle = MPI_REQUEST_NULL;
    return rc;
}

int mpy_request_finish(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r, int *handle, MPI_Status *status) {
    mpy_wait_t w = {.handles = &r->handle, .n = 1, .mode = MPY_WAIT_ALL};
    while (!mpy_request_ready(t, th, r)) mpy_wait_round(t, &w);
    mpy_request_tell(t, r, true);
    return mpy_request_collect(th, r, handle, status);
}
