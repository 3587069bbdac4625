/* fds_lock.c - flock(2), fcntl(2) and open-file-description locks on files: reads them from fdinfo and takes them again
 * at a restart.
 *
 * Lower half; libc allowed. Locks are taken last, after every temporary descriptor is closed: closing any descriptor of
 * a file drops all fcntl locks that the process holds on it.
 */
#define _GNU_SOURCE
#include "fds_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

enum { LOCK_KIND_FLOCK = 1, LOCK_KIND_POSIX = 2, LOCK_KIND_OFD = 3 };

#define LOCK_PATIENCE_MS 2000 /* the killed predecessor may still be exiting */

typedef struct lock {
    int kind, write;
    uint64_t start, end; /* inclusive; UINT64_MAX: to the end of the file */
} lock_t;

/* Parses a line such as "lock:\t1: POSIX  ADVISORY  WRITE 1234 fe:00:99 0 EOF". Returns 1 if the line describes a lock;
 * an unknown sort gets kind 0. */
static int parse(const char *line, lock_t *lock) {
    char sort[16], mode[16], access[16], start[32], end[32];
    if (sscanf(line, "lock: %*d: %15s %15s %15s %*d %*x:%*x:%*u %31s %31s", sort, mode, access, start, end) != 5)
        return 0;
    lock->kind = !strcmp(sort, "FLOCK")    ? LOCK_KIND_FLOCK
                 : !strcmp(sort, "POSIX")  ? LOCK_KIND_POSIX
                 : !strcmp(sort, "OFDLCK") ? LOCK_KIND_OFD
                                           : 0;
    lock->write = !strcmp(access, "WRITE");
    lock->start = strtoull(start, NULL, 10);
    lock->end = !strcmp(end, "EOF") ? UINT64_MAX : strtoull(end, NULL, 10);
    return 1;
}

/* Goes through the locks of d. Appends each one to b unless b is NULL. */
static int walk(const mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    uint32_t count = 0;
    size_t at = b ? b->bytes : 0;
    if (b)
        mpy_blob_put_u32(b, 0);
    if (d->kind != MPY_FD_FILE && d->kind != MPY_FD_CONTENT)
        return 0;
    char *text = mpy_fdinfo_read(d->number);
    int rc = 0;
    for (char *line = text; line && !rc; line = strchr(line, '\n'), line += line != NULL) {
        lock_t lock;
        if (!parse(line, &lock))
            continue;
        if (!lock.kind) {
            rc = mpy_reason(err, n, "descriptor %d holds a lease on %s; give it up before the checkpoint", d->number,
                            d->path);
        } else if (b) {
            mpy_blob_put_u32(b, (uint32_t)lock.kind);
            mpy_blob_put_u32(b, (uint32_t)lock.write);
            mpy_blob_put_u64(b, lock.start);
            mpy_blob_put_u64(b, lock.end);
            count++;
        }
    }
    free(text);
    if (b)
        mpy_blob_set_u32(b, at, count);
    return rc;
}

int mpy_fdlocks_check(const mpy_desc_t *d, char *err, size_t n) {
    return walk(d, NULL, err, n);
}

int mpy_fdlocks_save(const mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    return walk(d, b, err, n);
}

static int acquire(int fd, const lock_t *lock) {
    if (lock->kind == LOCK_KIND_FLOCK)
        return flock(fd, (lock->write ? LOCK_EX : LOCK_SH) | LOCK_NB);
    struct flock range = {
        .l_type = lock->write ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)lock->start};
    range.l_len = lock->end == UINT64_MAX ? 0 : (off_t)(lock->end - lock->start + 1);
    return fcntl(fd, lock->kind == LOCK_KIND_OFD ? F_OFD_SETLK : F_SETLK, &range);
}

int mpy_fdlocks_restore(const mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    for (uint32_t left = mpy_reader_count(r, 24); left; left--) {
        lock_t lock = {.kind = (int)mpy_reader_u32(r), .write = (int)mpy_reader_u32(r)};
        lock.start = mpy_reader_u64(r);
        lock.end = mpy_reader_u64(r);
        int waited = 0;
        while (acquire(d->number, &lock)) {
            int busy = errno == EAGAIN || errno == EACCES;
            if (!busy || waited >= LOCK_PATIENCE_MS)
                return mpy_reason(err, n,
                                  "the lock the program held through descriptor %d on %s can't be taken again: %s",
                                  d->number, d->path, busy ? "another process holds it" : strerror(errno));
            nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
            waited += 20;
        }
    }
    if (r->failed)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    return 0;
}
