/* match.h - names of programs and shell patterns (glob(7), with * and ? only). Header only, no libc. */
#ifndef MANAPY_MATCH_H
#define MANAPY_MATCH_H
#include <stdbool.h>

/* The pattern ends at its end or at a comma. */
static inline bool mpy_matches(const char *pattern, const char *name) {
    const char *star = 0, *from = 0;
    for (;;) {
        const bool ends = *pattern == 0 || *pattern == ',';
        if (*pattern == '*') {
            star = pattern++, from = name;
        } else if (*name && !ends && (*pattern == '?' || *pattern == *name)) {
            pattern++, name++;
        } else if (*name == 0) {
            return ends;
        } else if (star) {
            pattern = star + 1, name = ++from;
        } else {
            return false;
        }
    }
}

/* Does one of the patterns, with commas between them, match the last component of the path? `patterns` may be NULL. */
static inline bool mpy_matches_any(const char *patterns, const char *path) {
    const char *name = path;
    for (const char *p = path; *p; p++)
        if (*p == '/') name = p + 1;
    while (patterns && *patterns) {
        if (mpy_matches(patterns, name)) return true;
        while (*patterns && *patterns++ != ',') continue;
    }
    return false;
}

#endif
