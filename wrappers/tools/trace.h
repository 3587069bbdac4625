/* trace.h - recording the program's calls (<manapy/trace.h>). See trace.c.
 *
 * The wrapper of a recorded call has two lines: `record = MPY_TRACE(t, ...)`, where everything is known and nothing can
 * block yet, and mpy_traced(t, record, rc) at the end. Without a trace each costs a branch. Most of their cost is
 * reading the clock. This costs less after a switch of the thread pointer, as in p2p.c, than before one (wrfsbase waits
 * for it). So there the first line follows mpy_cross_in, and the last one follows mpy_cross_out.
 *
 * Invariants
 *  1. `record` is a number, 0 if nothing is recorded. After a restart inside the call t->ring is another ring, in which
 *     the number is still right (invariant 2 of trace_ring.h).
 *  2. Both lines may run on either TLS. MPY_TRACE evaluates nothing unless there is a ring.
 *  3. Records are added to t->trace, which is NULL while recording is paused, and ended in t->ring: a callback may
 *     pause recording inside a call.
 */
#ifndef MANAPY_WRAPPERS_TRACE_H
#define MANAPY_WRAPPERS_TRACE_H

#include "clock/clock.h"
#include "core/objects.h"
#include "p2p/request.h"

#include <manapy/trace_ring.h>

enum { MPY_TRACE_REQUESTS = 64 }; /* requests of one call that are recorded; if there are more, CUT */

/* `...`: designated initializers of mpy_trace_call_t. */
#define MPY_TRACE(T, ...)                                                                                              \
    (MPY_LIKELY((T)->trace != NULL) ? mpy_trace_enter((T)->trace, (mpy_trace_call_t){__VA_ARGS__}) : 0)

static inline void mpy_traced(mpy_thread_t *t, uint64_t record, int rc) {
    if (MPY_LIKELY(record != 0) && MPY_LIKELY(t->ring != NULL))
        mpy_trace_exit(t->ring, record, MPY_UNLIKELY(rc != 0) ? MPY_TRACE_FAILED : 0);
}

/* ---- fields ---- */

static inline uint32_t mpy_trace_comm(const mpy_comm_t *c) { return c != NULL ? c->trace : MPY_TRACE_NO_COMM; }
static inline int32_t mpy_trace_peer(int rank) {
    return MPY_LIKELY(rank >= 0)    ? rank
           : rank == MPI_PROC_NULL  ? MPY_TRACE_NULL
           : rank == MPI_ANY_SOURCE ? MPY_TRACE_ANY
                                    : MPY_TRACE_NO_PEER;
}
static inline int32_t mpy_trace_tag(int tag) { return MPY_LIKELY(tag != MPI_ANY_TAG) ? tag : MPY_TRACE_ANY; }
static inline uint32_t mpy_trace_wildcard(int source, int tag) {
    return MPY_UNLIKELY(source == MPI_ANY_SOURCE || tag == MPI_ANY_TAG) ? MPY_TRACE_WILDCARD : 0;
}

MPY_HIDDEN uint64_t mpy_trace_size_slow(int datatype);
/* Bytes of one element; MPICH's handles of predefined types contain them. */
static inline uint64_t mpy_trace_size(int datatype) {
    return MPY_LIKELY(mpy_is_builtin(datatype)) ? mpy_basic_size(datatype) : mpy_trace_size_slow(datatype);
}
static inline uint64_t mpy_trace_bytes(MPI_Count count, int datatype) {
    return count > 0 ? (uint64_t)count * mpy_trace_size(datatype) : 0;
}
/* for a list of counts, which may be NULL */
MPY_HIDDEN uint64_t mpy_trace_sum(const int *counts, int64_t n, int datatype);
MPY_HIDDEN uint64_t mpy_trace_sum_c(const MPI_Count *counts, int64_t n, int datatype);

/* The fields of a point-to-point call, and of a collective. The clock will count the collective as its next one. */
#define MPY_TRACE_P2P(C, PEER, TAG, COUNT, DATATYPE)                                                                   \
    .comm = (C)->trace, .peer = mpy_trace_peer(PEER), .tag = mpy_trace_tag(TAG),                                       \
    .bytes = mpy_trace_bytes(COUNT, DATATYPE), .context = t->trace->mark
#define MPY_TRACE_ROOTED(C, ROOT)                                                                                      \
    .comm = (C)->trace, .peer = mpy_trace_peer(ROOT), .context = mpy_row((C)->row)->seq + 1
#define MPY_TRACE_COLLECTIVE(C) MPY_TRACE_ROOTED(C, MPI_UNDEFINED)
/* A call that has no peer, and no communicator that all its members know. */
#define MPY_TRACE_ALONE .comm = MPY_TRACE_NO_COMM, .peer = MPY_TRACE_NO_PEER, .context = t->trace->mark

/* ---- requests ---- */

/* The call posts an operation: its serial is that of its own record, which is the next one. */
#define MPY_TRACE_POST .request = t->trace->serials + t->trace->head + 1
/* ... and `r` is its slot. If recording is paused when it is posted, it gets a serial that no record has, because it
 * may be started or completed later. */
MPY_HIDDEN uint64_t mpy_trace_serial_paused(const mpy_thread_t *t);
static inline void mpy_trace_posted(const mpy_thread_t *t, uint64_t record, const mpy_request_t *r) {
    if (MPY_LIKELY(t->ring != NULL))
        *mpy_request_serial(r) = MPY_LIKELY(record != 0) ? t->ring->serials + record : mpy_trace_serial_paused(t);
}

/* Does its completion give a status that describes a received message? */
static inline bool mpy_trace_received(const mpy_request_t *r) {
    return (r->kind == MPY_REQ_RECV || r->kind == MPY_REQ_MRECV || r->kind == MPY_REQ_SENDRECV) &&
           r->peer != MPI_PROC_NULL && !(r->flags & MPY_RF_INACTIVE);
}
/* The fields of a completion call, at its entry. */
static inline mpy_trace_call_t mpy_trace_completion(const mpy_thread_t *t, mpy_trace_op_t op, const mpy_request_t *r) {
    mpy_trace_call_t call = {.op = op,
                             .comm = mpy_trace_comm(r->comm),
                             .peer = MPY_TRACE_NO_PEER,
                             .request = *mpy_request_serial(r),
                             .context = t->trace->mark};
    if (r->kind == MPY_REQ_SEND || r->kind == MPY_REQ_SSEND) {
        call.peer = mpy_trace_peer(r->peer);
    } else if (mpy_trace_received(r)) {
        call.peer = mpy_trace_peer(r->peer);
        call.tag = mpy_trace_tag(r->tag);
        call.bytes = mpy_trace_bytes(r->count, r->datatype);
        call.flags = mpy_trace_wildcard(r->peer, r->tag);
    }
    return call;
}

/* Ends a receive or a probe, whose status is `s`. */
static inline void mpy_traced_status(mpy_thread_t *t, uint64_t record, int rc, const MPI_Status *s) {
    if (MPY_UNLIKELY(record == 0) || MPY_UNLIKELY(t->ring == NULL)) return;
    uint64_t now = mpy_trace_ticks();
    if (MPY_LIKELY(rc == 0))
        mpy_trace_received_at(t->ring, record, now, 0, mpy_trace_peer(s->MPI_SOURCE), mpy_trace_tag(s->MPI_TAG),
                              mpy_status_bytes(s));
    else
        mpy_trace_exit_at(t->ring, record, now, MPY_TRACE_FAILED);
}

/* A call that only tests: the time at which it begins. It is recorded only if it finds something. */
static inline uint64_t mpy_trace_look(const mpy_thread_t *t) {
    return MPY_LIKELY(t->trace != NULL) ? mpy_trace_ticks() : 0;
}
static inline void mpy_trace_missed(mpy_thread_t *t, uint64_t since, uint64_t request) {
    if (MPY_LIKELY(since != 0) && MPY_LIKELY(t->trace != NULL)) mpy_trace_polled(t->trace, since, request);
}

/* ... and when it has found something: the record stays open until mpy_traced. */
static inline uint64_t mpy_trace_found(mpy_thread_t *t, uint64_t since, mpy_trace_call_t call) {
    return MPY_LIKELY(since != 0) && MPY_LIKELY(t->trace != NULL) ? mpy_trace_put(t->trace, since, 0, call) : 0;
}

/* ---- several requests: a record for each, in sequence ---- */

typedef struct mpy_traced {
    uint64_t since; /* 0: nothing is recorded */
    uint64_t first; /* number of the first record */
    mpy_trace_op_t op;
    int n, next;    /* n: number of records; next: index after the record whose outcome was set last */
    bool cut;
} mpy_traced_t;

/* A call on those of the n requests that aren't null. TEST: records only the requests that it completes. */
MPY_HIDDEN mpy_traced_t mpy_trace_wait_slow(mpy_thread_t *t, mpy_trace_op_t op, int n, const int *handles);
static inline mpy_traced_t mpy_trace_wait(mpy_thread_t *t, mpy_trace_op_t op, int n, const int *handles) {
    return MPY_LIKELY(t->trace != NULL) ? mpy_trace_wait_slow(t, op, n, handles) : (mpy_traced_t){0};
}
/* The call has completed r, whose slot still exists. */
MPY_HIDDEN void mpy_trace_outcome_slow(mpy_thread_t *t, mpy_traced_t *several, const mpy_request_t *r,
                                       const MPI_Status *s, int error);
static inline void mpy_trace_outcome(mpy_thread_t *t, mpy_traced_t *several, const mpy_request_t *r,
                                     const MPI_Status *s, int error) {
    if (MPY_LIKELY(several->since != 0) && MPY_LIKELY(t->ring != NULL)) mpy_trace_outcome_slow(t, several, r, s, error);
}
/* A Waitall has completed all of its requests (NULL: a null handle) without an error. The records of a Waitall say this
 * by default. */
MPY_HIDDEN void mpy_trace_all_slow(mpy_thread_t *t, mpy_traced_t *several, mpy_request_t *const *requests,
                                   const MPI_Status *statuses);
static inline void mpy_trace_all(mpy_thread_t *t, mpy_traced_t *several, mpy_request_t *const *requests,
                                 const MPI_Status *statuses) {
    if (statuses != MPI_STATUSES_IGNORE && MPY_LIKELY(several->since != 0) && MPY_LIKELY(t->ring != NULL))
        mpy_trace_all_slow(t, several, requests, statuses);
}
/* The Waitall returns an error: mpy_trace_outcome is called for the requests that it has completed. */
MPY_HIDDEN void mpy_trace_not_all(mpy_thread_t *t, mpy_traced_t *several);
/* The call returns. `done`: it has completed something, or there was nothing to complete. */
MPY_HIDDEN void mpy_trace_waited_slow(mpy_thread_t *t, mpy_traced_t *several);
static inline void mpy_trace_waited(mpy_thread_t *t, mpy_traced_t *several, bool done) {
    if (MPY_UNLIKELY(several->since == 0) || MPY_UNLIKELY(t->ring == NULL)) return;
    if (done)
        mpy_trace_waited_slow(t, several);
    else
        mpy_trace_polled(t->ring, several->since, 0);
}

/* A call of `function` has failed and ends the job. It may have no record of its own, because some calls fail before
 * they begin. class: see MPY_OP_REFUSED. */
MPY_HIDDEN void mpy_trace_refused(mpy_thread_t *t, const char *function, int class);

/* From now on calls of this thread are recorded, or not. */
MPY_HIDDEN void mpy_trace_control(mpy_thread_t *t, bool on);

/* ---- communicators; with in_lower set, or in a hook ---- */

MPY_HIDDEN void mpy_trace_comm_enter(mpy_comm_t *c, uint64_t cid); /* its groups and name must be known */

/* A longjmp has left the call that the newest open record of the trace describes, and the calls that it made. */
MPY_HIDDEN void mpy_trace_abandon(mpy_thread_t *t);

#endif
