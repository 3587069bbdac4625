/* callbacks.c - has the program's main thread call the program's callbacks (boundary.h; README.md says when). The other
 * side is wrappers/callbacks.c. Lower half; libc.
 *
 * Invariants
 *  1. Nothing here waits longer than the time limit, whatever the program does. A callback that returns later finds how
 *     the checkpoint has ended, and those of after_checkpoint follow it.
 *  2. `end` is OPEN from before `state` is ASKED until the checkpoint has ended.
 *  3. A knock may be lost: it may come just before the program begins to sleep. So it is repeated.
 */
#include "callbacks.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <manapy/lock.h>

#include "base/now.h"
#include "base/reason.h"
#include "base/sys.h"
#include "clockside.h"
#include "control.h"

enum { LOOK_MS = 5, KNOCK_MS = 100 };

#define CALLBACKS (&MPY_UPPER->callbacks)

/* Also if those of the last checkpoint still run: the driver of a GPU may just be bringing back what was on it. */
void mpy_callbacks_expect(bool may, bool gpu) {
    CALLBACKS->expected =
        may && (CALLBACKS->registered > 0 || gpu || CALLBACKS->gpu || CALLBACKS->state != MPY_CALL_NONE);
}
bool mpy_callbacks_expected(void) { return CALLBACKS->expected; }
bool mpy_callbacks_missed(void) { return CALLBACKS->registered > 0 && !CALLBACKS->expected; }

static bool change(uint32_t from, uint32_t to) {
    return __atomic_compare_exchange_n(&CALLBACKS->state, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Sleeps until `state` is no longer `seen`, or for LOOK_MS. */
static void look_again(uint32_t seen) {
    const struct timespec time = {.tv_nsec = LOOK_MS * 1000000};
    mpy_sys(SYS_futex, &CALLBACKS->state, FUTEX_WAIT_PRIVATE, seen, &time);
}

static void knock(void) {
    if (CALLBACKS->knock > 0) mpy_sys(SYS_tgkill, getpid(), getpid(), CALLBACKS->knock);
}

int mpy_callbacks_idle(int ms, char *error, size_t n) {
    const int64_t until = mpy_now_ms() + ms;
    for (uint32_t state; (state = CALLBACKS->state) != MPY_CALL_NONE;) {
        if (mpy_control_cancelled()) return mpy_reason(error, n, "the checkpoint was cancelled");
        if (mpy_now_ms() > until)
            return mpy_reason(error, n, "%s of the last checkpoint has not returned yet", CALLBACKS->running);
        look_again(state);
    }
    return 0;
}

/* The time limit has passed. */
static int explain(int ms, char *error, size_t n) {
    if (change(MPY_CALL_ASKED, MPY_CALL_NONE))
        return mpy_reason(error, n, "the main thread could not %s within %g s (--callback-timeout): it computes, or "
                          "waits outside of MPI",
                          CALLBACKS->registered > 0 ? "run its callbacks" : "save what is on its GPU", ms / 1000.0);
    return mpy_reason(error, n, "%s has not returned within %g s (--callback-timeout)", CALLBACKS->running,
                      ms / 1000.0);
}

static int wait_until_held(int ms, char *error, size_t n) {
    const int64_t until = mpy_now_ms() + ms;
    int64_t next_knock = 0;
    for (uint32_t state; (state = CALLBACKS->state) != MPY_CALL_HELD;) {
        const int64_t now = mpy_now_ms();
        if (CALLBACKS->refused || mpy_control_cancelled()) break;
        if (now > until) return explain(ms, error, n);
        if (state == MPY_CALL_ASKED && now >= next_knock) {
            knock();
            next_knock = now + KNOCK_MS;
        }
        look_again(state);
    }
    if (__atomic_load_n(&CALLBACKS->refused, __ATOMIC_ACQUIRE)) return mpy_reason(error, n, "%s", CALLBACKS->reason);
    return mpy_control_cancelled() ? mpy_reason(error, n, "the checkpoint was cancelled") : 0;
}

int mpy_callbacks_before(int ms, char *error, size_t n) {
    CALLBACKS->refused = 0;
    CALLBACKS->end = MPY_CALL_OPEN;
    CALLBACKS->limit_ms = (uint32_t)ms;
    __atomic_store_n(&CALLBACKS->state, MPY_CALL_ASKED, __ATOMIC_SEQ_CST);
    mpy_clockside_wake();
    return wait_until_held(ms, error, n);
}

void mpy_callbacks_after(mpy_call_end_t end) {
    if (change(MPY_CALL_ASKED, MPY_CALL_NONE) || CALLBACKS->state == MPY_CALL_NONE) return;
    __atomic_store_n(&CALLBACKS->end, end, __ATOMIC_SEQ_CST);
    mpy_lock_wake_all(&CALLBACKS->end);
}
