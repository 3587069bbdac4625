/* request.c - slots of virtual requests, and the program's completion calls: Wait* and Test*.
 *
 * Upper half, no libc. A completion call has a fast path, which is used when every request that it names is active in
 * the real library and simple. The fast path is one crossing with the real Test, Testall, Testany or Testsome over the
 * real handles; if the call blocks, in a loop while no checkpoint is pending. All other cases (a request that the drain
 * finished, a request from the store, a checkpoint that is requested meanwhile) go through mpy_request_poke slot by
 * slot and leave results in the slots (wait.c).
 *
 * Invariants
 *  1. Of request.h, 1 and 2: slots are released and the program's handles set to null before mpy_cross_out.
 *  2. A call that completes nothing leaves the slots unchanged, including real handles.
 *  3. An error handler runs after mpy_cross_out, when everything is recorded. Callbacks of a family run between two
 *     crossings, before the program's handle or status changes.
 */
#include "request.h"
#include "p2p.h"
#include "environment/errors.h"
#include "environment/outside.h"
#include "tools/trace.h"

mpy_request_t *mpy_request_chunks[MPY_CHUNKS_MAX];
volatile uint32_t mpy_request_limit;
uint64_t mpy_request_order;
uint32_t mpy_p2p_lock;
mpy_p2p_thread_t mpy_p2p_threads[MPY_THREADS_MAX];
__thread mpy_p2p_thread_t *mpy_p2p_tls __attribute__((tls_model("initial-exec")));

enum { STACK_REQUESTS = 64 };

/* ---- slots ---- */

void mpy_p2p_counters(mpy_p2p_thread_t *th) {
    size_t size = (size_t)(mpy_world->size + 1) * sizeof(uint64_t); /* one more, for MPY_FOREIGN */
    th->received = mpy_alloc(size);
    th->sent = mpy_alloc(size);
}

mpy_p2p_thread_t *mpy_p2p_self_slow(mpy_thread_t *t) {
    mpy_p2p_thread_t *th = &mpy_p2p_threads[t - MPY_UPPER->threads];
    /* calls on requests get here first */
    if (MPY_UNLIKELY(mpy_world == NULL)) mpy_end_outside(t, "MPI_Wait or MPI_Test");
    if (th->sent == NULL) {
        uint32_t before = t->in_lower; /* allocation needs in_lower (runtime.h) */
        if (!before) mpy_guard_in(t);
        mpy_p2p_counters(th);
        if (!before) mpy_guard_out(t);
    }
    return mpy_p2p_tls = th;
}

static uint32_t slots_lock; /* protects these and mpy_request_limit; mpy_p2p_lock may be held when a slot is released */
static mpy_request_t *magazines; /* full ones */

/* Creates a magazine of new slots; with the lock. */
static mpy_request_t *magazine_make(void) {
    uint32_t first = mpy_request_limit;
    if (first == (uint32_t)MPY_CHUNKS_MAX << MPY_CHUNK_BITS)
        MPY_LOWER->svc->die("too many MPI requests at once (4194304)", 1);
    mpy_request_t **chunk = &mpy_request_chunks[first >> MPY_CHUNK_BITS], *made = NULL;
    if (*chunk == NULL) *chunk = mpy_alloc(MPY_CHUNK * (sizeof(mpy_request_t) + sizeof(uint64_t)));
    for (uint32_t i = first + MPY_MAGAZINE; i-- > first;) {
        mpy_request_t *r = mpy_request_at(i);
        r->handle = (int)((uint32_t)MPY_REQUEST_BASE | i);
        r->next = made;
        made = r;
    }
    __atomic_store_n(&mpy_request_limit, first + MPY_MAGAZINE, __ATOMIC_RELEASE);
    return made;
}

/* The thread has no slots of its own left. The slots that it has collected become its own, or it takes a magazine. */
void mpy_request_refill(mpy_p2p_thread_t *th) {
    th->free = th->others;
    th->others = NULL;
    th->nothers = 0;
    if (th->free == NULL) {
        mpy_lock(&slots_lock);
        if ((th->free = magazines) != NULL)
            magazines = magazines->prev;
        else
            th->free = magazine_make();
        mpy_unlock(&slots_lock);
    }
    for (mpy_request_t *r = th->free; r != NULL; r = r->next) r->owner = mpy_p2p_place(th);
}

/* Returns a slot that another thread has taken. */
void mpy_request_hand_over(mpy_p2p_thread_t *th, mpy_request_t *r) {
    r->next = th->others;
    th->others = r;
    if (++th->nothers < MPY_MAGAZINE) return;
    mpy_lock(&slots_lock);
    r->prev = magazines;
    magazines = r;
    mpy_unlock(&slots_lock);
    th->others = NULL;
    th->nothers = 0;
}

void mpy_request_ref_type(mpy_request_t *r) {
    mpy_object_t *type = mpy_lookup(MPY_DATATYPE, r->datatype);
    if (type == NULL) return; /* a predefined pair type */
    mpy_object_ref(type);
    r->type = type;
    r->flags |= MPY_RF_REF_TYPE;
}

void mpy_request_release_refs(mpy_request_t *r) {
    if (r->flags & MPY_RF_LISTED) mpy_ssend_remove(r);
    if (r->flags & MPY_RF_PACKED) mpy_free(r->buf, r->bytes);
    if (r->flags & MPY_RF_MORE) mpy_free(r->more, r->bytes);
    if (r->flags & MPY_RF_FAMILY && r->family->release) r->family->release(r);
    if (r->flags & MPY_RF_REF_TYPE) mpy_object_unref(MPY_DATATYPE, r->type);
    if (r->flags & MPY_RF_REF_COMM) mpy_object_unref(MPY_COMM, &r->comm->obj);
    r->flags = 0;
}

static inline bool simple(const mpy_request_t *r) { return MPY_LIKELY((r->flags & 0xffff) == 0); }

/* The real call has finished a simple request, with rc. */
static inline void retire(mpy_p2p_thread_t *th, mpy_request_t *r, int *handle, const MPI_Status *s, int rc) {
    mpy_count_request(th, r, s, rc);
    mpy_request_release(th, r);
    *handle = MPI_REQUEST_NULL;
}

/* ---- one request ---- */

static inline __attribute__((always_inline)) int complete_one(int *request, int *flag, MPI_Status *status, bool block,
                                                              const char *name) {
    if (*request == MPI_REQUEST_NULL) {
        *flag = 1;
        mpy_status_empty(status);
        return MPI_SUCCESS;
    }
    mpy_request_t *r = mpy_request_valid(*request);
    if (MPY_UNLIKELY(r == NULL)) return mpy_error(NULL, MPI_ERR_REQUEST, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    const mpy_comm_t *comm = mpy_request_comm(r);
    MPI_Status own, *s = status == MPI_STATUS_IGNORE ? &own : status;
    bool received = mpy_trace_received(r);
    uint64_t since = 0, record = 0;
    if (!block)
        since = mpy_trace_look(t);
    else if (MPY_LIKELY(t->trace != NULL))
        record = mpy_trace_enter(t->trace, mpy_trace_completion(t, MPY_OP_WAIT, r));
    int rc = MPI_SUCCESS, done = 0;
    uint32_t spins = 0;

    mpy_cross_in(t);
    if (simple(r)) {
        do rc = MPY_REAL(Test)(&r->real, &done, s);
        while (!done && !rc && block && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));
        if (rc) done = 1;
        if (MPY_LIKELY(done)) {
            if (since != 0) record = mpy_trace_found(t, since, mpy_trace_completion(t, MPY_OP_TEST, r));
            retire(th, r, request, s, rc);
        }
    }
    if (MPY_UNLIKELY(!done)) {
        if (block) {
            rc = mpy_request_finish(t, th, r, request, s);
            done = 1;
        } else if (!simple(r) && mpy_request_ready(t, th, r)) {
            mpy_request_tell(t, r, true);
            if (since != 0) record = mpy_trace_found(t, since, mpy_trace_completion(t, MPY_OP_TEST, r));
            rc = mpy_request_collect(th, r, request, s);
            done = 1;
        }
    }
    mpy_cross_out(t);

    *flag = done;
    if (MPY_UNLIKELY(!done)) {
        mpy_wait_t w = {.handles = request, .n = 1, .mode = MPY_WAIT_ALL};
        mpy_trace_missed(t, since, *mpy_request_serial(r));
        mpy_poll_failed(t, th, &w);
        return MPI_SUCCESS;
    }
    if (received)
        mpy_traced_status(t, record, rc, s);
    else
        mpy_traced(t, record, rc);
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(comm, rc, name);
}

MPY_API int PMPI_Wait(MPI_Request *request, MPI_Status *status) {
    int flag;
    return complete_one(request, &flag, status, true, "MPI_Wait");
}

MPY_API int PMPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    return complete_one(request, flag, status, false, "MPI_Test");
}

/* ---- several requests ---- */

/* What gather found: all requests are active and simple, so the real call can be used; some need the slow path; some
 * handles are not requests. */
typedef enum { ALL_SIMPLE, SOME_SLOW, SOME_BAD } gather_t;

/* Arrays for the real call; on the stack if they are small. Created and freed in the lower half. */
typedef struct gathered {
    int *real;
    mpy_request_t **slots; /* NULL for a null handle */
    MPI_Status *statuses;  /* the program's, ours, or MPI_STATUSES_IGNORE if nobody needs them */
    bool own_statuses;
    int stack[STACK_REQUESTS];
    mpy_request_t *stack_slots[STACK_REQUESTS];
} gathered_t;

enum { GATHER_BYTES = sizeof(mpy_request_t *) + sizeof(int) }; /* per request, if there are many */

static gather_t gather_failed(int n, const int *handles) {
    for (int i = 0; i < n; i++)
        if (handles[i] != MPI_REQUEST_NULL && mpy_request_valid(handles[i]) == NULL) return SOME_BAD;
    return SOME_SLOW;
}

/* Is the status needed to count the request, or to record what a wildcard has matched? */
static inline bool status_needed(const mpy_request_t *r) {
    switch ((mpy_request_kind_t)r->kind) {
    case MPY_REQ_SEND:
    case MPY_REQ_SSEND:
    case MPY_REQ_OTHER:
        return false;
    case MPY_REQ_RECV:
        return r->peer < 0 || r->tag == MPI_ANY_TAG;
    default:
        return true;
    }
}

static inline __attribute__((always_inline)) gather_t gather(gathered_t *g, int n, const int *handles,
                                                             MPI_Status *statuses, bool want_statuses) {
    bool need = false;
    g->real = g->stack;
    g->slots = g->stack_slots;
    g->own_statuses = false;
    g->statuses = statuses;
    if (MPY_UNLIKELY(n > STACK_REQUESTS)) {
        g->slots = mpy_alloc((size_t)n * GATHER_BYTES);
        g->real = (int *)(g->slots + n);
    } else if (MPY_UNLIKELY(n < 0)) {
        return SOME_BAD;
    }
    for (int i = 0; i < n; i++) {
        mpy_request_t *r = NULL;
        if (MPY_LIKELY(handles[i] != MPI_REQUEST_NULL)) {
            r = mpy_request_valid(handles[i]);
            if (MPY_UNLIKELY(r == NULL) || !simple(r)) return gather_failed(n, handles);
            need |= status_needed(r);
        }
        g->slots[i] = r;
        g->real[i] = r ? r->real : MPI_REQUEST_NULL;
    }
    if (want_statuses && need && statuses == MPI_STATUSES_IGNORE) {
        g->statuses = mpy_alloc((size_t)n * sizeof *g->statuses);
        g->own_statuses = true;
    }
    return ALL_SIMPLE;
}
static inline void ungather(gathered_t *g, int n) {
    if (MPY_UNLIKELY(g->slots != g->stack_slots)) mpy_free(g->slots, (size_t)n * GATHER_BYTES);
    if (MPY_UNLIKELY(g->own_statuses)) mpy_free(g->statuses, (size_t)n * sizeof *g->statuses);
}

/* The status of one of several finished requests, if statuses were requested. */
static inline const MPI_Status *status_of(const gathered_t *g, int i) {
    return g->statuses != MPI_STATUSES_IGNORE ? g->statuses + i : MPI_STATUS_IGNORE;
}

/* The error of one of several finished requests, if the call for all of them has returned rc. */
static int error_of(const gathered_t *g, int i, int rc) {
    int class = MPI_SUCCESS;
    if (rc != MPI_SUCCESS && g->statuses != MPI_STATUSES_IGNORE) MPY_REAL(Error_class)(rc, &class);
    return class == MPI_ERR_IN_STATUS ? g->statuses[i].MPI_ERROR : rc;
}

static int bad_arguments(mpy_thread_t *t, gathered_t *g, int n, mpy_traced_t *traced, const char *name) {
    ungather(g, n);
    mpy_cross_out(t);
    mpy_trace_waited(t, traced, true);
    return mpy_error(NULL, n < 0 ? MPI_ERR_COUNT : MPI_ERR_REQUEST, name);
}

/* Waitall reports nothing after the first request that has failed: as in MPICH, the others stay with the program, as
 * MPI_ERR_PENDING. Without statuses it reports all. */
static inline bool stops(bool block, const MPI_Status *statuses) { return block && statuses != MPI_STATUSES_IGNORE; }

/* The real call has finished a simple request; the program learns this later. */
static void finish_silently(mpy_p2p_thread_t *th, mpy_request_t *r, const MPI_Status *s, int error) {
    mpy_count_request(th, r, s, error);
    r->real = MPI_REQUEST_NULL;
    r->status = *s;
    r->error = error;
    r->flags |= MPY_RF_COMPLETE;
}

static int collect(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_traced_t *traced, int *handle, MPI_Status *s) {
    mpy_request_t *r = mpy_request(*handle);
    mpy_trace_outcome(t, traced, r, &r->status, r->error);
    return mpy_request_collect(th, r, handle, s);
}

/* Slow path of Waitall and Testall: tests every slot separately, then reports all results at once. */
static int all_slow(mpy_thread_t *t, mpy_p2p_thread_t *th, int n, int *handles, MPI_Status *statuses, bool block,
                    int *done, const mpy_comm_t **comm, mpy_traced_t *traced) {
    mpy_wait_t w = {.handles = handles, .n = n, .mode = MPY_WAIT_ALL};
    bool failed = false;
    int end = n; /* end of the requests that are reported */
    for (;;) {
        int open = 0;
        for (int i = 0; i < n; i++)
            if (handles[i] != MPI_REQUEST_NULL && !mpy_request_ready(t, th, mpy_request(handles[i]))) open++;
        *done = open == 0;
        if (*done) break;
        if (!block) return MPI_SUCCESS;
        mpy_wait_round(t, &w);
    }
    for (int i = 0; i < end; i++) {
        if (handles[i] == MPI_REQUEST_NULL) continue;
        mpy_request_t *r = mpy_request(handles[i]);
        mpy_request_tell(t, r, true);
        if (r->error && !(r->flags & MPY_RF_INACTIVE) && !failed) {
            failed = true;
            *comm = mpy_request_comm(r);
            if (stops(block, statuses)) end = i + 1;
        }
    }
    if (failed) mpy_trace_not_all(t, traced);
    for (int i = 0; i < n; i++) {
        MPI_Status *s = statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[i];
        int error = MPI_SUCCESS;
        if (handles[i] == MPI_REQUEST_NULL)
            mpy_status_empty(s);
        else if (i >= end)
            error = MPI_ERR_PENDING;
        else
            error = collect(t, th, traced, &handles[i], s);
        if (failed && s != MPI_STATUS_IGNORE) s->MPI_ERROR = error;
    }
    return failed ? MPI_ERR_IN_STATUS : MPI_SUCCESS;
}

/* Stores in the slots what real calls have finished so far. `error`: returned by the last one. */
static void settle(mpy_p2p_thread_t *th, int n, gathered_t *g, int error) {
    for (int i = 0; i < n; i++) {
        mpy_request_t *r = g->slots[i];
        if (r == NULL || g->real[i] != MPI_REQUEST_NULL) continue;
        MPI_Status *s = g->statuses != MPI_STATUSES_IGNORE ? &g->statuses[i] : &r->status;
        finish_silently(th, r, s, error_of(g, i, error));
    }
}

/* Testall has found a request that is not finished: wait until all have finished, or one has failed, or a checkpoint is
 * pending. A Testall inspects every request each time, so this waits only for the last unfinished one; when that is
 * finished, most others are, too. */
static int wait_all(mpy_p2p_thread_t *th, int n, gathered_t *g, int *done) {
    MPI_Status unused;
    uint32_t spins = 0;
    int rc = MPI_SUCCESS;
    for (int end = n; !*done && !rc;) { /* requests from `end` on have been finished separately */
        int last = 0;
        mpy_request_t *r = g->slots[end - 1];
        MPI_Status *s = g->statuses != MPI_STATUSES_IGNORE ? &g->statuses[end - 1] : r != NULL ? &r->status : &unused;
        do rc = MPY_REAL(Test)(&g->real[end - 1], &last, s);
        while (!last && !rc && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));
        if (MPY_UNLIKELY(!last || rc)) { /* the slow path continues from here */
            if (rc && r != NULL) {
                finish_silently(th, r, s, rc);
                g->slots[end - 1] = NULL;
            }
            settle(th, n, g, MPI_SUCCESS);
            return MPI_SUCCESS;
        }
        if (--end == 0) {
            *done = 1;
        } else if ((rc = MPY_REAL(Testall)(end, g->real, done, g->statuses)) != MPI_SUCCESS) {
            for (int i = end; i < n && g->statuses != MPI_STATUSES_IGNORE; i++) g->statuses[i].MPI_ERROR = MPI_SUCCESS;
        }
    }
    return rc;
}

static inline __attribute__((always_inline)) int complete_all(int n, int *handles, int *flag, MPI_Status *statuses,
                                                              bool block, const char *name) {
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    const mpy_comm_t *comm = NULL;
    int rc = MPI_SUCCESS, done = 0;
    gathered_t g;

    mpy_cross_in(t);
    mpy_traced_t traced = mpy_trace_wait(t, block ? MPY_OP_WAITALL : MPY_OP_TEST, n, handles);
    gather_t found = gather(&g, n, handles, statuses, true);
    if (MPY_UNLIKELY(found == SOME_BAD)) return bad_arguments(t, &g, n, &traced, name);
    if (MPY_LIKELY(found == ALL_SIMPLE)) {
        rc = MPY_REAL(Testall)(n, g.real, &done, g.statuses);
        if (block && !done && !rc) rc = wait_all(th, n, &g, &done);
        if (MPY_LIKELY(done && !rc)) {
            if (block) mpy_trace_all(t, &traced, g.slots, g.statuses);
            for (int i = 0; i < n; i++) {
                if (g.slots[i] == NULL) continue;
                if (!block) mpy_trace_outcome(t, &traced, g.slots[i], status_of(&g, i), MPI_SUCCESS);
                retire(th, g.slots[i], &handles[i], g.statuses + i, MPI_SUCCESS);
            }
        } else if (rc) {
            settle(th, n, &g, rc);
            done = 0;
        }
    }
    ungather(&g, n);
    if (MPY_UNLIKELY(!done)) rc = all_slow(t, th, n, handles, statuses, block, &done, &comm, &traced);
    mpy_cross_out(t);
    mpy_trace_waited(t, &traced, done);

    *flag = done;
    if (MPY_UNLIKELY(!done)) {
        mpy_wait_t w = {.handles = handles, .n = n, .mode = MPY_WAIT_ALL};
        mpy_poll_failed(t, th, &w);
        return MPI_SUCCESS;
    }
    mpy_p2p_done(t, th);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(comm, rc, name);
}

MPY_API int PMPI_Waitall(int count, MPI_Request array_of_requests[], MPI_Status *array_of_statuses) {
    int flag;
    return complete_all(count, array_of_requests, &flag, array_of_statuses, true, "MPI_Waitall");
}

MPY_API int PMPI_Testall(int count, MPI_Request array_of_requests[], int *flag, MPI_Status *array_of_statuses) {
    return complete_all(count, array_of_requests, flag, array_of_statuses, false, "MPI_Testall");
}

/* *index: the finished request, or MPI_UNDEFINED if no request is active. */
static int complete_any(int n, int *handles, int *index, int *flag, MPI_Status *status, bool block, const char *name) {
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    const mpy_comm_t *comm = NULL;
    int rc = MPI_SUCCESS, done = 0;
    uint32_t spins = 0;
    gathered_t g;
    mpy_wait_t w = {.handles = handles, .n = n, .mode = MPY_WAIT_ANY};
    mpy_traced_t traced = mpy_trace_wait(t, block ? MPY_OP_WAITANY : MPY_OP_TEST, n, handles);

    *index = MPI_UNDEFINED;
    mpy_cross_in(t);
    gather_t found = gather(&g, n, handles, NULL, false);
    if (MPY_UNLIKELY(found == SOME_BAD)) return bad_arguments(t, &g, n, &traced, name);
    if (MPY_LIKELY(found == ALL_SIMPLE)) {
        MPI_Status own, *s = status == MPI_STATUS_IGNORE ? &own : status;
        do rc = MPY_REAL(Testany)(n, g.real, index, &done, s);
        while (!done && !rc && block && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));
        for (int i = 0; i < n && (done || rc); i++) {
            if (g.slots[i] == NULL || g.real[i] != MPI_REQUEST_NULL) continue;
            comm = mpy_request_comm(g.slots[i]);
            mpy_trace_outcome(t, &traced, g.slots[i], s, rc);
            retire(th, g.slots[i], &handles[i], s, rc);
            *index = i;
            break;
        }
        if (rc) done = 1;
    }
    ungather(&g, n);
    while (MPY_UNLIKELY(!done)) {
        int active = 0;
        for (int i = 0; i < n && !done; i++) {
            mpy_request_t *r = handles[i] == MPI_REQUEST_NULL ? NULL : mpy_request(handles[i]);
            if (r == NULL || r->flags & MPY_RF_INACTIVE) continue;
            active++;
            if (!mpy_request_ready(t, th, r)) continue;
            comm = mpy_request_comm(r);
            mpy_request_tell(t, r, true);
            rc = collect(t, th, &traced, &handles[i], status);
            *index = i;
            done = 1;
        }
        if (!active) {
            mpy_status_empty(status);
            done = 1;
        }
        if (done || !block) break;
        mpy_wait_round(t, &w);
    }
    mpy_cross_out(t);
    mpy_trace_waited(t, &traced, done);

    *flag = done;
    if (done) {
        mpy_p2p_done(t, th);
    } else {
        *index = MPI_UNDEFINED;
        mpy_poll_failed(t, th, &w);
    }
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(comm, rc, name);
}

MPY_API int PMPI_Waitany(int count, MPI_Request array_of_requests[], int *indx, MPI_Status *status) {
    int flag;
    return complete_any(count, array_of_requests, indx, &flag, status, true, "MPI_Waitany");
}

MPY_API int PMPI_Testany(int count, MPI_Request array_of_requests[], int *indx, int *flag, MPI_Status *status) {
    return complete_any(count, array_of_requests, indx, flag, status, false, "MPI_Testany");
}

/* Slow path of Waitsome and Testsome: one round. Returns whether there is anything to report. */
static bool some_round(mpy_thread_t *t, mpy_p2p_thread_t *th, int n, int *handles, int *outcount, int *indices,
                       MPI_Status *statuses, int *rc, const mpy_comm_t **comm, mpy_traced_t *traced) {
    int active = 0, k = 0;
    for (int i = 0; i < n; i++) {
        mpy_request_t *r = handles[i] == MPI_REQUEST_NULL ? NULL : mpy_request(handles[i]);
        if (r == NULL || r->flags & MPY_RF_INACTIVE) continue;
        active++;
        if (!mpy_request_ready(t, th, r)) continue;
        mpy_request_tell(t, r, true);
        if (r->error) {
            if (*comm == NULL) *comm = mpy_request_comm(r);
            *rc = MPI_ERR_IN_STATUS;
        }
        MPI_Status *s = statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[k];
        int error = collect(t, th, traced, &handles[i], s);
        if (s != MPI_STATUS_IGNORE) s->MPI_ERROR = error;
        indices[k++] = i;
    }
    *outcount = active ? k : MPI_UNDEFINED;
    return !active || k > 0;
}

static int complete_some(int n, int *handles, int *outcount, int *indices, MPI_Status *statuses, bool block,
                         const char *name) {
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    const mpy_comm_t *comm = NULL;
    int rc = MPI_SUCCESS;
    bool done = false;
    uint32_t spins = 0;
    gathered_t g;
    mpy_wait_t w = {.handles = handles, .n = n, .mode = MPY_WAIT_ANY};
    mpy_traced_t traced = mpy_trace_wait(t, block ? MPY_OP_WAITANY : MPY_OP_TEST, n, handles);

    *outcount = 0;
    mpy_cross_in(t);
    gather_t found = gather(&g, n, handles, statuses, true);
    if (MPY_UNLIKELY(found == SOME_BAD)) return bad_arguments(t, &g, n, &traced, name);
    if (MPY_LIKELY(found == ALL_SIMPLE)) {
        do rc = MPY_REAL(Testsome)(n, g.real, outcount, indices, g.statuses);
        while (*outcount == 0 && !rc && block && MPY_LOWER->phase == MPY_PHASE_NONE && mpy_spin(&spins));
        for (int k = 0; k < *outcount; k++) { /* MPI_UNDEFINED is negative */
            int i = indices[k];
            int error = error_of(&g, k, rc);
            if (error && comm == NULL) comm = mpy_request_comm(g.slots[i]);
            mpy_trace_outcome(t, &traced, g.slots[i], status_of(&g, k), rc);
            retire(th, g.slots[i], &handles[i], g.statuses + k, error);
        }
        done = *outcount != 0 || rc;
    }
    ungather(&g, n);
    while (MPY_UNLIKELY(!done)) {
        done = some_round(t, th, n, handles, outcount, indices, statuses, &rc, &comm, &traced);
        if (done || !block) break;
        mpy_wait_round(t, &w);
    }
    mpy_cross_out(t);
    mpy_trace_waited(t, &traced, done);

    if (done)
        mpy_p2p_done(t, th);
    else
        mpy_poll_failed(t, th, &w);
    return MPY_LIKELY(rc == MPI_SUCCESS) ? rc : mpy_error(comm, rc, name);
}

MPY_API int PMPI_Waitsome(int incount, MPI_Request array_of_requests[], int *outcount, int array_of_indices[],
                          MPI_Status array_of_statuses[]) {
    return complete_some(incount, array_of_requests, outcount, array_of_indices, array_of_statuses, true,
                         "MPI_Waitsome");
}

MPY_API int PMPI_Testsome(int incount, MPI_Request array_of_requests[], int *outcount, int array_of_indices[],
                          MPI_Status array_of_statuses[]) {
    return complete_some(incount, array_of_requests, outcount, array_of_indices, array_of_statuses, false,
                         "MPI_Testsome");
}
