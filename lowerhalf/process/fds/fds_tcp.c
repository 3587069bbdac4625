/* fds_tcp.c - TCP sockets that are connected to another process of the job. (Other connected ones: fds_socket.c.)
 *
 * Lower half; libc allowed. Only the MPI processes of the job take part: they find each other's ends when all of their
 * threads are halted, after the drain of MPI (process/tcp).
 *
 * Invariants
 *  1. While the program runs, nobody knows which connections are inside the job. The check that comes first lets all
 *     pass except those that an earlier meeting has found to be outside; after the meeting it knows.
 */
#define _GNU_SOURCE
#include "fds.h"
#include "fds_table.h"
#include "process/tcp/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

static const mpy_exchange_t *ranks;
static mpy_tcp_host_t *own_address;
static mpy_tcp_end_t *ends; /* from a meeting, or a restart, until the program goes on */
static int nends;
static bool have_met, is_broken;
static ino_t *outside; /* found by the last meeting */
static int noutside;

void mpy_fds_ranks(const mpy_exchange_t *exchange, mpy_tcp_host_t *host) {
    ranks = exchange;
    own_address = host;
}

int mpy_fd_tcp_may_be_inside(const mpy_desc_t *d) {
    if (!ranks || have_met)
        return 0;
    for (int i = 0; i < noutside; i++)
        if (outside[i] == d->st.st_ino)
            return 0;
    return 1;
}

int mpy_fd_tcp_is_inside(int fd) {
    const mpy_tcp_end_t *end = have_met ? mpy_tcp_find(ends, nends, fd) : NULL;
    return end && end->peer_rank >= 0;
}

/* ---- checkpoint ---- */

/* Is it one end of a connection, which this process restores? */
static int is_end(mpy_desc_t *d, mpy_tcp_end_t *end) {
    struct sockaddr_storage local, remote;
    socklen_t local_bytes = sizeof local, remote_bytes = sizeof remote, bytes = sizeof(struct tcp_info);
    struct tcp_info info = {0};
    char unsaid[256];
    if (d->kind != MPY_FD_SOCKET || mpy_socket_option(d->number, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
        mpy_fd_inherited_match(d->number, &d->st, d->flags, 1) >= 0 || mpy_fd_elsewhere(d, unsaid, sizeof unsaid) ||
        getpeername(d->number, (struct sockaddr *)&remote, &remote_bytes) ||
        getsockname(d->number, (struct sockaddr *)&local, &local_bytes) ||
        getsockopt(d->number, IPPROTO_TCP, TCP_INFO, &info, &bytes))
        return 0;
    const int state = info.tcpi_state;
    *end = (mpy_tcp_end_t){
        .number = d->number,
        .fd = d->number,
        .domain = mpy_socket_option(d->number, SOL_SOCKET, SO_DOMAIN),
        .has_shut_down =
            state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_LAST_ACK || state == TCP_CLOSING,
        .local = mpy_tcp_name(&local),
        .remote = mpy_tcp_name(&remote),
    };
    return (end->domain == AF_INET || end->domain == AF_INET6) &&
           (end->has_shut_down || state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT);
}

/* Connections to outside the job; fails if they can't be saved. */
static int note_outside(mpy_fdtable_t *t, char *err, size_t n) {
    int rc = 0;
    free(outside);
    outside = mpy_tcp_alloc((size_t)nends, sizeof *outside);
    noutside = 0;
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) {
        const mpy_tcp_end_t *end = mpy_tcp_find(ends, nends, d->number);
        if (!end || end->peer_rank >= 0)
            continue;
        outside[noutside++] = d->st.st_ino;
        rc = rc ? rc : mpy_fd_socket_ops.check(t, d, err, n);
    }
    return rc;
}

int mpy_fds_meet(int lasts, int (*cancelled)(void), char *err, size_t n) {
    mpy_fdtable_t t;
    char why[256];
    int unseen = mpy_fdtable_scan(&t, 1, err, n); /* the others need this rank all the same */
    ends = mpy_tcp_alloc((size_t)t.ndescs, sizeof *ends);
    nends = 0;
    for (mpy_desc_t *d = t.descs; d < t.descs + t.ndescs; d++)
        nends += is_end(d, &ends[nends]);
    int rc = mpy_tcp_meet(ranks, ends, nends, lasts, cancelled, unseen ? why : err, unseen ? sizeof why : n);
    have_met = true;
    is_broken = rc == MPY_TCP_BROKEN;
    if (!rc)
        rc = note_outside(&t, err, n);
    mpy_fdtable_free(&t);
    return unseen ? -1 : rc;
}

int mpy_fds_part(char *err, size_t n) {
    int rc = is_broken ? mpy_reason(err, n, "data of the program's TCP connections is lost")
                       : mpy_tcp_flush(ends, nends, err, n);
    mpy_tcp_free(ends, nends);
    ends = NULL;
    nends = 0;
    have_met = false;
    return rc;
}

static int tcp_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    (void)t, (void)d, (void)err, (void)n;
    return 0;
}

static int tcp_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    const mpy_tcp_end_t *end = mpy_tcp_find(ends, nends, d->number);
    (void)t, (void)err, (void)n;
    mpy_blob_put_u32(b, (uint32_t)end->domain);
    mpy_blob_put_u32(b, (uint32_t)end->peer_rank);
    mpy_blob_put_u32(b, (uint32_t)end->peer_number);
    mpy_blob_put_u32(b, (uint32_t)end->peer_domain);
    mpy_blob_put_u32(b, end->has_shut_down);
    mpy_blob_put_bytes(b, end->data, end->bytes);
    mpy_socket_options_save(d->number, b);
    return 0;
}

/* ---- restart ---- */

socklen_t mpy_fd_own_address(const struct sockaddr_storage *like, struct sockaddr_storage *own) {
    const int before = errno;
    socklen_t bytes = sizeof *own;
    char unsaid[256];
    if (!own_address || !own_address(own, &bytes, unsaid, sizeof unsaid)) {
        errno = before;
        return 0;
    }
    mpy_tcp_name_t name = mpy_tcp_name(own), port = mpy_tcp_name(like);
    memcpy(name.port, port.port, sizeof name.port);
    return mpy_tcp_address(&name, like->ss_family, own);
}

static int read_end(const mpy_desc_t *d, mpy_reader_t *r, mpy_tcp_end_t *end) {
    *end = (mpy_tcp_end_t){.number = d->number, .fd = -1, .domain = (int)mpy_reader_u32(r)};
    end->peer_rank = (int)mpy_reader_u32(r);
    end->peer_number = (int)mpy_reader_u32(r);
    end->peer_domain = (int)mpy_reader_u32(r);
    end->has_shut_down = mpy_reader_u32(r) != 0;
    const void *data = mpy_reader_bytes(r, &end->bytes);
    if (r->failed || end->peer_rank < 0 || end->peer_rank >= ranks->size || !(end->data = malloc(end->bytes + 1)))
        return -1;
    memcpy(end->data, data, end->bytes);
    return 0;
}

int mpy_fd_tcp_rejoin(mpy_fdtable_t *t, char *err, size_t n) {
    if (!ranks)
        return 0;
    ends = calloc((size_t)t->ndescs + 1, sizeof *ends);
    if (!ends)
        return mpy_reason(err, n, "out of memory while restoring descriptors");
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++)
        if (d->kind == MPY_FD_TCP && read_end(d, &d->saved, &ends[nends++]))
            return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    return mpy_tcp_rejoin(ranks, ends, nends, own_address, err, n);
}

static int tcp_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    mpy_tcp_end_t *end = mpy_tcp_find(ends, nends, d->number);
    if (!end)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    d->made = mpy_fdtable_temp(t, end->fd);
    if (d->made < 0)
        return mpy_reason(err, n, "cannot recreate the TCP connection of descriptor %d: %s", d->number,
                          strerror(errno));
    mpy_socket_options_restore(d->made, r);
    return 0;
}

const mpy_fd_ops_t mpy_fd_tcp_ops = {tcp_check, tcp_save, tcp_make, NULL};
