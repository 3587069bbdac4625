/* sys.h - raw system calls, the FS base, and futexes of the lower half, for code that may run on either half's TLS.
 * Header only; no libc, no TLS, no errno (manapy/syscall.h). The futexes that both halves share are those of
 * manapy/lock.h.
 */
#ifndef MANAPY_SYS_H
#define MANAPY_SYS_H

#include <linux/futex.h>
#include <manapy/fs_base.h>
#include <manapy/syscall.h>

static inline long mpy_futex_wait(const volatile uint32_t *word, uint32_t expected) {
    return mpy_sys(SYS_futex, word, FUTEX_WAIT, expected, 0);
}
static inline void mpy_futex_wake(const volatile uint32_t *word) { mpy_sys(SYS_futex, word, FUTEX_WAKE, 0x7fffffff); }

#endif
