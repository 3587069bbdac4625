/* tcp_bytes.c - number of bytes that this process's TCP connections have moved: so a drain sees that a message is in
 * transit.
 *
 * Half: lower; libc may be called. The real MPI does not report how far a message has got, but the kernel counts bytes.
 * It doesn't count if ranks communicate through shared memory or RDMA; but these are so fast that hardly any message
 * takes minutes.
 */
#include "tcp_bytes.h"

#include "base/proc/fds.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

static uint64_t bytes_of(int fd) {
    struct tcp_info info;
    socklen_t n = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0) return 0; /* another kind of descriptor */
    /* Linux before 4.1 */
    if (n < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) return 0;
    return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

uint64_t mpy_tcp_bytes(void) {
    uint64_t sum = 0;
    mpy_fd_list_t list = mpy_fd_list_open(0);
    for (int fd; (fd = mpy_fd_list_next(&list)) >= 0;) sum += bytes_of(fd);
    mpy_fd_list_close(&list);
    return sum;
}
