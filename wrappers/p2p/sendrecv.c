/* sendrecv.c - combined send and receive: Sendrecv, Isendrecv and their _replace forms.
 *
 * Upper half, no libc. Sendrecv is an Irecv and an Isend whose Tests share one loop. Isendrecv is a slot of a family:
 * an Irecv in the slot, an Isend in its `more`. The real Isendrecv can't be used: MPICH doesn't set its status, so the
 * source of a message would be unknown. The _replace forms send a packed copy.
 *
 * Invariants: those of request.h and p2p.c.
 */
#include "request.h"
#include "p2p.h"
#include "datatype/datatype.h"
#include "environment/errors.h"
#include "tools/trace.h"

enum { TAG_ALWAYS = 32767 }; /* MPI_TAG_UB is at least this */

typedef struct half {
    const void *buf;
    MPI_Count count;
    int datatype, peer, tag;
} half_t;

/* In the lower half. mpy_pack_free frees the copy. */
int mpy_pack(const mpy_comm_t *c, const void *buf, MPI_Count count, int datatype, mpy_packed_t *out) {
    MPI_Count size, position = 0;
    int rc = MPY_REAL(Pack_size_c)(count, datatype, c->obj.real, &size);
    if (rc) return rc;
    out->capacity = (size_t)size + 1; /* + 1, so that an empty message has an address, too */
    out->data = mpy_try_alloc(out->capacity);
    if (out->data == NULL) return MPI_ERR_NO_MEM;
    rc = MPY_REAL(Pack_c)(buf, count, datatype, out->data, size, &position, c->obj.real);
    out->bytes = position;
    if (rc) mpy_pack_free(out);
    return rc;
}
void mpy_pack_free(mpy_packed_t *p) {
    mpy_free(p->data, p->capacity);
    p->data = NULL;
}

/* Cancels a receive. If it was matched meanwhile, it counts. */
static void retract(mpy_p2p_thread_t *th, const mpy_comm_t *c, int source, int *real, MPI_Status *s) {
    MPY_REAL(Cancel)(real);
    int rc = MPY_REAL(Wait)(real, s);
    mpy_count_blocking(th, c, source, s, rc);
}

static bool is_committed(int datatype) {
    if (MPY_LIKELY(mpy_is_builtin(datatype))) return true;
    const mpy_datatype_t *d = mpy_datatype(datatype);
    return d != NULL && d->committed;
}

/* In the lower half: looks for wrong arguments of the send, before the receive may take a message. The real library
 * checks all that are not plainly right. */
static int check_send(const mpy_comm_t *c, const half_t *send) {
    int n = c->remote_size != 0 ? c->remote_size : c->size, request;
    bool reachable = (send->peer >= 0 && send->peer < n) || send->peer == MPI_PROC_NULL;
    if (MPY_LIKELY(reachable && send->tag >= 0 && send->tag <= TAG_ALWAYS && send->count >= 0 &&
                   (send->buf != NULL || send->count == 0) && is_committed(send->datatype)))
        return MPI_SUCCESS;
    int rc = MPY_REAL(Send_init_c)(send->buf, send->count, mpy_real_datatype(send->datatype), send->peer, send->tag,
                                   c->obj.real, &request);
    return rc ? rc : MPY_REAL(Request_free)(&request);
}

/* In the lower half: completes both operations. */
static int exchange(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_comm_t *c, const half_t *send, const half_t *recv,
                    MPI_Status *s) {
    int rc = check_send(c, send), recv_rc = MPI_SUCCESS, send_rc = MPI_SUCCESS, received = 0, sent = 0,
        real_recv = MPI_REQUEST_NULL, real_send;
    uint32_t spins = 0;

    if (MPY_UNLIKELY(rc != MPI_SUCCESS)) return rc;
    if (MPY_UNLIKELY(mpy_store_count != 0) &&
        mpy_store_receive(t, (void *)recv->buf, recv->count, mpy_real_datatype(recv->datatype), recv->peer, recv->tag,
                          c, s, &recv_rc)) {
        received = 1;
    } else {
        rc = mpy_real_irecv((void *)recv->buf, recv->count, mpy_real_datatype(recv->datatype), recv->peer, recv->tag,
                            c->obj.real, &real_recv);
        if (rc) return rc;
    }
    rc = mpy_real_isend(send->buf, send->count, mpy_real_datatype(send->datatype), send->peer, send->tag, c->obj.real,
                        &real_send);
    if (rc) {
        if (!received) retract(th, c, recv->peer, &real_recv, s);
        return rc;
    }
    mpy_count_sent(th, c, send->peer);
    mpy_ssend_later(c, send->peer, send->tag);

    do {
        if (!sent && ((send_rc = MPY_REAL(Test)(&real_send, &sent, MPI_STATUS_IGNORE)))) sent = 1;
        if (!received) {
            if ((recv_rc = MPY_REAL(Test)(&real_recv, &received, s))) received = 1;
            if (received) mpy_count_blocking(th, c, recv->peer, s, recv_rc);
        }
    } while (!(sent && received) && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));

    if (MPY_UNLIKELY(!(sent && received))) {
        int handles[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        mpy_request_t *rs = NULL, *rr = NULL;
        if (!sent) {
            rs = mpy_request_take(th);
            mpy_request_fill_send(rs, real_send, send->peer, c);
            handles[0] = rs->handle;
        }
        if (!received) {
            rr = mpy_request_take(th);
            mpy_request_fill(rr, MPY_REQ_RECV, real_recv, recv->buf, recv->count, recv->datatype, recv->peer, recv->tag,
                             c);
            rr->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
            handles[1] = rr->handle;
        }
        mpy_wait_t w = {.handles = handles, .n = 2, .mode = MPY_WAIT_ALL};
        for (;;) {
            bool send_open = rs && !mpy_request_poke(th, rs), recv_open = rr && !mpy_request_poke(th, rr);
            if (!send_open && !recv_open) break;
            mpy_wait_round(t, &w);
        }
        if (rs) send_rc = mpy_request_collect(th, rs, NULL, MPI_STATUS_IGNORE);
        if (rr) recv_rc = mpy_request_collect(th, rr, NULL, s);
    }
    return recv_rc ? recv_rc : send_rc;
}

/* Makes two records, the send's right before the receive's. Returns the number of the receive's. */
static uint64_t trace_both(mpy_thread_t *t, const mpy_comm_t *c, const half_t *send, const half_t *recv,
                           uint32_t flags) {
    if (MPY_UNLIKELY(t->trace == NULL)) return 0;
    uint64_t now = mpy_trace_ticks(),
             request = flags & MPY_TRACE_NONBLOCKING ? t->trace->serials + t->trace->head + 2 : 0;
    mpy_trace_put(t->trace, now, 0,
                  (mpy_trace_call_t){.op = MPY_OP_SEND,
                                     .flags = flags | MPY_TRACE_MORE,
                                     .request = request,
                                     MPY_TRACE_P2P(c, send->peer, send->tag, send->count, send->datatype)});
    return mpy_trace_put(t->trace, now, 0,
                         (mpy_trace_call_t){.op = MPY_OP_RECV,
                                            .flags = flags | mpy_trace_wildcard(recv->peer, recv->tag),
                                            .request = request,
                                            MPY_TRACE_P2P(c, recv->peer, recv->tag, recv->count, recv->datatype)});
}

static int sendrecv(const char *name, half_t send, half_t recv, bool replace, int comm, MPI_Status *status) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    MPI_Status own, *s = status == MPI_STATUS_IGNORE ? &own : status;
    mpy_packed_t packed = {NULL, 0, 0};
    int rc = MPI_SUCCESS;
    uint64_t record = trace_both(t, c, &send, &recv, 0);

    mpy_cross_in(t);
    if (replace && !(rc = mpy_pack(c, send.buf, send.count, mpy_real_datatype(send.datatype), &packed))) {
        send.buf = packed.data;
        send.count = packed.bytes;
        send.datatype = MPI_PACKED;
    }
    if (!rc) rc = exchange(t, th, c, &send, &recv, s);
    if (packed.data) mpy_pack_free(&packed);
    mpy_cross_out(t);
    mpy_traced(t, record != 0 ? record - 1 : 0, rc);
    mpy_traced_status(t, record, rc, s);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

/* ---- Isendrecv ---- */

/* In `more` of a slot of kind SENDRECV; `real` of the slot is the receive. A half with a null request has finished. */
typedef struct sending {
    int real, peer;
    mpy_packed_t packed; /* of the _replace forms */
} sending_t;

static bool half_done(int *real, MPI_Status *s, int *error) {
    if (*real == MPI_REQUEST_NULL) return false;
    int done = 0, rc = MPY_REAL(Test)(real, &done, s);
    if (rc) *error = rc;
    if (rc || done) *real = MPI_REQUEST_NULL;
    return rc || done;
}

static bool both_done(mpy_p2p_thread_t *th, mpy_request_t *r) {
    sending_t *sending = r->more;
    int recv_rc = MPI_SUCCESS;
    half_done(&sending->real, MPI_STATUS_IGNORE, &r->error);
    if (half_done(&r->real, &r->status, &recv_rc)) mpy_count_blocking(th, r->comm, r->peer, &r->status, recv_rc);
    if (recv_rc) r->error = recv_rc;
    return sending->real == MPI_REQUEST_NULL && r->real == MPI_REQUEST_NULL;
}

bool mpy_sendrecv_sent(const mpy_request_t *r) { return ((const sending_t *)r->more)->real == MPI_REQUEST_NULL; }

static int no_cancel(mpy_thread_t *t, mpy_request_t *r) { /* as in MPICH */
    (void)t, (void)r;
    return MPI_ERR_INTERN;
}

static void peers(struct mpy_wait_peers *p, const mpy_request_t *r) {
    const sending_t *sending = r->more;
    if (sending->real != MPI_REQUEST_NULL) mpy_wait_peer(p, r, sending->peer);
    if (r->real != MPI_REQUEST_NULL && !(r->flags & MPY_RF_NEVER)) mpy_wait_peer(p, r, r->peer);
}

static void release(mpy_request_t *r) {
    sending_t *sending = r->more;
    if (sending->packed.data) mpy_pack_free(&sending->packed);
    mpy_free(sending, sizeof *sending);
}

static const mpy_request_family_t family_sendrecv = {
    .name = "nonblocking send and receive", .poke = both_done, .cancel = no_cancel, .release = release, .peers = peers};

/* In the lower half: starts both halves, or neither. */
static int begin(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_comm_t *c, const half_t *send, const half_t *recv,
                 mpy_request_t *r) {
    sending_t *sending = r->more;
    int type = mpy_real_datatype(recv->datatype), rc = check_send(c, send);
    if (rc) return rc;
    bool stored = MPY_UNLIKELY(mpy_store_count != 0) &&
                  mpy_store_receive(t, (void *)recv->buf, recv->count, type, recv->peer, recv->tag, c, &r->status,
                                    &r->error);
    if (!stored &&
        (rc = mpy_real_irecv((void *)recv->buf, recv->count, type, recv->peer, recv->tag, c->obj.real, &r->real)))
        return rc;
    rc = mpy_real_isend(send->buf, send->count, mpy_real_datatype(send->datatype), send->peer, send->tag, c->obj.real,
                        &sending->real);
    if (rc) {
        if (!stored) retract(th, c, recv->peer, &r->real, &r->status);
        return rc;
    }
    mpy_count_sent(th, c, send->peer);
    mpy_ssend_later(c, send->peer, send->tag);
    return MPI_SUCCESS;
}

static int isendrecv(const char *name, half_t send, half_t recv, bool replace, int comm, int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int rc = MPI_SUCCESS;
    uint64_t record = trace_both(t, c, &send, &recv, MPY_TRACE_NONBLOCKING);

    mpy_cross_in(t);
    sending_t *sending = mpy_alloc(sizeof *sending);
    *sending = (sending_t){.real = MPI_REQUEST_NULL, .peer = send.peer};
    mpy_request_t *r = mpy_request_of_family(th, &family_sendrecv, MPY_REQ_SENDRECV, c, sending);
    if (replace && !(rc = mpy_pack(c, send.buf, send.count, mpy_real_datatype(send.datatype), &sending->packed)))
        send = (half_t){sending->packed.data, sending->packed.bytes, MPI_PACKED, send.peer, send.tag};
    if (!rc) rc = begin(t, th, c, &send, &recv, r);
    if (rc) {
        mpy_request_release(th, r);
    } else {
        mpy_request_fill(r, MPY_REQ_SENDRECV, r->real, recv.buf, recv.count, recv.datatype, recv.peer, recv.tag, c);
        r->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
        mpy_trace_posted(t, record, r);
        *request = r->handle;
    }
    mpy_cross_out(t);
    mpy_traced(t, record != 0 ? record - 1 : 0, rc);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

#define SENDRECV_ARGUMENTS(COUNT)                                                                                      \
    const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, int dest, int sendtag, void *recvbuf,                 \
        COUNT recvcount, MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm
#define REPLACE_ARGUMENTS(COUNT)                                                                                       \
    void *buf, COUNT count, MPI_Datatype datatype, int dest, int sendtag, int source, int recvtag, MPI_Comm comm

#define DEFINE_SENDRECV(SUFFIX, COUNT) \
    MPY_API int PMPI_Sendrecv##SUFFIX(SENDRECV_ARGUMENTS(COUNT), MPI_Status *status) { \
        return sendrecv("MPI_Sendrecv" #SUFFIX, (half_t){sendbuf, sendcount, sendtype, dest, sendtag}, \
                        (half_t){recvbuf, recvcount, recvtype, source, recvtag}, false, comm, status); \
    } \
    MPY_API int PMPI_Isendrecv##SUFFIX(SENDRECV_ARGUMENTS(COUNT), MPI_Request *request) { \
        return isendrecv("MPI_Isendrecv" #SUFFIX, (half_t){sendbuf, sendcount, sendtype, dest, sendtag}, \
                         (half_t){recvbuf, recvcount, recvtype, source, recvtag}, false, comm, request); \
    } \
    MPY_API int PMPI_Sendrecv_replace##SUFFIX(REPLACE_ARGUMENTS(COUNT), MPI_Status *status) { \
        return sendrecv("MPI_Sendrecv_replace" #SUFFIX, (half_t){buf, count, datatype, dest, sendtag}, \
                        (half_t){buf, count, datatype, source, recvtag}, true, comm, status); \
    } \
    MPY_API int PMPI_Isendrecv_replace##SUFFIX(REPLACE_ARGUMENTS(COUNT), MPI_Request *request) { \
        return isendrecv("MPI_Isendrecv_replace" #SUFFIX, (half_t){buf, count, datatype, dest, sendtag}, \
                         (half_t){buf, count, datatype, source, recvtag}, true, comm, request); \
    }

DEFINE_SENDRECV(, int)
DEFINE_SENDRECV(_c, MPI_Count)
