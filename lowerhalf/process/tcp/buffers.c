/* buffers.c - sizes of the buffers of TCP sockets.
 *
 * Lower half; libc allowed. A program may set a size up to net.core.rmem_max or wmem_max. The kernel doubles it
 * (socket(7)), and then no longer tunes the buffer, unless SO_BUF_LOCK (Linux 5.14) says otherwise. The kernel's own
 * tuning may have made a buffer larger than that. Then setting a size would make it smaller.
 */
#define _GNU_SOURCE
#include "tcp.h"

#include <limits.h>
#include <linux/sock_diag.h>
#include <stdio.h>

static size_t size_of(int fd, int name) {
    int value = 0;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, SOL_SOCKET, name, &value, &bytes) ? 0 : (size_t)value;
}

static size_t largest(int name) {
    unsigned long value = 0;
    FILE *f = fopen(name == SO_RCVBUF ? "/proc/sys/net/core/rmem_max" : "/proc/sys/net/core/wmem_max", "re");
    if (f && fscanf(f, "%lu", &value) != 1)
        value = 0;
    if (f)
        fclose(f);
    return 2 * value;
}

bool mpy_tcp_enlarge(int fd, int name, size_t bytes) {
    const int force = name == SO_RCVBUF ? SO_RCVBUFFORCE : SO_SNDBUFFORCE;
    const size_t before = size_of(fd, name);
    int lock = 0, half = (int)(bytes < INT_MAX ? bytes / 2 : INT_MAX / 2);
    socklen_t lock_bytes = sizeof lock;
    if (before >= bytes)
        return true;
    bool has_lock = getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, &lock_bytes) == 0;
    if (setsockopt(fd, SOL_SOCKET, force, &half, sizeof half) && largest(name) > before)
        setsockopt(fd, SOL_SOCKET, name, &half, sizeof half);
    if (has_lock)
        setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof lock);
    return size_of(fd, name) >= bytes;
}

size_t mpy_tcp_memory_in_use(int fd) {
    uint32_t values[SK_MEMINFO_VARS] = {0};
    socklen_t bytes = sizeof values;
    return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, values, &bytes) ? 0 : values[SK_MEMINFO_RMEM_ALLOC];
}
