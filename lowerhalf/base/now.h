/* now.h - the time for limits. Header only; libc, so not on the program's TLS. */
#ifndef MANAPY_NOW_H
#define MANAPY_NOW_H

#include <stdint.h>
#include <time.h>

/* Milliseconds of CLOCK_MONOTONIC. */
static inline int64_t mpy_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
