/* proc_stat.h - the fields of /proc/PID/stat. Header only; libc. */
#ifndef MANAPY_PROC_STAT_H
#define MANAPY_PROC_STAT_H

#include <stdio.h>
#include <string.h>

typedef struct mpy_proc_stat {
    char state; /* 'Z': it has ended and nobody has waited for it */
    int parent;
    unsigned long long started; /* ticks since boot */
} mpy_proc_stat_t;

/* Returns 0, or -1: there is no such process. The command, in parentheses, may contain anything, so the fields after
 * the last parenthesis are read. */
static inline int mpy_proc_stat(long pid, mpy_proc_stat_t *out) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0';
    const char *end = strrchr(text, ')');
    static const char format[] = " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
    return end != NULL && sscanf(end + 1, format, &out->state, &out->parent, &out->started) == 3 ? 0 : -1;
}

#endif
