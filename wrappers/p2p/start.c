/* start.c - MPI_Start and MPI_Startall for persistent requests of every family; and persistent point-to-point.
 *
 * Upper half, no libc. A persistent send or receive keeps its arguments in its slot. Starting it does on that slot what
 * the nonblocking call does on a new one. So the real library knows of it only while it is active. While it is inactive
 * there is nothing to rebuild after a restart.
 *
 * Invariants
 *  1. Those of request.h, p2p.c and request.c.
 *  2. The kind and arguments of the slot never change; real, order and status belong to the operation.
 *  3. With MPI_PROC_NULL there is no operation: as in MPICH, Start leaves the request inactive.
 */
#include "request.h"
#include "p2p.h"
#include "environment/errors.h"
#include "tools/trace.h"

/* ---- Start ---- */

/* The request of a handle if it is persistent and inactive, otherwise NULL. */
static mpy_request_t *startable(int handle) {
    mpy_request_t *r = handle != MPI_REQUEST_NULL ? mpy_request_valid(handle) : NULL;
    return r != NULL && r->flags & MPY_RF_INACTIVE ? r : NULL;
}

static mpy_trace_call_t starting(const mpy_thread_t *t, const mpy_request_t *r) {
    bool p2p = r->kind == MPY_REQ_SEND || r->kind == MPY_REQ_SSEND || r->kind == MPY_REQ_RECV;
    mpy_trace_call_t call = {.op = MPY_OP_START,
                             .comm = mpy_trace_comm(r->comm),
                             .peer = MPY_TRACE_NO_PEER,
                             .request = *mpy_request_serial(r),
                             .context = t->trace->mark};
    call.flags = r->family->op << MPY_TRACE_STARTS;
    if (p2p) {
        call.peer = mpy_trace_peer(r->peer);
        call.tag = mpy_trace_tag(r->tag);
        call.bytes = mpy_trace_bytes(r->count, r->datatype);
    }
    if (r->family->traced != NULL) r->family->traced(r, &call);
    return call;
}

static int start_all(int n, const int *handles, const char *name) {
    for (int i = 0; i < n; i++)
        if (startable(handles[i]) == NULL) return mpy_error(NULL, MPI_ERR_REQUEST, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    for (int i = 0; i < n; i++) {
        mpy_request_t *r = startable(handles[i]);
        if (r == NULL) return mpy_error(NULL, MPI_ERR_REQUEST, name); /* the handle occurs twice */
        uint64_t record = MPY_LIKELY(t->trace != NULL) ? mpy_trace_enter(t->trace, starting(t, r)) : 0;
        int rc = r->family->start(t, th, r);
        mpy_traced(t, record, rc);
        if (MPY_UNLIKELY(rc != MPI_SUCCESS)) return mpy_error(mpy_request_comm(r), rc, name);
    }
    mpy_p2p_done(t, th);
    return MPI_SUCCESS;
}

MPY_API int PMPI_Start(MPI_Request *request) { return start_all(1, request, "MPI_Start"); }

MPY_API int PMPI_Startall(int count, MPI_Request array_of_requests[]) {
    if (count < 0) return mpy_error(NULL, MPI_ERR_COUNT, "MPI_Startall");
    return start_all(count, array_of_requests, "MPI_Startall");
}

/* ---- persistent point-to-point ---- */

static int start_real(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r, int fn, int fn_c) {
    mpy_cross_in(t);
    int rc = mpy_real_isend_of(fn, fn_c, r->buf, r->count, mpy_request_real_type(r), r->peer, r->tag, r->comm->obj.real,
                               &r->real);
    if (MPY_LIKELY(rc == MPI_SUCCESS)) {
        mpy_count_sent(th, r->comm, r->peer);
        mpy_ssend_later(r->comm, r->peer, r->tag);
        mpy_request_activate(r, false);
        if (r->kind == MPY_REQ_SSEND) mpy_ssend_add(r);
    }
    mpy_cross_out(t);
    return rc;
}

static int start_send(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    return start_real(t, th, r, MPY_FN_Isend, MPY_FN_Isend_c);
}
static int start_rsend(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    return start_real(t, th, r, MPY_FN_Irsend, MPY_FN_Irsend_c);
}
static int start_ssend(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    return start_real(t, th, r, MPY_FN_Issend, MPY_FN_Issend_c);
}

static int start_bsend(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    mpy_cross_in(t);
    int rc = mpy_bsend_start(th, r->comm, r->buf, r->count, mpy_request_real_type(r), r->peer, r->tag);
    if (rc == MPI_SUCCESS) mpy_request_activate(r, true);
    mpy_cross_out(t);
    return rc;
}

static int start_recv(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    mpy_cross_in(t);
    int rc = MPI_SUCCESS, datatype = mpy_request_real_type(r);
    if (MPY_UNLIKELY(mpy_store_count != 0) &&
        mpy_store_receive(t, r->buf, r->count, datatype, r->peer, r->tag, r->comm, &r->status, &r->error)) {
        mpy_request_activate(r, true);
    } else if ((rc = mpy_real_irecv(r->buf, r->count, datatype, r->peer, r->tag, r->comm->obj.real, &r->real)) ==
               MPI_SUCCESS) {
        r->order = __atomic_add_fetch(&mpy_request_order, 1, __ATOMIC_RELAXED);
        mpy_request_activate(r, false);
    }
    mpy_cross_out(t);
    return rc;
}

/* With MPI_PROC_NULL (invariant 3). */
static int start_nothing(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)t, (void)th, (void)r;
    return MPI_SUCCESS;
}

static const mpy_request_family_t family_send = {
    .name = "persistent send", .persistent = true, .op = MPY_OP_SEND, .start = start_send};
static const mpy_request_family_t family_rsend = {
    .name = "persistent ready send", .persistent = true, .op = MPY_OP_RSEND, .start = start_rsend};
static const mpy_request_family_t family_ssend = {
    .name = "persistent synchronous send", .persistent = true, .op = MPY_OP_SSEND, .start = start_ssend};
static const mpy_request_family_t family_bsend = {
    .name = "persistent buffered send", .persistent = true, .op = MPY_OP_BSEND, .start = start_bsend};
static const mpy_request_family_t family_recv = {
    .name = "persistent receive", .persistent = true, .op = MPY_OP_RECV, .start = start_recv};
static const mpy_request_family_t family_nothing = {
    .name = "persistent request of MPI_PROC_NULL", .persistent = true, .start = start_nothing};

/* `fn`: the real X_init_c, which is called only to check the arguments. */
static int init(const char *name, mpy_trace_op_t op, const mpy_request_family_t *family, mpy_request_kind_t kind,
                int fn, const void *buf, MPI_Count count, int datatype, int peer, int tag, int comm, int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real;
    uint64_t record =
        MPY_TRACE(t, .op = op, .flags = MPY_TRACE_PERSISTENT | (op == MPY_OP_RECV ? mpy_trace_wildcard(peer, tag) : 0),
                  MPY_TRACE_POST, MPY_TRACE_P2P(c, peer, tag, count, datatype));
    mpy_cross_in(t);
    int rc =
        ((mpy_isend_c_t)MPY_LOWER->mpi[fn])(buf, count, mpy_real_datatype(datatype), peer, tag, c->obj.real, &real);
    if (rc == MPI_SUCCESS) {
        MPY_REAL(Request_free)(&real);
        mpy_request_t *r = mpy_request_of_family(th, peer == MPI_PROC_NULL ? &family_nothing : family, kind, c, NULL);
        mpy_request_fill(r, kind, MPI_REQUEST_NULL, buf, count, datatype, peer, tag, c);
        mpy_trace_posted(t, record, r);
        *request = r->handle;
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    return rc == MPI_SUCCESS ? rc : mpy_error(c, rc, name);
}

#define DEFINE_INIT(NAME, SUFFIX, COUNT, OP, FAMILY, KIND)                                                             \
    MPY_API int PMPI_##NAME##_init##SUFFIX(const void *buf, COUNT count, MPI_Datatype datatype, int dest, int tag,     \
                                           MPI_Comm comm, MPI_Request *request) {                                      \
        return init("MPI_" #NAME "_init" #SUFFIX, MPY_OP_##OP, &FAMILY, KIND, MPY_FN_##NAME##_init_c, buf, count,      \
                    datatype, dest, tag, comm, request);                                                               \
    }
#define DEFINE_RECV_INIT(SUFFIX, COUNT)                                                                                \
    MPY_API int PMPI_Recv_init##SUFFIX(void *buf, COUNT count, MPI_Datatype datatype, int source, int tag,             \
                                       MPI_Comm comm, MPI_Request *request) {                                          \
        return init("MPI_Recv_init" #SUFFIX, MPY_OP_RECV, &family_recv, MPY_REQ_RECV, MPY_FN_Recv_init_c, buf, count,  \
                    datatype, source, tag, comm, request);                                                             \
    }

DEFINE_INIT(Send, , int, SEND, family_send, MPY_REQ_SEND)
DEFINE_INIT(Send, _c, MPI_Count, SEND, family_send, MPY_REQ_SEND)
DEFINE_INIT(Rsend, , int, RSEND, family_rsend, MPY_REQ_SEND)
DEFINE_INIT(Rsend, _c, MPI_Count, RSEND, family_rsend, MPY_REQ_SEND)
DEFINE_INIT(Ssend, , int, SSEND, family_ssend, MPY_REQ_SSEND)
DEFINE_INIT(Ssend, _c, MPI_Count, SSEND, family_ssend, MPY_REQ_SSEND)
DEFINE_INIT(Bsend, , int, BSEND, family_bsend, MPY_REQ_SEND)
DEFINE_INIT(Bsend, _c, MPI_Count, BSEND, family_bsend, MPY_REQ_SEND)
DEFINE_RECV_INIT(, int)
DEFINE_RECV_INIT(_c, MPI_Count)
