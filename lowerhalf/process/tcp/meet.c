/* meet.c - a checkpoint looks at the TCP connections inside the job (tcp.h).
 *
 * Lower half; libc allowed.
 *
 * When all threads of all ranks are halted, data is in one of three places: in the receiver's queue, where it can be
 * read without taking it out (MSG_PEEK); on its way, which takes as long as the network needs; or in the sender's
 * queue, if the receiver's is full. In the last case the receiver takes data out, until the sender's queue is empty,
 * and gets it back from the sender (refill.c).
 *
 * Invariants
 *  1. All ranks decide alike, because they decide by sums over all ranks. A round lasts a millisecond.
 */
#define _GNU_SOURCE
#include "tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/reason.h"

enum { QUIET_ROUNDS = 50, PIECE = 1 << 20 };

/* ---- which ends belong together ---- */

typedef struct record { /* what a rank tells the others about an end */
    mpy_tcp_name_t local, remote;
    uint8_t unused[4]; /* zeros: records are compared as bytes */
    uint64_t network;  /* for loopback addresses: where they are valid */
    int32_t rank, number, domain, unused_too;
} record_t;

enum { KEY = offsetof(record_t, rank) }; /* the bytes that identify a connection, seen from one end */

static int by_key(const void *a, const void *b) {
    return memcmp(a, b, KEY);
}

static record_t record_of(const mpy_tcp_end_t *end, uint64_t network, int rank) {
    return (record_t){.local = end->local, .remote = end->remote, .rank = rank, .number = end->number,
                      .domain = end->domain, .network = mpy_tcp_is_loopback(&end->local) ? network : 0};
}

static int match(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n) {
    const uint64_t network = mpy_tcp_network();
    uint8_t *bytes = NULL;
    size_t *at = mpy_tcp_alloc((size_t)x->size, sizeof *at);
    record_t *mine = mpy_tcp_alloc((size_t)n, sizeof *mine);
    for (int i = 0; i < n; i++)
        mine[i] = record_of(&ends[i], network, x->rank);
    int bad = x->all(mine, (size_t)n * sizeof *mine, &bytes, at);
    record_t *all = (record_t *)bytes;
    const size_t count = bad ? 0 : at[x->size] / sizeof *all;
    if (count)
        qsort(all, count, sizeof *all, by_key);
    for (int i = 0; i < n && !bad; i++) {
        record_t other = mine[i];
        other.local = mine[i].remote, other.remote = mine[i].local;
        const record_t *found = count ? bsearch(&other, all, count, sizeof *all, by_key) : NULL;
        if (found && mpy_tcp_has_peer(&ends[i]) && (found->rank != x->rank || found->number != ends[i].number)) {
            ends[i].peer_rank = found->rank;
            ends[i].peer_number = found->number;
            ends[i].peer_domain = found->domain;
        }
    }
    free(bytes);
    free(at);
    free(mine);
    return bad ? -1 : 0;
}

/* ---- data ---- */

static bool is_inside(const mpy_tcp_end_t *end) {
    return end->peer_rank >= 0;
}

/* Lets the kernel send and acknowledge at once. Setting TCP_NODELAY sends what waits for more (tcp(7)). */
static void hurry(const mpy_tcp_end_t *end) {
    int on = 1, before = 1;
    socklen_t bytes = sizeof before;
    getsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &before, &bytes);
    setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &before, sizeof before);
    setsockopt(end->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

static uint64_t unacknowledged(mpy_tcp_end_t *ends, int n) {
    uint64_t sum = 0;
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++) {
        end->unacknowledged = 0;
        if (is_inside(end) && ioctl(end->fd, SIOCOUTQ, &end->unacknowledged) == 0)
            sum += (uint64_t)end->unacknowledged;
    }
    return sum;
}

/* Until everything is acknowledged, or nothing moves any more. Returns -1, 0, or 1 if something is not. */
static int settle(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n) {
    uint64_t last = UINT64_MAX;
    for (int i = 0; i < n; i++)
        if (is_inside(&ends[i]))
            hurry(&ends[i]);
    for (int quiet = 0; quiet < QUIET_ROUNDS; quiet++) {
        uint64_t now = unacknowledged(ends, n);
        if (x->sum(&now, 1))
            return -1;
        if (now == 0)
            return 0;
        if (now != last)
            quiet = 0;
        last = now;
        mpy_tcp_pause();
    }
    return 1;
}

static int grow(mpy_tcp_end_t *end, size_t more) {
    uint8_t *data = realloc(end->data, end->bytes + more);
    if (!data)
        return -1;
    end->data = data;
    return 0;
}

/* Reads all there is; returns the number of bytes, or -1. */
static ssize_t take(mpy_tcp_end_t *end) {
    ssize_t sum = 0;
    for (;;) {
        if (grow(end, PIECE))
            return -1;
        ssize_t got = recv(end->fd, end->data + end->bytes, PIECE, MSG_DONTWAIT);
        if (got <= 0)
            return sum;
        end->bytes += (size_t)got;
        sum += got;
    }
}

/* Chooses what is taken: the ends whose peers are stuck. Fails on all ranks if an end that has been shut down could not
 * send again; or if data might not fit into the sockets again: it is packed by chance, so there must be room for twice
 * as much. */
static int choose(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, char *error, size_t size) {
    uint64_t bad = 0;
    error[0] = 0;
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++) {
        end->is_taken = end->is_told;
        if (end->unacknowledged && end->has_shut_down) {
            mpy_reason(error, size, "%s: this TCP connection is being closed while much data is in flight; try again",
                       mpy_tcp_text(end));
            bad++;
        } else if (end->is_told && !mpy_tcp_enlarge(end->fd, SO_RCVBUF, 2 * mpy_tcp_memory_in_use(end->fd))) {
            mpy_reason(error, size, "%s: too much data is in flight on this TCP connection to restore it: raise "
                       "net.core.rmem_max, or try again", mpy_tcp_text(end));
            bad++;
        }
    }
    if (!x->sum(&bad, 1) && !bad)
        return 0;
    return error[0] ? -1 : mpy_reason(error, size, "another rank cannot read the data of its TCP connections");
}

static bool is_stuck(const mpy_tcp_end_t *end) {
    return end->unacknowledged && !end->has_shut_down;
}

/* Rounds in which all ranks read, until a round finds nothing after one in which all was acknowledged. Returns -1, 0,
 * or 1 if that does not happen. */
static int take_all(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, int lasts, int (*cancelled)(void)) {
    enum { OUT, TAKEN, FAILED, SUMS };
    uint64_t last = UINT64_MAX;
    for (int quiet = 0; quiet < lasts * 1000; quiet++) {
        uint64_t sums[SUMS] = {[FAILED] = cancelled() != 0};
        for (mpy_tcp_end_t *end = ends; end < ends + n; end++) {
            ssize_t got = end->is_taken ? take(end) : 0;
            sums[got < 0 ? FAILED : TAKEN] += got < 0 ? 1 : (uint64_t)got;
            if (end->is_taken)
                hurry(end);
        }
        sums[OUT] = unacknowledged(ends, n);
        if (x->sum(sums, SUMS))
            return -1;
        if (sums[FAILED])
            return 1;
        if (sums[TAKEN] == 0 && last == 0)
            return 0;
        if (sums[TAKEN] || sums[OUT] != last)
            quiet = 0;
        last = sums[OUT];
        mpy_tcp_pause();
    }
    return 1;
}

/* Copies what is in the receiver's queue. */
static int peek(mpy_tcp_end_t *end) {
    int pending = 0;
    if (ioctl(end->fd, FIONREAD, &pending) || pending <= 0)
        return 0;
    if (grow(end, (size_t)pending))
        return -1;
    ssize_t got = recv(end->fd, end->data, (size_t)pending, MSG_PEEK | MSG_DONTWAIT);
    end->bytes = got > 0 ? (size_t)got : 0;
    return got == pending ? 0 : -1;
}

int mpy_tcp_meet(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, int lasts, int (*cancelled)(void), char *error,
                 size_t size) {
    static const char lost[] = "the MPI library failed while the program's TCP connections were looked at";
    uint64_t any = (uint64_t)n;
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++)
        end->peer_rank = end->peer_number = -1;
    if (x->sum(&any, 1))
        return mpy_reason(error, size, "%s", lost);
    if (!any)
        return 0;
    if (match(x, ends, n))
        return mpy_reason(error, size, "%s", lost);
    int open = settle(x, ends, n);
    if (open > 0) {
        if (mpy_tcp_tell(x, ends, n, is_stuck))
            return mpy_reason(error, size, "%s", lost);
        if (choose(x, ends, n, error, size))
            return -1;
        open = take_all(x, ends, n, lasts, cancelled);
        if (open < 0 || mpy_tcp_give_back(x, ends, n)) {
            mpy_reason(error, size, "data of the program's TCP connections could not be put back");
            return MPY_TCP_BROKEN;
        }
    }
    if (open < 0)
        return mpy_reason(error, size, "%s", lost);
    if (open)
        return mpy_reason(error, size, "data on TCP connections of the program does not arrive");
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++)
        if (is_inside(end) && !end->is_taken && peek(end))
            return mpy_reason(error, size, "%s: the data in this TCP connection cannot be read: %s",
                              mpy_tcp_text(end), strerror(errno));
    return 0;
}
