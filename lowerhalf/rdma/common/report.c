/* report.c - messages of SHIFT to the user, each line once; and the time. */
#include "common/report.h"
#include "base/now.h"
#include "manapy/fnv.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t shift_now(void) {
    return (uint64_t)mpy_now_ns(CLOCK_MONOTONIC);
}

void shift_report(const char *format, ...) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t said[256];
    static unsigned n;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    uint64_t hash = mpy_fnv1a(text, strlen(text));
    pthread_mutex_lock(&lock);
    bool fresh = n < sizeof said / sizeof said[0];
    for (unsigned i = 0; i < n && fresh; i++)
        fresh = said[i] != hash;
    if (fresh) {
        said[n++] = hash;
        fprintf(stderr, "manapy shift: %s\n", text);
    }
    pthread_mutex_unlock(&lock);
}

void shift_pass(const char *what) {
    if (!getenv("MANAPY_SHIFT_QUIET"))
        shift_report("%s are not protected", what);
}
