/* p2p.c - sends, receives and their combinations.
 *
 * Upper half, no libc. A blocking call is the real nonblocking call and a loop of real Tests, in one crossing. It takes
 * a slot only if a checkpoint is requested before it is finished. A nonblocking call is the real call and a slot.
 *
 * Invariants
 *  1. Those of request.h: the communicator's real handle is read, and the outcome recorded, between mpy_cross_in and
 *     _out.
 *  2. A receive searches the store before it is posted. A receive that was posted before the drain need not do so: the
 *     drain takes with Improbe only messages that no posted receive matched, so no message in the store can match it
 *     (MPI-4 3.5: matching happens in order when a message meets a posted receive). A message that arrives later than
 *     the store's messages is behind them in its (communicator, source) stream. So "store first, oldest first" is MPI's
 *     order.
 *  3. A send that the real library accepts is counted, whatever happens to it later. A send that it refuses isn't.
 */
#include "request.h"
#include "p2p.h"
#include "environment/errors.h"
#include "tools/trace.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- sends ---- */

INLINE int send_blocking(mpy_trace_op_t op, int fn, int fn_c, const char *name, const void *buf, MPI_Count count,
                         int datatype, int dest, int tag, int comm) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real, done = 0;
    uint32_t spins = 0;

    mpy_cross_in(t);
    uint64_t record = MPY_TRACE(t, .op = op, MPY_TRACE_P2P(c, dest, tag, count, datatype));
    int rc = mpy_real_isend_of(fn, fn_c, buf, count, mpy_real_datatype(datatype), dest, tag, c->obj.real, &real);
    if (MPY_LIKELY(rc == MPI_SUCCESS)) {
        mpy_count_sent(th, c, dest);
        mpy_ssend_later(c, dest, tag);
        do rc = MPY_REAL(Test)(&real, &done, MPI_STATUS_IGNORE);
        while (!done && !rc && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));
        if (MPY_UNLIKELY(!done && !rc)) {
            mpy_request_t *r = mpy_request_take(th);
            mpy_request_fill_send(r, real, dest, c);
            rc = mpy_request_finish(t, th, r, NULL, MPI_STATUS_IGNORE);
        }
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

INLINE int send_nonblocking(mpy_trace_op_t op, int fn, int fn_c, const char *name, const void *buf, MPI_Count count,
                            int datatype, int dest, int tag, int comm, int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real;

    mpy_cross_in(t);
    uint64_t record = MPY_TRACE(t, .op = op, .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST,
                                MPY_TRACE_P2P(c, dest, tag, count, datatype));
    int rc = mpy_real_isend_of(fn, fn_c, buf, count, mpy_real_datatype(datatype), dest, tag, c->obj.real, &real);
    if (MPY_LIKELY(rc == MPI_SUCCESS)) {
        mpy_count_sent(th, c, dest);
        mpy_ssend_later(c, dest, tag);
        mpy_request_t *r = mpy_request_take(th);
        mpy_request_fill_send(r, real, dest, c);
        mpy_trace_posted(t, record, r);
        *request = r->handle;
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

/* Synchronous sends always take a slot: a later send on the stream must find them (store.c). */
INLINE int send_synchronous(const char *name, const void *buf, MPI_Count count, int datatype, int dest, int tag,
                            int comm, int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real;

    mpy_cross_in(t);
    uint64_t record = request == NULL ? MPY_TRACE(t, .op = MPY_OP_SSEND, MPY_TRACE_P2P(c, dest, tag, count, datatype))
                                      : MPY_TRACE(t, .op = MPY_OP_SSEND, .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST,
                                                  MPY_TRACE_P2P(c, dest, tag, count, datatype));
    int rc = mpy_real_isend_of(MPY_FN_Issend, MPY_FN_Issend_c, buf, count, mpy_real_datatype(datatype), dest, tag,
                               c->obj.real, &real);
    if (MPY_LIKELY(rc == MPI_SUCCESS)) {
        mpy_count_sent(th, c, dest);
        mpy_ssend_later(c, dest, tag);
        mpy_request_t *r = mpy_request_take(th);
        mpy_request_fill(r, MPY_REQ_SSEND, real, buf, count, datatype, dest, tag, c);
        if (dest >= 0) mpy_ssend_add(r);
        if (request != NULL) {
            mpy_trace_posted(t, record, r);
            *request = r->handle;
        } else {
            rc = mpy_request_finish(t, th, r, NULL, MPI_STATUS_IGNORE);
        }
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

#define SEND_ARGUMENTS(COUNT) const void *buf, COUNT count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm

#define DEFINE_SEND(NAME, COUNT, OP, NONBLOCKING)                                                                      \
    MPY_API int PMPI_##NAME(SEND_ARGUMENTS(COUNT)) {                                                                   \
        return send_blocking(MPY_OP_##OP, MPY_FN_##NONBLOCKING, MPY_FN_##NONBLOCKING##_c, "MPI_" #NAME, buf, count,    \
                             datatype, dest, tag, comm);                                                               \
    }
#define DEFINE_ISEND(NAME, COUNT, OP, BASE)                                                                            \
    MPY_API int PMPI_##NAME(SEND_ARGUMENTS(COUNT), MPI_Request *request) {                                             \
        return send_nonblocking(MPY_OP_##OP, MPY_FN_##BASE, MPY_FN_##BASE##_c, "MPI_" #NAME, buf, count, datatype,     \
                                dest, tag, comm, request);                                                             \
    }
#define DEFINE_SSEND(NAME, COUNT) \
    MPY_API int PMPI_##NAME(SEND_ARGUMENTS(COUNT)) { \
        return send_synchronous("MPI_" #NAME, buf, count, datatype, dest, tag, comm, NULL); \
    }
#define DEFINE_ISSEND(NAME, COUNT) \
    MPY_API int PMPI_##NAME(SEND_ARGUMENTS(COUNT), MPI_Request *request) { \
        return send_synchronous("MPI_" #NAME, buf, count, datatype, dest, tag, comm, request); \
    }

DEFINE_SEND(Send, int, SEND, Isend)
DEFINE_SEND(Send_c, MPI_Count, SEND, Isend)
DEFINE_SEND(Rsend, int, RSEND, Irsend)
DEFINE_SEND(Rsend_c, MPI_Count, RSEND, Irsend)
DEFINE_SSEND(Ssend, int)
DEFINE_SSEND(Ssend_c, MPI_Count)
DEFINE_ISEND(Isend, int, SEND, Isend)
DEFINE_ISEND(Isend_c, MPI_Count, SEND, Isend)
DEFINE_ISEND(Irsend, int, RSEND, Irsend)
DEFINE_ISEND(Irsend_c, MPI_Count, RSEND, Irsend)
DEFINE_ISSEND(Issend, int)
DEFINE_ISSEND(Issend_c, MPI_Count)

/* ---- receives ---- */

INLINE int recv_blocking(const char *name, void *buf, MPI_Count count, int datatype, int source, int tag, int comm,
                         MPI_Status *status) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    MPI_Status own, *s = status == MPI_STATUS_IGNORE ? &own : status;
    int real, rc, done = 0;
    uint32_t spins = 0;

    mpy_cross_in(t);
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_RECV, .flags = mpy_trace_wildcard(source, tag),
                                MPY_TRACE_P2P(c, source, tag, count, datatype));
    if (MPY_UNLIKELY(mpy_store_count != 0) &&
        mpy_store_receive(t, buf, count, mpy_real_datatype(datatype), source, tag, c, s, &rc))
        goto out;
    rc = mpy_real_irecv(buf, count, mpy_real_datatype(datatype), source, tag, c->obj.real, &real);
    if (MPY_LIKELY(rc == MPI_SUCCESS)) {
        do rc = MPY_REAL(Test)(&real, &done, s);
        while (!done && !rc && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));
        if (MPY_LIKELY(done || rc)) {
            mpy_count_blocking(th, c, source, s, rc);
        } else {
            mpy_request_t *r = mpy_request_take(th);
            mpy_request_fill(r, MPY_REQ_RECV, real, buf, count, datatype, source, tag, c);
            r->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
            rc = mpy_request_finish(t, th, r, NULL, s);
        }
    }
out:
    mpy_cross_out(t);
    mpy_traced_status(t, record, rc, s);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

/* A request that is finished before the real library gets it. */
static void fill_complete(mpy_request_t *r, mpy_request_kind_t kind, int rc, mpy_comm_t *c) {
    r->real = MPI_REQUEST_NULL;
    r->comm = c;
    r->error = rc;
    r->flags = MPY_RF_COMPLETE;
    r->kind = kind;
}

INLINE int recv_nonblocking(const char *name, void *buf, MPI_Count count, int datatype, int source, int tag, int comm,
                            int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real, rc;

    mpy_cross_in(t);
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_RECV, .flags = MPY_TRACE_NONBLOCKING | mpy_trace_wildcard(source, tag),
                                MPY_TRACE_POST, MPY_TRACE_P2P(c, source, tag, count, datatype));
    mpy_request_t *r = mpy_request_take(th);
    mpy_trace_posted(t, record, r);
    if (MPY_UNLIKELY(mpy_store_count != 0) &&
        mpy_store_receive(t, buf, count, mpy_real_datatype(datatype), source, tag, c, &r->status, &rc)) {
        fill_complete(r, MPY_REQ_RECV, rc, c);
        rc = MPI_SUCCESS;
        *request = r->handle;
        goto out;
    }
    rc = mpy_real_irecv(buf, count, mpy_real_datatype(datatype), source, tag, c->obj.real, &real);
    if (MPY_LIKELY(rc == MPI_SUCCESS)) {
        r->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
        mpy_request_fill(r, MPY_REQ_RECV, real, buf, count, datatype, source, tag, c);
        *request = r->handle;
    } else {
        mpy_request_release(th, r);
    }
out:
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

#define DEFINE_RECV(NAME, COUNT)                                                                                       \
    MPY_API int PMPI_##NAME(void *buf, COUNT count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,         \
                            MPI_Status *status) {                                                                      \
        return recv_blocking("MPI_" #NAME, buf, count, datatype, source, tag, comm, status);                           \
    }
#define DEFINE_IRECV(NAME, COUNT)                                                                                      \
    MPY_API int PMPI_##NAME(void *buf, COUNT count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,         \
                            MPI_Request *request) {                                                                    \
        return recv_nonblocking("MPI_" #NAME, buf, count, datatype, source, tag, comm, request);                       \
    }

DEFINE_RECV(Recv, int)
DEFINE_RECV(Recv_c, MPI_Count)
DEFINE_IRECV(Irecv, int)
DEFINE_IRECV(Irecv_c, MPI_Count)
