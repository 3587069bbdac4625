/* callback.c - functions of the program that the real library calls: reductions in blocking calls. The wrappers call
 * all other functions outside the library (attributes, error handlers, generalized requests).
 *
 * Upper half, no libc. Entered with the lower TLS.
 *
 * The function may call MPI (local calls are allowed, MPI-4 6.9.5), or may not return (longjmp). While it runs, its
 * thread is still inside the lower half and perhaps in a collective: no snapshot may be taken. So MPI calls of the
 * function must not end this state. They use another thread record, `shadow`, on which they enter and leave the lower
 * half. To reach it, they find a `marker` without lower TLS in place of the thread's own record; this sends mpy_self()
 * to the slow path. There the stack shows whether the callback still runs.
 *
 * Invariants
 *  1. The marker is the thread's record (mpy_self_tls) from just before the function to just after it. After a longjmp
 *     out of the function it stays until the first MPI call. That call restores the thread's own record and leaves the
 *     lower half on behalf of the frames that no longer exist.
 *  2. A call on a shadow never stops at the border: the thread that it belongs to is inside already.
 */
#include "objects.h"
#include "clock/clock.h"
#include "tools/trace.h"

typedef struct nest {
    mpy_thread_t *thread;   /* the thread in a callback; NULL: no callback */
    uint64_t calls;
    const uint64_t *frame;  /* address on the stack of the number of this call; frames after a longjmp overwrite it */
    mpy_thread_t marker, shadow;
} nest_t;

static nest_t *nests[MPY_THREADS_MAX]; /* by the thread's slot */

static nest_t *nest_of(const mpy_thread_t *marker) { return (nest_t *)((char *)marker - offsetof(nest_t, marker)); }

/* A call from inside lies deeper in the stack than the callback, and the callback's frame is intact. */
static bool inside(const nest_t *n) {
    const uint64_t *sp;
    __asm__ volatile("mov %%rsp, %0" : "=r"(sp));
    return sp < n->frame && *n->frame == n->calls;
}

/* Runs with the upper TLS. It must not have a frame of the lower half, which could be on another stack: callbacks run
 * on the stack of their caller. */
static __attribute__((noinline)) void call(mpy_callback_t *function, void *argument, uint64_t lower, uint64_t upper) {
    mpy_thread_t *t = mpy_self_tls;
    if (t->used == MPY_MARKER) { /* a callback inside a callback */
        function(argument);
        return;
    }
    nest_t **at = &nests[t - MPY_UPPER->threads], *n = *at;
    if (n == NULL) {
        n = *at = mpy_alloc(sizeof *n);
        n->calls = 0x6d616e6170790000ul; /* a number that is unlikely to be on the stack by chance */
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
