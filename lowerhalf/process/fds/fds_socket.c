/* fds_socket.c - sockets that aren't connected, including listening ones. (Connected ones: fds_pair.c, fds_tcp.c.)
 *
 * Lower half; libc allowed.
 *
 * A listening AF_UNIX socket gets its name again. The file that its earlier run has left there is replaced, if nobody
 * listens there any more.
 *
 * A TCP or UDP socket whose address belongs to another host than that of the restart gets this host's address, and the
 * same port.
 *
 * With --drop-sockets a TCP connection comes back as one that has been reset, and a connected UDP socket with its peer.
 */
#define _GNU_SOURCE
#include "fds_table.h"
#include "base/io/host.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

bool mpy_sockets_are_dropped;

void mpy_fds_drop_sockets(bool drop) {
    mpy_sockets_are_dropped = drop;
}

int mpy_socket_option(int fd, int level, int name) {
    int value = 0;
    socklen_t bytes = sizeof value;
    return getsockopt(fd, level, name, &value, &bytes) ? -1 : value;
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

void mpy_socket_options_save(int fd, mpy_blob_t *b) {
    mpy_blob_put_u32(b, KEPT);
    for (size_t i = 0; i < KEPT; i++)
        mpy_blob_put_i64(b, mpy_socket_option(fd, kept[i].level, kept[i].name));
    for (int i = 0; i < 2; i++) {
        struct timeval value = {0};
        socklen_t bytes = sizeof value;
        getsockopt(fd, SOL_SOCKET, timeouts[i], &value, &bytes);
        mpy_blob_put_i64(b, value.tv_sec);
        mpy_blob_put_i64(b, value.tv_usec);
    }
}

/* Best effort. Sets only what differs, because setting a buffer size would disable the kernel's tuning of it. */
void mpy_socket_options_restore(int fd, mpy_reader_t *r) {
    uint32_t count = mpy_reader_count(r, 8);
    for (uint32_t i = 0; i < count; i++) {
        int64_t value = mpy_reader_i64(r);
        if (i >= KEPT || value < 0 || mpy_socket_option(fd, kept[i].level, kept[i].name) == value)
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

/* ---- not connected ---- */

static const char *address_text(const struct sockaddr_storage *address, char *text, size_t n) {
    char host[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET)
        snprintf(text, n, "%s:%d", inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host), ntohs(v4->sin_port));
    else if (address->ss_family == AF_INET6)
        snprintf(text, n, "[%s]:%d", inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host), ntohs(v6->sin6_port));
    else if (address->ss_family == AF_UNIX)
        snprintf(text, n, "%s", ((const struct sockaddr_un *)address)->sun_path);
    else
        snprintf(text, n, "another process");
    return text;
}

static int is_bound(int fd, struct sockaddr_storage *address, socklen_t *bytes) {
    *bytes = sizeof *address;
    if (getsockname(fd, (struct sockaddr *)address, bytes))
        return 0;
    if (address->ss_family == AF_INET)
        return ((struct sockaddr_in *)address)->sin_port != 0;
    if (address->ss_family == AF_INET6)
        return ((struct sockaddr_in6 *)address)->sin6_port != 0;
    return *bytes > sizeof(sa_family_t);
}

static int unix_check(const mpy_desc_t *d, int type, char *err, size_t n) {
    struct sockaddr_storage address;
    const char *path = ((struct sockaddr_un *)&address)->sun_path;
    socklen_t bytes;
    mpy_unix_state_t state = {0};
    if (!is_bound(d->number, &address, &bytes))
        return 0;
    if (type == SOCK_DGRAM || (path[0] && path[0] != '/'))
        return mpy_reason(err, n, "descriptor %d is a Unix %s (%s); close it before the checkpoint", d->number,
                          type == SOCK_DGRAM ? "datagram socket with a name" : "socket with a relative name", path);
    if (mpy_unix_state(d->st.st_ino, &state) == 0 && !state.waiting)
        return 0;
    return mpy_reason(err, n, "descriptor %d is a listening Unix socket (%s) with a connection waiting; accept it "
                      "before the checkpoint", d->number, path[0] ? path : path + 1);
}

int mpy_socket_refuse(int fd, const char *who, char *err, size_t n) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    char text[128];
    getpeername(fd, (struct sockaddr *)&address, &bytes);
    return mpy_reason(err, n, "%s is a connected %s socket to %s; close it before the checkpoint (the program can, by "
                      "manapy.before_checkpoint: docs/callbacks.md)", who,
                      mpy_socket_option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM ? "TCP" : "UDP",
                      address_text(&address, text, sizeof text));
}

static int socket_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    int domain = mpy_socket_option(d->number, SOL_SOCKET, SO_DOMAIN);
    int type = mpy_socket_option(d->number, SOL_SOCKET, SO_TYPE);
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    char who[64];
    (void)t;
    if (domain == AF_UNIX)
        return unix_check(d, type, err, n);
    if (domain == AF_NETLINK)
        return mpy_reason(err, n, "descriptor %d is a netlink socket; close it before the checkpoint", d->number);
    if ((domain != AF_INET && domain != AF_INET6) || (type != SOCK_STREAM && type != SOCK_DGRAM))
        return mpy_reason(
            err, n,
            "descriptor %d is a socket of family %d and type %d, which can't be saved; close it before the checkpoint",
            d->number, domain, type);
    if (mpy_sockets_are_dropped)
        return 0;
    if (getpeername(d->number, (struct sockaddr *)&address, &bytes) == 0) {
        if (type == SOCK_STREAM && mpy_fd_tcp_may_be_inside(d))
            return 0;
        snprintf(who, sizeof who, "descriptor %d", d->number);
        return mpy_socket_refuse(d->number, who, err, n);
    }
    if (type == SOCK_STREAM) {
        struct tcp_info info = {0};
        bytes = sizeof info;
        if (getsockopt(d->number, IPPROTO_TCP, TCP_INFO, &info, &bytes) ||
            (info.tcpi_state != TCP_CLOSE && info.tcpi_state != TCP_LISTEN))
            return mpy_reason(
                err, n,
                "descriptor %d is a TCP socket whose connection has not ended yet; close it before the checkpoint",
                d->number);
        if (info.tcpi_state == TCP_LISTEN && info.tcpi_unacked)
            return mpy_reason(
                err, n,
                "descriptor %d is a listening TCP socket with a connection waiting; accept it before the checkpoint",
                d->number);
    }
    return 0;
}

/* Of TCP: neither listening nor unused. */
static int is_dropped(const struct tcp_info *info) {
    return info->tcpi_state != 0 && info->tcpi_state != TCP_CLOSE && info->tcpi_state != TCP_LISTEN;
}

static int socket_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    struct sockaddr_storage address;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    (void)t, (void)err, (void)n;
    int type = mpy_socket_option(d->number, SOL_SOCKET, SO_TYPE);
    if (type == SOCK_STREAM && getsockopt(d->number, IPPROTO_TCP, TCP_INFO, &info, &bytes))
        info.tcpi_state = 0;
    mpy_blob_put_u32(b, (uint32_t)mpy_socket_option(d->number, SOL_SOCKET, SO_DOMAIN));
    mpy_blob_put_u32(b, (uint32_t)type);
    mpy_blob_put_u32(b, (uint32_t)mpy_socket_option(d->number, SOL_SOCKET, SO_PROTOCOL));
    int bound = is_bound(d->number, &address, &bytes);
    mpy_blob_put_bytes(b, &address, bound ? bytes : 0);
    struct sockaddr_storage peer = {0};
    socklen_t peer_bytes = sizeof peer;
    int has_peer = type == SOCK_DGRAM && getpeername(d->number, (struct sockaddr *)&peer, &peer_bytes) == 0;
    mpy_blob_put_bytes(b, &peer, has_peer ? peer_bytes : 0);
    mpy_blob_put_u32(b, type == SOCK_STREAM && address.ss_family != AF_UNIX && is_dropped(&info));
    struct stat st = {0};
    mpy_unix_state_t unix_state = {0};
    const char *path = ((struct sockaddr_un *)&address)->sun_path;
    int listens = mpy_socket_option(d->number, SOL_SOCKET, SO_ACCEPTCONN) > 0;
    if (bound && address.ss_family == AF_UNIX && mpy_unix_state(d->st.st_ino, &unix_state) == 0 && path[0] &&
        (lstat(path, &st) || !S_ISSOCK(st.st_mode)))
        st.st_mode = 0;
    mpy_blob_put_u32(b, st.st_mode & 07777); /* of its file; 0: none */
    mpy_blob_put_u32(b, (uint32_t)listens);
    /* for a listening socket: the backlog */
    mpy_blob_put_u32(b, address.ss_family == AF_UNIX ? unix_state.backlog : info.tcpi_sacked);
    mpy_socket_options_save(d->number, b);
    return 0;
}

/* Removes the file of a Unix socket on which nobody listens any more. Makes its directory, if that is missing: it was a
 * temporary one (Python's multiprocessing makes one for each program). */
static void make_way(const struct sockaddr_storage *address, socklen_t bytes, int type) {
    char directory[sizeof ((struct sockaddr_un *)0)->sun_path + 1];
    const char *path = ((const struct sockaddr_un *)address)->sun_path;
    struct stat st;
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash && slash > directory) {
        *slash = 0;
        mkdir(directory, 0700);
    }
    if (!path[0] || lstat(path, &st) || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return;
    int fd = mpy_fd_high(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, bytes) && errno == ECONNREFUSED)
        unlink(path);
    if (fd >= 0)
        mpy_fd_close(fd);
}

int mpy_socket_reset(int domain) {
    struct sockaddr_storage loopback;
    struct sockaddr *address = (struct sockaddr *)&loopback;
    socklen_t bytes = mpy_loopback(domain, &loopback);
    const struct linger at_once = {.l_onoff = 1};
    int server = mpy_fd_high(socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int fd = mpy_fd_high(socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0)), peer = -1;
    if (server >= 0 && fd >= 0 && bind(server, address, bytes) == 0 && listen(server, 1) == 0 &&
        getsockname(server, address, &bytes) == 0 && connect(fd, address, bytes) == 0)
        peer = mpy_fd_high(accept4(server, NULL, NULL, SOCK_CLOEXEC));
    if (server >= 0)
        mpy_fd_close(server);
    if (peer < 0) {
        if (fd >= 0)
            mpy_fd_close(fd);
        return -1;
    }
    setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    mpy_fd_close(peer);
    return fd;
}

/* Binds it to the address or, if this host does not have the address, to the host's own. */
static int bind_again(int fd, const struct sockaddr_storage *address, socklen_t bytes) {
    struct sockaddr_storage own;
    if (bind(fd, (const struct sockaddr *)address, bytes) == 0)
        return 0;
    bytes = errno == EADDRNOTAVAIL ? mpy_fd_own_address(address, &own) : 0;
    return bytes && bind(fd, (struct sockaddr *)&own, bytes) == 0 ? 0 : -1;
}

static int socket_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    int domain = (int)mpy_reader_u32(r), type = (int)mpy_reader_u32(r), protocol = (int)mpy_reader_u32(r);
    struct sockaddr_storage address = {0};
    size_t bytes;
    char text[128];
    const void *saved = mpy_reader_bytes(r, &bytes);
    size_t peer_bytes;
    const void *peer = mpy_reader_bytes(r, &peer_bytes);
    int dropped = (int)mpy_reader_u32(r);
    int mode = (int)mpy_reader_u32(r), listening = (int)mpy_reader_u32(r), backlog = (int)mpy_reader_u32(r);
    if (r->failed || bytes > sizeof address)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    memcpy(&address, saved, bytes);
    d->made = mpy_fdtable_temp(t, dropped ? mpy_socket_reset(domain) : socket(domain, type | SOCK_CLOEXEC, protocol));
    if (d->made < 0)
        return mpy_reason(err, n, "cannot recreate the socket of descriptor %d: %s", d->number, strerror(errno));
    mpy_socket_options_restore(d->made, r);
    if (dropped)
        return 0;
    if (bytes && address.ss_family == AF_UNIX)
        make_way(&address, (socklen_t)bytes, type);
    if (bytes &&
        (bind_again(d->made, &address, (socklen_t)bytes) || (listening && listen(d->made, backlog))))
        return mpy_reason(err, n, "descriptor %d: can't %s on %s again: %s", d->number,
                          listening ? "listen" : "receive", address_text(&address, text, sizeof text), strerror(errno));
    if (peer_bytes && connect(d->made, peer, (socklen_t)peer_bytes))
        return mpy_reason(err, n, "descriptor %d: can't connect the UDP socket again: %s", d->number, strerror(errno));
    const char *path = ((struct sockaddr_un *)&address)->sun_path;
    if (bytes && address.ss_family == AF_UNIX && path[0] && (mode ? chmod(path, (mode_t)mode) : unlink(path)))
        return mpy_reason(err, n, "descriptor %d: %s: %s", d->number, path, strerror(errno));
    return 0;
}

const mpy_fd_ops_t mpy_fd_socket_ops = {socket_check, socket_save, socket_make, NULL};
