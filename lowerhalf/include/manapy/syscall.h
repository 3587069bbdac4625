/* syscall.h - raw system calls, for code that may run on either half's TLS. Header only; no libc, no TLS, no errno: the
 * result is the kernel's, a value or -errno.
 *
 *   mpy_sys(SYS_munmap, address, bytes)    0 to 6 arguments, integers or pointers
 */
#ifndef MANAPY_SYSCALL_H
#define MANAPY_SYSCALL_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

static inline long mpy_sys4(long nr, long a, long b, long c, long d) {
    long ret;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return ret;
}

static inline long mpy_sys6(long nr, long a, long b, long c, long d, long e, long f) {
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}

#define MPY_SYS_ARGS(_0, _1, _2, _3, _4, _5, _6, N, ...) N
#define mpy_sys_0(nr) mpy_sys4(nr, 0, 0, 0, 0)
#define mpy_sys_1(nr, a) mpy_sys4(nr, (long)(a), 0, 0, 0)
#define mpy_sys_2(nr, a, b) mpy_sys4(nr, (long)(a), (long)(b), 0, 0)
#define mpy_sys_3(nr, a, b, c) mpy_sys4(nr, (long)(a), (long)(b), (long)(c), 0)
#define mpy_sys_4(nr, a, b, c, d) mpy_sys4(nr, (long)(a), (long)(b), (long)(c), (long)(d))
#define mpy_sys_5(nr, a, b, c, d, e) mpy_sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define mpy_sys_6(nr, a, b, c, d, e, f) mpy_sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define MPY_CAT2(a, b) a##b
#define MPY_CAT(a, b) MPY_CAT2(a, b)
#define mpy_sys(...) MPY_CAT(mpy_sys_, MPY_SYS_ARGS(__VA_ARGS__, 6, 5, 4, 3, 2, 1, 0))(__VA_ARGS__)

/* Is the result an error (Linux: MAX_ERRNO)? For calls that return addresses, which may look negative. */
static inline int mpy_sys_failed(long result) { return result < 0 && result > -4096; }

/* Milliseconds of CLOCK_MONOTONIC, for code that may not call libc. Other code uses mpy_now_ms of
 * lowerhalf/base/now.h. */
static inline int64_t mpy_sys_now_ms(void) {
    struct timespec now;
    mpy_sys(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
