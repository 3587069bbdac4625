/* probe.c - probes, probed messages and queries of statuses.
 *
 * Upper half, no libc. A blocking probe is a loop of real Iprobes or Improbes, in one crossing. A probed message
 * (MPI_Message) is a slot of kind MESSAGE in the request space. The slot has the real message. If the message comes
 * from the store, or a drain happened in between, it has the stored one (real == MPI_MESSAGE_NULL). A matched receive
 * changes the slot's kind to MRECV.
 *
 * Invariants
 *  1. Those of request.h. The store is searched after every crossing, because it may have grown while the thread was
 *     outside.
 *  2. A message is counted as received when its real Mrecv is complete, in the drain or here. A message from the store
 *     has been counted already.
 */
#include "request.h"
#include "p2p.h"
#include "environment/errors.h"
#include "environment/outside.h"
#include "tools/trace.h"

#define PROBE_FIELDS(OP)                                                                                               \
    .op = (OP), .flags = mpy_trace_wildcard(source, tag), MPY_TRACE_P2P(c, source, tag, 0, MPI_BYTE)

/* A blocking probe is recorded at its entry, the others when they have found something. */
static void probed(mpy_thread_t *t, const mpy_comm_t *c, mpy_trace_op_t op, int source, int tag, bool block,
                   uint64_t since, uint64_t record, int found, int rc, const MPI_Status *s) {
    if (MPY_UNLIKELY(t->trace == NULL)) return;
    if (!block && (found || rc)) record = mpy_trace_found(t, since, (mpy_trace_call_t){PROBE_FIELDS(op)});
    if (found || rc)
        mpy_traced_status(t, record, rc, s);
    else
        mpy_trace_missed(t, since, 0);
}

/* ---- Probe, Iprobe ---- */

static int probe(const char *name, int source, int tag, int comm, int *flag, MPI_Status *status, bool block) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_wait_t w = {.comm = c, .source = source};
    MPI_Status own, *s = status == MPI_STATUS_IGNORE ? &own : status;
    int rc = MPI_SUCCESS, found = 0;
    uint64_t since = block ? 0 : mpy_trace_look(t), record = block ? MPY_TRACE(t, PROBE_FIELDS(MPY_OP_PROBE)) : 0;

    mpy_cross_in(t);
    for (;;) {
        if (MPY_UNLIKELY(mpy_store_count != 0) && mpy_store_probe(c, source, tag, s))
            found = 1;
        else
            rc = MPY_REAL(Iprobe)(source, tag, c->obj.real, &found, s);
        if (found || rc || !block) break;
        mpy_wait_round(t, &w);
    }
    mpy_cross_out(t);
    probed(t, c, MPY_OP_PROBE, source, tag, block, since, record, found, rc, s);

    if (flag) *flag = found;
    if (found || rc)
        mpy_p2p_done(t, th);
    else
        mpy_poll_failed(t, th, &w);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

MPY_API int PMPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status *status) {
    return probe("MPI_Probe", source, tag, comm, NULL, status, true);
}
MPY_API int PMPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status) {
    return probe("MPI_Iprobe", source, tag, comm, flag, status, false);
}

/* ---- Mprobe, Improbe ---- */

static int mprobe(const char *name, int source, int tag, int comm, int *flag, int *message, MPI_Status *status,
                  bool block) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_wait_t w = {.comm = c, .source = source};
    MPI_Status own, *s = status == MPI_STATUS_IGNORE ? &own : status;
    mpy_stored_t *stored = NULL;
    int rc = MPI_SUCCESS, found = 0, real = MPI_MESSAGE_NULL;
    uint64_t since = block ? 0 : mpy_trace_look(t), record = block ? MPY_TRACE(t, PROBE_FIELDS(MPY_OP_MPROBE)) : 0;

    mpy_cross_in(t);
    for (;;) {
        if (MPY_UNLIKELY(mpy_store_count != 0) && (stored = mpy_store_extract(c, source, tag)) != NULL) {
            mpy_status_set(s, stored->source, stored->tag, stored->bytes);
            found = 1;
        } else {
            rc = MPY_REAL(Improbe)(source, tag, c->obj.real, &found, &real, s);
        }
        if (found || rc || !block) break;
        mpy_wait_round(t, &w);
    }
    if (found && !rc) {
        if (real == MPI_MESSAGE_NO_PROC) {
            *message = MPI_MESSAGE_NO_PROC;
        } else {
            mpy_request_t *r = mpy_request_take(th);
            r->real = real;
            r->comm = c;
            r->peer = s->MPI_SOURCE;
            r->tag = s->MPI_TAG;
            r->status = *s;
            r->stored = stored;
            r->kind = MPY_REQ_MESSAGE;
            *message = r->handle;
        }
    }
    mpy_cross_out(t);
    probed(t, c, MPY_OP_MPROBE, source, tag, block, since, record, found, rc, s);

    if (flag) *flag = found;
    if (found || rc)
        mpy_p2p_done(t, th);
    else
        mpy_poll_failed(t, th, &w);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

MPY_API int PMPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status) {
    return mprobe("MPI_Mprobe", source, tag, comm, NULL, message, status, true);
}
MPY_API int PMPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status) {
    return mprobe("MPI_Improbe", source, tag, comm, flag, message, status, false);
}

/* ---- Mrecv, Imrecv ---- */

/* In the lower half: starts the receive of a probed message. The slot becomes an MRECV, which may already be
 * finished. */
static int start_mrecv(mpy_thread_t *t, mpy_request_t *r, void *buf, MPI_Count count, int datatype) {
    int rc = MPI_SUCCESS, real;
    if (r->real == MPI_MESSAGE_NULL) {
        if (!mpy_store_deliver(t, r->stored, buf, count, mpy_real_datatype(datatype), &r->status, &rc)) return rc;
        r->stored = NULL;
        r->error = rc;
        r->real = MPI_REQUEST_NULL;
        r->flags |= MPY_RF_COMPLETE;
        r->kind = MPY_REQ_MRECV;
        return MPI_SUCCESS;
    }
    if (MPY_SMALL(count))
        rc = MPY_REAL(Imrecv)(buf, (int)count, mpy_real_datatype(datatype), &r->real, &real);
    else
        rc = MPY_REAL(Imrecv_c)(buf, count, mpy_real_datatype(datatype), &r->real, &real);
    if (rc) return rc;
    mpy_request_fill(r, MPY_REQ_MRECV, real, buf, count, datatype, r->peer, r->tag, r->comm);
    return MPI_SUCCESS;
}

/* Receive "from" MPI_PROC_NULL. There is no communicator, so errors go to the world. In the lower half. */
static int no_proc_status(MPI_Status *status) {
    if (status != MPI_STATUS_IGNORE) mpy_status_set(status, MPI_PROC_NULL, MPI_ANY_TAG, 0);
    return MPI_SUCCESS;
}

/* The probe's status has the source, tag and size. */
#define MRECV_FIELDS                                                                                                   \
    .comm = mpy_trace_comm(c), .peer = mpy_trace_peer(source), .tag = mpy_trace_tag(tag),                              \
    .bytes = no_proc ? 0 : mpy_status_bytes(&r->status), .context = t->trace->mark

static int mrecv(const char *name, void *buf, MPI_Count count, int datatype, int *message, int *request,
                 MPI_Status *status) {
    mpy_require_mpi(name);
    mpy_request_t *r = mpy_request(*message);
    bool no_proc = *message == MPI_MESSAGE_NO_PROC;
    if (!no_proc && (r == NULL || r->kind != MPY_REQ_MESSAGE)) return mpy_error(NULL, MPI_ERR_REQUEST, name);
    mpy_comm_t *c = no_proc ? NULL : r->comm;
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int rc, source = no_proc ? MPI_PROC_NULL : r->peer, tag = no_proc ? MPI_ANY_TAG : r->tag;
    uint64_t record = request == NULL ? MPY_TRACE(t, .op = MPY_OP_MRECV, MRECV_FIELDS)
                                      : MPY_TRACE(t, .op = MPY_OP_MRECV, .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST,
                                                  MRECV_FIELDS);

    mpy_cross_in(t);
    if (no_proc) {
        rc = no_proc_status(status);
        if (request != NULL) {
            r = mpy_request_take(th);
            r->real = MPI_REQUEST_NULL;
            r->comm = mpy_world;
            r->error = MPI_SUCCESS;
            no_proc_status(&r->status);
            r->flags = MPY_RF_COMPLETE;
            r->kind = MPY_REQ_MRECV;
        }
    } else {
        rc = start_mrecv(t, r, buf, count, datatype);
    }
    if (!rc) {
        *message = MPI_MESSAGE_NULL;
        if (request != NULL) {
            mpy_trace_posted(t, record, r);
            *request = r->handle;
        } else if (!no_proc) {
            rc = mpy_request_finish(t, th, r, NULL, status);
        }
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(c, rc, name);
}

#define DEFINE_MRECV(SUFFIX, COUNT)                                                                                    \
    MPY_API int PMPI_Mrecv##SUFFIX(void *buf, COUNT count, MPI_Datatype datatype, MPI_Message *message,                \
                                   MPI_Status *status) {                                                               \
        return mrecv("MPI_Mrecv" #SUFFIX, buf, count, datatype, message, NULL, status);                                \
    }                                                                                                                  \
    MPY_API int PMPI_Imrecv##SUFFIX(void *buf, COUNT count, MPI_Datatype datatype, MPI_Message *message,               \
                                    MPI_Request *request) {                                                            \
        return mrecv("MPI_Imrecv" #SUFFIX, buf, count, datatype, message, request, MPI_STATUS_IGNORE);                 \
    }

DEFINE_MRECV(, int)
DEFINE_MRECV(_c, MPI_Count)
