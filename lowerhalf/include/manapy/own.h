/* own.h - checks that only this process's user or root can have written a file, so that it can be trusted. */
#ifndef MANAPY_OWN_H
#define MANAPY_OWN_H

#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* 0, or -1 with one line in `error`. others: permission bits that must not be set. */
static inline int mpy_own_check(const char *path, const struct stat *st, mode_t others, char *error, size_t n) {
    if (st->st_uid != geteuid() && st->st_uid != 0) {
        snprintf(error, n, "%s belongs to another user (uid %u): it is not used", path, (unsigned)st->st_uid);
        return -1;
    }
    if (st->st_mode & others) {
        snprintf(error, n,
                 "%s is writable by others (mode %04o), so manapy ignores it. If you trust its content: chmod go-w %s",
                 path, (unsigned)(st->st_mode & 07777), path);
        return -1;
    }
    return 0;
}

#endif
