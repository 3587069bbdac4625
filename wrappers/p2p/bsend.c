/* bsend.c - buffered sends, the program's attached buffers, and requests that continue without the program.
 *
 * Upper half, no libc. A buffered send is a packed copy, in our memory, sent with a standard nonblocking send whose
 * slot is an orphan. So no real library ever holds the program's buffer. Detaching waits in our own loop, which a
 * checkpoint can stop, and a restart has nothing to attach again. An attached buffer only limits how much may be in
 * progress. There is one for the process, one for each communicator and one for each session. A send uses the buffer of
 * its communicator, or else of the session that its communicator comes from, or else of the process (MPI-4.1 3.6).
 *
 * Invariants
 *  1. Orphans are in the list, under mpy_p2p_lock, and have no other owner. A reap (any thread, in the lower half)
 *     releases those that have finished. The drain completes all of their sends.
 *  2. A buffer's `used` is the sum of the packed sizes and overheads of the orphaned buffered sends that point to it
 *     (more).
 *  3. A buffer lives while it is attached, while a send of it is in progress, and while a flush of it isn't complete
 *     (refs, with the lock).
 */
#include "request.h"
#include "comm/session.h"
#include "core/objects.h"
#include "environment/errors.h"
#include "environment/outside.h"
#include "messages/offer.h"
#include "p2p.h"
#include "tools/trace.h"

static mpy_request_t *orphans;

struct mpy_buffer {
    void *address;
    MPI_Count size, used;
    bool automatic; /* MPI_BUFFER_AUTOMATIC: no bound */
    int32_t refs;
};

static mpy_buffer_t *attached; /* the process's */

/* Call all of these with the lock. */
static void unref(mpy_buffer_t *b) {
    if (--b->refs == 0) mpy_free(b, sizeof *b);
}

static void give_back(mpy_buffer_t *b, MPI_Count bytes) {
    b->used -= bytes + MPI_BSEND_OVERHEAD;
    unref(b);
}

void mpy_orphan_add(mpy_request_t *r) {
    if (r->flags & MPY_RF_LISTED) mpy_ssend_remove(r); /* nobody will ask whether it was matched */
    mpy_lock(&mpy_p2p_lock);
    r->flags |= MPY_RF_ORPHAN;
    r->next = orphans;
    orphans = r;
    mpy_unlock(&mpy_p2p_lock);
}

bool mpy_orphan_reap(mpy_p2p_thread_t *th) {
    if (MPY_LIKELY(orphans == NULL)) return true;
    mpy_request_t *finished = NULL;
    mpy_lock(&mpy_p2p_lock);
    for (mpy_request_t **link = &orphans; *link != NULL;) {
        mpy_request_t *r = *link;
        if (!mpy_request_poke(th, r)) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        if (r->flags & MPY_RF_BSEND) give_back(r->more, r->count);
        r->next = finished;
        finished = r;
    }
    bool none = orphans == NULL;
    mpy_unlock(&mpy_p2p_lock);
    while (finished != NULL) {
        mpy_request_t *r = finished;
        finished = r->next;
        mpy_request_release(th, r);
    }
    return none;
}

/* Reserves room for a send of `bytes` in a buffer. Returns the buffer, or NULL. */
static mpy_buffer_t *reserve(const mpy_comm_t *c, MPI_Count bytes) {
    mpy_lock(&mpy_p2p_lock);
    const mpy_session_t *session = mpy_session(c->session);
    mpy_buffer_t *b = c->buffer != NULL                            ? c->buffer
                      : session != NULL && session->buffer != NULL ? session->buffer
                                                                   : attached;
    if (b != NULL && !b->automatic && b->used + bytes + MPI_BSEND_OVERHEAD > b->size) b = NULL;
    if (b != NULL) {
        b->used += bytes + MPI_BSEND_OVERHEAD;
        b->refs++;
    }
    mpy_unlock(&mpy_p2p_lock);
    return b;
}

int mpy_bsend_start(mpy_p2p_thread_t *th, mpy_comm_t *c, const void *buf, MPI_Count count, int datatype, int dest,
                    int tag) {
    mpy_packed_t packed;
    mpy_buffer_t *buffer = NULL;
    int real;
    mpy_orphan_reap(th);
    int rc = mpy_pack(c, buf, count, datatype, &packed);
    if (rc) return rc;
    if (dest >= 0 && (buffer = reserve(c, packed.bytes)) == NULL) {
        mpy_pack_free(&packed);
        return MPI_ERR_BUFFER;
    }
    rc = mpy_real_isend(packed.data, packed.bytes, MPI_PACKED, dest, tag, c->obj.real, &real);
    if (rc || dest < 0) { /* MPI_PROC_NULL: finished at once */
        if (!rc) MPY_REAL(Wait)(&real, MPI_STATUS_IGNORE);
        if (buffer != NULL) {
            mpy_lock(&mpy_p2p_lock);
            give_back(buffer, packed.bytes);
            mpy_unlock(&mpy_p2p_lock);
        }
        mpy_pack_free(&packed);
        return rc;
    }
    mpy_count_sent(th, c, dest);
    mpy_ssend_later(c, dest, tag);
    mpy_request_t *r = mpy_request_take(th);
    mpy_request_fill(r, MPY_REQ_SEND, real, packed.data, packed.bytes, MPI_PACKED, dest, tag, c);
    r->bytes = packed.capacity;
    r->more = buffer;
    r->flags |= MPY_RF_PACKED | MPY_RF_BSEND;
    mpy_orphan_add(r);
    return MPI_SUCCESS;
}

static int bsend(const char *name, const void *buf, MPI_Count count, int datatype, int dest, int tag, int comm,
                 int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    uint64_t record = request == NULL ? MPY_TRACE(t, .op = MPY_OP_BSEND, MPY_TRACE_P2P(c, dest, tag, count, datatype))
                                      : MPY_TRACE(t, .op = MPY_OP_BSEND, .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST,
                                                  MPY_TRACE_P2P(c, dest, tag, count, datatype));

    mpy_cross_in(t);
    int rc = mpy_bsend_start(th, c, buf, count, mpy_real_datatype(datatype), dest, tag);
    if (!rc && request != NULL) { /* the program's request is finished, and its data can be reused */
        mpy_request_t *r = mpy_request_take(th);
        r->real = MPI_REQUEST_NULL;
        r->comm = c;
        r->error = MPI_SUCCESS;
        mpy_status_empty(&r->status);
        r->flags = MPY_RF_COMPLETE;
        r->peer = dest;
        r->kind = MPY_REQ_SEND;
        mpy_trace_posted(t, record, r);
        *request = r->handle;
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return rc == MPI_SUCCESS ? rc : mpy_error(c, rc, name);
}

#define DEFINE_BSEND(SUFFIX, COUNT)                                                                                    \
    MPY_API int PMPI_Bsend##SUFFIX(const void *buf, COUNT count, MPI_Datatype datatype, int dest, int tag,             \
                                   MPI_Comm comm) {                                                                    \
        return bsend("MPI_Bsend" #SUFFIX, buf, count, datatype, dest, tag, comm, NULL);                                \
    }                                                                                                                  \
    MPY_API int PMPI_Ibsend##SUFFIX(const void *buf, COUNT count, MPI_Datatype datatype, int dest, int tag,            \
                                    MPI_Comm comm, MPI_Request *request) {                                             \
        return bsend("MPI_Ibsend" #SUFFIX, buf, count, datatype, dest, tag, comm, request);                            \
    }

DEFINE_BSEND(, int)
DEFINE_BSEND(_c, MPI_Count)

/* ---- attached buffers ---- */

/* Where a buffer of the program is attached, and whose error handler is called. */
typedef struct place {
    mpy_buffer_t **slot; /* NULL: no such communicator or session */
    mpy_comm_t *comm;
    mpy_session_t *session;
    int bad; /* error class if there is no such object */
} place_t;

static place_t of_process(void) { return (place_t){.slot = &attached}; }
static place_t of_comm(MPI_Comm comm) {
    mpy_comm_t *c = mpy_comm(comm);
    return (place_t){.slot = c != NULL ? &c->buffer : NULL, .comm = c, .bad = MPI_ERR_COMM};
}
static place_t of_session(MPI_Session session) {
    mpy_session_t *s = mpy_session(session);
    return (place_t){.slot = s != NULL ? &s->buffer : NULL, .session = s, .bad = MPI_ERR_SESSION};
}
static int failed(place_t p, int rc, const char *name) {
    return p.session != NULL ? mpy_session_error(p.session, rc, name) : mpy_error(p.comm, rc, name);
}

static int attach(place_t p, void *address, MPI_Count size, const char *name) {
    if (p.slot == NULL) return failed(p, p.bad, name);
    if (size < 0) return failed(p, MPI_ERR_ARG, name);
    if (*p.slot != NULL) return failed(p, MPI_ERR_OTHER, name);
    bool automatic = address == MPI_BUFFER_AUTOMATIC;
    if (!automatic && size < MPI_BSEND_OVERHEAD) return failed(p, MPI_ERR_BUFFER, name);
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    mpy_buffer_t *b = mpy_alloc(sizeof *b);
    b->address = address;
    b->size = size;
    b->automatic = automatic;
    b->refs = 1;
    *p.slot = b;
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

/* ---- requests that are complete when no send of a buffer is in progress (more; NULL: of any buffer), or no orphaned
 * send on a communicator ---- */

static const mpy_request_family_t flushing, leaving;

static bool waits_for(const mpy_request_t *flush, const mpy_request_t *r) {
    if (flush->family == &flushing) return r->flags & MPY_RF_BSEND && (flush->more == NULL || r->more == flush->more);
    if (r->comm != flush->comm) return false;
    return r->kind == MPY_REQ_SEND || r->kind == MPY_REQ_SSEND ||
           (r->kind == MPY_REQ_SENDRECV && !mpy_sendrecv_sent(r));
}

/* An orphan's is called with the lock, by mpy_orphan_reap. */
static bool flush_poke(mpy_p2p_thread_t *th, mpy_request_t *r) {
    bool orphan = r->flags & MPY_RF_ORPHAN;
    if (!orphan) {
        mpy_orphan_reap(th);
        mpy_lock(&mpy_p2p_lock);
    }
    const mpy_request_t *send = orphans;
    while (send != NULL && !waits_for(r, send)) send = send->next;
    if (!orphan) mpy_unlock(&mpy_p2p_lock);
    return send == NULL;
}

static void flush_release(mpy_request_t *r) {
    if (r->more == NULL) return;
    mpy_lock(&mpy_p2p_lock);
    unref(r->more);
    mpy_unlock(&mpy_p2p_lock);
}

static void flush_peers(struct mpy_wait_peers *p, const mpy_request_t *r) {
    mpy_lock(&mpy_p2p_lock);
    for (const mpy_request_t *send = orphans; send != NULL; send = send->next)
        if (waits_for(r, send)) mpy_wait_peer(p, send, send->peer);
    mpy_unlock(&mpy_p2p_lock);
}

static const mpy_request_family_t flushing = {
    .name = "buffer flush", .poke = flush_poke, .release = flush_release, .peers = flush_peers};
static const mpy_request_family_t leaving = {
    .name = "end of the sends on a communicator", .poke = flush_poke, .peers = flush_peers};

static mpy_request_t *flush_request(mpy_p2p_thread_t *th, mpy_comm_t *c, mpy_buffer_t *b) {
    if (b != NULL) {
        mpy_lock(&mpy_p2p_lock);
        b->refs++;
        mpy_unlock(&mpy_p2p_lock);
    }
    return mpy_request_of_family(th, &flushing, MPY_REQ_FAMILY, c, b);
}

/* Waits until no orphaned send on `c` is in progress. NULL: no buffered send of `b`; b NULL, too: of any buffer. */
static void wait_for_sends(mpy_comm_t *c, mpy_buffer_t *b) {
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_cross_in(t);
    if (!mpy_orphan_reap(th)) {
        mpy_request_t *r = c != NULL ? mpy_request_of_family(th, &leaving, MPY_REQ_FAMILY, c, NULL)
                                     : flush_request(th, mpy_world, b);
        mpy_wait_t w = {.handles = &r->handle, .n = 1, .mode = MPY_WAIT_ALL};
        while (!mpy_request_poke(th, r)) mpy_wait_round(t, &w);
        mpy_request_release(th, r);
    }
    mpy_cross_out(t);
    mpy_p2p_done(t, th);
}
static void flush(mpy_buffer_t *b) { wait_for_sends(NULL, b); }

void mpy_p2p_comm_flush(mpy_comm_t *c) { wait_for_sends(c, NULL); }

void mpy_p2p_flush(void) {
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_wait_t w = {.comm = mpy_world, .source = MPY_ALL_MEMBERS};
    flush(NULL);
    mpy_cross_in(t);
    while (!mpy_offers_end()) mpy_wait_round(t, &w);
    mpy_cross_out(t);
    mpy_p2p_done(t, th);
}

static int flush_at(place_t p, const char *name) {
    mpy_require_mpi(name);
    if (p.slot == NULL) return failed(p, p.bad, name);
    if (*p.slot != NULL) flush(*p.slot);
    return MPI_SUCCESS;
}

void mpy_buffer_detach(mpy_buffer_t **slot, void **address, MPI_Count *size) {
    mpy_buffer_t *b = *slot;
    *address = NULL;
    *size = 0;
    if (b == NULL) return;
    flush(b);
    *address = b->address;
    *size = b->size;
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    mpy_lock(&mpy_p2p_lock);
    *slot = NULL;
    unref(b);
    mpy_unlock(&mpy_p2p_lock);
    mpy_guard_out(t);
}

static int detach(place_t p, void *address, MPI_Count *size, const char *name) {
    mpy_require_mpi(name);
    if (p.slot == NULL) return failed(p, p.bad, name);
    mpy_buffer_detach(p.slot, address, size);
    return MPI_SUCCESS;
}

static int iflush(place_t p, MPI_Request *request, const char *name) {
    mpy_require_mpi(name);
    if (p.slot == NULL) return failed(p, p.bad, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_guard_in(t);
    mpy_request_t *r = flush_request(th, p.comm != NULL ? p.comm : mpy_world, *p.slot);
    if (*p.slot == NULL) r->flags |= MPY_RF_COMPLETE; /* nothing is attached */
    *request = r->handle;
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

/* ---- the program's calls; the three families differ only in their first argument ---- */

#define DEFINE_ATTACH(PREFIX, BUFFER, PLACE, ...)                                                                      \
    MPY_API int PMPI_##PREFIX##attach##BUFFER(__VA_ARGS__ void *buffer, int size) {                                    \
        return attach(PLACE, buffer, size, "MPI_" #PREFIX "attach" #BUFFER);                                           \
    }                                                                                                                  \
    MPY_API int PMPI_##PREFIX##attach##BUFFER##_c(__VA_ARGS__ void *buffer, MPI_Count size) {                          \
        return attach(PLACE, buffer, size, "MPI_" #PREFIX "attach" #BUFFER "_c");                                      \
    }                                                                                                                  \
    MPY_API int PMPI_##PREFIX##detach##BUFFER(__VA_ARGS__ void *buffer_addr, int *size) {                              \
        MPI_Count n = 0;                                                                                               \
        int rc = detach(PLACE, buffer_addr, &n, "MPI_" #PREFIX "detach" #BUFFER);                                      \
        if (rc == MPI_SUCCESS) *size = (int)n;                                                                         \
        return rc;                                                                                                     \
    }                                                                                                                  \
    MPY_API int PMPI_##PREFIX##detach##BUFFER##_c(__VA_ARGS__ void *buffer_addr, MPI_Count *size) {                    \
        return detach(PLACE, buffer_addr, size, "MPI_" #PREFIX "detach" #BUFFER "_c");                                 \
    }
#define COMMA ,

DEFINE_ATTACH(Buffer_, , of_process(), )
DEFINE_ATTACH(Comm_, _buffer, of_comm(comm), MPI_Comm comm COMMA)
DEFINE_ATTACH(Session_, _buffer, of_session(session), MPI_Session session COMMA)

int PMPI_Buffer_flush(void) { return flush_at(of_process(), "MPI_Buffer_flush"); }
int PMPI_Comm_flush_buffer(MPI_Comm comm) { return flush_at(of_comm(comm), "MPI_Comm_flush_buffer"); }
int PMPI_Session_flush_buffer(MPI_Session session) { return flush_at(of_session(session), "MPI_Session_flush_buffer"); }
int PMPI_Buffer_iflush(MPI_Request *request) { return iflush(of_process(), request, "MPI_Buffer_iflush"); }
int PMPI_Comm_iflush_buffer(MPI_Comm comm, MPI_Request *request) {
    return iflush(of_comm(comm), request, "MPI_Comm_iflush_buffer");
}
int PMPI_Session_iflush_buffer(MPI_Session session, MPI_Request *request) {
    return iflush(of_session(session), request, "MPI_Session_iflush_buffer");
}
