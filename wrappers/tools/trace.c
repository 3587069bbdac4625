/* trace.c - recording calls, the part that isn't inline: sizes of types, communicators, and calls on several requests.
 * See trace.h.
 *
 * Upper half, no libc; either TLS.
 */
#include "trace.h"
#include "clock/clock.h"
#include "datatype/datatype.h"
#include "p2p/request.h"

/* ---- bytes ---- */

uint64_t mpy_trace_size_slow(int datatype) {
    switch (datatype) { /* pair types have no object */
    case MPI_FLOAT_INT: return 8;
    case MPI_DOUBLE_INT: return 12;
    case MPI_LONG_INT: return 12;
    case MPI_SHORT_INT: return 6;
    case MPI_LONG_DOUBLE_INT: return 20;
    }
    const mpy_datatype_t *d = mpy_datatype(datatype);
    return d != NULL ? (uint64_t)d->size : 0;
}

uint64_t mpy_trace_sum(const int *counts, int64_t n, int datatype) {
    int64_t sum = 0;
    for (int64_t i = 0; counts != NULL && i < n; i++) sum += counts[i];
    return mpy_trace_bytes(sum, datatype);
}

uint64_t mpy_trace_sum_c(const MPI_Count *counts, int64_t n, int datatype) {
    MPI_Count sum = 0;
    for (int64_t i = 0; counts != NULL && i < n; i++) sum += counts[i];
    return mpy_trace_bytes(sum, datatype);
}

/* ---- communicators ---- */

void mpy_trace_comm_enter(mpy_comm_t *c, uint64_t cid) {
    int n = c->size + c->remote_size;
    int32_t *members = mpy_alloc((size_t)n * sizeof *members);
    __builtin_memcpy(members, c->world, (size_t)c->size * sizeof *members);
    if (c->remote_size > 0)
        __builtin_memcpy(members + c->size, c->remote_world, (size_t)c->remote_size * sizeof *members);
    c->trace = MPY_LOWER->svc->trace_comm(cid, mpy_ggid(c->world, c->size), members, (uint32_t)n,
                                          (uint32_t)c->remote_size, c->has_name ? c->name : NULL);
    mpy_free(members, (size_t)n * sizeof *members);
}

/* ---- several requests ---- */

static inline void put(mpy_thread_t *t, mpy_traced_t *several, const mpy_request_t *r, uint32_t flags) {
    mpy_trace_call_t call = mpy_trace_completion(t, several->op, r);
    call.flags |= flags;
    uint64_t seq = mpy_trace_put(t->trace, several->since, 0, call);
    if (several->n++ == 0) several->first = seq;
}

mpy_traced_t mpy_trace_wait_slow(mpy_thread_t *t, mpy_trace_op_t op, int n, const int *handles) {
    mpy_traced_t several = {.since = mpy_trace_ticks(), .op = op};
    const mpy_request_t *last = NULL;
    uint32_t flags = op == MPY_OP_WAITALL ? 0 : MPY_TRACE_PENDING;
    for (int i = 0; i < n && op != MPY_OP_TEST; i++) {
        const mpy_request_t *r = handles[i] != MPI_REQUEST_NULL ? mpy_request_valid(handles[i]) : NULL;
        if (r == NULL) continue;
        several.cut = several.n == MPY_TRACE_REQUESTS - 1 && last != NULL;
        if (MPY_UNLIKELY(several.cut)) break;
        if (last != NULL) put(t, &several, last, flags | MPY_TRACE_MORE);
        last = r;
    }
    if (last != NULL) put(t, &several, last, flags | (several.cut ? MPY_TRACE_CUT : 0));
    return several;
}

/* Records a request that a Test has completed. Between two of them a callback may have made calls of its own. */
static void tested(mpy_thread_t *t, mpy_traced_t *several, const mpy_request_t *r) {
    if (t->trace == NULL) return; /* the callback may have paused the recording */
    several->cut |= several->n == MPY_TRACE_REQUESTS ||
                    (several->n > 0 && t->trace->head + 1 != several->first + (uint64_t)several->n);
    if (several->cut) return;
    put(t, several, r, MPY_TRACE_PENDING);
    if (several->n > 1) mpy_trace_record(t->trace, t->trace->head - 1)->flags |= MPY_TRACE_MORE;
}

/* Finds the record of a request. The requests usually come in the order of the records. */
static mpy_trace_record_t *find(mpy_trace_ring_t *ring, mpy_traced_t *several, uint64_t request) {
    for (int i = 0, at = several->next; i < several->n; i++, at++) {
        if (at == several->n) at = 0;
        mpy_trace_record_t *record = mpy_trace_open(ring, several->first + (uint64_t)at);
        if (record == NULL || record->request != request) continue;
        several->next = at + 1;
        return record;
    }
    return NULL;
}

static inline void came(mpy_trace_record_t *record, const mpy_request_t *r, const MPI_Status *s) {
    if (s == MPI_STATUS_IGNORE || !mpy_trace_received(r)) return;
    record->peer = mpy_trace_peer(s->MPI_SOURCE);
    record->tag = mpy_trace_tag(s->MPI_TAG);
    record->bytes = mpy_status_bytes(s);
}

void mpy_trace_outcome_slow(mpy_thread_t *t, mpy_traced_t *several, const mpy_request_t *r, const MPI_Status *s,
                            int error) {
    if (several->op == MPY_OP_TEST) tested(t, several, r);
    mpy_trace_record_t *record = find(t->ring, several, *mpy_request_serial(r));
    if (record == NULL) return;
    record->flags &= (uint16_t)~MPY_TRACE_PENDING;
    if (error != 0)
        record->flags |= MPY_TRACE_FAILED;
    else
        came(record, r, s);
}

/* The records are in the order of the requests, so no search is needed. */
void mpy_trace_all_slow(mpy_thread_t *t, mpy_traced_t *several, mpy_request_t *const *requests,
                        const MPI_Status *statuses) {
    for (int i = 0, at = 0; at < several->n; i++) {
        if (requests[i] == NULL) continue;
        mpy_trace_record_t *record = mpy_trace_open(t->ring, several->first + (uint64_t)at++);
        if (MPY_LIKELY(record != NULL)) came(record, requests[i], statuses + i);
    }
}

void mpy_trace_not_all(mpy_thread_t *t, mpy_traced_t *several) {
    for (int i = 0; i < several->n && t->ring != NULL; i++) {
        mpy_trace_record_t *record = mpy_trace_open(t->ring, several->first + (uint64_t)i);
        if (record != NULL) record->flags |= MPY_TRACE_PENDING;
    }
}

void mpy_trace_waited_slow(mpy_thread_t *t, mpy_traced_t *several) {
    uint64_t now = mpy_trace_ticks();
    for (int i = 0; i < several->n; i++)
        mpy_trace_exit_at(t->ring, several->first + (uint64_t)i, now,
                          several->cut && i == several->n - 1 ? MPY_TRACE_CUT : 0);
}

/* ---- ending and pausing ---- */

void mpy_trace_abandon(mpy_thread_t *t) {
    mpy_trace_ring_t *ring = t->ring;
    enum { DEEP = 1024 }; /* number of records that the callback may have made */
    if (ring == NULL) return;
    for (uint64_t seq = ring->head, left = DEEP; seq >= ring->first && left > 0; seq--, left--) {
        if (mpy_trace_open(ring, seq) == NULL) continue;
        mpy_trace_exit(ring, seq, MPY_TRACE_FAILED);
        return;
    }
}

uint64_t mpy_trace_serial_paused(const mpy_thread_t *t) {
    static uint64_t count;
    return t->ring->serials + MPY_TRACE_PAUSED_SERIALS + __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
}

void mpy_trace_refused(mpy_thread_t *t, const char *function, int class) {
    uint64_t now = mpy_trace_ticks();
    if (t->trace == NULL) return;
    for (bool more = true; more;) {
        union { char text[24]; uint64_t words[3]; } name = {0};
        for (size_t i = 0; i < sizeof name.text && *function != 0; i++) name.text[i] = *function++;
        more = *function != 0;
        mpy_trace_put(t->trace, now, now,
                      (mpy_trace_call_t){.op = MPY_OP_REFUSED,
                                         .flags = MPY_TRACE_FAILED | (more ? MPY_TRACE_MORE : 0),
                                         .comm = MPY_TRACE_NO_COMM,
                                         .peer = MPY_TRACE_NO_PEER,
                                         .tag = class,
                                         .bytes = name.words[0],
                                         .request = name.words[1],
                                         .context = name.words[2]});
    }
}

/* No snapshot may come between the record and the pointer. Inside a callback this has no effect: the outer call
 * continues with the thread's own record. */
void mpy_trace_control(mpy_thread_t *t, bool on) {
    if (t->used == MPY_SHADOW) return;
    mpy_guard_in(t);
    if (t->ring != NULL && on != (t->trace != NULL)) {
        if (on)
            mpy_trace_resume(t->ring);
        else
            mpy_trace_pause(t->ring);
        t->trace = on ? t->ring : NULL;
    }
    mpy_guard_out(t);
}
