/* sys.h - raw system calls and futexes for code that may run on either half's TLS. Header only; no libc, no errno.
 *
 * Invariants
 *  1. Nothing here touches thread-local storage. Results are the kernel's: a value, or -errno (manapy/syscall.h).
 */
#ifndef MANAPY_SYS_H
#define MANAPY_SYS_H

#include <manapy/syscall.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#define MPY_SYS_ARGS(_0, _1, _2, _3, _4, _5, _6, N, ...) N
#define mpy_sys_0(nr) mpy_sys6(nr, 0, 0, 0, 0, 0, 0)
#define mpy_sys_1(nr, a) mpy_sys6(nr, (long)(a), 0, 0, 0, 0, 0)
#define mpy_sys_2(nr, a, b) mpy_sys6(nr, (long)(a), (long)(b), 0, 0, 0, 0)
#define mpy_sys_3(nr, a, b, c) mpy_sys6(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define mpy_sys_4(nr, a, b, c, d) mpy_sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define mpy_sys_5(nr, a, b, c, d, e) mpy_sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define mpy_sys_6(nr, a, b, c, d, e, f) mpy_sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define MPY_CAT2(a, b) a##b
#define MPY_CAT(a, b) MPY_CAT2(a, b)
#define mpy_sys(...) MPY_CAT(mpy_sys_, MPY_SYS_ARGS(__VA_ARGS__, 6, 5, 4, 3, 2, 1, 0))(__VA_ARGS__)

#define MPY_FUTEX_WAIT 0
#define MPY_FUTEX_WAKE 1
static inline long mpy_futex_wait(const volatile uint32_t *word, uint32_t expected) {
    return mpy_sys(SYS_futex, word, MPY_FUTEX_WAIT, expected, 0);
}
static inline void mpy_futex_wake(const volatile uint32_t *word) { mpy_sys(SYS_futex, word, MPY_FUTEX_WAKE, 0x7fffffff); }

static inline uint64_t mpy_fs_get(void) { uint64_t v; __asm__ volatile("rdfsbase %0" : "=r"(v)); return v; }
static inline void mpy_fs_set(uint64_t v) { __asm__ volatile("wrfsbase %0" ::"r"(v) : "memory"); }

#endif
