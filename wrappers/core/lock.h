/* lock.h - locks and raw system calls for the wrappers. Usable with either TLS: no libc, no errno.
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

enum { MPY_SYS_SCHED_YIELD = 24, MPY_SYS_NANOSLEEP = 35, MPY_SYS_FUTEX = 202, MPY_SYS_CLOCK_GETTIME = 228 };

static inline long mpy_syscall4(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Sleep while *word == value (private futex), for `ms` < 1000 milliseconds at the most; returns on a wake, a signal or
 * a changed word. */
static inline void mpy_futex_wait_ms(volatile uint32_t *word, uint32_t value, long ms) {
    const struct { long seconds, nanoseconds; } time = {0, ms * 1000000};
    mpy_syscall4(MPY_SYS_FUTEX, (long)word, 128 /* WAIT | PRIVATE */, (long)value, (long)&time);
}
static inline void mpy_lock(uint32_t *lock) { mpy_lock_acquire(lock); }
static inline void mpy_unlock(uint32_t *lock) { mpy_lock_release(lock); }

#endif
