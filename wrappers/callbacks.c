/* callbacks.c - functions of the program that are called at checkpoints: manapy.h, and manapy/callbacks.py.
 *
 * Upper half, upper TLS; saved with the program. A part of libdmtcp.so (dmtcp.c says why that is preloaded), because a
 * program may register callbacks before it loads an MPI library, or without one. The lower half asks for the calls
 * (lowerhalf/control/callbacks.c) and the wrappers offer moments for them (core/cross.c, clock/clock.c).
 *
 * Invariants
 *  1. Callbacks run only on the program's first thread, at a safe point: in manapy_run_callbacks, or in a call of MPI
 *     that waits because the rank is frozen. There the thread holds no lock of ours and is not in the lower half.
 *  2. From the first callback before a checkpoint to the last one after it this thread runs nothing else. It is halted,
 *     saved and restored while it waits in hold().
 *  3. In a process that manapy-launch did not start, and in a forked child, nothing is registered.
 *  4. The list changes under its lock, which is not held while a callback runs: a callback may register and remove.
 *     What it adds or removes counts for the calls that are still to come.
 */
#define _GNU_SOURCE
#include "callbacks.h"
#include "cuda.h"

#include <errno.h>
#include <manapy/boundary.h>
#include <manapy/lock.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define CALLBACKS (&MPY_UPPER->callbacks)

enum { MOST = 256, NAME = 96 };

static const char *const moments[MANAPY_MOMENTS] = {"before_checkpoint", "after_checkpoint", "after_restart"};

typedef struct callback {
    int (*function)(void *);
    void *data;
    int moment;
    char name[NAME];
} callback_t;

static callback_t list[MOST]; /* in the order of registration */
static int count;
static uint32_t lock;
static int process;       /* that manapy-launch started; 0: none */
static pthread_t starter; /* invariant 1 */

static void at_call(void);

__attribute__((constructor)) static void begin(void) {
    if (getauxval(MPY_AT_BOUNDARY) != MPY_LOWER_ADDR || MPY_LOWER->magic != MPY_BOUNDARY_MAGIC ||
        MPY_LOWER->version != MPY_BOUNDARY_VERSION)
        return;
    process = getpid();
    starter = pthread_self();
    CALLBACKS->at_call = at_call;
}

int manapy_present(void) { return process != 0 && process == getpid(); }
static int on_main_thread(void) { return pthread_equal(pthread_self(), starter); }

/* ---- the list ---- */

API int manapy_register(int moment, int (*function)(void *), void *data, const char *name) {
    if (!manapy_present() || function == NULL || moment < 0 || moment >= MANAPY_MOMENTS) return MANAPY_ABSENT;
    mpy_lock_acquire(&lock);
    int full = count == MOST;
    if (!full) {
        callback_t *c = &list[count];
        *c = (callback_t){.function = function, .data = data, .moment = moment};
        snprintf(c->name, sizeof c->name, "%s", name != NULL ? name : "?");
        CALLBACKS->registered = (uint32_t)++count;
    }
    mpy_lock_release(&lock);
    return full ? MANAPY_FULL : MANAPY_REGISTERED;
}

API int manapy_unregister(int (*function)(void *), void *data) {
    int kept = 0;
    if (!manapy_present()) return 0;
    mpy_lock_acquire(&lock);
    for (int i = 0; i < count; i++)
        if (list[i].function != function || list[i].data != data) list[kept++] = list[i];
    int removed = count - kept;
    CALLBACKS->registered = (uint32_t)(count = kept);
    mpy_lock_release(&lock);
    return removed;
}

static callback_t todo[MOST]; /* not on the stack, which may be a small one; only the main thread uses it */

/* Copies the callbacks of this moment to `todo`, in the order of their calls. Returns how many there are. */
static int of_moment(int moment) {
    int n = 0;
    mpy_lock_acquire(&lock);
    for (int i = 0; i < count; i++) {
        const callback_t *c = &list[moment == MANAPY_BEFORE_CHECKPOINT ? count - 1 - i : i];
        if (c->moment == moment) todo[n++] = *c;
    }
    mpy_lock_release(&lock);
    return n;
}

static int is_registered(const callback_t *c) {
    int found = 0;
    mpy_lock_acquire(&lock);
    for (int i = 0; i < count && !found; i++)
        found = list[i].function == c->function && list[i].data == c->data && list[i].moment == c->moment;
    mpy_lock_release(&lock);
    return found;
}

/* ---- the calls ---- */

static char why[320]; /* given by the callback that runs; with its name it fits into CALLBACKS->reason */

API void manapy_give_reason(const char *reason) {
    if (!manapy_present() || !on_main_thread()) return;
    snprintf(why, sizeof why, "%s", reason != NULL ? reason : "");
    for (char *c = why; *c; c++)
        if ((unsigned char)*c < ' ') *c = ' ';
}

int manapy_reason_given(void) { return why[0] != '\0'; }

static void set_state(mpy_call_state_t state) {
    __atomic_store_n(&CALLBACKS->state, state, __ATOMIC_SEQ_CST);
    mpy_lock_wake_all(&CALLBACKS->state);
}

/* The first reason counts. */
static void refuse(const char *text) {
    if (CALLBACKS->refused) return;
    snprintf(CALLBACKS->reason, sizeof CALLBACKS->reason, "%s %s", CALLBACKS->running, text);
    __atomic_store_n(&CALLBACKS->refused, 1, __ATOMIC_RELEASE);
    mpy_lock_wake_all(&CALLBACKS->state);
}

/* Returns 0, or its answer, with `text` for the message. */
static int call(const callback_t *c, char *text, size_t n) {
    snprintf(CALLBACKS->running, sizeof CALLBACKS->running, "%s callback '%s'", moments[c->moment], c->name);
    why[0] = '\0';
    int answer = c->function(c->data);
    if (why[0] != '\0') snprintf(text, n, "failed: %s", why);
    else snprintf(text, n, "returned %d", answer);
    return answer;
}

static void call_before(void) {
    char text[sizeof why + 16];
    int n = of_moment(MANAPY_BEFORE_CHECKPOINT);
    for (int i = 0; i < n && !CALLBACKS->refused && CALLBACKS->end == MPY_CALL_OPEN; i++)
        if (is_registered(&todo[i]) && call(&todo[i], text, sizeof text) != 0) refuse(text);
    if (CALLBACKS->refused || CALLBACKS->end != MPY_CALL_OPEN) return;
    snprintf(CALLBACKS->running, sizeof CALLBACKS->running, "CUDA's checkpoint");
    if (mpy_cuda_leave(text, sizeof text) != 0) refuse(text);
}

/* A failure cannot undo anything here: it is said, and the others are called. */
static void call_after(int moment) {
    char text[sizeof why + 16], line[sizeof CALLBACKS->running + sizeof text];
    mpy_cuda_return(moment == MANAPY_AFTER_RESTART);
    int n = of_moment(moment);
    for (int i = 0; i < n; i++) {
        if (!is_registered(&todo[i]) || call(&todo[i], text, sizeof text) == 0) continue;
        snprintf(line, sizeof line, "%s %s", CALLBACKS->running, text);
        MPY_LOWER->svc->say(line);
    }
}

static uint32_t hold(void) {
    uint32_t end;
    set_state(MPY_CALL_HELD);
    while ((end = __atomic_load_n(&CALLBACKS->end, __ATOMIC_SEQ_CST)) == MPY_CALL_OPEN)
        mpy_lock_futex(&CALLBACKS->end, FUTEX_WAIT_PRIVATE, MPY_CALL_OPEN);
    return end;
}

API void manapy_run_callbacks(void) {
    uint32_t asked = MPY_CALL_ASKED;
    if (process == 0 || CALLBACKS->state != MPY_CALL_ASKED || !on_main_thread() || !manapy_present()) return;
    if (!__atomic_compare_exchange_n(&CALLBACKS->state, &asked, MPY_CALL_BEFORE, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    int saved = errno;
    call_before();
    uint32_t end = hold();
    set_state(MPY_CALL_AFTER);
    call_after(end == MPY_CALL_RESTARTED ? MANAPY_AFTER_RESTART : MANAPY_AFTER_CHECKPOINT);
    set_state(MPY_CALL_NONE);
    errno = saved;
}

/* A callback before a checkpoint that calls MPI would wait for ever, because the rank is frozen. It waits until the
 * checkpoint is given up. */
static void at_call(void) {
    if (CALLBACKS->state == MPY_CALL_BEFORE && on_main_thread()) refuse("calls MPI, which callbacks must not do");
    else manapy_run_callbacks();
}

/* A signal that the program handles so that its main thread soon calls manapy_run_callbacks (callbacks.py). */
API void manapy_knock_by(int signal) {
    if (manapy_present()) CALLBACKS->knock = signal;
}
