/* callback.c - functions of the program that the real library calls: reductions in blocking calls. All others are
 * called by the wrappers, outside (attributes, error handlers, generalized requests).
 *
 * Upper half, no libc. Entered with the lower TLS.
 *
 * The function may call MPI (local calls are allowed, MPI-4 6.9.5) or never come back (longjmp). While it runs, its
 * thread is still inside the lower half and perhaps in a collective: no snapshot may come. So its calls must not end
 * that. They get another thread record, `shadow`, on which they come and go; to be led there they find, in place of the
 * thread's own record, a `marker` without lower TLS, which sends mpy_self() to the slow path. There, whether the
 * callback still runs is told by the stack.
 *
 * Invariants
 *  1. The marker is the thread's record (mpy_self_tls) from just before the function to just after it, or to the first
 *     MPI call after a longjmp out of it, which puts back the thread's own and leaves the lower half for the frames
 *     that are gone.
 *  2. A call on a shadow never stops at the border: the thread it belongs to is inside already.
 */
#include "objects.h"

typedef struct nest {
    mpy_thread_t *thread;   /* whose it is; NULL: no callback */
    uint64_t calls;
    const uint64_t *frame;  /* on the stack of the call: its number, which the frames after a longjmp write over */
    mpy_thread_t marker, shadow;
} nest_t;

static nest_t *nests[MPY_THREADS_MAX]; /* by slot of the thread */

static nest_t *nest_of(const mpy_thread_t *marker) { return (nest_t *)((char *)marker - offsetof(nest_t, marker)); }

/* A call from inside is deeper in the stack than the callback, whose frame is intact. */
static bool inside(const nest_t *n) {
    const uint64_t *sp;
    __asm__ volatile("mov %%rsp, %0" : "=r"(sp));
    return sp < n->frame && *n->frame == n->calls;
}

/* With the upper TLS, and without a frame of the lower half that could be on another stack: callbacks run on their
 * caller's. */
static __attribute__((noinline)) void call(mpy_callback_t *function, void *argument, uint64_t lower, uint64_t upper) {
    mpy_thread_t *t = mpy_self_tls;
    if (t->used == MPY_MARKER) { /* a callback inside a callback */
        function(argument);
        return;
    }
    nest_t **at = &nests[t - MPY_UPPER->threads], *n = *at;
    if (n == NULL) {
        n = *at = mpy_alloc(sizeof *n);
        n->calls = 0x6d616e6170790000ul; /* a number that stacks don't hold by chance */
        n->marker.used = MPY_MARKER;
        n->shadow.used = MPY_SHADOW;
    }
    n->shadow.lower_fs = lower;
    n->shadow.upper_fs = upper;
    n->shadow.tid = t->tid;
    n->shadow.trace = t->trace;
    n->shadow.ring = t->ring;
    n->shadow.state = MPY_STATE_RUNNING;
    n->thread = t;
    volatile uint64_t number = ++n->calls;
    n->frame = (const uint64_t *)&number;
    mpy_self_tls = &n->marker;
    function(argument);
    mpy_self_tls = t;
    number = 0;
    n->thread = NULL;
}

void mpy_callback(mpy_callback_t *function, void *argument) {
    uint64_t lower = mpy_fs_get(), upper = *(uint64_t *)(lower + (uint64_t)MPY_LOWER->tls_upper_fs);
    if (upper == 0) MPY_LOWER->svc->die("a function of the program was called from a thread of the MPI library", 1);
    mpy_fs_set(upper);
    call(function, argument, lower, upper);
    mpy_fs_set(lower);
}

mpy_thread_t *mpy_callback_self(mpy_thread_t *marker) {
    nest_t *n = nest_of(marker);
    if (inside(n)) return &n->shadow;
    mpy_thread_t *t = mpy_self_tls = n->thread;
    n->thread = NULL;
    mpy_trace_abandon(t);
    mpy_clock_leave(t);
    return t;
}
