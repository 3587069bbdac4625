/* sendrecv.c - combined send and receive: Sendrecv, Isendrecv and their _replace forms.
 *
 * Upper half, no libc. Sendrecv is an Irecv and an Isend whose Tests share one loop. Isendrecv is the real one, with one slot
 * for both halves; but when its message is in the store already only the send goes to the real library. The _replace forms
 * send a packed copy where the send is ours.
 *
 * Invariants: those of p2p.h and p2p.c.
 */
#include "p2p.h"

typedef struct half {
    const void *buf;
    MPI_Count count;
    int datatype, peer, tag;
} half_t;

/* In the lower half. The copy is freed by mpy_pack_free. */
int mpy_pack(const mpy_comm_t *c, const void *buf, MPI_Count count, int datatype, mpy_packed_t *out) {
    MPI_Count size, position = 0;
    int rc = MPY_REAL(Pack_size_c)(count, datatype, c->obj.real, &size);
    if (rc) return rc;
    out->capacity = (size_t)size + 1; /* an empty message has an address too */
    out->data = mpy_alloc(out->capacity);
    rc = MPY_REAL(Pack_c)(buf, count, datatype, out->data, size, &position, c->obj.real);
    out->bytes = position;
    if (rc) mpy_pack_free(out);
    return rc;
}
void mpy_pack_free(mpy_packed_t *p) {
    mpy_free(p->data, p->capacity);
    p->data = NULL;
}

/* In the lower half: both operations to their end. */
static int exchange(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_comm_t *c, const half_t *send, const half_t *recv, MPI_Status *s) {
    int rc, recv_rc = MPI_SUCCESS, send_rc = MPI_SUCCESS, received = 0, sent = 0, real_recv = MPI_REQUEST_NULL, real_send;
    uint32_t spins = 0;

    if (MPY_UNLIKELY(mpy_store_count != 0) &&
        mpy_store_receive(t, (void *)recv->buf, recv->count, mpy_real_datatype(recv->datatype), recv->peer, recv->tag, c, s, &recv_rc)) {
        received = 1;
    } else {
        rc = mpy_real_irecv((void *)recv->buf, recv->count, mpy_real_datatype(recv->datatype), recv->peer, recv->tag, c->obj.real, &real_recv);
        if (rc) return rc;
    }
    rc = mpy_real_isend(send->buf, send->count, mpy_real_datatype(send->datatype), send->peer, send->tag, c->obj.real, &real_send);
    if (rc) { /* take the receive back; if it was matched meanwhile, it counts */
        if (!received) {
            MPY_REAL(Cancel)(&real_recv);
            MPY_REAL(Wait)(&real_recv, s);
            mpy_count_blocking(th, c, recv->peer, s);
        }
        return rc;
    }
    mpy_count_sent(th, c, send->peer);
    mpy_ssend_later(c, send->peer, send->tag);

    do {
        if (!sent && ((send_rc = MPY_REAL(Test)(&real_send, &sent, MPI_STATUS_IGNORE)))) sent = 1;
        if (!received) {
            if ((recv_rc = MPY_REAL(Test)(&real_recv, &received, s))) received = 1;
            if (received) mpy_count_blocking(th, c, recv->peer, s);
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
            mpy_request_fill(rr, MPY_REQ_RECV, real_recv, recv->buf, recv->count, recv->datatype, recv->peer, recv->tag, c);
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

static int sendrecv(const char *name, half_t send, half_t recv, bool replace, int comm, MPI_Status *status) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    MPI_Status own;
    mpy_packed_t packed = {NULL, 0, 0};
    int rc = MPI_SUCCESS;

    mpy_cross_in(t);
    if (replace && !(rc = mpy_pack(c, send.buf, send.count, mpy_real_datatype(send.datatype), &packed))) {
        send.buf = packed.data;
        send.count = packed.bytes;
        send.datatype = MPI_PACKED;
    }
    if (!rc) rc = exchange(t, th, c, &send, &recv, status == MPI_STATUS_IGNORE ? &own : status);
    if (packed.data) mpy_pack_free(&packed);
    mpy_cross_out(t);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

/* In the lower half: the message is here, so only the send is left to the real library. */
static int isend_for_stored(mpy_p2p_thread_t *th, mpy_comm_t *c, const half_t *send, bool replace, mpy_request_t *r) {
    mpy_packed_t packed = {NULL, 0, 0};
    half_t h = *send;
    int real, rc;
    if (replace) {
        if ((rc = mpy_pack(c, send->buf, send->count, mpy_real_datatype(send->datatype), &packed))) return rc;
        h = (half_t){packed.data, packed.bytes, MPI_PACKED, send->peer, send->tag};
    }
    rc = mpy_real_isend(h.buf, h.count, mpy_real_datatype(h.datatype), h.peer, h.tag, c->obj.real, &real);
    if (rc) {
        if (replace) mpy_pack_free(&packed);
        return rc;
    }
    mpy_count_sent(th, c, h.peer);
    mpy_ssend_later(c, h.peer, h.tag);
    mpy_request_fill(r, MPY_REQ_SEND, real, h.buf, h.count, h.datatype, h.peer, h.tag, c);
    if (replace) {
        r->bytes = packed.capacity;
        r->flags |= MPY_RF_PACKED;
    }
    return MPI_SUCCESS;
}

static int isendrecv(const char *name, half_t send, half_t recv, bool replace, int comm, int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int rc, real;

    mpy_cross_in(t);
    mpy_request_t *r = mpy_request_take(th);
    MPI_Status probed;
    if (MPY_UNLIKELY(mpy_store_count != 0) && mpy_store_probe(c, recv.peer, recv.tag, &probed)) {
        /* The send first: it reads the buffer that _replace overwrites. */
        rc = isend_for_stored(th, c, &send, replace, r);
        if (!rc) {
            int error = MPI_SUCCESS;
            bool got = mpy_store_receive(t, (void *)recv.buf, recv.count, mpy_real_datatype(recv.datatype), recv.peer, recv.tag, c, &r->status, &error);
            r->error = got ? error : MPI_ERR_ARG; /* not got: wrong arguments */
            r->flags |= MPY_RF_STATUS;
        }
    } else {
        if (replace) {
            if (MPY_SMALL(recv.count))
                rc = MPY_REAL(Isendrecv_replace)((void *)recv.buf, (int)recv.count, mpy_real_datatype(recv.datatype), send.peer, send.tag,
                                                 recv.peer, recv.tag, c->obj.real, &real);
            else
                rc = MPY_REAL(Isendrecv_replace_c)((void *)recv.buf, recv.count, mpy_real_datatype(recv.datatype), send.peer, send.tag,
                                                   recv.peer, recv.tag, c->obj.real, &real);
        } else {
            rc = MPY_REAL(Isendrecv_c)(send.buf, send.count, mpy_real_datatype(send.datatype), send.peer, send.tag, (void *)recv.buf,
                                       recv.count, mpy_real_datatype(recv.datatype), recv.peer, recv.tag, c->obj.real, &real);
        }
        if (!rc) {
            mpy_count_sent(th, c, send.peer);
            mpy_ssend_later(c, send.peer, send.tag);
            mpy_request_fill(r, MPY_REQ_SENDRECV, real, recv.buf, recv.count, recv.datatype, recv.peer, recv.tag, c);
            r->send_peer = send.peer;
            r->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
        }
    }
    if (rc)
        mpy_request_release(th, r);
    else
        *request = r->handle;
    mpy_cross_out(t);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

#define SENDRECV_ARGUMENTS(COUNT) \
    const void *sendbuf, COUNT sendcount, MPI_Datatype sendtype, int dest, int sendtag, void *recvbuf, COUNT recvcount, \
        MPI_Datatype recvtype, int source, int recvtag, MPI_Comm comm
#define REPLACE_ARGUMENTS(COUNT) void *buf, COUNT count, MPI_Datatype datatype, int dest, int sendtag, int source, int recvtag, MPI_Comm comm

#define DEFINE_SENDRECV(SUFFIX, COUNT) \
    MPY_API int PMPI_Sendrecv##SUFFIX(SENDRECV_ARGUMENTS(COUNT), MPI_Status *status) { \
        return sendrecv("MPI_Sendrecv" #SUFFIX, (half_t){sendbuf, sendcount, sendtype, dest, sendtag}, \
                        (half_t){recvbuf, recvcount, recvtype, source, recvtag}, false, comm, status); \
    } \
    MPY_EXPORT(Sendrecv##SUFFIX) \
    MPY_API int PMPI_Isendrecv##SUFFIX(SENDRECV_ARGUMENTS(COUNT), MPI_Request *request) { \
        return isendrecv("MPI_Isendrecv" #SUFFIX, (half_t){sendbuf, sendcount, sendtype, dest, sendtag}, \
                         (half_t){recvbuf, recvcount, recvtype, source, recvtag}, false, comm, request); \
    } \
    MPY_EXPORT(Isendrecv##SUFFIX) \
    MPY_API int PMPI_Sendrecv_replace##SUFFIX(REPLACE_ARGUMENTS(COUNT), MPI_Status *status) { \
        return sendrecv("MPI_Sendrecv_replace" #SUFFIX, (half_t){buf, count, datatype, dest, sendtag}, \
                        (half_t){buf, count, datatype, source, recvtag}, true, comm, status); \
    } \
    MPY_EXPORT(Sendrecv_replace##SUFFIX) \
    MPY_API int PMPI_Isendrecv_replace##SUFFIX(REPLACE_ARGUMENTS(COUNT), MPI_Request *request) { \
        return isendrecv("MPI_Isendrecv_replace" #SUFFIX, (half_t){buf, count, datatype, dest, sendtag}, \
                         (half_t){buf, count, datatype, source, recvtag}, true, comm, request); \
    } \
    MPY_EXPORT(Isendrecv_replace##SUFFIX)

DEFINE_SENDRECV(, int)
DEFINE_SENDRECV(_c, MPI_Count)
