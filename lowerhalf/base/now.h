/* now.h - the time. Header only; libc, so not on the program's TLS (there: mpy_sys_now_ms of manapy/syscall.h). */
#ifndef MANAPY_NOW_H
#define MANAPY_NOW_H

#include <stdint.h>
#include <time.h>

static inline int64_t mpy_now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Milliseconds of CLOCK_MONOTONIC, for limits. */
static inline int64_t mpy_now_ms(void) { return mpy_now_ns(CLOCK_MONOTONIC) / 1000000; }

#endif
