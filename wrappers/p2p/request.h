/* request.h - requests: virtual requests, their slots, statuses, waiting. For all files that make requests or wait
 * (generated.c too). request.c and wait.c implement it.
 *
 * Invariants
 *  1. All state of this header (request slots, free lists, counters, store) changes only while the thread has in_lower
 *     = 1, or inside a hook. So a snapshot, and the drain before it, finds it consistent: either the real library has
 *     accepted a message, and it is counted and its request is in a slot; or the call has not happened.
 *  2. Therefore results are recorded between mpy_cross_in and mpy_cross_out, where the TLS is the lower one. Nothing
 *     here uses a thread-local variable except mpy_p2p_self(), which is called before.
 *  3. sent[p] and received[p] count messages by world rank over all communicators. A send counts when the real library
 *     accepts it, a receive when the real receive (or Mrecv) completes. Delivery from the store counts nothing, because
 *     the drain did.
 *  4. A slot with flags == 0 is an active operation of the real library, to be tested there. All other slots take the
 *     slow path.
 *  5. The store only grows in the drain, that is, while every thread is out of the lower half. Between mpy_cross_in and
 *     mpy_cross_out another thread can remove a message from it, but no message can be added.
 */
#ifndef MANAPY_REQUEST_H
#define MANAPY_REQUEST_H

#include "clock/clock.h"
#include "core/lock.h"
#include "core/runtime.h"

typedef enum {
    MPY_REQ_FREE = 0,
    MPY_REQ_SEND,     /* standard, ready; buffered ones are standard sends of a packed copy */
    MPY_REQ_SSEND,    /* synchronous: listed, see store.c */
    MPY_REQ_RECV,     /* re-posted after a restart if unmatched */
    /* Isendrecv(_replace) of a family. The slot's real request is the receive, which is re-posted like a receive. The
     * drain completes the send. */
    MPY_REQ_SENDRECV,
    MPY_REQ_MRECV,    /* receive of a probed message: matched, so the drain completes it */
    MPY_REQ_MESSAGE,  /* a probed message (MPI_Message, same handle space as in MPICH) */
    /* nonblocking collectives, I/O, request-based RMA: an active real request that the drain completes */
    MPY_REQ_OTHER,
    MPY_REQ_FAMILY,   /* r->family defines the behaviour (persistent, generalized, partitioned ...); never "simple" */
} mpy_request_kind_t;

/* State of a slot besides "active in the real library" (invariant 4). */
enum {
    MPY_RF_COMPLETE = 1 << 0,  /* finished: status and error are in the slot */
    MPY_RF_SYNC = 1 << 1,      /* synchronous send whose message is in the receiver's store: waits for its ack */
    MPY_RF_NEVER = 1 << 2,     /* receive on a freed communicator: no message can match it any more */
    MPY_RF_CANCEL = 1 << 3,    /* MPI_Cancel was called: the status says whether it was in time */
    MPY_RF_ORPHAN = 1 << 5,    /* the program freed it (or it is the send of a Bsend): released when it finishes */
    MPY_RF_FAMILY = 1 << 6,    /* r->family is set, so it is never "simple" */
    /* persistent and not started: complete for every completion call, which does not change it */
    MPY_RF_INACTIVE = 1 << 7,
    MPY_RF_FINISHED = 1 << 8,  /* the family's finish has returned true for this completion */
    /* what release has to free */
    MPY_RF_REF_COMM = 1 << 16, /* the communicator was freed meanwhile; this reference keeps it */
    MPY_RF_REF_TYPE = 1 << 17, /* a reference on a derived datatype */
    MPY_RF_PACKED = 1 << 18,   /* buf is our packed copy of `bytes` bytes */
    MPY_RF_LISTED = 1 << 19,   /* in the list of incomplete synchronous sends */
    MPY_RF_BSEND = 1 << 20,    /* counts in the attached buffer (together with PACKED and ORPHAN) */
    MPY_RF_MORE = 1 << 21,     /* we own `more`, which has `bytes` bytes */
    MPY_RF_OWNS = MPY_RF_FAMILY | 0x7fff << 16, /* if any of these is set, release has work to do */
};

typedef struct mpy_stored mpy_stored_t;
struct mpy_request;
struct mpy_p2p_thread;
struct mpy_wait_peers;

struct mpy_trace_call; /* <manapy/trace_ring.h> */

/* A family defines requests that need more than a test of a real request. Any function may be NULL. The slot's `more`
 * is the family's own data.
 *
 * The kind of a family's slot says what the drain and a restart do with it, as for other requests (a persistent receive
 * is a RECV, a persistent collective may be an OTHER). For MPY_REQ_FAMILY only the family knows.
 *
 * A completion call (Wait*, Test*) pokes until the requests it needs are COMPLETE. Then it calls finish until that is
 * true, too. Then it calls query and dispose, in this order, for each request whose completion it reports. Then it
 * returns the status and makes the slot INACTIVE or releases it. Before that the program knows nothing: it may be
 * checkpointed and restarted between any two of these steps. A callback that doesn't return (longjmp, exception) leaves
 * a COMPLETE request. Request_get_status* does the same up to query. */
typedef struct mpy_request_family {
    const char *name;
    /* true: completion makes it INACTIVE and keeps the program's handle; false: completion releases it */
    bool persistent;
    /* For kind FAMILY. True: the drain must complete it (collectives, I/O). False: it may stay open over a
     * checkpoint. */
    bool in_drain;
    /* Lower half, also in the drain; for an orphan with mpy_p2p_lock held. Returns true if the request is finished;
     * then status and error are in the slot. Not called when COMPLETE or INACTIVE. The caller sets COMPLETE. NULL: test
     * r->real (finished if it is MPI_REQUEST_NULL). */
    bool (*poke)(struct mpy_p2p_thread *th, struct mpy_request *r);
    /* Does what the drain can't do. Called only in completion calls, for a COMPLETE slot without error, until it is
     * true. Lower half; may leave it for callbacks of the program. Doesn't wait. Sets r->error. */
    bool (*finish)(mpy_thread_t *t, struct mpy_p2p_thread *th, struct mpy_request *r);
    /* These two call callbacks of the program, on the upper TLS, with in_lower = 0 and no lock held. They return the
     * request's error, which is r->error until then, and may change *status (r->status). query: each time a status is
     * requested. dispose: once, before the handle becomes null; also in Request_free of a finished request (but not of
     * an INACTIVE one). */
    int (*query)(mpy_thread_t *t, struct mpy_request *r, MPI_Status *status);
    int (*dispose)(mpy_thread_t *t, struct mpy_request *r);
    /* Upper TLS: MPI_Start, Startall. Gets an INACTIVE slot. It counts on the clock and crosses by itself (mpy_cross_in
     * ...), starts, and calls mpy_request_activate before mpy_cross_out. Or it returns an error code; then the caller
     * calls the error handler. */
    int (*start)(mpy_thread_t *t, struct mpy_p2p_thread *th, struct mpy_request *r);
    /* mpy_trace_op_t of what MPI_Start starts, for the trace. 0: unknown, or `traced` sets it and the rest of the
     * record. */
    uint32_t op;
    void (*traced)(const struct mpy_request *r, struct mpy_trace_call *call);
    /* upper TLS, active request. NULL: the real MPI_Cancel of r->real */
    int (*cancel)(mpy_thread_t *t, struct mpy_request *r);
    /* Upper TLS: Request_free of an active request that isn't finished. True: it will be released by itself. False: it
     * has finished meanwhile. NULL: it becomes an orphan, which is released when it is finished, without callbacks. */
    bool (*let_go)(mpy_thread_t *t, struct mpy_request *r);
    void (*release)(struct mpy_request *r); /* lower half: frees `more` */
    /* Calls mpy_wait_peer() for each rank that the request waits for. NULL: the slot's kind decides. */
    void (*peers)(struct mpy_wait_peers *p, const struct mpy_request *r);
} mpy_request_family_t;

typedef struct mpy_request { /* the fast path uses only the first of its two cache lines */
    int real;     /* the real request or message; MPI_REQUEST_NULL when it has finished */
    int handle;   /* the program's; fixed per slot */
    uint16_t kind;
    uint16_t owner; /* while it is free: the thread that has it in its list, as an index in mpy_p2p_threads */
    uint32_t flags;
    int peer, tag; /* in the communicator's ranks, as given (ANY_SOURCE, PROC_NULL ...) */
    int datatype;  /* virtual handle */
    int error;     /* MPI error code when COMPLETE */
    mpy_comm_t *comm;         /* may be NULL if kind is FAMILY */
    struct mpy_request *next; /* in a list of free slots, orphans or synchronous sends */
    union {
        void *buf;
        mpy_stored_t *stored; /* MESSAGE whose content is in our store */
    };
    MPI_Count count;

    union {
        uint64_t order; /* posting order of receives over all threads; identity of a synchronous send */
        size_t bytes;   /* size of the packed copy, or of `more` */
    };
    mpy_object_t *type; /* with REF_TYPE */
    const mpy_request_family_t *family; /* with MPY_RF_FAMILY */
    void *more; /* the family's data; or with MPY_RF_MORE `bytes` bytes that live as long as the request */
    struct mpy_request *prev; /* for the first slot of a full magazine: the first slot of the next magazine */
    MPI_Status status;
    uint32_t later; /* SSEND: number of later sends in the same (comm, dest, tag) stream */
} mpy_request_t;
_Static_assert(sizeof(mpy_request_t) == 128, "an array index should be a shift");

enum {
    MPY_REQUEST_BASE = (int)0xac000000, /* MPICH: direct handle of kind request */
    MPY_CHUNK_BITS = 10,
    MPY_CHUNK = 1 << MPY_CHUNK_BITS,
    MPY_CHUNKS_MAX = 4096,
};

/* each has MPY_CHUNK slots, followed by as many serials */
extern MPY_HIDDEN mpy_request_t *mpy_request_chunks[MPY_CHUNKS_MAX];
extern MPY_HIDDEN volatile uint32_t mpy_request_limit; /* number of slots that exist */
extern MPY_HIDDEN uint64_t mpy_request_order;
extern MPY_HIDDEN uint32_t mpy_p2p_lock; /* protects synchronous sends, orphans, internal messages and the store */

/* One per registered thread. A new thread inherits the entry of a thread that has ended, with its free slots and
 * counts. A thread takes slots from a list of its own, without a lock, and returns to it the slots that it has taken
 * itself. It collects slots that other threads have taken in a magazine (Bonwick and Adams). A full magazine goes to
 * all threads. So slots circulate, whichever threads post and complete, and a list is never longer than the number of
 * slots that its thread has had open at a time plus one magazine. The common path, where one thread does both, does not
 * count slots: a counter costs 5 ns per request (measured). */
enum { MPY_MAGAZINE = 64 };
typedef struct mpy_p2p_thread {
    mpy_request_t *free;       /* slots of its own */
    mpy_request_t *others;     /* slots of other threads that it has completed ... */
    uint32_t nothers;          /* ... and their number: less than MPY_MAGAZINE */
    uint32_t fails;            /* polls that failed while a checkpoint is pending ... */
    int64_t failing_since;     /* ... time of the first one in milliseconds */
    uint64_t *sent, *received; /* by world rank */
} __attribute__((aligned(64))) mpy_p2p_thread_t;

_Static_assert(MPY_THREADS_MAX <= UINT16_MAX, "places fit into `owner`");

extern MPY_HIDDEN mpy_p2p_thread_t mpy_p2p_threads[MPY_THREADS_MAX];
extern __thread mpy_p2p_thread_t *mpy_p2p_tls __attribute__((tls_model("initial-exec"))) MPY_HIDDEN;
MPY_HIDDEN void mpy_p2p_counters(mpy_p2p_thread_t *th); /* allocates sent and received */
MPY_HIDDEN mpy_p2p_thread_t *mpy_p2p_self_slow(mpy_thread_t *t);
static inline mpy_p2p_thread_t *mpy_p2p_self(mpy_thread_t *t) {
    mpy_p2p_thread_t *th = mpy_p2p_tls;
    return MPY_LIKELY(th != NULL) ? th : mpy_p2p_self_slow(t);
}

/* ---- status ---- */
static inline void mpy_status_set(MPI_Status *s, int source, int tag, uint64_t bytes) { /* MPI_ERROR stays unchanged */
    s->count_lo = (int)(uint32_t)bytes;
    s->count_hi_and_cancelled = (int)((uint32_t)(bytes >> 32) << 1);
    s->MPI_SOURCE = source;
    s->MPI_TAG = tag;
}
static inline void mpy_status_copy(MPI_Status *to, const MPI_Status *from) {
    if (to == MPI_STATUS_IGNORE) return;
    int error = to->MPI_ERROR; /* single completions don't change it (MPI-4 3.2.5) */
    *to = *from;
    to->MPI_ERROR = error;
}
static inline void mpy_status_empty(MPI_Status *s) {
    if (s == MPI_STATUS_IGNORE) return;
    mpy_status_set(s, MPI_ANY_SOURCE, MPI_ANY_TAG, 0);
    s->MPI_ERROR = MPI_SUCCESS; /* an empty status (MPI-4 3.7.3) */
}

/* ---- slots (request.c) ---- */
static inline mpy_request_t *mpy_request_at(uint32_t i) {
    return &mpy_request_chunks[i >> MPY_CHUNK_BITS][i & (MPY_CHUNK - 1)];
}
/* The slot of a handle, in use or not. NULL if there never was such a slot. */
static inline mpy_request_t *mpy_request_slot(int handle) {
    uint32_t i = (uint32_t)handle ^ (uint32_t)MPY_REQUEST_BASE;
    return MPY_LIKELY(i < mpy_request_limit) ? mpy_request_at(i) : NULL;
}
/* The request of a program's handle, or NULL. */
static inline mpy_request_t *mpy_request(int handle) {
    mpy_request_t *r = mpy_request_slot(handle);
    return MPY_LIKELY(r != NULL && r->kind != MPY_REQ_FREE && !(r->flags & MPY_RF_ORPHAN)) ? r : NULL;
}
/* The same for completion calls: excludes messages. */
static inline mpy_request_t *mpy_request_valid(int handle) {
    mpy_request_t *r = mpy_request(handle);
    return MPY_LIKELY(r != NULL && r->kind != MPY_REQ_MESSAGE) ? r : NULL;
}
/* The communicator whose error handler is called. NULL for a freed communicator, which has none. */
static inline const mpy_comm_t *mpy_request_comm(const mpy_request_t *r) {
    return r->flags & MPY_RF_REF_COMM ? NULL : r->comm;
}

/* The request's serial in the trace (trace.h); 0: it has none. Every function that returns a request to the program
 * sets it (mpy_trace_posted), or sets 0. */
static inline uint64_t *mpy_request_serial(const mpy_request_t *r) {
    uint32_t i = (uint32_t)r->handle ^ (uint32_t)MPY_REQUEST_BASE;
    return (uint64_t *)(mpy_request_chunks[i >> MPY_CHUNK_BITS] + MPY_CHUNK) + (i & (MPY_CHUNK - 1));
}

static inline mpy_request_t *mpy_request_unrecorded(mpy_request_t *r) {
    *mpy_request_serial(r) = 0;
    return r;
}

MPY_HIDDEN void mpy_request_refill(mpy_p2p_thread_t *th);
MPY_HIDDEN void mpy_request_hand_over(mpy_p2p_thread_t *th, mpy_request_t *r);
static inline uint16_t mpy_p2p_place(const mpy_p2p_thread_t *th) { return (uint16_t)(th - mpy_p2p_threads); }
/* Takes a slot, with flags 0. The caller fills it and sets kind last. */
static inline mpy_request_t *mpy_request_take(mpy_p2p_thread_t *th) {
    if (MPY_UNLIKELY(th->free == NULL)) mpy_request_refill(th);
    mpy_request_t *r = th->free;
    th->free = r->next;
    r->flags = 0;
    return r;
}
MPY_HIDDEN void mpy_request_release_refs(mpy_request_t *r);
static inline void mpy_request_release(mpy_p2p_thread_t *th, mpy_request_t *r) {
    if (MPY_UNLIKELY(r->flags & MPY_RF_OWNS)) mpy_request_release_refs(r);
    r->kind = MPY_REQ_FREE;
    if (MPY_UNLIKELY(r->owner != mpy_p2p_place(th))) {
        mpy_request_hand_over(th, r);
    } else {
        r->next = th->free;
        th->free = r;
    }
}
MPY_HIDDEN void mpy_request_ref_type(mpy_request_t *r);
/* In the lower half; the program may have freed the type. */
static inline int mpy_request_real_type(const mpy_request_t *r) {
    return r->flags & MPY_RF_REF_TYPE ? r->type->real : mpy_real_datatype(r->datatype);
}
static inline void mpy_request_fill(mpy_request_t *r, mpy_request_kind_t kind, int real, const void *buf,
                                    MPI_Count count, int datatype, int peer, int tag, mpy_comm_t *comm) {
    r->real = real;
    r->buf = (void *)buf;
    r->count = count;
    r->datatype = datatype;
    r->peer = peer;
    r->tag = tag;
    r->comm = comm;
    if (MPY_UNLIKELY(!mpy_is_builtin(datatype))) mpy_request_ref_type(r);
    r->kind = kind;
}
/* The drain finishes sends, so nothing is kept to repeat one. */
static inline void mpy_request_fill_send(mpy_request_t *r, int real, int dest, mpy_comm_t *comm) {
    r->real = real;
    r->peer = dest;
    r->comm = comm;
    r->kind = MPY_REQ_SEND;
}
/* A request that the real library completes by itself, such as a nonblocking collective; in the lower half. */
static inline mpy_request_t *mpy_request_other(mpy_p2p_thread_t *th, int real, mpy_comm_t *comm) {
    mpy_request_t *r = mpy_request_take(th);
    r->real = real;
    r->comm = comm;
    r->kind = MPY_REQ_OTHER;
    return r;
}
/* `more` (mpy_alloc) lives as long as the request; returns its handle. */
static inline int mpy_request_keep(mpy_request_t *r, void *more, size_t bytes) {
    r->more = more;
    r->bytes = bytes;
    r->flags |= MPY_RF_MORE;
    return r->handle;
}
/* A request of a family; INACTIVE if the family is persistent. With in_lower set. `comm` may be NULL. */
static inline mpy_request_t *mpy_request_of_family(mpy_p2p_thread_t *th, const mpy_request_family_t *family,
                                                   mpy_request_kind_t kind, mpy_comm_t *comm, void *more) {
    mpy_request_t *r = mpy_request_take(th);
    r->real = MPI_REQUEST_NULL;
    r->comm = comm;
    r->peer = MPI_PROC_NULL;
    r->datatype = MPI_DATATYPE_NULL;
    r->family = family;
    r->more = more;
    r->error = MPI_SUCCESS;
    mpy_status_empty(&r->status);
    r->flags = MPY_RF_FAMILY | (family->persistent ? MPY_RF_INACTIVE : 0);
    r->kind = kind;
    return mpy_request_unrecorded(r);
}
/* `start` calls this before mpy_cross_out. The request is active, or finished already with status and error in the
 * slot. */
static inline void mpy_request_activate(mpy_request_t *r, bool finished) {
    r->flags = (r->flags & ~(uint32_t)MPY_RF_INACTIVE) | (finished ? MPY_RF_COMPLETE : 0);
}

/* ---- counting ---- */
static inline int mpy_peer_world(const mpy_comm_t *c, int rank) {
    return MPY_UNLIKELY(c->remote_world != NULL) ? c->remote_world[rank] : c->world[rank];
}
static inline void mpy_count_sent(mpy_p2p_thread_t *th, const mpy_comm_t *c, int dest) {
    if (MPY_LIKELY(dest >= 0)) th->sent[mpy_peer_world(c, dest)]++;
}
static inline void mpy_count_received(mpy_p2p_thread_t *th, const mpy_comm_t *c, const MPI_Status *s) {
    if (MPY_LIKELY(s->MPI_SOURCE >= 0 && !(s->count_hi_and_cancelled & 1)))
        th->received[mpy_peer_world(c, s->MPI_SOURCE)]++;
}
/* Is the status of a receive that has returned rc known to be set? If a receive fails otherwise than because its
 * message is too long, it has no message, and its status may be as before. In the lower half. */
static inline bool mpy_has_status(int rc) {
    if (MPY_LIKELY(rc == MPI_SUCCESS)) return true;
    int class = MPI_ERR_UNKNOWN;
    MPY_REAL(Error_class)(rc, &class);
    return class == MPI_ERR_TRUNCATE;
}
/* Counts a finished receive with flags 0, which has returned rc. Its status may have been ignored unless its source was
 * a wildcard. */
static inline void mpy_count_request(mpy_p2p_thread_t *th, const mpy_request_t *r, const MPI_Status *s, int rc) {
    if (r->kind == MPY_REQ_SEND || r->kind == MPY_REQ_SSEND) return;
    if (r->peer == MPI_PROC_NULL) return; /* MPICH 4 leaves the status unset */
    if (r->kind == MPY_REQ_RECV && r->peer >= 0)
        th->received[mpy_peer_world(r->comm, r->peer)]++;
    else if (r->kind != MPY_REQ_OTHER && mpy_has_status(rc))
        mpy_count_received(th, r->comm, s);
}

/* A blocking receive that we implement by a nonblocking one has finished, and has returned rc. If the source is
 * MPI_PROC_NULL, MPICH 4 leaves the status of the nonblocking one unset, but the status of a blocking one is defined
 * (MPI-4 3.11). */
static inline void mpy_count_blocking(mpy_p2p_thread_t *th, const mpy_comm_t *c, int source, MPI_Status *s, int rc) {
    if (MPY_UNLIKELY(source == MPI_PROC_NULL))
        mpy_status_set(s, MPI_PROC_NULL, MPI_ANY_TAG, 0);
    else if (mpy_has_status(rc))
        mpy_count_received(th, c, s);
}
/* ---- waiting (wait.c) ---- */
/* Yields the processor, because the peer may need it. Sleeps for a moment instead if MPICH's own loops do that
 * (MPIR_CVAR_ENABLE_HEAVY_YIELD). round: the number of this round of the loop. */
MPY_HIDDEN void mpy_yield(uint32_t round);
/* Between two failed rounds of a loop in the lower half: yields after a microsecond or two, as MPICH's own loops do.
 * Always true, for use in a condition. */
enum { MPY_SPINS = 40 };
static inline bool mpy_spin(uint32_t *spins) {
    if (MPY_UNLIKELY(++*spins > MPY_SPINS)) mpy_yield(*spins);
    return true;
}
enum { MPY_ALL_MEMBERS = -100 };
typedef struct mpy_wait {
    const int *handles;     /* requests to wait for; NULL: probe */
    int n;
    int mode;               /* MPY_WAIT_ALL or ANY over the requests */
    const mpy_comm_t *comm; /* probe */
    int source;             /* for a probe; or MPY_ALL_MEMBERS: no probe, but a wait for all members */
    uint32_t rounds, spins; /* rounds: while a checkpoint is pending; spins: while not */
} mpy_wait_t;

/* All these functions are called in the lower half with its TLS, except mpy_poll_failed and mpy_p2p_done. */
/* After a round of failed tests, while a checkpoint is pending: leaves the lower half and returns to it (stops here
 * when frozen). */
MPY_HIDDEN void mpy_wait_round(mpy_thread_t *t, mpy_wait_t *w);
/* Tests one slot. True if it is COMPLETE or INACTIVE. */
MPY_HIDDEN bool mpy_request_poke(mpy_p2p_thread_t *th, mpy_request_t *r);
/* The same in a completion call of the program; may leave the lower half. True if the family has finished it, too. */
MPY_HIDDEN bool mpy_request_ready(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r);
/* The program is about to learn that r is ready: calls the family's callbacks, outside the lower half. `last`: it will
 * be collected. */
MPY_HIDDEN void mpy_request_tell_slow(mpy_thread_t *t, mpy_request_t *r, bool last);
static inline void mpy_request_tell(mpy_thread_t *t, mpy_request_t *r, bool last) {
    if (MPY_UNLIKELY(r->flags & MPY_RF_FAMILY)) mpy_request_tell_slow(t, r, last);
}
/* Returns the status of a slot after mpy_request_tell. Releases the slot and makes *handle null, or makes the slot
 * INACTIVE. Returns its error. */
MPY_HIDDEN int mpy_request_collect(mpy_p2p_thread_t *th, mpy_request_t *r, int *handle, MPI_Status *status);
/* Waits for one slot, tells, collects. */
MPY_HIDDEN int mpy_request_finish(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r, int *handle,
                                  MPI_Status *status);
/* For a family's `peers`. `rank`: a rank of the communicator (of its remote group), or MPI_ANY_SOURCE. */
MPY_HIDDEN void mpy_wait_peer(struct mpy_wait_peers *p, const mpy_request_t *r, int rank);
/* Called when a completion test or probe of the program has failed while a checkpoint is pending (upper TLS, after
 * mpy_cross_out). */
MPY_HIDDEN void mpy_poll_failed_slow(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_wait_t *w);
static inline void mpy_poll_failed(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_wait_t *w) {
    if (MPY_UNLIKELY(MPY_LOWER->phase != MPY_PHASE_NONE)) mpy_poll_failed_slow(t, th, w);
}
/* Called after any call that made progress (upper TLS, after mpy_cross_out). */
static inline void mpy_p2p_done(mpy_thread_t *t, mpy_p2p_thread_t *th) {
    if (MPY_UNLIKELY(t->state != MPY_STATE_RUNNING || th->fails != 0)) {
        th->fails = 0;
        mpy_clock_unblocked(t);
    }
}

/* ---- real calls with the small or the big-count form; in the lower half ---- */
#define MPY_SMALL(count) ((count) == (int)(count))

static inline int mpy_real_irecv(void *buf, MPI_Count count, int datatype, int source, int tag, int real_comm,
                                 int *real) {
    if (MPY_LIKELY(MPY_SMALL(count))) return MPY_REAL(Irecv)(buf, (int)count, datatype, source, tag, real_comm, real);
    return MPY_REAL(Irecv_c)(buf, count, datatype, source, tag, real_comm, real);
}
typedef int (*mpy_isend_t)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
typedef int (*mpy_isend_c_t)(const void *, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
/* `fn`, `fn_c`: table indices of Isend, Irsend or Issend. */
static inline __attribute__((always_inline)) int mpy_real_isend_of(int fn, int fn_c, const void *buf, MPI_Count count,
                                                                   int datatype, int dest, int tag, int real_comm,
                                                                   int *real) {
    if (MPY_LIKELY(MPY_SMALL(count)))
        return ((mpy_isend_t)MPY_LOWER->mpi[fn])(buf, (int)count, datatype, dest, tag, real_comm, real);
    return ((mpy_isend_c_t)MPY_LOWER->mpi[fn_c])(buf, count, datatype, dest, tag, real_comm, real);
}
static inline int mpy_real_isend(const void *buf, MPI_Count count, int datatype, int dest, int tag, int real_comm,
                                 int *real) {
    return mpy_real_isend_of(MPY_FN_Isend, MPY_FN_Isend_c, buf, count, datatype, dest, tag, real_comm, real);
}

#endif
