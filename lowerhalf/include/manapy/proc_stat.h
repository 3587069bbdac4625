/* proc_stat.h - what /proc/PID/stat says of a process (proc(5)). Header only; libc of either half. */
#ifndef MANAPY_PROC_STAT_H
#define MANAPY_PROC_STAT_H

#include <stdio.h>
#include <string.h>

typedef struct mpy_proc_stat {
    char name[16]; /* of the command, as far as the kernel keeps it */
    char state;    /* 'Z': it has ended and nobody has waited for it */
    int parent;
    unsigned long long started; /* ticks since boot */
} mpy_proc_stat_t;

/* Reads the file. Returns its fields from number 3 on, the state, or NULL: there is no such process. The command, in
 * parentheses, may hold anything: what follows stands behind the last one. */
static inline char *mpy_proc_stat_fields(long pid, char text[1024]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return NULL;
    size_t got = fread(text, 1, 1023, file);
    fclose(file);
    text[got] = '\0';
    char *end = strrchr(text, ')');
    return end != NULL ? end + 1 : NULL;
}

/* Returns 0, or -1: there is no such process, and nothing is known of it. */
static inline int mpy_proc_stat(long pid, mpy_proc_stat_t *out) {
    char text[1024];
    *out = (mpy_proc_stat_t){.state = '\0'};
    const char *fields = mpy_proc_stat_fields(pid, text);
    const char *begin = fields != NULL ? strchr(text, '(') : NULL;
    static const char format[] = " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
    if (begin == NULL || sscanf(fields, format, &out->state, &out->parent, &out->started) != 3) return -1;
    size_t length = (size_t)(fields - 1 - ++begin);
    memcpy(out->name, begin, length < sizeof out->name ? length : sizeof out->name - 1);
    return 0;
}

#endif
