/* reason.h - one line of text for the user: why something can't be done. Header only; libc.
 *
 * A function that can fail takes (char *error, size_t n) as its last arguments, and fills `error` only on failure. Then
 * it returns -1, or false if it returns a bool:
 *
 *     if (fd < 0) return mpy_reason(error, n, "%s: %s", path, strerror(errno));
 *     if (fd < 0) return mpy_refuse(error, n, "%s: %s", path, strerror(errno));
 */
#ifndef MANAPY_REASON_H
#define MANAPY_REASON_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Fills `error`; returns -1. */
__attribute__((format(printf, 3, 4))) static inline int mpy_reason(char *error, size_t n, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (error && n) vsnprintf(error, n, format, list);
    va_end(list);
    return -1;
}

/* Fills `error`; returns false. */
#define mpy_refuse(...) (mpy_reason(__VA_ARGS__) == 0)

#endif
