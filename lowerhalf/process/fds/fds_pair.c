/* fds_pair.c - connected AF_UNIX sockets whose ends are both in this process (from socketpair; event loops use one to
 * wake themselves), or in processes of the rank's tree. Connections to other processes are refused.
 *
 * Lower half; libc allowed. The kernel reports the other end of a connected AF_UNIX socket (sock_diag(7), UNIX_DIAG).
 *
 * Data queued for a socket is copied with MSG_PEEK and SO_PEEK_OFF, which leave it in the queue. At a restart it is
 * sent again through the partner. Datagrams stay datagrams; descriptors in flight are refused.
 *
 * With --drop-sockets, a connection to another process comes back as one whose other end has been closed.
 *
 * A pair becomes a pair without names, even if one end was accepted by a listening socket with a name.
 *
 * In a tree, one process makes both ends (fds_tree.c). Each end's options, queue and state are those that its keeper
 * has saved: the owner of the pair, if it has that end; otherwise the first process that has it. The keeper gets both
 * ends, because it fills the queue through the other one.
 */
#define _GNU_SOURCE
#include "fds_table.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- which sockets are connected ---- */

int mpy_unix_state(ino_t ino, mpy_unix_state_t *state) {
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } query = {
        {.nlmsg_len = sizeof query, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        {.sdiag_family = AF_UNIX,
         .udiag_states = ~0u,
         .udiag_ino = (uint32_t)ino,
         .udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN,
         .udiag_cookie = {~0u, ~0u}},
    };
    _Alignas(struct nlmsghdr) char answer[4096];
    int fd = mpy_fd_high(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    ssize_t got = -1;
    if (fd >= 0 && send(fd, &query, sizeof query, 0) == (ssize_t)sizeof query)
        got = recv(fd, answer, sizeof answer, 0);
    if (fd >= 0)
        mpy_fd_close(fd);
    const struct nlmsghdr *header = (const struct nlmsghdr *)answer;
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct unix_diag_msg)) || header->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return -1;
    struct unix_diag_rqlen queue;
    *state = (mpy_unix_state_t){0};
    int left = (int)header->nlmsg_len - (int)NLMSG_LENGTH(sizeof(struct unix_diag_msg));
    for (const struct rtattr *a = (const struct rtattr *)(answer + NLMSG_LENGTH(sizeof(struct unix_diag_msg)));
         RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == UNIX_DIAG_PEER)
            memcpy(&state->peer, RTA_DATA(a), sizeof state->peer);
        else if (a->rta_type == UNIX_DIAG_SHUTDOWN)
            memcpy(&state->shutdown, RTA_DATA(a), sizeof state->shutdown);
        else if (a->rta_type == UNIX_DIAG_RQLEN) {
            memcpy(&queue, RTA_DATA(a), sizeof queue);
            state->waiting = queue.udiag_rqueue;
            state->backlog = queue.udiag_wqueue;
        }
    }
    return 0;
}

static mpy_desc_t *by_inode(mpy_fdtable_t *t, uint32_t ino) {
    for (mpy_desc_t *d = t->descs; ino && d < t->descs + t->ndescs; d++)
        if (d->kind == MPY_FD_PAIR && (uint32_t)d->st.st_ino == ino)
            return d;
    return NULL;
}

static int pair_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    mpy_unix_state_t state;
    if (mpy_unix_state(d->st.st_ino, &state))
        return mpy_reason(err, n,
                          "descriptor %d is a connected Unix socket, and this kernel does not say to what (no "
                          "unix_diag); close it before the checkpoint",
                          d->number);
    if (state.peer && !mpy_sockets_are_dropped && !by_inode(t, state.peer) &&
        !mpy_fd_relative_has_inode(d, state.peer)) {
        struct sockaddr_un peer = {0};
        socklen_t bytes = sizeof peer;
        const char *name = getpeername(d->number, (struct sockaddr *)&peer, &bytes) == 0 && peer.sun_path[0]
                               ? peer.sun_path
                               : "another process";
        return mpy_reason(err, n, "descriptor %d is a Unix socket connected to %s; close it before the checkpoint",
                          d->number, name);
    }
    return 0;
}

/* ---- connected pairs ---- */

/* Peeks one queued message (of a stream, all there is) at the current peek offset. Returns its length, or -1. */
static ssize_t peek(int fd, uint8_t **buffer, size_t *room, int *rights) {
    for (;;) {
        char control[CMSG_SPACE(sizeof(struct ucred))];
        struct iovec data = {*buffer, *room};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
        if (mpy_socket_option(fd, SOL_SOCKET, SO_PASSCRED) > 0) {
            message.msg_control = control;
            message.msg_controllen = sizeof control;
        }
        int zero = 0, offset = mpy_socket_option(fd, SOL_SOCKET, SO_PEEK_OFF);
        ssize_t got = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
        *rights = got >= 0 && (message.msg_flags & MSG_CTRUNC);
        for (struct cmsghdr *c = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL; c; c = CMSG_NXTHDR(&message, c))
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
                *rights = 1;
        if (got < 0 || !(message.msg_flags & MSG_TRUNC))
            return got;
        free(*buffer); /* a datagram larger than the buffer: peek again at the same offset */
        *room = (size_t)got > *room ? (size_t)got : *room * 2;
        *buffer = malloc(*room);
        if (!*buffer)
            return -1;
        setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, offset < 0 ? &zero : &offset, sizeof zero);
    }
}

/* Writes "count, records" of the data queued for d. */
static int queue_save(const mpy_desc_t *d, int type, mpy_blob_t *b, char *err, size_t n) {
    size_t at = b->bytes, room = 256 << 10;
    uint8_t *buffer = malloc(room);
    uint32_t count = 0;
    int zero = 0, before = mpy_socket_option(d->number, SOL_SOCKET, SO_PEEK_OFF), rights = 0, pending = 0;
    mpy_blob_put_u32(b, 0);
    if (!buffer || setsockopt(d->number, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof zero)) {
        free(buffer);
        return mpy_reason(err, n, "descriptor %d: the data queued in this Unix socket cannot be read: %s", d->number,
                          strerror(errno));
    }
    ssize_t got = 0;
    ioctl(d->number, FIONREAD, &pending);
    while (!rights && (type != SOCK_STREAM || pending > 0) && (got = peek(d->number, &buffer, &room, &rights)) >= 0) {
        if (got == 0 && type != SOCK_DGRAM) /* end of file */
            break;
        mpy_blob_put_bytes(b, buffer, (size_t)got);
        count++;
    }
    setsockopt(d->number, SOL_SOCKET, SO_PEEK_OFF, &before, sizeof before);
    int failed = got < 0 && errno != EAGAIN && errno != ECONNRESET && errno != ENOTCONN;
    free(buffer);
    if (rights)
        return mpy_reason(
            err, n,
            "descriptor %d is a Unix socket in which descriptors are being passed; receive them before the checkpoint",
            d->number);
    if (failed)
        return mpy_reason(err, n, "descriptor %d: the data queued in this Unix socket cannot be read: %s", d->number,
                          strerror(errno));
    mpy_blob_set_u32(b, at, count);
    return 0;
}

int mpy_fd_end_save(const mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    mpy_unix_state_t state;
    int type = mpy_socket_option(d->number, SOL_SOCKET, SO_TYPE);
    if (mpy_unix_state(d->st.st_ino, &state))
        return mpy_reason(err, n, "descriptor %d is a Unix socket whose state cannot be read", d->number);
    mpy_blob_put_u32(b, (uint32_t)type);
    mpy_blob_put_u32(b, state.shutdown);
    mpy_socket_options_save(d->number, b);
    return queue_save(d, type, b, err, n);
}

static int pair_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    mpy_unix_state_t state;
    if (pair_check(t, d, err, n) || mpy_unix_state(d->st.st_ino, &state))
        return -1;
    uint64_t lesser = state.peer && state.peer < d->st.st_ino ? state.peer : d->st.st_ino;
    mpy_blob_put_u64(b, lesser);
    mpy_blob_put_u32(b, by_inode(t, state.peer) != NULL);
    return mpy_fd_end_save(d, b, err, n);
}

/* The first socket of a pair creates both and keeps the partner in `extra`. The second one takes the partner from
 * there. If the partner is gone, or elsewhere, `extra` serves to fill the queue, and for other processes. */
static int pair_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    d->object = mpy_reader_u64(r);
    int partner = (int)mpy_reader_u32(r), type = (int)mpy_reader_u32(r);
    d->which = (int)mpy_reader_u32(r); /* shutdown state */
    mpy_desc_t *first = mpy_fdtable_object(t, d);
    if (r->failed || (first && (!partner || first->extra < 0)))
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    int pair[2];
    if (first) {
        d->made = fcntl(first->extra, F_DUPFD_CLOEXEC, t->temp_base);
        mpy_fd_lower_add(d->made);
        /* each keeps the other: through it, each one's queue is filled */
        d->extra = fcntl(first->made, F_DUPFD_CLOEXEC, t->temp_base);
        mpy_fd_lower_add(d->extra);
    } else if (socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0) {
        d->made = mpy_fdtable_temp(t, pair[0]);
        d->extra = mpy_fdtable_temp(t, pair[1]);
    }
    if (d->made < 0 || d->extra < 0)
        return mpy_reason(err, n, "cannot recreate the Unix socket pair of descriptor %d: %s", d->number,
                          strerror(errno));
    mpy_socket_options_restore(d->made, r);
    return 0;
}

/* Sockets that are to be shut down when every queue is full again: a direction that is shut down takes no more data.
 * From restore to commit. */
static struct shut { int number, state; } *shuts;
static size_t nshuts;

static int fill(mpy_desc_t *d, int state, mpy_reader_t *r, char *err, size_t n) {
    struct shut *more = realloc(shuts, (nshuts + 1) * sizeof *shuts);
    if (!more)
        return mpy_reason(err, n, "out of memory while restoring descriptors");
    shuts = more;
    shuts[nshuts++] = (struct shut){d->number, state};
    for (uint32_t left = mpy_reader_count(r, 8); left; left--) {
        size_t bytes, done = 0;
        const uint8_t *p = mpy_reader_bytes(r, &bytes);
        while (p && (done < bytes || !bytes)) {
            ssize_t put = send(d->extra, p + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0 && errno != EINTR)
                return mpy_reason(err, n, "can't fill the Unix socket of descriptor %d again: %s", d->number,
                                  strerror(errno));
            done += put > 0 ? (size_t)put : 0;
            if (!bytes)
                break;
        }
    }
    if (r->failed)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    return 0;
}

static int pair_finish(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t;
    return fill(d, d->which, r, err, n);
}

int mpy_fd_end_restore(mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    mpy_reader_u32(r); /* type */
    int state = (int)mpy_reader_u32(r);
    mpy_socket_options_restore(d->number, r);
    return fill(d, state, r, err, n);
}

void mpy_fd_pairs_commit(void) {
    static const int how[4] = {-1, SHUT_RD, SHUT_WR, SHUT_RDWR};
    for (size_t i = 0; i < nshuts; i++)
        if (how[shuts[i].state & 3] >= 0)
            shutdown(shuts[i].number, how[shuts[i].state & 3]);
    free(shuts);
    shuts = NULL;
    nshuts = 0;
}

const mpy_fd_ops_t mpy_fd_pair_ops = {pair_check, pair_save, pair_make, pair_finish};
