/* rejoin.c - a restart connects the TCP connections inside the job again (tcp.h).
 *
 * Lower half; libc allowed.
 *
 * Of the two ends, the one with the lower name (rank, descriptor) connects, the other one accepts: on loopback if both
 * are in one network namespace, otherwise at the host's address. If one end is of IPv4 and the other one of IPv6, that
 * of IPv6 connects, because it can do so to either. A rank listens only until all its ends are connected.
 *
 * Invariants
 *  1. Only ranks of the job know the cookie of a listening rank, which they get through MPI. A connection that doesn't
 *     begin with it is closed.
 */
#define _GNU_SOURCE
#include "tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/time.h>
#include <time.h>

#include "base/io/host.h"
#include "base/reason.h"
#include "isolate/fdguard.h"

enum { COOKIE = 16, LOOPBACK = 0, HOST = 2, V6 = 1, PLACES = 4, PATIENCE_S = 60, GREETING_S = 5 };

typedef struct offer { /* where a rank listens; a place without a port isn't used */
    uint8_t cookie[COOKIE];
    mpy_tcp_name_t places[PLACES];
} offer_t;

typedef struct greeting { /* the first bytes on a connection; number: the descriptor of the accepting end */
    uint8_t cookie[COOKIE];
    int32_t number;
} greeting_t;

static bool connects(const mpy_tcp_end_t *end, int rank) {
    if (end->domain != end->peer_domain)
        return end->domain == AF_INET6;
    return rank < end->peer_rank || (rank == end->peer_rank && end->number < end->peer_number);
}

static int listen_at(mpy_tcp_host_t *host, int place, mpy_tcp_name_t *name, char *error, size_t size) {
    const int domain = place & V6 ? AF_INET6 : AF_INET;
    struct sockaddr_storage address, own;
    socklen_t bytes = mpy_loopback(domain, &own);
    if (place & HOST && !host(&own, &bytes, error, size))
        return -1;
    *name = mpy_tcp_name(&own);
    name->port[0] = name->port[1] = 0;
    bytes = mpy_tcp_address(name, domain, &address);
    int fd = bytes ? mpy_fd_high(socket(domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) : -1;
    if (!bytes)
        errno = EAFNOSUPPORT;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        *name = mpy_tcp_name(&address);
        return fd;
    }
    mpy_reason(error, size, "this host's address cannot be used for a TCP connection of the program: %s",
               strerror(errno));
    if (fd >= 0)
        mpy_fd_close(fd);
    return -1;
}

static void set_timeout(int fd, int name, int seconds) {
    setsockopt(fd, SOL_SOCKET, name, &(struct timeval){.tv_sec = seconds}, sizeof(struct timeval));
}

/* Where the accepting end listens. */
static int place_of(const mpy_tcp_end_t *end, const uint64_t *networks, int rank) {
    const int domain = connects(end, rank) ? end->peer_domain : end->domain;
    return (networks[end->peer_rank] == networks[rank] ? LOOPBACK : HOST) + (domain == AF_INET6 ? V6 : 0);
}

static int connect_end(mpy_tcp_end_t *end, const offer_t *offer, int place) {
    struct sockaddr_storage address;
    socklen_t bytes = mpy_tcp_address(&offer->places[place], end->domain, &address);
    greeting_t greeting = {.number = end->peer_number};
    memcpy(greeting.cookie, offer->cookie, COOKIE);
    end->fd = mpy_fd_high(socket(end->domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (end->fd < 0)
        return -1;
    set_timeout(end->fd, SO_SNDTIMEO, PATIENCE_S);
    if (!bytes)
        errno = EAFNOSUPPORT;
    int bad = !bytes || connect(end->fd, (struct sockaddr *)&address, bytes) ||
              send(end->fd, &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting;
    set_timeout(end->fd, SO_SNDTIMEO, 0);
    return bad ? -1 : 0;
}

/* Gives an accepted connection to the end that it names, or closes it. Returns the number of ends that got one. */
static int welcome(mpy_tcp_end_t *ends, int n, int rank, const uint8_t *cookie, int fd) {
    greeting_t greeting;
    set_timeout(fd, SO_RCVTIMEO, GREETING_S);
    bool is_ours = recv(fd, &greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting &&
                   !memcmp(greeting.cookie, cookie, COOKIE);
    set_timeout(fd, SO_RCVTIMEO, 0);
    for (mpy_tcp_end_t *end = ends; is_ours && end < ends + n; end++)
        if (end->number == greeting.number && end->fd < 0 && !connects(end, rank)) {
            end->fd = fd;
            return 1;
        }
    mpy_fd_close(fd);
    return 0;
}

static int accept_ends(mpy_tcp_end_t *ends, int n, int rank, const uint8_t *cookie, const int listeners[PLACES]) {
    struct pollfd ready[PLACES];
    time_t until = time(NULL) + PATIENCE_S;
    int missing = 0;
    for (int i = 0; i < n; i++)
        missing += !connects(&ends[i], rank);
    for (int i = 0; i < PLACES; i++)
        ready[i] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    while (missing) {
        if (time(NULL) > until) {
            errno = ETIMEDOUT;
            return -1;
        }
        if (poll(ready, PLACES, 1000) < 0 && errno != EINTR)
            return -1;
        for (int i = 0; i < PLACES; i++) {
            int fd = listeners[i] >= 0 && ready[i].revents
                         ? mpy_fd_high(accept4(listeners[i], NULL, NULL, SOCK_CLOEXEC)) : -1;
            if (fd >= 0)
                missing -= welcome(ends, n, rank, cookie, fd);
        }
    }
    return 0;
}

static const mpy_tcp_end_t *unconnected(const mpy_tcp_end_t *ends, int n) {
    for (const mpy_tcp_end_t *end = ends; end < ends + n; end++)
        if (end->fd < 0)
            return end;
    return ends;
}

static int connect_all(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, const uint64_t *networks,
                       mpy_tcp_host_t *host, char *error, size_t size) {
    int listeners[PLACES] = {-1, -1, -1, -1}, bad = 0;
    offer_t mine = {0};
    uint8_t *bytes = NULL;
    size_t *at = mpy_tcp_alloc((size_t)x->size, sizeof *at);
    if (getrandom(mine.cookie, COOKIE, 0) != COOKIE)
        bad = mpy_reason(error, size, "the program's TCP connections cannot be recreated: %s", strerror(errno));
    for (mpy_tcp_end_t *end = ends; end < ends + n && !bad; end++) {
        const int place = place_of(end, networks, x->rank);
        if (connects(end, x->rank) || listeners[place] >= 0)
            continue;
        listeners[place] = listen_at(host, place, &mine.places[place], error, size);
        bad = listeners[place] < 0;
    }
    if (!bad && x->all(&mine, sizeof mine, &bytes, at))
        bad = mpy_reason(error, size, "the MPI library failed while TCP connections were recreated");
    for (mpy_tcp_end_t *end = ends; end < ends + n && !bad; end++) {
        if (!connects(end, x->rank))
            continue;
        if (connect_end(end, (const offer_t *)(bytes + at[end->peer_rank]),
                        place_of(end, networks, x->rank)))
            bad = mpy_reason(error, size, "%s: the TCP connection to rank %d cannot be recreated: %s",
                             mpy_tcp_text(end), end->peer_rank, strerror(errno));
    }
    if (!bad && accept_ends(ends, n, x->rank, mine.cookie, listeners)) {
        const mpy_tcp_end_t *end = unconnected(ends, n);
        bad = mpy_reason(error, size, "%s: rank %d does not recreate the TCP connection: %s", mpy_tcp_text(end),
                         end->peer_rank, strerror(errno));
    }
    for (int i = 0; i < PLACES; i++)
        if (listeners[i] >= 0)
            mpy_fd_close(listeners[i]);
    free(bytes);
    free(at);
    return bad;
}

int mpy_tcp_rejoin(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, mpy_tcp_host_t *host, char *error,
                   size_t size) {
    uint64_t any = (uint64_t)n, network = mpy_tcp_network();
    uint8_t *networks = NULL;
    size_t *at = mpy_tcp_alloc((size_t)x->size, sizeof *at);
    int bad = x->sum(&any, 1);
    if (!bad && any) {
        bad = x->all(&network, sizeof network, &networks, at);
        if (!bad && connect_all(x, ends, n, (const uint64_t *)networks, host, error, size)) {
            free(networks);
            free(at);
            return -1;
        }
        bad = bad || mpy_tcp_give_back(x, ends, n);
    }
    free(networks);
    free(at);
    return bad ? mpy_reason(error, size, "the MPI library failed while TCP connections were recreated") : 0;
}
