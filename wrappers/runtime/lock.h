/* lock.h - futex lock and raw system calls for the wrapper runtime. Usable with either TLS: no libc, no errno.
 *
 * Invariants
 *  1. A lock of the runtime is only held by a thread with in_lower = 1 (or inside a hook). No thread can then be stopped
 *     for a snapshot while it holds one, so hooks and the control thread may take them.
 *  2. Values: 0 free, 1 held, 2 held and somebody may sleep (Drepper, "Futexes Are Tricky", mutex 2). The control thread
 *     uses the same algorithm on clock.lock.
 */
#ifndef MANAPY_LOCK_H
#define MANAPY_LOCK_H

#include <stdint.h>

enum { MPY_SYS_SCHED_YIELD = 24, MPY_SYS_NANOSLEEP = 35, MPY_SYS_FUTEX = 202, MPY_SYS_CLOCK_GETTIME = 228 };

static inline long mpy_syscall4(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Sleep while *word == value (private futex); returns on a wake, a signal or a changed word. */
static inline void mpy_futex_wait(volatile uint32_t *word, uint32_t value) {
    mpy_syscall4(MPY_SYS_FUTEX, (long)word, 128 /* WAIT | PRIVATE */, (long)value, 0);
}
/* The same, for `ms` < 1000 milliseconds at the most. */
static inline void mpy_futex_wait_ms(volatile uint32_t *word, uint32_t value, long ms) {
    const struct { long seconds, nanoseconds; } time = {0, ms * 1000000};
    mpy_syscall4(MPY_SYS_FUTEX, (long)word, 128 /* WAIT | PRIVATE */, (long)value, (long)&time);
}
static inline void mpy_futex_wake(volatile uint32_t *word, int n) {
    mpy_syscall4(MPY_SYS_FUTEX, (long)word, 129 /* WAKE | PRIVATE */, n, 0);
}

static inline void mpy_lock(uint32_t *lock) {
    uint32_t free = 0;
    if (__atomic_compare_exchange_n(lock, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
    while (__atomic_exchange_n(lock, 2, __ATOMIC_ACQUIRE) != 0) mpy_futex_wait(lock, 2);
}
static inline void mpy_unlock(uint32_t *lock) {
    if (__atomic_exchange_n(lock, 0, __ATOMIC_RELEASE) == 2) mpy_futex_wake(lock, 1);
}

#endif
