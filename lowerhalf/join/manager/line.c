/* line.c - reads one line from a process manager. Lower half; libc.
 *
 * Invariants
 *  1. Not one byte beyond the newline is read, because the MPI library later reads from the same descriptor. So the
 *     line is read byte by byte.
 */
#include "line.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/now.h"

static int wait_for_input(int fd, int64_t deadline) { /* as poll(2) */
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int64_t left = deadline - mpy_now_ms();
    return left <= 0 ? 0 : poll(&ready, 1, (int)left);
}

mpy_line_result_t mpy_line_read(int fd, char *line, size_t size, int64_t deadline) {
    for (size_t at = 0; at < size;) {
        int ready = deadline == MPY_LINE_NO_DEADLINE ? 1 : wait_for_input(fd, deadline);
        if (ready == 0) return MPY_LINE_LATE;
        ssize_t k = ready < 0 ? -1 : read(fd, line + at, 1); /* invariant 1 */
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) errno = ECONNRESET;
        if (k <= 0) return MPY_LINE_ENDED;
        if (line[at] == '\n') return line[at] = '\0', MPY_LINE_READ;
        at++;
    }
    errno = EMSGSIZE;
    return MPY_LINE_ENDED;
}
