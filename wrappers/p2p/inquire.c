/* inquire.c - calls on requests other than completion: Request_get_status*, Cancel, Request_free.
 *
 * Upper half, no libc. Invariants: those of request.h and request.c.
 */
#include "request.h"
#include "p2p.h"
#include "environment/errors.h"
#include "environment/outside.h"
#include "tools/trace.h"

/* In the lower half. Doesn't complete the request: a later Wait or Test does that. */
static int get_status(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r, int *flag, MPI_Status *status) {
    *flag = 0;
    if (r->flags & MPY_RF_SYNC) mpy_ack_poll();
    if (r->flags & (MPY_RF_COMPLETE | MPY_RF_INACTIVE | MPY_RF_FAMILY) && mpy_request_ready(t, th, r)) {
        *flag = 1;
        mpy_request_tell(t, r, false);
        if (r->flags & MPY_RF_INACTIVE)
            mpy_status_empty(status);
        else
            mpy_status_copy(status, &r->status);
        return r->error;
    }
    if (r->flags & (MPY_RF_SYNC | MPY_RF_NEVER | MPY_RF_FAMILY)) return MPI_SUCCESS;
    return MPY_REAL(Request_get_status)(r->real, flag, status);
}

typedef enum { ONE, ALL, ANY, SOME } inquiry_t;

/* All four forms: inspects each request, in one crossing. `statuses` is one status for ONE and ANY. */
static int inquire(inquiry_t what, int n, const int *handles, int *flag, int *outcount, int *indices,
                   MPI_Status *statuses, const char *name) {
    mpy_require_mpi(name);
    if (n < 0) return mpy_error(NULL, MPI_ERR_COUNT, name);
    for (int i = 0; i < n; i++)
        if (handles[i] != MPI_REQUEST_NULL && mpy_request_valid(handles[i]) == NULL)
            return mpy_error(NULL, MPI_ERR_REQUEST, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int active = 0, finished = 0, rc = MPI_SUCCESS;
    const mpy_comm_t *comm = NULL;

    mpy_cross_in(t);
    for (int i = 0; i < n && !rc; i++) {
        mpy_request_t *r = handles[i] == MPI_REQUEST_NULL ? NULL : mpy_request(handles[i]);
        if ((r == NULL || r->flags & MPY_RF_INACTIVE) && what != ONE && what != ALL) continue;
        active++;
        int slot = what == SOME ? finished : what == ALL ? i : 0, done = 1;
        MPI_Status *status = statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[slot];
        if (r == NULL)
            mpy_status_empty(status);
        else
            rc = get_status(t, th, r, &done, status);
        if (rc) comm = mpy_request_comm(r);
        if (!done) continue;
        if (what == ANY || what == SOME) indices[what == ANY ? 0 : finished] = i;
        finished++;
        if (what == ANY) break;
    }
    mpy_cross_out(t);

    bool answer = finished > 0 || active == 0;
    if (what == ANY && finished == 0) {
        *indices = MPI_UNDEFINED;
        if (active == 0) mpy_status_empty(statuses);
    }
    if (what == ONE || what == ALL) answer = finished == n;
    if (what == SOME) *outcount = active ? finished : MPI_UNDEFINED;
    if (flag) *flag = answer;
    if (answer) {
        mpy_p2p_done(t, th);
    } else {
        mpy_wait_t w = {.handles = handles, .n = n, .mode = what == ANY || what == SOME ? MPY_WAIT_ANY : MPY_WAIT_ALL};
        mpy_poll_failed(t, th, &w);
    }
    return rc == MPI_SUCCESS ? rc : mpy_error(comm, rc, name);
}

MPY_API int PMPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status) {
    return inquire(ONE, 1, &request, flag, NULL, NULL, status, "MPI_Request_get_status");
}

MPY_API int PMPI_Request_get_status_all(int count, const MPI_Request array_of_requests[], int *flag,
                                        MPI_Status array_of_statuses[]) {
    return inquire(ALL, count, array_of_requests, flag, NULL, NULL, array_of_statuses, "MPI_Request_get_status_all");
}

MPY_API int PMPI_Request_get_status_any(int count, const MPI_Request array_of_requests[], int *indx, int *flag,
                                        MPI_Status *status) {
    return inquire(ANY, count, array_of_requests, flag, NULL, indx, status, "MPI_Request_get_status_any");
}

MPY_API int PMPI_Request_get_status_some(int incount, const MPI_Request array_of_requests[], int *outcount,
                                         int array_of_indices[], MPI_Status array_of_statuses[]) {
    return inquire(SOME, incount, array_of_requests, NULL, outcount, array_of_indices, array_of_statuses,
                   "MPI_Request_get_status_some");
}

/* A send goes on (MPI-4.0 has deprecated cancelling it), and so does a receive whose message is matched. It is so in
 * Open MPI and MPICH (ch4:ofi), too. MPICH 5.0.2 (ch4:ucx) crashes for a send within a node: it takes it for one of
 * UCX. And it has no request of UCX for an MPI_Imrecv. */
static bool goes_on(const mpy_request_t *r) {
    return r->kind == MPY_REQ_SEND || r->kind == MPY_REQ_SSEND || r->kind == MPY_REQ_MRECV;
}

MPY_API int PMPI_Cancel(MPI_Request *request) {
    mpy_request_t *r = mpy_request_valid(*request);
    if (r == NULL || r->flags & MPY_RF_INACTIVE) return mpy_error(NULL, MPI_ERR_REQUEST, "MPI_Cancel");
    mpy_thread_t *t = mpy_self();
    int rc = MPI_SUCCESS;
    uint64_t record =
        MPY_LIKELY(t->trace != NULL) ? mpy_trace_enter(t->trace, mpy_trace_completion(t, MPY_OP_CANCEL, r)) : 0;
    if (r->flags & MPY_RF_FAMILY && r->family->cancel) {
        rc = r->family->cancel(t, r);
        mpy_traced(t, record, rc);
        return rc == MPI_SUCCESS ? rc : mpy_error(mpy_request_comm(r), rc, "MPI_Cancel");
    }
    mpy_cross_in(t);
    if (r->flags & MPY_RF_NEVER) { /* nothing can match it: it is cancelled at once */
        r->flags = (r->flags & ~(uint32_t)MPY_RF_NEVER) | MPY_RF_COMPLETE;
        mpy_status_empty(&r->status);
        r->status.count_hi_and_cancelled |= 1;
        r->error = MPI_SUCCESS;
    } else if (!(r->flags & MPY_RF_COMPLETE) && !goes_on(r)) {
        rc = MPY_REAL(Cancel)(&r->real);
        if (rc == MPI_SUCCESS) r->flags |= MPY_RF_CANCEL;
    }
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    return rc == MPI_SUCCESS ? rc : mpy_error(mpy_request_comm(r), rc, "MPI_Cancel");
}

/* In the lower half, but leaves it for the last callbacks of a family; *rc gets a callback's error. True if the request
 * will be released by itself. */
static bool let_go(mpy_thread_t *t, mpy_request_t *r, bool *finished, int *rc) {
    const mpy_request_family_t *f = r->family;
    if (!*finished && f->let_go) {
        mpy_cross_out(t);
        *finished = !f->let_go(t, r);
        mpy_cross_in(t);
        if (!*finished) return true;
    }
    if (*finished && !f->persistent && f->dispose) {
        mpy_cross_out(t);
        *rc = f->dispose(t, r);
        mpy_cross_in(t);
    }
    return false;
}

MPY_API int PMPI_Request_free(MPI_Request *request) {
    mpy_request_t *r = mpy_request_valid(*request);
    if (r == NULL) return mpy_error(NULL, MPI_ERR_REQUEST, "MPI_Request_free");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int rc = MPI_SUCCESS;
    uint64_t record =
        MPY_LIKELY(t->trace != NULL) ? mpy_trace_enter(t->trace, mpy_trace_completion(t, MPY_OP_REQUEST_FREE, r)) : 0;
    mpy_cross_in(t);
    mpy_orphan_reap(th);
    bool finished = r->flags & (MPY_RF_SYNC | MPY_RF_NEVER) || mpy_request_ready(t, th, r);
    bool gone = r->flags & MPY_RF_FAMILY && let_go(t, r, &finished, &rc);
    if (finished)
        mpy_request_release(th, r);
    else if (!gone) /* it continues without the program; the drain must know of it until it has finished */
        mpy_orphan_add(r);
    *request = MPI_REQUEST_NULL;
    mpy_cross_out(t);
    mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return rc == MPI_SUCCESS ? rc : mpy_error(NULL, rc, "MPI_Request_free");
}
