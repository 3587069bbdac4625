/* message.c - messages between the processes of one rank, over socket pairs that they have inherited.
 *
 * Half: lower; libc may be called.
 *
 * Invariants
 *  1. The sockets have no name: only processes below the one that made them can have an end. So there is nothing to
 *     authenticate. Both ends are of the same build of manapy, so a message is a struct.
 *  2. A message arrives as a whole or not at all (SOCK_SEQPACKET). Several processes may send to one door.
 */
#include "message.h"
#include "isolate/fdguard.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* So many descriptors of this user may not be under way at once (unix(7)): the others are received meanwhile. */
enum { FLIGHT_TRIES = 1000 };

bool mpy_tree_pair(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return false;
    ends[0] = mpy_fd_high(ends[0]), ends[1] = mpy_fd_high(ends[1]);
    return true;
}

bool mpy_tree_send(int to, const mpy_tree_message_t *message, int fd) {
    union { struct cmsghdr align; char space[CMSG_SPACE(sizeof fd)]; } control = {0};
    struct iovec part = {(void *)message, sizeof *message};
    struct msghdr all = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        all.msg_control = control.space, all.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&all);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t sent;
    int tries = FLIGHT_TRIES;
    do {
        sent = sendmsg(to, &all, MSG_NOSIGNAL);
        if (sent < 0 && errno == ETOOMANYREFS) usleep(1000);
    } while (sent < 0 && (errno == EINTR || (errno == ETOOMANYREFS && tries-- > 0)));
    return sent == (ssize_t)sizeof *message;
}

int mpy_tree_receive(int from, mpy_tree_message_t *message, int *fd, int ms) {
    union { struct cmsghdr align; char space[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec part = {message, sizeof *message};
    struct msghdr all = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                         .msg_controllen = sizeof control.space};
    struct pollfd p = {.fd = from, .events = POLLIN};
    if (fd) *fd = -1;
    int ready = poll(&p, 1, ms);
    if (ready == 0) return 0;
    ssize_t got = ready < 0 ? -1 : recvmsg(from, &all, MSG_CMSG_CLOEXEC);
    if (got != (ssize_t)sizeof *message) return got < 0 && errno == EINTR ? 0 : -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&all);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        int received;
        memcpy(&received, CMSG_DATA(c), sizeof received); /* recvmsg has moved it up (isolate/interpose.c) */
        if (fd) *fd = received;
        else mpy_fd_close(received);
    }
    return 1;
}
