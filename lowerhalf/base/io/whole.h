/* whole.h - reads and writes all bytes: read(2) and write(2) may stop earlier, or be interrupted. Header only; libc,
 * but no locks and no memory. */
#ifndef MANAPY_IO_WHOLE_H
#define MANAPY_IO_WHOLE_H

#include <errno.h>
#include <sys/types.h>
#include <unistd.h>

#define MPY_AT_POSITION ((off_t)-1) /* as offset: where the descriptor stands */

/* Returns the number of bytes read: fewer than asked for only at the end of the file. -1: errno says why. */
static inline ssize_t mpy_read_whole(int fd, void *to, size_t bytes, off_t offset) {
    size_t done = 0;
    while (done < bytes) {
        char *at = (char *)to + done;
        ssize_t got = offset == MPY_AT_POSITION ? read(fd, at, bytes - done)
                                                : pread(fd, at, bytes - done, offset + (off_t)done);
        if (got == 0) break;
        if (got > 0) done += (size_t)got;
        else if (errno != EINTR) return -1;
    }
    return (ssize_t)done;
}

/* Returns 0, or -1: errno says why. */
static inline int mpy_write_whole(int fd, const void *from, size_t bytes, off_t offset) {
    for (size_t done = 0; done < bytes;) {
        const char *at = (const char *)from + done;
        ssize_t put = offset == MPY_AT_POSITION ? write(fd, at, bytes - done)
                                                : pwrite(fd, at, bytes - done, offset + (off_t)done);
        if (put == 0) errno = EIO;
        if (put > 0) done += (size_t)put;
        else if (put == 0 || errno != EINTR) return -1;
    }
    return 0;
}

#endif
