/* grequest.c - generalized requests: operations of the program itself, with its callbacks (MPI-4 13.2).
 *
 * Upper half, no libc. The real library does not know of them. They may stay open over a checkpoint.
 *
 * Invariants
 *  1. Those of request.h. Callbacks are called on the upper TLS, with no lock held.
 *  2. `state` tells atomically whether MPI_Grequest_complete or MPI_Request_free comes last. The last one calls
 *     free_fn, unless a Wait or Test completes the request. Between the two calls the slot's only handle is the
 *     program's copy.
 */
#include "core/objects.h"
#include "request.h"
#include "environment/errors.h"
#include "environment/outside.h"
#include "messages/internal_messages.h"

enum { COMPLETED = 1, FREED = 2 };

typedef struct grequest {
    MPI_Grequest_query_function *query;
    MPI_Grequest_free_function *free;
    MPI_Grequest_cancel_function *cancel;
    void *extra;
    uint32_t state;
    bool fortran; /* the callbacks are subroutines */
} grequest_t;

/* ---- the callbacks; those of Fortran return their error in a last argument ---- */

static int call_query(const grequest_t *g, MPI_Status *status) {
    int rc = MPI_SUCCESS;
    if (!g->fortran) return g->query(g->extra, status);
    ((void (*)(void *, MPI_Status *, int *))(void *)g->query)(g->extra, status, &rc);
    return rc;
}

static int call_free(const grequest_t *g) {
    int rc = MPI_SUCCESS;
    if (!g->fortran) return g->free(g->extra);
    ((void (*)(void *, int *))(void *)g->free)(g->extra, &rc);
    return rc;
}

static int call_cancel(const grequest_t *g, int complete) {
    int rc = MPI_SUCCESS;
    if (!g->fortran) return g->cancel(g->extra, complete);
    ((void (*)(void *, int *, int *))(void *)g->cancel)(g->extra, &complete, &rc);
    return rc;
}

/* ---- the family ---- */

static bool is_completed(const grequest_t *g) { return __atomic_load_n(&g->state, __ATOMIC_ACQUIRE) & COMPLETED; }

static bool poke(mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    if (is_completed(r->more)) return true;
    mpy_real_progress(); /* what completes it may wait for another rank, and that one for a message of ours */
    return false;
}

static int query(mpy_thread_t *t, mpy_request_t *r, MPI_Status *status) {
    (void)t;
    return call_query(r->more, status);
}

static int dispose(mpy_thread_t *t, mpy_request_t *r) {
    (void)t;
    int rc = call_free(r->more);
    return r->error ? r->error : rc;
}

static int cancel(mpy_thread_t *t, mpy_request_t *r) {
    (void)t;
    grequest_t *g = r->more;
    return call_cancel(g, is_completed(g));
}

static bool let_go(mpy_thread_t *t, mpy_request_t *r) {
    (void)t;
    grequest_t *g = r->more;
    r->flags |= MPY_RF_ORPHAN;
    return !(__atomic_fetch_or(&g->state, FREED, __ATOMIC_ACQ_REL) & COMPLETED);
}

static void release(mpy_request_t *r) { mpy_free(r->more, sizeof(grequest_t)); }

static const mpy_request_family_t generalized = {.name = "generalized request",
                                                 .poke = poke,
                                                 .query = query,
                                                 .dispose = dispose,
                                                 .cancel = cancel,
                                                 .let_go = let_go,
                                                 .release = release};

MPY_API int PMPI_Grequest_start(MPI_Grequest_query_function *query_fn, MPI_Grequest_free_function *free_fn,
                                MPI_Grequest_cancel_function *cancel_fn, void *extra_state, MPI_Request *request) {
    mpy_require_mpi("MPI_Grequest_start");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_guard_in(t);
    grequest_t *g = mpy_alloc(sizeof *g);
    *g = (grequest_t){query_fn, free_fn, cancel_fn, extra_state, 0, false};
    *request = mpy_request_of_family(th, &generalized, MPY_REQ_FAMILY, NULL, g)->handle;
    mpy_guard_out(t);
    return MPI_SUCCESS;
}

MPY_API int PMPI_Grequest_complete(MPI_Request request) {
    mpy_request_t *r = mpy_request_slot(request); /* the program may have freed it */
    if (r == NULL || r->kind != MPY_REQ_FAMILY || r->family != &generalized)
        return mpy_error(NULL, MPI_ERR_REQUEST, "MPI_Grequest_complete");
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    grequest_t *g = r->more;
    if (!(__atomic_fetch_or(&g->state, COMPLETED, __ATOMIC_ACQ_REL) & FREED)) return MPI_SUCCESS;
    int rc = call_free(g);
    mpy_cross_in(t);
    mpy_request_release(th, r);
    mpy_cross_out(t);
    return rc == MPI_SUCCESS ? rc : mpy_error(NULL, rc, "MPI_Grequest_complete");
}

/* MPICH's Fortran library calls this right after MPI_Grequest_start. */
extern __attribute__((visibility("default"))) void MPII_Grequest_set_lang_f77(MPI_Request request);
void MPII_Grequest_set_lang_f77(MPI_Request request) {
    mpy_request_t *r = mpy_request_slot(request);
    if (r != NULL && r->kind == MPY_REQ_FAMILY && r->family == &generalized) ((grequest_t *)r->more)->fortran = true;
}
