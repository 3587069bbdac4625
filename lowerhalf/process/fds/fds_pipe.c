/* fds_pipe.c - pipes inside the process, with their buffered bytes, and named FIFOs.
 *
 * Lower half; libc allowed.
 *
 * A pipe whose other end has been closed everywhere can be saved (a reader will get end of file, a writer EPIPE). A
 * pipe whose other end is in another process of the rank's tree can be, too (fds_tree.c). Any other one is refused,
 * because it could not be connected again. poll(2) tells the first case from the last.
 *
 * Buffered bytes are copied with tee(2), which leaves them in the pipe. If the kernel's limit on pipe pages prevents
 * that, they are read and written back (both ends are ours, and no other thread runs). Packets (O_DIRECT pipes) stay
 * packets.
 */
#define _GNU_SOURCE
#include "fds_table.h"
#include "base/io/whole.h"
#include "base/page.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Returns a number of the program that refers to an end of d's pipe usable for `mode`, or -1. */
static int end_of(const mpy_fdtable_t *t, const mpy_desc_t *d, int mode) {
    for (const mpy_desc_t *other = t->descs; other < t->descs + t->ndescs; other++) {
        int accmode = other->flags & O_ACCMODE;
        if (other->st.st_ino == d->st.st_ino && other->st.st_dev == d->st.st_dev && S_ISFIFO(other->st.st_mode) &&
            !(other->flags & O_PATH) && (accmode == mode || accmode == O_RDWR))
            return other->number;
    }
    return -1;
}

/* Has every process closed the other end? */
static int hung_up(const mpy_desc_t *d) {
    struct pollfd p = {.fd = d->number, .events = (d->flags & O_ACCMODE) == O_RDONLY ? POLLIN : POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

static int pipe_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    if ((end_of(t, d, O_RDONLY) >= 0 || mpy_fd_relative_has(d, O_RDONLY)) &&
        (end_of(t, d, O_WRONLY) >= 0 || mpy_fd_relative_has(d, O_WRONLY)))
        return 0;
    if (hung_up(d))
        return 0;
    return mpy_reason(
        err, n, "descriptor %d is a pipe %s another process; close it or let that process end before the checkpoint",
        d->number, (d->flags & O_ACCMODE) == O_RDONLY ? "from" : "to");
}

/* Reads until the non-blocking pipe is empty. Each read becomes one record: this keeps the packet boundaries of an
 * O_DIRECT pipe. */
static int drain(int from, int back, mpy_blob_t *b, uint32_t *count) {
    static const size_t most = 1 << 20;
    uint8_t *buffer = malloc(most);
    ssize_t got = -1;
    int rc = buffer ? 0 : -1;
    while (!rc && ((got = read(from, buffer, most)) > 0 || (got < 0 && errno == EINTR))) {
        if (got < 0)
            continue;
        mpy_blob_put_bytes(b, buffer, (size_t)got);
        ++*count;
        if (back >= 0)
            rc = mpy_write_whole(back, buffer, (size_t)got, MPY_AT_POSITION);
    }
    free(buffer);
    return rc;
}

/* Copies the content through a second pipe. Returns 0 if that pipe couldn't take everything; then nothing is lost. */
static int copy_by_tee(int from, int bytes, int capacity, mpy_blob_t *b, uint32_t *count) {
    int copy[2];
    if (pipe2(copy, O_NONBLOCK | O_CLOEXEC))
        return 0;
    size_t start = b->bytes;
    fcntl(copy[1], F_SETPIPE_SZ, capacity);
    int done = tee(from, copy[1], (size_t)bytes, SPLICE_F_NONBLOCK) == bytes && drain(copy[0], -1, b, count) == 0;
    if (!done) {
        b->bytes = start;
        *count = 0;
    }
    close(copy[0]);
    close(copy[1]);
    return done;
}

static int round_trip(int from, int to, size_t bytes_in, size_t capacity, mpy_blob_t *b, uint32_t *count) {
    /* Non-blocking while we read. Everything is read before anything is written back, so the order stays the same. What
     * could not be stored would be lost, so there is room for it first: at most one packet is in each page. */
    const size_t room = bytes_in + sizeof(uint64_t) * (capacity / MPY_PAGE + 1);
    mpy_blob_t taken;
    uint32_t records = 0;
    int flags = fcntl(from, F_GETFL), rc;
    mpy_blob_init(&taken);
    if (mpy_blob_reserve(&taken, room) || mpy_blob_reserve(b, room)) {
        mpy_blob_free(&taken);
        errno = ENOMEM;
        return -1;
    }
    fcntl(from, F_SETFL, flags | O_NONBLOCK);
    rc = drain(from, -1, &taken, &records);
    fcntl(from, F_SETFL, flags);
    mpy_reader_t r;
    mpy_reader_init(&r, taken.data, taken.bytes);
    for (uint32_t i = 0; i < records; i++) {
        size_t bytes;
        const uint8_t *p = mpy_reader_bytes(&r, &bytes);
        rc |= !p || mpy_write_whole(to, p, bytes, MPY_AT_POSITION);
        mpy_blob_put_bytes(b, p, bytes);
    }
    *count = records;
    rc |= taken.failed;
    mpy_blob_free(&taken);
    return rc ? -1 : 0;
}

/* Writes "count, records" of the buffered bytes. `to` < 0: no process can write any more. */
static int content_save(const mpy_desc_t *d, int from, int to, mpy_blob_t *b, char *err, size_t n) {
    int bytes = 0, capacity = fcntl(d->number, F_GETPIPE_SZ);
    uint32_t count = 0;
    size_t at = b->bytes;
    mpy_blob_put_u32(b, 0);
    if (from < 0 || ioctl(from, FIONREAD, &bytes) || bytes == 0)
        return 0;
    if (!copy_by_tee(from, bytes, capacity, b, &count)) {
        if (to < 0)
            return mpy_reason(err, n, "descriptor %d: the %d bytes in this pipe can't be copied: %s", d->number, bytes,
                              strerror(errno));
        if (round_trip(from, to, (size_t)bytes, (size_t)(capacity > 0 ? capacity : bytes), b, &count))
            return mpy_reason(err, n, "descriptor %d: the %d bytes in this pipe can't be saved: %s", d->number, bytes,
                              strerror(errno));
    }
    mpy_blob_set_u32(b, at, count);
    return 0;
}

static int first_of_object(const mpy_fdtable_t *t, const mpy_desc_t *d) {
    for (const mpy_desc_t *other = t->descs; other < d; other++)
        if (other->kind == d->kind && other->st.st_ino == d->st.st_ino && other->st.st_dev == d->st.st_dev)
            return 0;
    return 1;
}

static int pipe_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    int first = first_of_object(t, d), capacity = fcntl(d->number, F_GETPIPE_SZ), to = end_of(t, d, O_WRONLY);
    mpy_blob_put_u64(b, d->st.st_ino);
    mpy_blob_put_u32(b, (uint32_t)first);
    mpy_blob_put_u32(b, (uint32_t)(capacity > 0 ? capacity : 0));
    mpy_blob_put_u32(b, to >= 0 && (fcntl(to, F_GETFL) & O_DIRECT)); /* only the writing end has the flag */
    return first ? content_save(d, end_of(t, d, O_RDONLY), to, b, err, n) : 0;
}

/* Writes the saved records; `fd` must not block. */
static int content_restore(int fd, mpy_reader_t *r) {
    for (uint32_t left = mpy_reader_count(r, 8); left; left--) {
        size_t bytes;
        const uint8_t *p = mpy_reader_bytes(r, &bytes);
        if (!p || mpy_write_whole(fd, p, bytes, MPY_AT_POSITION))
            return -1;
    }
    return r->failed ? -1 : 0;
}

/* The first description of a pipe creates it. It keeps a read-write descriptor until the end, from which the others are
 * opened. So no end ever looks closed too early. */
static int pipe_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    d->object = mpy_reader_u64(r);
    int first = (int)mpy_reader_u32(r);
    uint32_t capacity = mpy_reader_u32(r);
    int packets = (int)mpy_reader_u32(r);
    mpy_desc_t *base = first ? d : mpy_fdtable_object(t, d);
    if (r->failed || !base || (base != d && base->extra < 0))
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    if (first) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK | (packets ? O_DIRECT : 0)))
            return mpy_reason(err, n, "cannot recreate the pipe of descriptor %d: %s", d->number, strerror(errno));
        /* If the limit here is smaller, the pipe still works, provided that the content fits. */
        fcntl(ends[1], F_SETPIPE_SZ, (int)capacity);
        d->extra = mpy_fdtable_reopen(t, ends[0], O_RDWR | O_NONBLOCK);
        int rc = content_restore(ends[1], r);
        mpy_fd_close(ends[0]);
        mpy_fd_close(ends[1]);
        if (d->extra < 0 || rc)
            return mpy_reason(err, n, "can't fill the pipe of descriptor %d again: %s", d->number, strerror(errno));
    }
    d->made = mpy_fdtable_reopen(t, base->extra, (d->flags & O_ACCMODE) | O_NONBLOCK);
    if (d->made < 0)
        return mpy_reason(err, n, "can't open the pipe of descriptor %d again: %s", d->number, strerror(errno));
    return 0;
}

/* ---- named FIFOs ---- */

static int fifo_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    struct stat st;
    int bytes = 0;
    if (stat(d->path, &st) || !S_ISFIFO(st.st_mode))
        return mpy_reason(err, n, "descriptor %d is the FIFO %s, which no longer exists under that name", d->number,
                          d->path);
    if ((d->flags & O_ACCMODE) == O_RDONLY && end_of(t, d, O_WRONLY) < 0 && ioctl(d->number, FIONREAD, &bytes) == 0 &&
        bytes)
        return mpy_reason(
            err, n,
            "descriptor %d is the FIFO %s with %d bytes from another process in it; read them before the checkpoint",
            d->number, d->path, bytes);
    return 0;
}

static int fifo_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    int to = end_of(t, d, O_WRONLY), first = first_of_object(t, d) && to >= 0;
    mpy_blob_put_string(b, d->path);
    mpy_blob_put_u32(b, (uint32_t)first);
    return first ? content_save(d, end_of(t, d, O_RDONLY), to, b, err, n) : 0;
}

static int fifo_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    const char *path = mpy_reader_string(r);
    int first = (int)mpy_reader_u32(r), bytes = 0;
    if (r->failed)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    /* Opening read-write never blocks. It also keeps the FIFO from hanging up until all its descriptors exist. */
    d->extra = mpy_fdtable_temp(t, open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC));
    d->made = d->extra < 0 ? -1 : mpy_fdtable_temp(t, open(path, (d->flags & O_ACCMODE) | O_NONBLOCK | O_CLOEXEC));
    if (d->made < 0)
        return mpy_reason(err, n, "can't open the FIFO %s again, which was descriptor %d: %s", path, d->number,
                          strerror(errno));
    if (first && ioctl(d->extra, FIONREAD, &bytes) == 0 && bytes == 0 && content_restore(d->extra, r))
        return mpy_reason(err, n, "can't fill the FIFO %s again: %s", path, strerror(errno));
    return 0;
}

const mpy_fd_ops_t mpy_fd_pipe_ops = {pipe_check, pipe_save, pipe_make, NULL};
const mpy_fd_ops_t mpy_fd_fifo_ops = {fifo_check, fifo_save, fifo_make, NULL};
