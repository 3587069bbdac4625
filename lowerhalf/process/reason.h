/* reason.h - one line of text for people: why something cannot be saved or restored. Every function of
 * lowerhalf/process that can fail takes (char *err, size_t n) last, fills it on failure only, and returns -1 then. */
#ifndef MANAPY_STATE_REASON_H
#define MANAPY_STATE_REASON_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

__attribute__((format(printf, 3, 4))) static inline int mpy_reason(char *err, size_t n, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (err && n)
        vsnprintf(err, n, format, list);
    va_end(list);
    return -1;
}

#endif
