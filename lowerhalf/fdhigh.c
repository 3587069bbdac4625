/* fdhigh.c - keeps the lower half's descriptors out of the program's way. Lower half; libc.
 *
 * Invariants
 *  1. Every descriptor of the lower half is >= MPY_FD_HIGH and close-on-exec, so that the program sees the low numbers it
 *     would see without us, a restart can give it back the same ones, and its children inherit none of ours.
 */
#include "fdhigh.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Moves `fd` up (unless it is there) and returns its new number; -1 with errno set, and `fd` closed, if there is no room:
 * RLIMIT_NOFILE is too small. A negative `fd` is returned as it is, so that calls nest: mpy_fd_high(open(...)). */
int mpy_fd_high(int fd) {
    if (fd < 0) return fd;
    if (fd >= MPY_FD_HIGH) return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? -1 : fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, MPY_FD_HIGH);
    int saved = errno;
    close(fd);
    errno = saved;
    return high;
}
