/* lock.h - the futex mutex that guards mpy_clock_t, taken by threads of both halves, and the other locks of the wrapper
 * runtime. Header only; no libc, no TLS, no errno.
 *
 * Invariants
 *  1. The word is 0 (free), 1 (held) or 2 (held, and a thread may sleep on it; Drepper, "Futexes Are Tricky", mutex 2).
 *     Futexes are FUTEX_PRIVATE, here and on mpy_clock_t.wake: the sleeper and the waker must agree on it.
 *  2. The holder makes no call that can block (except of locks that only a start of MPI takes: wrappers/core/cross.c,
 *     mpi/init.c), and no checkpoint stops a thread of the upper half while the control thread needs the lock: between
 *     STOP and RESUME the control thread does not take it.
 */
#ifndef MANAPY_SHARED_LOCK_H
#define MANAPY_SHARED_LOCK_H

#include <linux/futex.h>
#include <manapy/syscall.h>
#include <stdint.h>

static inline long mpy_lock_futex(volatile uint32_t *word, int operation, uint32_t value) {
    return mpy_sys(SYS_futex, word, operation, value, 0 /* no time-out */);
}

static inline void mpy_lock_acquire(volatile uint32_t *word) {
    uint32_t seen = 0;
    if (__atomic_compare_exchange_n(word, &seen, 1u, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    if (seen != 2) seen = __atomic_exchange_n(word, 2u, __ATOMIC_ACQUIRE);
    while (seen != 0) {
        mpy_lock_futex(word, FUTEX_WAIT_PRIVATE, 2);
        seen = __atomic_exchange_n(word, 2u, __ATOMIC_ACQUIRE);
    }
}

static inline void mpy_lock_release(volatile uint32_t *word) {
    if (__atomic_exchange_n(word, 0u, __ATOMIC_RELEASE) == 2) mpy_lock_futex(word, FUTEX_WAKE_PRIVATE, 1);
}

/* Wakes all threads that sleep on `word`. */
static inline void mpy_lock_wake_all(volatile uint32_t *word) { mpy_lock_futex(word, FUTEX_WAKE_PRIVATE, 0x7fffffff); }

#endif
