/* refill.c - sends again what was in flight on TCP connections inside the job (tcp.h).
 *
 * Lower half; libc allowed. The end that has the data gives it to the rank of the other end, through MPI, and that one
 * sends it.
 *
 * The program doesn't receive meanwhile, so the data must fit into the buffers of the two sockets (buffers.c). New
 * buffers are small, and a buffer that was completely full offers little room until data has flowed. So if the data
 * does not fit, it is taken out, zeros are sent through the connection, and the data is sent again. The part that still
 * does not fit is sent when the receiving program runs (mpy_tcp_flush).
 */
#define _GNU_SOURCE
#include "tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/reason.h"

enum { PATIENCE_S = 30, TRIES = 30, PIECE = 256 << 10, BURST = 8 << 20, FLOW = 2 /* zeros per byte of data */ };
/* Nothing has moved for so long: what was sent does not fit. Later the kernel may have to send again what it has
 * dropped, which takes a fifth of a second or more. */
enum { QUIET_MS = 30, RESENT_MS = 500 };

typedef struct head { /* before the data for an end */
    uint64_t bytes;
    int32_t number, unused;
} head_t;

/* ---- moving data ---- */

typedef struct flow { /* of each end: bytes that have moved in this step, and shall move */
    size_t put, to_put, taken, to_take;
    int waiting; /* bytes that could be received at the last look */
} flow_t;

/* Receives what has arrived, all at once, when no more arrives: the kernel enlarges a buffer of which much is received
 * within a round trip. Returns the number of bytes. */
static ssize_t take_burst(int fd, flow_t *f) {
    static uint8_t sink[BURST];
    const size_t in = f->to_take - f->taken;
    int now = 0, before = f->waiting;
    ioctl(fd, FIONREAD, &now);
    f->waiting = now;
    if (!now || (now != before && (size_t)now < in))
        return 0;
    ssize_t got = recv(fd, sink, in < BURST ? in : BURST, MSG_DONTWAIT);
    f->waiting = 0;
    return got > 0 ? got : 0;
}

/* `real`: the data, not zeros. `take`: also receives. Returns the number of bytes that have moved, or -1. */
static ssize_t move_some(mpy_tcp_end_t *ends, flow_t *flows, int n, bool real, bool take) {
    static uint8_t zeros[PIECE];
    ssize_t moved = 0;
    for (int i = 0; i < n; i++) {
        flow_t *f = &flows[i];
        size_t out = f->to_put - f->put;
        out = out < PIECE ? out : PIECE;
        ssize_t sent = out ? send(ends[i].fd, real ? ends[i].left + f->put : zeros, out, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : 0;
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -1;
        ssize_t got = take && f->taken < f->to_take ? take_burst(ends[i].fd, f) : 0;
        f->put += sent > 0 ? (size_t)sent : 0;
        f->taken += (size_t)got;
        moved += (sent > 0 ? sent : 0) + got;
    }
    return moved;
}

static bool is_complete(const flow_t *flows, int n, bool take) {
    for (const flow_t *f = flows; f < flows + n; f++)
        if (f->put < f->to_put || (take && f->taken < f->to_take))
            return false;
    return true;
}

/* Until all has moved, or nothing more for so many milliseconds. Not 0: a connection has failed. */
static int move_all(mpy_tcp_end_t *ends, flow_t *flows, int n, bool real, bool take, int quiet_ms) {
    for (int quiet = 0; !is_complete(flows, n, take) && quiet < quiet_ms;) {
        ssize_t moved = move_some(ends, flows, n, real, take);
        if (moved < 0)
            return -1;
        if (moved)
            quiet = 0;
        else
            quiet++, mpy_tcp_pause();
    }
    return 0;
}

static bool is_unfit(const mpy_tcp_end_t *end) {
    return end->sent < end->nleft;
}

/* Ends that can't send all, and their peers, which are told: bytes to move for each byte of their data. */
static void again(const mpy_tcp_end_t *ends, flow_t *flows, int n, size_t times) {
    for (int i = 0; i < n; i++)
        flows[i] = (flow_t){.to_put = is_unfit(&ends[i]) ? times * ends[i].nleft : 0,
                            .to_take = ends[i].is_told ? times * ends[i].bytes : 0};
}

/* Takes out what the other ends send, until there is no more. */
static int finish(mpy_tcp_end_t *ends, flow_t *flows, int n, bool real) {
    if (move_all(ends, flows, n, real, true, PATIENCE_S * 1000))
        return -1;
    return is_complete(flows, n, true) ? 0 : -1;
}

/* Sends all, as far as it fits. Returns the number of ends on all ranks for which it doesn't, or -1. */
static int64_t fill(const mpy_exchange_t *x, mpy_tcp_end_t *ends, flow_t *flows, int n, int quiet_ms) {
    uint64_t unfit = 0;
    again(ends, flows, n, 1);
    if (move_all(ends, flows, n, true, false, quiet_ms))
        return -1;
    for (int i = 0; i < n; i++) {
        if (is_unfit(&ends[i]))
            ends[i].sent = flows[i].put;
        unfit += is_unfit(&ends[i]);
    }
    return x->sum(&unfit, 1) ? -1 : (int64_t)unfit;
}

/* The ends that don't fit send the rest, and it is taken out. Then zeros flow. */
static int make_room(const mpy_exchange_t *x, mpy_tcp_end_t *ends, flow_t *flows, int n) {
    if (mpy_tcp_tell(x, ends, n, is_unfit))
        return -1;
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++) {
        if (is_unfit(end))
            mpy_tcp_enlarge(end->fd, SO_SNDBUF, 2 * end->nleft);
        if (end->is_told)
            mpy_tcp_enlarge(end->fd, SO_RCVBUF, 2 * end->bytes);
    }
    again(ends, flows, n, 1);
    for (int i = 0; i < n; i++)
        flows[i].put = is_unfit(&ends[i]) ? ends[i].sent : 0;
    if (finish(ends, flows, n, true))
        return -1;
    again(ends, flows, n, FLOW);
    if (finish(ends, flows, n, false))
        return -1;
    for (int i = 0; i < n; i++)
        if (is_unfit(&ends[i]))
            ends[i].sent = 0;
    return 0;
}

static int send_again(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n) {
    flow_t *flows = mpy_tcp_alloc((size_t)n, sizeof *flows);
    int64_t unfit = fill(x, ends, flows, n, QUIET_MS);
    for (int tries = 0; unfit > 0 && tries < TRIES; tries++)
        unfit = make_room(x, ends, flows, n) ? -1 : fill(x, ends, flows, n, tries < 2 ? QUIET_MS : RESENT_MS);
    free(flows);
    return unfit < 0 ? -1 : 0;
}

/* ---- from the receiving rank to the sending one ---- */

static size_t packed(const mpy_tcp_end_t *ends, int n, int rank, uint8_t *to) {
    size_t sum = 0;
    for (const mpy_tcp_end_t *end = ends; end < ends + n; end++) {
        if (end->peer_rank != rank || !end->bytes)
            continue;
        if (to) {
            memcpy(to + sum, &(head_t){end->bytes, end->peer_number, 0}, sizeof(head_t));
            memcpy(to + sum + sizeof(head_t), end->data, end->bytes);
        }
        sum += sizeof(head_t) + end->bytes;
    }
    return sum;
}

static int deliver(mpy_tcp_end_t *ends, int n, const uint8_t *from, size_t bytes) {
    for (head_t head; bytes >= sizeof head; from += head.bytes, bytes -= sizeof head + head.bytes) {
        memcpy(&head, from, sizeof head);
        from += sizeof head;
        mpy_tcp_end_t *end = mpy_tcp_find(ends, n, head.number);
        if (!end || head.bytes > bytes - sizeof head)
            return -1;
        end->left = mpy_tcp_alloc(head.bytes, 1);
        memcpy(end->left, from, head.bytes);
        end->nleft = head.bytes;
    }
    return 0;
}

int mpy_tcp_give_back(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n) {
    size_t *to_at = mpy_tcp_alloc((size_t)x->size, sizeof *to_at);
    size_t *from_at = mpy_tcp_alloc((size_t)x->size, sizeof *from_at);
    uint8_t *from = NULL;
    for (int rank = 0; rank < x->size; rank++)
        to_at[rank + 1] = to_at[rank] + packed(ends, n, rank, NULL);
    uint8_t *to = mpy_tcp_alloc(to_at[x->size], 1);
    for (int rank = 0; rank < x->size; rank++)
        packed(ends, n, rank, to + to_at[rank]);
    int bad = x->each(to, to_at, &from, from_at) || deliver(ends, n, from, from_at[x->size]) || send_again(x, ends, n);
    free(to_at);
    free(from_at);
    free(to);
    free(from);
    return bad ? -1 : 0;
}

/* ---- what did not fit ---- */

int mpy_tcp_flush(mpy_tcp_end_t *ends, int n, char *error, size_t size) {
    time_t until = time(NULL) + PATIENCE_S;
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++) {
        end->fd = end->is_lent ? end->fd : end->number;
        while (is_unfit(end)) {
            ssize_t put = send(end->fd, end->left + end->sent, end->nleft - end->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put > 0) {
                end->sent += (size_t)put;
                until = time(NULL) + PATIENCE_S;
            } else if ((errno != EAGAIN && errno != EINTR) || time(NULL) > until) {
                return mpy_reason(error, size, "%s: %zu bytes that were in flight on this TCP connection do not fit "
                                  "into it again: raise net.core.wmem_max and net.core.rmem_max", mpy_tcp_text(end),
                                  end->nleft - end->sent);
            } else {
                poll(&(struct pollfd){.fd = end->fd, .events = POLLOUT}, 1, 100);
            }
        }
        if (end->has_shut_down)
            shutdown(end->fd, SHUT_WR);
    }
    return 0;
}

void mpy_tcp_free(mpy_tcp_end_t *ends, int n) {
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++) {
        free(end->data);
        free(end->left);
    }
    free(ends);
}
