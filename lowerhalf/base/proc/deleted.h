/* deleted.h - how /proc marks the path of a file that has been deleted (proc(5)). Header only; libc. */
#ifndef MANAPY_PROC_DELETED_H
#define MANAPY_PROC_DELETED_H

#include <string.h>

/* The mark behind the name, or NULL: the file has its name. (A name may also end like this.) */
static inline char *mpy_deleted_mark(const char *path) {
    static const char mark[] = " (deleted)";
    size_t length = strlen(path), tail = sizeof mark - 1;
    return length > tail && !strcmp(path + length - tail, mark) ? (char *)path + length - tail : NULL;
}

#endif
