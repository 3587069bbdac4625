/* completion.c - records of calls that complete, start, cancel or free requests, and of matched probes. The others are
 * generated (wrappers/generate/recorder.py).
 *
 * Invariants
 *  1. Wait and Waitall remove their operations from the table before the call: when the library has completed them it
 *     may give their handles to other threads. Calls that may leave an operation uncompleted remove it afterwards, by
 *     its serial.
 *  2. At most CUT requests of one call are recorded; the last record says so.
 */
#include "preload.h"
#include "recorder_calls.h"
#include <string.h>

enum { CUT = 128 };

typedef struct batch { /* the operations of one call, without null requests */
    int n;
    bool cut, receives;
    int place[CUT]; /* index in the program's array */
    mpy_operation_t operation[CUT];
    uint64_t first; /* seq of the first record */
} batch_t;

/* ---- one operation ---- */

static mpy_trace_call_t completion(const mpy_trace_ring_t *ring, const mpy_operation_t *o, uint32_t op) {
    mpy_trace_call_t call = o->call;
    call.op = op;
    call.flags &= MPY_TRACE_WILDCARD;
    call.request = o->serial;
    call.context = ring->mark;
    return call;
}

/* The record of a start of a persistent operation. */
static mpy_trace_call_t start(const mpy_trace_ring_t *ring, const mpy_operation_t *o, uint64_t handle) {
    mpy_trace_call_t call = completion(ring, o, MPY_OP_START);
    call.flags |= o->call.op << MPY_TRACE_STARTS;
    if (o->persistent && o->call.op >= MPY_OP_BARRIER) {
        call.tag = (int32_t)mpy_request_started(handle, o->serial);
        call.context = o->call.context;
    }
    return call;
}

static const mpy_trace_call_t nothing = {.comm = MPY_TRACE_NO_COMM, .peer = MPY_TRACE_NO_PEER};

static mpy_trace_call_t unknown(const mpy_trace_ring_t *ring, uint32_t op) {
    mpy_trace_call_t call = nothing;
    call.op = op;
    call.context = ring->mark;
    return call;
}

static void *own_if_ignored(void *status, void *own) { return status == mpy_abi.status_ignore ? own : status; }

/* The library has completed it: its communicator may exist now. */
static void completed(const mpy_operation_t *o) {
    if (o->newcomm != NULL) mpy_comm_made(o->parent, o->seq, o->newcomm);
}

static mpy_came_t came_of(const mpy_operation_t *o, const void *status) {
    mpy_came_t came = {o->call.peer, o->call.tag, o->call.bytes};
    return o->receives && status != NULL ? mpy_status_read(status) : came;
}

/* ---- Wait, Test ---- */

int mpy_record_Wait(mpy_fn_Wait_t real, void *request, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(request, status);
    uint64_t handle = mpy_handle_at(request, 0);
    mpy_operation_t o = {.call = nothing};
    char own[MPY_STATUS_MAX];
    if (mpy_request_get(handle, &o) && !o.persistent) mpy_request_drop(handle, o.serial);
    uint64_t seq = mpy_open(ring, completion(ring, &o, MPY_OP_WAIT));
    if (o.receives) status = own_if_ignored(status, own);
    int rc = real(request, status);
    uint64_t now = mpy_now(ring);
    if (rc == 0 && o.receives) {
        mpy_came_t came = mpy_status_read(status);
        mpy_received_at(ring, seq, now, 0, came.peer, came.tag, came.bytes);
    } else {
        mpy_close_at(ring, seq, now, mpy_failed(rc));
    }
    if (rc == 0) completed(&o);
    mpy_tls.busy = false;
    return rc;
}

/* The record of an operation that a test has found completed. */
static void found(mpy_trace_ring_t *ring, uint64_t enter, uint64_t exit, uint64_t handle, const mpy_operation_t *o,
                  const void *status, uint32_t more) {
    mpy_trace_call_t call = completion(ring, o, MPY_OP_TEST);
    mpy_came_t came = came_of(o, status);
    call.peer = came.peer, call.tag = came.tag, call.bytes = came.bytes;
    call.flags |= more;
    if (!o->persistent && o->serial != 0) mpy_request_drop(handle, o->serial);
    mpy_put(ring, enter, exit, call);
    completed(o);
}

int mpy_record_Test(mpy_fn_Test_t real, void *request, void *flag, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(request, flag, status);
    uint64_t handle = mpy_handle_at(request, 0), enter = mpy_now(ring);
    mpy_operation_t o = {.call = nothing};
    char own[MPY_STATUS_MAX];
    mpy_request_get(handle, &o);
    if (o.receives) status = own_if_ignored(status, own);
    int rc = real(request, flag, status);
    if (rc == 0 && *(int *)flag) found(ring, enter, mpy_now(ring), handle, &o, status, 0);
    else mpy_trace_polled(ring, enter, o.serial);
    mpy_tls.busy = false;
    return rc;
}

/* ---- several requests at once ---- */

static void gather(batch_t *b, int count, const void *requests, bool take) {
    b->n = 0;
    b->cut = b->receives = false;
    for (int i = 0; i < count; i++) {
        uint64_t handle = mpy_handle_at(requests, i);
        if (handle == mpy_abi.request_null) continue;
        if (b->n == CUT) {
            b->cut = true;
            if (!take) break;
            mpy_operation_t o;
            if (mpy_request_get(handle, &o) && !o.persistent) mpy_request_drop(handle, o.serial);
            continue;
        }
        mpy_operation_t *o = &b->operation[b->n];
        b->place[b->n++] = i;
        *o = (mpy_operation_t){.call = nothing};
        if (mpy_request_get(handle, o) && take && !o->persistent) mpy_request_drop(handle, o->serial);
        b->receives |= o->receives;
    }
}

static void enter_all(mpy_trace_ring_t *ring, batch_t *b, uint32_t op, const void *requests) {
    uint64_t enter = mpy_now(ring);
    b->first = ring->head + 1;
    if (b->n == 0) mpy_put(ring, enter, 0, unknown(ring, op));
    for (int i = 0; i < b->n; i++) {
        const mpy_operation_t *o = &b->operation[i];
        mpy_trace_call_t call =
            op == MPY_OP_START ? start(ring, o, mpy_handle_at(requests, b->place[i])) : completion(ring, o, op);
        call.flags |= i + 1 < b->n ? MPY_TRACE_MORE : b->cut ? MPY_TRACE_CUT : 0;
        mpy_put(ring, enter, 0, call);
    }
}

/* statuses: NULL, or the statuses of the program's requests. */
static void exit_all(mpy_trace_ring_t *ring, const batch_t *b, int rc, const void *statuses) {
    uint64_t now = mpy_now(ring);
    if (b->n == 0) mpy_close_at(ring, b->first, now, mpy_failed(rc));
    for (int i = 0; i < b->n; i++) {
        const mpy_operation_t *o = &b->operation[i];
        if (rc == 0 && o->receives && statuses != NULL) {
            mpy_came_t came = mpy_status_read(mpy_status_at(statuses, b->place[i]));
            mpy_received_at(ring, b->first + (uint64_t)i, now, 0, came.peer, came.tag, came.bytes);
        } else {
            mpy_close_at(ring, b->first + (uint64_t)i, now, mpy_failed(rc));
        }
        if (rc == 0) completed(o);
    }
}

int mpy_record_Waitall(mpy_fn_Waitall_t real, int count, void *requests, void *statuses) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests, statuses);
    batch_t b;
    char own[CUT * MPY_STATUS_MAX];
    bool ignored = statuses == mpy_abi.status_ignore;
    gather(&b, count, requests, true);
    enter_all(ring, &b, MPY_OP_WAITALL, requests);
    if (ignored && b.receives && count <= CUT) statuses = own, ignored = false;
    int rc = real(count, requests, statuses);
    exit_all(ring, &b, rc, ignored ? NULL : statuses);
    mpy_tls.busy = false;
    return rc;
}

int mpy_record_Testall(mpy_fn_Testall_t real, int count, void *requests, void *flag, void *statuses) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests, flag, statuses);
    uint64_t enter = mpy_now(ring);
    batch_t b;
    char own[CUT * MPY_STATUS_MAX];
    gather(&b, count, requests, false);
    uint64_t handles[CUT];
    for (int i = 0; i < b.n; i++) handles[i] = mpy_handle_at(requests, b.place[i]);
    bool ignored = statuses == mpy_abi.status_ignore;
    if (ignored && b.receives && count <= CUT) statuses = own, ignored = false;
    int rc = real(count, requests, flag, statuses);
    if (rc == 0 && *(int *)flag) {
        uint64_t now = mpy_now(ring);
        for (int i = 0; i < b.n; i++) {
            uint32_t more = i + 1 < b.n ? MPY_TRACE_MORE : b.cut ? MPY_TRACE_CUT : 0;
            found(ring, enter, now, handles[i], &b.operation[i], ignored ? NULL : mpy_status_at(statuses, b.place[i]),
                  more);
        }
    } else {
        mpy_trace_polled(ring, enter, b.n > 0 ? b.operation[0].serial : 0);
    }
    mpy_tls.busy = false;
    return rc;
}

/* The index in the batch of the operation at place `at` of the program's array, or -1. */
static int which(const batch_t *b, int at) {
    for (int i = 0; i < b->n; i++)
        if (b->place[i] == at) return i;
    return -1;
}

/* `done` of the requests were completed, at the places in `indices`; status j belongs to indices[j]. */
static void exit_some(mpy_trace_ring_t *ring, const batch_t *b, int rc, const uint64_t *handles, int done,
                      const int *indices, const void *statuses) {
    uint64_t now = mpy_now(ring);
    for (int j = 0; rc == 0 && j < done; j++) {
        int i = which(b, indices[j]);
        if (i < 0) continue;
        const mpy_operation_t *o = &b->operation[i];
        mpy_came_t came = came_of(o, statuses == NULL ? NULL : mpy_status_at(statuses, j));
        mpy_received_at(ring, b->first + (uint64_t)i, now, 0, came.peer, came.tag, came.bytes);
        if (!o->persistent && o->serial != 0) mpy_request_drop(handles[i], o->serial);
        completed(o);
    }
    /* those that are still open */
    for (int i = 0; i < b->n; i++)
        mpy_close_at(ring, b->first + (uint64_t)i, now, rc == 0 ? MPY_TRACE_PENDING : MPY_TRACE_FAILED);
    if (b->n == 0) mpy_close_at(ring, b->first, now, mpy_failed(rc));
}

static void keep_handles(uint64_t *handles, const batch_t *b, const void *requests) {
    for (int i = 0; i < b->n; i++) handles[i] = mpy_handle_at(requests, b->place[i]);
}

int mpy_record_Waitany(mpy_fn_Waitany_t real, int count, void *requests, void *indx, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests, indx, status);
    batch_t b;
    uint64_t handles[CUT];
    char own[MPY_STATUS_MAX];
    gather(&b, count, requests, false);
    keep_handles(handles, &b, requests);
    enter_all(ring, &b, MPY_OP_WAITANY, requests);
    if (b.receives) status = own_if_ignored(status, own);
    int rc = real(count, requests, indx, status);
    exit_some(ring, &b, rc, handles, 1, indx, status == mpy_abi.status_ignore ? NULL : status);
    mpy_tls.busy = false;
    return rc;
}

int mpy_record_Waitsome(mpy_fn_Waitsome_t real, int count, void *requests, void *outcount, void *indices,
                        void *statuses) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests, outcount, indices, statuses);
    batch_t b;
    uint64_t handles[CUT];
    char own[CUT * MPY_STATUS_MAX];
    gather(&b, count, requests, false);
    keep_handles(handles, &b, requests);
    enter_all(ring, &b, MPY_OP_WAITANY, requests);
    if (statuses == mpy_abi.status_ignore && b.receives && count <= CUT) statuses = own;
    int rc = real(count, requests, outcount, indices, statuses);
    exit_some(ring, &b, rc, handles, *(int *)outcount, indices, statuses == mpy_abi.status_ignore ? NULL : statuses);
    mpy_tls.busy = false;
    return rc;
}

/* Testany and Testsome: records only the requests that were found completed. */
static void test_some(mpy_trace_ring_t *ring, const batch_t *b, uint64_t enter, const uint64_t *handles, int done,
                      const int *indices, const void *statuses) {
    uint64_t now = mpy_now(ring);
    for (int j = 0; j < done; j++) {
        int i = which(b, indices[j]);
        if (i >= 0)
            found(ring, enter, now, handles[i], &b->operation[i], statuses == NULL ? NULL : mpy_status_at(statuses, j),
                  j + 1 < done ? MPY_TRACE_MORE : 0);
    }
    if (done <= 0) mpy_trace_polled(ring, enter, b->n > 0 ? b->operation[0].serial : 0);
}

int mpy_record_Testany(mpy_fn_Testany_t real, int count, void *requests, void *indx, void *flag, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests, indx, flag, status);
    uint64_t enter = mpy_now(ring), handles[CUT];
    batch_t b;
    char own[MPY_STATUS_MAX];
    gather(&b, count, requests, false);
    keep_handles(handles, &b, requests);
    if (b.receives) status = own_if_ignored(status, own);
    int rc = real(count, requests, indx, flag, status);
    test_some(ring, &b, enter, handles, rc == 0 && *(int *)flag, indx, status == mpy_abi.status_ignore ? NULL : status);
    mpy_tls.busy = false;
    return rc;
}

int mpy_record_Testsome(mpy_fn_Testsome_t real, int count, void *requests, void *outcount, void *indices,
                        void *statuses) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests, outcount, indices, statuses);
    uint64_t enter = mpy_now(ring), handles[CUT];
    batch_t b;
    char own[CUT * MPY_STATUS_MAX];
    gather(&b, count, requests, false);
    keep_handles(handles, &b, requests);
    if (statuses == mpy_abi.status_ignore && b.receives && count <= CUT) statuses = own;
    int rc = real(count, requests, outcount, indices, statuses);
    test_some(ring, &b, enter, handles, rc == 0 ? *(int *)outcount : 0, indices,
              statuses == mpy_abi.status_ignore ? NULL : statuses);
    mpy_tls.busy = false;
    return rc;
}

/* ---- persistent requests ---- */

int mpy_record_Start(mpy_fn_Start_t real, void *request) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(request);
    uint64_t handle = mpy_handle_at(request, 0);
    mpy_operation_t o = {.call = nothing};
    mpy_request_get(handle, &o);
    uint64_t seq = mpy_open(ring, start(ring, &o, handle));
    return mpy_exit(ring, seq, real(request));
}

int mpy_record_Startall(mpy_fn_Startall_t real, int count, void *requests) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(count, requests);
    batch_t b;
    gather(&b, count, requests, false);
    enter_all(ring, &b, MPY_OP_START, requests);
    int rc = real(count, requests);
    uint64_t now = mpy_now(ring);
    for (int i = 0; i < (b.n > 0 ? b.n : 1); i++) mpy_close_at(ring, b.first + (uint64_t)i, now, mpy_failed(rc));
    mpy_tls.busy = false;
    return rc;
}

int mpy_record_Cancel(mpy_fn_Cancel_t real, void *request) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(request);
    mpy_operation_t o = {.call = nothing};
    mpy_request_get(mpy_handle_at(request, 0), &o);
    uint64_t seq = mpy_open(ring, completion(ring, &o, MPY_OP_CANCEL));
    return mpy_exit(ring, seq, real(request));
}

int mpy_record_Request_free(mpy_fn_Request_free_t real, void *request) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(request);
    mpy_operation_t o = {.call = nothing};
    uint64_t handle = mpy_handle_at(request, 0);
    if (mpy_request_get(handle, &o)) mpy_request_drop(handle, o.serial);
    uint64_t seq = mpy_open(ring, completion(ring, &o, MPY_OP_REQUEST_FREE));
    return mpy_exit(ring, seq, real(request));
}

/* ---- probes that may find nothing, and matched ones ---- */

static mpy_trace_call_t probe(const mpy_trace_ring_t *ring, uint32_t op, const mpy_object_t *o, int source, int tag) {
    bool wild = source == mpy_abi.any_source || tag == mpy_abi.any_tag;
    mpy_trace_call_t call = {
        .op = op, .flags = wild ? MPY_TRACE_WILDCARD : 0, .comm = o != NULL ? o->index : MPY_TRACE_NO_COMM};
    call.peer = mpy_peer(source);
    call.tag = mpy_tag(tag);
    call.context = ring->mark;
    return call;
}

static void take_in(mpy_trace_call_t *call, const void *status) {
    mpy_came_t came = mpy_status_read(status);
    call->peer = came.peer, call->tag = came.tag, call->bytes = came.bytes;
}

/* The end of a probe that may have found nothing. */
static int probed(mpy_trace_ring_t *ring, uint64_t enter, int rc, const int *flag, mpy_trace_call_t call,
                  const void *status) {
    if (rc == 0 && *flag) {
        take_in(&call, status);
        mpy_put(ring, enter, mpy_now(ring), call);
    } else {
        mpy_trace_polled(ring, enter, 0);
    }
    mpy_tls.busy = false;
    return rc;
}

int mpy_record_Iprobe(mpy_fn_Iprobe_t real, int source, int tag, mpy_word_t comm, void *flag, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(source, tag, comm, flag, status);
    uint64_t enter = mpy_now(ring);
    mpy_trace_call_t call = probe(ring, MPY_OP_PROBE, mpy_comm_of(comm), source, tag);
    char own[MPY_STATUS_MAX];
    status = own_if_ignored(status, own);
    int rc = real(source, tag, comm, flag, status);
    return probed(ring, enter, rc, flag, call, status);
}

static void keep_message(const void *message, const mpy_trace_call_t *call, const void *status) {
    mpy_operation_t o = {.call = *call, .receives = true};
    take_in(&o.call, status);
    mpy_message_put(mpy_handle_at(message, 0), &o);
}

int mpy_record_Mprobe(mpy_fn_Mprobe_t real, int source, int tag, mpy_word_t comm, void *message, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(source, tag, comm, message, status);
    mpy_trace_call_t call = probe(ring, MPY_OP_MPROBE, mpy_comm_of(comm), source, tag);
    char own[MPY_STATUS_MAX];
    status = own_if_ignored(status, own);
    uint64_t seq = mpy_open(ring, call);
    int rc = real(source, tag, comm, message, status);
    if (rc == 0) keep_message(message, &call, status);
    return mpy_exit_received(ring, seq, rc, status);
}

int mpy_record_Improbe(mpy_fn_Improbe_t real, int source, int tag, mpy_word_t comm, void *flag, void *message,
                       void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(source, tag, comm, flag, message, status);
    uint64_t enter = mpy_now(ring);
    mpy_trace_call_t call = probe(ring, MPY_OP_MPROBE, mpy_comm_of(comm), source, tag);
    char own[MPY_STATUS_MAX];
    status = own_if_ignored(status, own);
    int rc = real(source, tag, comm, flag, message, status);
    if (rc == 0 && *(int *)flag) keep_message(message, &call, status);
    return probed(ring, enter, rc, flag, call, status);
}

/* The receive of a message that a matched probe has found. */
static mpy_trace_call_t of_message(const mpy_trace_ring_t *ring, const void *message) {
    mpy_operation_t o = {.call = nothing};
    mpy_message_take(mpy_handle_at(message, 0), &o);
    mpy_trace_call_t call = o.call;
    call.op = MPY_OP_MRECV;
    call.flags = 0;
    call.context = ring->mark;
    return call;
}

int mpy_record_Mrecv(mpy_fn_Mrecv_t real, void *buf, int count, mpy_word_t datatype, void *message, void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(buf, count, datatype, message, status);
    uint64_t seq = mpy_open(ring, of_message(ring, message));
    return mpy_exit(ring, seq, real(buf, count, datatype, message, status));
}

int mpy_record_Mrecv_c(mpy_fn_Mrecv_c_t real, void *buf, int64_t count, mpy_word_t datatype, void *message,
                       void *status) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(buf, count, datatype, message, status);
    uint64_t seq = mpy_open(ring, of_message(ring, message));
    return mpy_exit(ring, seq, real(buf, count, datatype, message, status));
}

static mpy_operation_t posted_of_message(const mpy_trace_ring_t *ring, const void *message) {
    mpy_operation_t o = {.call = of_message(ring, message), .receives = true, .serial = mpy_serial(ring)};
    o.call.flags = MPY_TRACE_NONBLOCKING;
    o.call.request = o.serial;
    return o;
}

int mpy_record_Imrecv(mpy_fn_Imrecv_t real, void *buf, int count, mpy_word_t datatype, void *message, void *request) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(buf, count, datatype, message, request);
    mpy_operation_t o = posted_of_message(ring, message);
    uint64_t seq = mpy_open(ring, o.call);
    return mpy_exit_posted(ring, seq, real(buf, count, datatype, message, request), request, &o);
}

int mpy_record_Imrecv_c(mpy_fn_Imrecv_c_t real, void *buf, int64_t count, mpy_word_t datatype, void *message,
                        void *request) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(buf, count, datatype, message, request);
    mpy_operation_t o = posted_of_message(ring, message);
    uint64_t seq = mpy_open(ring, o.call);
    return mpy_exit_posted(ring, seq, real(buf, count, datatype, message, request), request, &o);
}

/* ---- objects that are freed or named ---- */

int mpy_record_Comm_free(mpy_fn_Comm_free_t real, void *comm) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(comm);
    uint64_t handle = mpy_handle_at(comm, 0), count;
    uint64_t seq = mpy_enter_collective(
        ring, mpy_comm_of(handle), (mpy_trace_call_t){.op = MPY_OP_COMM_CREATE, .peer = MPY_TRACE_NO_PEER}, &count);
    mpy_comm_gone(handle); /* before the call: the library may give its handle to an object of another thread */
    return mpy_exit(ring, seq, real(comm));
}

int mpy_record_Comm_disconnect(mpy_fn_Comm_disconnect_t real, void *comm) { return mpy_record_Comm_free(real, comm); }

int mpy_record_Win_free(mpy_fn_Win_free_t real, void *win) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(win);
    uint64_t handle = mpy_handle_at(win, 0), count;
    uint64_t seq = mpy_enter_collective(ring, mpy_win_of(handle),
                                        (mpy_trace_call_t){.op = MPY_OP_WIN_CREATE, .peer = MPY_TRACE_NO_PEER}, &count);
    mpy_win_gone(handle);
    return mpy_exit(ring, seq, real(win));
}

int mpy_record_File_close(mpy_fn_File_close_t real, void *fh) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(fh);
    uint64_t handle = *(const uint64_t *)fh, count;
    uint64_t seq = mpy_enter_collective(ring, mpy_file_of(handle),
                                        (mpy_trace_call_t){.op = MPY_OP_FILE, .peer = MPY_TRACE_NO_PEER}, &count);
    mpy_file_gone(handle);
    return mpy_exit(ring, seq, real(fh));
}

int mpy_record_Comm_set_name(mpy_fn_Comm_set_name_t real, mpy_word_t comm, void *name) {
    int rc = real(comm, name);
    if (rc == 0 && mpy_trace.file != NULL && !mpy_tls.busy) mpy_comm_named(comm, name);
    return rc;
}
