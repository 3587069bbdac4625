/* proc_stat.h - reads /proc/PID/stat, the kernel's description of a process (proc(5)). Header only; libc of either
 * half. */
#ifndef MANAPY_PROC_STAT_H
#define MANAPY_PROC_STAT_H

#include <stdio.h>
#include <string.h>

typedef struct mpy_proc_stat {
    char name[16]; /* name of the command, truncated by the kernel */
    char state;    /* 'Z': the process has ended but has not been waited for */
    int parent;
    unsigned long long started; /* ticks since boot */
    int exit_signal; /* 0: a child that its parent does not hear of */
} mpy_proc_stat_t;

/* Reads the file. Returns its fields from number 3, the state, on. Returns NULL if there is no such process. The
 * command, in parentheses, may contain anything, so the fields start after the last parenthesis. */
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

/* Returns 0, or -1 if there is no such process; then all fields are empty. */
static inline int mpy_proc_stat(long pid, mpy_proc_stat_t *out) {
    char text[1024];
    *out = (mpy_proc_stat_t){.state = '\0'};
    const char *fields = mpy_proc_stat_fields(pid, text);
    const char *begin = fields != NULL ? strchr(text, '(') : NULL;
    static const char format[] = " %c %d %*s %*s %*s %*s %*s %*s %*s %*s"
                                 " %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu" /* field 22 */
                                 " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d"; /* field 38 */
    if (begin == NULL || sscanf(fields, format, &out->state, &out->parent, &out->started, &out->exit_signal) != 4)
        return -1;
    size_t length = (size_t)(fields - 1 - ++begin);
    memcpy(out->name, begin, length < sizeof out->name ? length : sizeof out->name - 1);
    return 0;
}

#endif
