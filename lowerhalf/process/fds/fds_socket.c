/* fds_socket.c - sockets: connected AF_UNIX pairs inside the process (socketpair: event loops wake themselves with
 * one), and sockets that aren't connected, including listening ones. Connections to other processes are refused.
 *
 * Lower half; libc allowed. The kernel reports the other end of a connected AF_UNIX socket (sock_diag(7), UNIX_DIAG).
 *
 * Data queued for a socket is copied with MSG_PEEK and SO_PEEK_OFF, which leave it in the queue. At a restart it is
 * sent again through the partner. Datagrams stay datagrams; descriptors in flight are refused.
 */
#define _GNU_SOURCE
#include "fds_table.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { TCP_STATE_CLOSE = 7, TCP_STATE_LISTEN = 10 }; /* from linux/tcp_states.h, which user space can't include */

static int option(int fd, int level, int name)
{
    int value = 0;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, level, name, &value, &bytes) ? -1 : value;
}

/* ---- which sockets are connected ---- */

typedef struct unix_state {
    uint32_t peer; /* inode of the partner; 0: none any more */
    uint8_t shutdown; /* bit 0 receiving, bit 1 sending (the kernel's RCV_SHUTDOWN, SEND_SHUTDOWN) */
} unix_state_t;

static int unix_state(ino_t ino, unix_state_t *state)
{
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } query = {
        {.nlmsg_len = sizeof query, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        {.sdiag_family = AF_UNIX,
         .udiag_states = ~0u,
         .udiag_ino = (uint32_t)ino,
         .udiag_show = UDIAG_SHOW_PEER,
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
    *state = (unix_state_t){0};
    int left = (int)header->nlmsg_len - (int)NLMSG_LENGTH(sizeof(struct unix_diag_msg));
    for (const struct rtattr *a = (const struct rtattr *)(answer + NLMSG_LENGTH(sizeof(struct unix_diag_msg)));
         RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == UNIX_DIAG_PEER)
            memcpy(&state->peer, RTA_DATA(a), sizeof state->peer);
        else if (a->rta_type == UNIX_DIAG_SHUTDOWN)
            memcpy(&state->shutdown, RTA_DATA(a), sizeof state->shutdown);
    }
    return 0;
}

static mpy_desc_t *by_inode(mpy_fdtable_t *t, uint32_t ino)
{
    for (mpy_desc_t *d = t->descs; ino && d < t->descs + t->ndescs; d++)
        if (d->kind == MPY_FD_PAIR && (uint32_t)d->st.st_ino == ino)
            return d;
    return NULL;
}

static int pair_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n)
{
    unix_state_t state;
    if (unix_state(d->st.st_ino, &state))
        return mpy_reason(err, n,
                          "descriptor %d is a connected Unix socket, and this kernel does not say to what (no "
                          "unix_diag); close it before the checkpoint",
                          d->number);
    if (state.peer && !by_inode(t, state.peer)) {
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

/* ---- options that are saved ---- */

static const struct { int level, name;
} kept[] = {
    {SOL_SOCKET, SO_SNDBUF},    {SOL_SOCKET, SO_RCVBUF},     {SOL_SOCKET, SO_REUSEADDR},
    {SOL_SOCKET, SO_REUSEPORT}, {SOL_SOCKET, SO_KEEPALIVE},  {SOL_SOCKET, SO_BROADCAST},
    {SOL_SOCKET, SO_PASSCRED},  {IPPROTO_IPV6, IPV6_V6ONLY}, {IPPROTO_TCP, TCP_NODELAY},
};

#define KEPT (sizeof kept / sizeof *kept)

static const int timeouts[2] = {SO_RCVTIMEO, SO_SNDTIMEO};

static void options_save(int fd, mpy_blob_t *b)
{
    mpy_blob_put_u32(b, KEPT);
    for (size_t i = 0; i < KEPT; i++)
        mpy_blob_put_i64(b, option(fd, kept[i].level, kept[i].name));
    for (int i = 0; i < 2; i++) {
        struct timeval value = {0};
        socklen_t bytes = sizeof value;
        getsockopt(fd, SOL_SOCKET, timeouts[i], &value, &bytes);
        mpy_blob_put_i64(b, value.tv_sec);
        mpy_blob_put_i64(b, value.tv_usec);
    }
}

/* Best effort. Sets only what differs, because setting a buffer size would disable the kernel's tuning of it. */
static void options_restore(int fd, mpy_reader_t *r)
{
    uint32_t count = mpy_reader_count(r, 8);
    for (uint32_t i = 0; i < count; i++) {
        int64_t value = mpy_reader_i64(r);
        if (i >= KEPT || value < 0 || option(fd, kept[i].level, kept[i].name) == value)
            continue;
        int set = (int)value;
        if (kept[i].level == SOL_SOCKET && (kept[i].name == SO_SNDBUF || kept[i].name == SO_RCVBUF))
            set /= 2; /* the kernel doubles the value, socket(7) */
        setsockopt(fd, kept[i].level, kept[i].name, &set, sizeof set);
    }
    for (int i = 0; i < 2; i++) {
        struct timeval value = {.tv_sec = mpy_reader_i64(r)};
        value.tv_usec = mpy_reader_i64(r);
        if (value.tv_sec || value.tv_usec)
            setsockopt(fd, SOL_SOCKET, timeouts[i], &value, sizeof value);
    }
}

/* ---- connected pairs ---- */

/* Peeks one queued message (of a stream, all there is) at the current peek offset. Returns its length, or -1. */
static ssize_t peek(int fd, uint8_t **buffer, size_t *room, int *rights)
{
    for (;;) {
        char control[CMSG_SPACE(sizeof(struct ucred))];
        struct iovec data = {*buffer, *room};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
        if (option(fd, SOL_SOCKET, SO_PASSCRED) > 0) {
            message.msg_control = control;
            message.msg_controllen = sizeof control;
        }
        int zero = 0, offset = option(fd, SOL_SOCKET, SO_PEEK_OFF);
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
static int queue_save(const mpy_desc_t *d, int type, mpy_blob_t *b, char *err, size_t n)
{
    size_t at = b->bytes, room = 256 << 10;
    uint8_t *buffer = malloc(room);
    uint32_t count = 0;
    int zero = 0, before = option(d->number, SOL_SOCKET, SO_PEEK_OFF), rights = 0, pending = 0;
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

static int pair_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n)
{
    unix_state_t state;
    int type = option(d->number, SOL_SOCKET, SO_TYPE);
    if (pair_check(t, d, err, n) || unix_state(d->st.st_ino, &state))
        return -1;
    uint64_t lesser = state.peer && state.peer < d->st.st_ino ? state.peer : d->st.st_ino;
    mpy_blob_put_u64(b, lesser);
    mpy_blob_put_u32(b, by_inode(t, state.peer) != NULL);
    mpy_blob_put_u32(b, (uint32_t)type);
    mpy_blob_put_u32(b, state.shutdown);
    options_save(d->number, b);
    return queue_save(d, type, b, err, n);
}

/* The first socket of a pair creates both and keeps the partner in `extra`. The second one takes the partner from
 * there. If the partner is gone, `extra` serves to fill the queue and is then closed. */
static int pair_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n)
{
    d->object = mpy_reader_u64(r);
    int partner = (int)mpy_reader_u32(r), type = (int)mpy_reader_u32(r);
    d->which = (int)mpy_reader_u32(r); /* shutdown state, for pair_settle */
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
        return mpy_reason(err, n, "can't make the Unix socket pair of descriptor %d again: %s", d->number,
                          strerror(errno));
    options_restore(d->made, r);
    return 0;
}

static int pair_finish(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n)
{
    (void)t;
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

/* Called when every queue is full again, because a direction that is shut down takes no more data. */
static int pair_settle(mpy_desc_t *d)
{
    static const int how[4] = {-1, SHUT_RD, SHUT_WR, SHUT_RDWR};
    return how[d->which & 3] >= 0 ? shutdown(d->number, how[d->which & 3]) : 0;
}

void mpy_fd_pairs_settle(mpy_fdtable_t *t)
{
    for (int i = 0; i < t->ndescs; i++)
        if (t->descs[i].kind == MPY_FD_PAIR)
            pair_settle(&t->descs[i]);
}

/* ---- not connected ---- */

static const char *address_text(const struct sockaddr_storage *address, char *text, size_t n)
{
    char host[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET)
        snprintf(text, n, "%s:%d", inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host), ntohs(v4->sin_port));
    else if (address->ss_family == AF_INET6)
        snprintf(text, n, "[%s]:%d", inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host), ntohs(v6->sin6_port));
    else
        snprintf(text, n, "another process");
    return text;
}

static int is_bound(int fd, struct sockaddr_storage *address, socklen_t *bytes)
{
    *bytes = sizeof *address;
    if (getsockname(fd, (struct sockaddr *)address, bytes))
        return 0;
    if (address->ss_family == AF_INET)
        return ((struct sockaddr_in *)address)->sin_port != 0;
    if (address->ss_family == AF_INET6)
        return ((struct sockaddr_in6 *)address)->sin6_port != 0;
    return *bytes > sizeof(sa_family_t);
}

static int socket_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n)
{
    int domain = option(d->number, SOL_SOCKET, SO_DOMAIN), type = option(d->number, SOL_SOCKET, SO_TYPE);
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char text[80];
    (void)t;
    if (domain == AF_UNIX) {
        if (is_bound(d->number, &address, &bytes))
            return mpy_reason(err, n, "descriptor %d is a Unix socket with a name (%s); close it before the checkpoint",
                              d->number, ((struct sockaddr_un *)&address)->sun_path);
        return 0;
    }
    if (domain == AF_NETLINK)
        return mpy_reason(err, n, "descriptor %d is a netlink socket; close it before the checkpoint", d->number);
    if ((domain != AF_INET && domain != AF_INET6) || (type != SOCK_STREAM && type != SOCK_DGRAM))
        return mpy_reason(
            err, n,
            "descriptor %d is a socket of family %d and type %d, which can't be saved; close it before the checkpoint",
            d->number, domain, type);
    if (getpeername(d->number, (struct sockaddr *)&address, &bytes) == 0)
        return mpy_reason(err, n, "descriptor %d is a connected %s socket to %s; close it before the checkpoint",
                          d->number, type == SOCK_STREAM ? "TCP" : "UDP", address_text(&address, text, sizeof text));
    if (type == SOCK_STREAM) {
        struct tcp_info info = {0};
        bytes = sizeof info;
        if (getsockopt(d->number, IPPROTO_TCP, TCP_INFO, &info, &bytes) ||
            (info.tcpi_state != TCP_STATE_CLOSE && info.tcpi_state != TCP_STATE_LISTEN))
            return mpy_reason(
                err, n,
                "descriptor %d is a TCP socket whose connection has not ended yet; close it before the checkpoint",
                d->number);
        if (info.tcpi_state == TCP_STATE_LISTEN && info.tcpi_unacked)
            return mpy_reason(
                err, n,
                "descriptor %d is a listening TCP socket with a connection waiting; accept it before the checkpoint",
                d->number);
    }
    return 0;
}

static int socket_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n)
{
    struct sockaddr_storage address;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    (void)t, (void)err, (void)n;
    int type = option(d->number, SOL_SOCKET, SO_TYPE);
    if (type == SOCK_STREAM && getsockopt(d->number, IPPROTO_TCP, TCP_INFO, &info, &bytes))
        info.tcpi_state = 0;
    mpy_blob_put_u32(b, (uint32_t)option(d->number, SOL_SOCKET, SO_DOMAIN));
    mpy_blob_put_u32(b, (uint32_t)type);
    mpy_blob_put_u32(b, (uint32_t)option(d->number, SOL_SOCKET, SO_PROTOCOL));
    int bound = is_bound(d->number, &address, &bytes);
    mpy_blob_put_bytes(b, &address, bound ? bytes : 0);
    mpy_blob_put_u32(b, info.tcpi_state == TCP_STATE_LISTEN);
    mpy_blob_put_u32(b, info.tcpi_sacked); /* for a listening socket: the backlog */
    options_save(d->number, b);
    return 0;
}

static int socket_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n)
{
    int domain = (int)mpy_reader_u32(r), type = (int)mpy_reader_u32(r), protocol = (int)mpy_reader_u32(r);
    struct sockaddr_storage address = {0};
    size_t bytes;
    char text[80];
    const void *saved = mpy_reader_bytes(r, &bytes);
    int listening = (int)mpy_reader_u32(r), backlog = (int)mpy_reader_u32(r);
    if (r->failed || bytes > sizeof address)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    memcpy(&address, saved, bytes);
    d->made = mpy_fdtable_temp(t, socket(domain, type | SOCK_CLOEXEC, protocol));
    if (d->made < 0)
        return mpy_reason(err, n, "can't make the socket of descriptor %d again: %s", d->number, strerror(errno));
    options_restore(d->made, r);
    if (bytes &&
        (bind(d->made, (struct sockaddr *)&address, (socklen_t)bytes) || (listening && listen(d->made, backlog))))
        return mpy_reason(err, n, "descriptor %d: can't %s on %s again: %s", d->number,
                          listening ? "listen" : "receive", address_text(&address, text, sizeof text), strerror(errno));
    return 0;
}

const mpy_fd_ops_t mpy_fd_pair_ops = {pair_check, pair_save, pair_make, pair_finish};
const mpy_fd_ops_t mpy_fd_socket_ops = {socket_check, socket_save, socket_make, NULL};
