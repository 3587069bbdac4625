/* epochs.c - records of post-start-complete-wait on windows: one for each rank of an epoch's group. See preload.h.
 *
 * Invariants
 *  1. The group of an epoch is kept from the call that opens it to the call that ends it; its memory is reused for the
 *     next epoch. Calls on one side (access, exposure) of a window don't overlap: MPI forbids it.
 *  2. At most CUT ranks of one call are recorded; the last record says so. All are counted.
 */
#include "preload.h"
#include "recorder_calls.h"
#include <stdlib.h>

enum { CUT = 128 };

typedef struct mpy_epoch {
    int n, room;
    int *ranks;      /* in the window: `room` of them, followed by the same number of places to translate from */
    uint64_t *times; /* for each rank of the window: number of epochs opened to it so far */
} mpy_epoch_t;

/* ---- groups ---- */

static bool make_room(mpy_epoch_t *e, int n) {
    if (n <= e->room) return true;
    int *larger = realloc(e->ranks, 2 * (size_t)n * sizeof *larger);
    if (larger == NULL) return false;
    e->ranks = larger;
    e->room = n;
    return true;
}

/* Translates the group's members to ranks of the window; none if that fails. */
static void translate(mpy_epoch_t *e, mpy_word_t group, mpy_word_t win) {
    int (*size_of)(mpy_word_t, int *) = mpy_library_function("PMPI_Group_size");
    int (*group_of)(mpy_word_t, void *) = mpy_library_function("PMPI_Win_get_group");
    int (*translated)(mpy_word_t, int, const int *, mpy_word_t, int *) =
        mpy_library_function("PMPI_Group_translate_ranks");
    int (*release)(void *) = mpy_library_function("PMPI_Group_free");
    mpy_word_t all = 0;
    int n = 0;
    e->n = 0;
    if (size_of(group, &n) != 0 || !make_room(e, n) || group_of(win, &all) != 0) return;
    for (int i = 0; i < n; i++) e->ranks[e->room + i] = i;
    if (translated(group, n, e->ranks + e->room, all, e->ranks) == 0) e->n = n;
    release(&all);
}

static mpy_epoch_t *new_epoch(int size) {
    mpy_epoch_t *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->times = calloc((size_t)size, sizeof *e->times);
    if (e->times != NULL) return e;
    free(e);
    return NULL;
}

/* The program opens an epoch to the ranks of a group. NULL: the group is unknown. */
static const mpy_epoch_t *opened(const mpy_object_t *o, mpy_epoch_t **epoch, mpy_word_t group, mpy_word_t win) {
    if (*epoch == NULL) *epoch = new_epoch(o->size);
    mpy_epoch_t *e = *epoch;
    if (e == NULL) return NULL;
    translate(e, group, win);
    for (int i = 0; i < e->n; i++)
        if (e->ranks[i] >= 0 && e->ranks[i] < o->size) e->times[e->ranks[i]]++;
    return e;
}

/* ---- records ---- */

typedef struct records { uint64_t first; int n; } records_t;

static records_t enter(mpy_trace_ring_t *ring, const mpy_object_t *o, const mpy_epoch_t *e, uint32_t op,
                       uint64_t since) {
    int all = e != NULL ? e->n : 0;
    records_t r = {.first = ring->head + 1, .n = all == 0 ? 1 : all < CUT ? all : CUT};
    for (int i = 0; i < r.n; i++) {
        mpy_trace_call_t call = {.op = op, .comm = o != NULL ? o->index : MPY_TRACE_NO_COMM, .peer = MPY_TRACE_NO_PEER};
        call.flags = i + 1 < r.n ? MPY_TRACE_MORE : i + 1 < all ? MPY_TRACE_CUT : 0;
        if (all > 0 && e->ranks[i] >= 0 && e->ranks[i] < o->size)
            call.peer = e->ranks[i], call.context = e->times[e->ranks[i]];
        mpy_put(ring, since, 0, call);
    }
    return r;
}

static int leave(mpy_trace_ring_t *ring, records_t r, int rc) {
    uint64_t now = mpy_now(ring);
    for (int i = 0; i < r.n; i++) mpy_close_at(ring, r.first + (uint64_t)i, now, mpy_failed(rc));
    mpy_tls.busy = false;
    return rc;
}

/* ---- the calls; those that open an epoch have one type, those that end one another ---- */

static mpy_epoch_t **side(mpy_object_t *o, uint32_t op) {
    return op == MPY_OP_WIN_POST || op == MPY_OP_WIN_WAIT ? &o->exposure : &o->access;
}

static int opening(mpy_fn_Win_post_t real, uint32_t op, mpy_word_t group, int assertion, mpy_word_t win) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(group, assertion, win);
    mpy_object_t *o = mpy_win_of(win);
    const mpy_epoch_t *e = o != NULL ? opened(o, side(o, op), group, win) : NULL;
    records_t r = enter(ring, o, e, op, mpy_now(ring));
    return leave(ring, r, real(group, assertion, win));
}
int mpy_record_Win_post(mpy_fn_Win_post_t real, mpy_word_t group, int assertion, mpy_word_t win) {
    return opening(real, MPY_OP_WIN_POST, group, assertion, win);
}
int mpy_record_Win_start(mpy_fn_Win_start_t real, mpy_word_t group, int assertion, mpy_word_t win) {
    return opening(real, MPY_OP_WIN_START, group, assertion, win);
}

static records_t ends(mpy_trace_ring_t *ring, uint32_t op, mpy_word_t win, uint64_t since) {
    mpy_object_t *o = mpy_win_of(win);
    return enter(ring, o, o != NULL ? *side(o, op) : NULL, op, since);
}
static int ending(mpy_fn_Win_wait_t real, uint32_t op, mpy_word_t win) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(win);
    records_t r = ends(ring, op, win, mpy_now(ring));
    return leave(ring, r, real(win));
}
int mpy_record_Win_complete(mpy_fn_Win_complete_t real, mpy_word_t win) {
    return ending(real, MPY_OP_WIN_COMPLETE, win);
}
int mpy_record_Win_wait(mpy_fn_Win_wait_t real, mpy_word_t win) { return ending(real, MPY_OP_WIN_WAIT, win); }

int mpy_record_Win_test(mpy_fn_Win_test_t real, mpy_word_t win, void *flag) {
    mpy_trace_ring_t *ring = mpy_begin();
    if (ring == NULL) return real(win, flag);
    uint64_t since = mpy_now(ring);
    int rc = real(win, flag);
    if (rc == 0 && *(int *)flag) return leave(ring, ends(ring, MPY_OP_WIN_WAIT, win, since), rc);
    mpy_trace_polled(ring, since, 0);
    mpy_tls.busy = false;
    return rc;
}
