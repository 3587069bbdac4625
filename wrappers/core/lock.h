/* lock.h - the locks of the wrappers. Usable with either TLS: no libc, no errno.
 *
 * Invariants
 *  1. A lock of the runtime is only held by a thread with in_lower = 1 (or inside a hook). No thread can then be
 *     stopped for a snapshot while it holds one, so hooks and the control thread may take them.
 *  2. They are the mutex of <manapy/lock.h>, which the control thread takes on clock.lock.
 */
#ifndef MANAPY_LOCK_H
#define MANAPY_LOCK_H

#include <manapy/lock.h>
#include <stdint.h>

/* Sleeps while *word == value (private futex), for at most `ms` < 1000 milliseconds. Returns after a wake, a signal or
 * a change of the word. */
static inline void mpy_futex_wait_ms(volatile uint32_t *word, uint32_t value, long ms) {
    const struct timespec time = {0, ms * 1000000};
    mpy_sys(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time);
}
static inline void mpy_lock(uint32_t *lock) { mpy_lock_acquire(lock); }
static inline void mpy_unlock(uint32_t *lock) { mpy_lock_release(lock); }

#endif
