/* deleted.h - how /proc shows files without a name (proc(5)): deleted ones, and memfds. Header only; libc. */
#ifndef MANAPY_PROC_DELETED_H
#define MANAPY_PROC_DELETED_H

#include <string.h>

/* The mark behind the name, or NULL: the file has its name. (A name may also end like this.) */
static inline char *mpy_deleted_mark(const char *path) {
    static const char mark[] = " (deleted)";
    size_t length = strlen(path), tail = sizeof mark - 1;
    return length > tail && !strcmp(path + length - tail, mark) ? (char *)path + length - tail : NULL;
}

/* A memfd's path is /memfd: and the name that the program gave it (memfd_create(2)). */
#define MPY_MEMFD "/memfd:"

static inline int mpy_is_memfd(const char *path) { return !strncmp(path, MPY_MEMFD, sizeof MPY_MEMFD - 1); }

#endif
