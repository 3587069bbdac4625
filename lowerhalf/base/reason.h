/* reason.h - one line of text for a person: why something can't be done. Header only; libc.
 *
 * A function that can fail takes (char *error, size_t n) last, and fills it on failure only. It returns -1 then, or
 * false if it returns a bool:
 *
 *     if (fd < 0) return mpy_reason(error, n, "%s: %s", path, strerror(errno));
 *     if (fd < 0) return mpy_refuse(error, n, "%s: %s", path, strerror(errno));
 */
#ifndef MANAPY_REASON_H
#define MANAPY_REASON_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* -1 */
__attribute__((format(printf, 3, 4))) static inline int mpy_reason(char *error, size_t n, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (error && n) vsnprintf(error, n, format, list);
    va_end(list);
    return -1;
}

/* false */
#define mpy_refuse(...) (mpy_reason(__VA_ARGS__) == 0)

#endif
