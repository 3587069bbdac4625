/* fds_tcp.c - TCP sockets that are connected to another process of the job. (Other connected ones: fds_socket.c.)
 *
 * Lower half; libc allowed. The MPI processes of the job find each other's ends when all threads of the program are
 * halted, after the drain of MPI (process/tcp). The other processes of a tree lend theirs to its MPI process, which
 * saves and restores them: as descriptions for which its own program has no number. A restart gives each to its process
 * (fds_tree.c), for which the MPI process has it under the number that it had while it was lent.
 *
 * Invariants
 *  1. While the program runs, it is unknown which connections are inside the job. The first check accepts all except
 *     those that an earlier meeting has found to be outside. After the meeting it is known. A process that does not use
 *     MPI may end soon, and its connections with it: those that no checkpoint has saved yet get the grace time of
 *     children.
 *  2. A lent connection is open here only while the program is halted: otherwise its peer would not notice when the
 *     program closes it.
 */
#define _GNU_SOURCE
#include "fds.h"
#include "fds_table.h"
#include "base/proc/fds.h"
#include "process/children.h"
#include "process/tcp/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const mpy_exchange_t *ranks;
static mpy_tcp_host_t *own_address;
static mpy_tcp_end_t *ends; /* from a meeting, or a restart, until the program goes on */
static int nends;
static bool have_met, is_broken, have_lent, is_patient;
static ino_t *inside; /* of a process that does not use MPI: in the last image, or from the last restart */
static int ninside;
static struct outsider { /* found by the last meeting */
    ino_t inode;
    int pid, number; /* of another process of the tree; pid 0: of this one */
    char why[256];
} *outside;
static int noutside;
static struct loan {
    int fd, pid, number;
    ino_t inode;
} *loans; /* until the program goes on */
static int nloans;

void mpy_fds_ranks(const mpy_exchange_t *exchange, mpy_tcp_host_t *host) {
    ranks = exchange;
    own_address = host;
}

/* Is `fd` one end of a connection? Not: of one that is still being made, or has ended. */
static bool is_connection(int fd, mpy_tcp_end_t *end) {
    struct sockaddr_storage local, remote;
    socklen_t local_bytes = sizeof local, remote_bytes = sizeof remote, bytes = sizeof(struct tcp_info);
    struct tcp_info info = {0};
    if (mpy_socket_option(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
        getpeername(fd, (struct sockaddr *)&remote, &remote_bytes) ||
        getsockname(fd, (struct sockaddr *)&local, &local_bytes) ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes))
        return false;
    const int state = info.tcpi_state;
    *end = (mpy_tcp_end_t){
        .number = fd,
        .fd = fd,
        .domain = mpy_socket_option(fd, SOL_SOCKET, SO_DOMAIN),
        .has_shut_down =
            state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_LAST_ACK || state == TCP_CLOSING,
        .local = mpy_tcp_name(&local),
        .remote = mpy_tcp_name(&remote),
    };
    return (end->domain == AF_INET || end->domain == AF_INET6) &&
           (end->has_shut_down || state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT);
}

static bool is_companion(void) {
    return mpy_children_saved(0) && mpy_children_saved(0) != getpid();
}

void mpy_fds_be_patient(bool patient) {
    is_patient = patient;
}

void mpy_fd_tcp_note_inside(const mpy_fdtable_t *t) {
    mpy_tcp_end_t end;
    struct stat st;
    ino_t *found = calloc((size_t)t->ndescs + 1, sizeof *found);
    free(inside);
    inside = found;
    ninside = 0;
    for (const mpy_desc_t *d = t->descs; found && d < t->descs + t->ndescs; d++)
        if (d->kind == MPY_FD_ELSEWHERE && !fstat(d->number, &st) && is_connection(d->number, &end))
            inside[ninside++] = st.st_ino;
}

static bool was_inside(ino_t inode) {
    for (int i = 0; i < ninside; i++)
        if (inside[i] == inode)
            return true;
    return false;
}

int mpy_fd_tcp_may_be_inside(const mpy_desc_t *d) {
    mpy_tcp_end_t end;
    if (is_companion())
        return !have_lent && is_connection(d->number, &end) && (!is_patient || was_inside(d->st.st_ino));
    if (!ranks || have_met)
        return 0;
    for (int i = 0; i < noutside; i++)
        if (outside[i].inode == d->st.st_ino)
            return 0;
    return 1;
}

int mpy_fd_tcp_check_lent(char *err, size_t n) {
    char path[MPY_FD_PATH];
    struct stat st;
    for (int i = 0; i < noutside && !mpy_sockets_are_dropped; i++)
        if (outside[i].pid && !stat(mpy_fd_path(path, outside[i].pid, outside[i].number), &st) &&
            st.st_ino == outside[i].inode) {
            outside[i].pid = 0; /* it may have ended meanwhile, which only its process and a meeting can see */
            return mpy_reason(err, n, "%s", outside[i].why);
        }
    return 0;
}

int mpy_fd_tcp_is_inside(int fd) {
    const mpy_tcp_end_t *end = have_met ? mpy_tcp_find(ends, nends, fd) : NULL;
    return end && end->peer_rank >= 0;
}

/* ---- checkpoint ---- */

/* Is it one end of a connection, which this process restores? */
static bool is_end(mpy_desc_t *d, mpy_tcp_end_t *end) {
    char unsaid[256];
    return d->kind == MPY_FD_SOCKET && mpy_fd_inherited_match(d->number, &d->st, d->flags, 1) < 0 &&
           !mpy_fd_elsewhere(d, unsaid, sizeof unsaid) && is_connection(d->number, end);
}

int mpy_fds_lend(int (*give)(int number, void *context), void *context, char *err, size_t n) {
    mpy_fdtable_t t;
    mpy_tcp_end_t end;
    int rc = 0;
    if (mpy_fdtable_scan(&t, 1, err, n))
        return -1;
    for (mpy_desc_t *d = t.descs; d < t.descs + t.ndescs && !rc; d++)
        rc = is_end(d, &end) ? give(d->number, context) : 0;
    have_lent = true;
    mpy_fdtable_free(&t);
    return rc ? mpy_reason(err, n, "the TCP connections cannot be given to the MPI process of the rank") : 0;
}

/* Two processes that share a connection may have lent it at the same time. */
static bool is_borrowed(ino_t inode) {
    for (int i = 0; i < nloans; i++)
        if (loans[i].inode == inode)
            return true;
    return false;
}

int mpy_fds_borrow(int fd, int pid, int number) {
    struct stat st = {0};
    fstat(fd, &st);
    const bool again = is_borrowed(st.st_ino);
    struct loan *more = again ? NULL : realloc(loans, (size_t)(nloans + 1) * sizeof *loans);
    if (more) {
        loans = more;
        loans[nloans++] = (struct loan){fd, pid, number, st.st_ino};
        return 0;
    }
    mpy_fd_close(fd);
    return again ? 0 : -1;
}

/* Also one that has ended since it was lent: its process relies on this one. */
static mpy_tcp_end_t end_of_loan(const struct loan *loan) {
    mpy_tcp_end_t end;
    if (!is_connection(loan->fd, &end))
        end = (mpy_tcp_end_t){.number = loan->fd, .fd = loan->fd,
                              .domain = mpy_socket_option(loan->fd, SOL_SOCKET, SO_DOMAIN)};
    end.is_lent = true;
    end.pid = loan->pid;
    end.pids_number = loan->number;
    return end;
}

/* Connections to outside the job; fails if they can't be saved. */
static int note_outside(char *err, size_t n) {
    struct stat st = {0};
    int rc = 0;
    free(outside);
    outside = mpy_tcp_alloc((size_t)nends, sizeof *outside);
    noutside = 0;
    for (const mpy_tcp_end_t *end = ends; end < ends + nends; end++) {
        if (end->peer_rank >= 0 || fstat(end->fd, &st))
            continue;
        if (!mpy_tcp_has_peer(end)) { /* end_of_loan */
            if (!rc && !mpy_sockets_are_dropped)
                rc = mpy_reason(err, n, "%s is a TCP socket whose connection has just ended; try again",
                                mpy_tcp_text(end));
            continue;
        }
        struct outsider *o = &outside[noutside++];
        *o = (struct outsider){.inode = st.st_ino, .pid = end->pid, .number = end->pids_number};
        mpy_socket_refuse(end->fd, mpy_tcp_text(end), o->why, sizeof o->why);
        if (!rc && !mpy_sockets_are_dropped)
            rc = mpy_reason(err, n, "%s", o->why);
    }
    return rc;
}

int mpy_fds_meet(int lasts, int (*cancelled)(void), char *err, size_t n) {
    mpy_fdtable_t t;
    char why[256];
    int unseen = mpy_fdtable_scan(&t, 1, err, n); /* the others need this rank all the same */
    ends = mpy_tcp_alloc((size_t)(t.ndescs + nloans), sizeof *ends);
    nends = 0;
    for (mpy_desc_t *d = t.descs; d < t.descs + t.ndescs; d++)
        nends += is_end(d, &ends[nends]);
    for (int i = 0; i < nloans; i++)
        ends[nends++] = end_of_loan(&loans[i]);
    int rc = mpy_tcp_meet(ranks, ends, nends, lasts, cancelled, unseen ? why : err, unseen ? sizeof why : n);
    have_met = true;
    is_broken = rc == MPY_TCP_BROKEN;
    mpy_fdtable_free(&t);
    if (!rc)
        rc = note_outside(err, n);
    return unseen ? -1 : rc;
}

bool mpy_fds_lent_is_unsent(void) {
    for (const mpy_tcp_end_t *end = ends; end < ends + nends; end++)
        if (end->is_lent && end->sent < end->nleft)
            return true;
    return false;
}

int mpy_fds_part(char *err, size_t n) {
    int rc = is_broken ? mpy_reason(err, n, "data of the program's TCP connections is lost")
                       : mpy_tcp_flush(ends, nends, err, n);
    mpy_tcp_free(ends, nends);
    for (int i = 0; i < nloans; i++)
        mpy_fd_close(loans[i].fd);
    ends = NULL;
    nends = nloans = 0;
    have_met = have_lent = false;
    return rc;
}

/* No meeting: MPI is not up. */
static int take_for_outside(char *err, size_t n) {
    ends = mpy_tcp_alloc((size_t)nloans, sizeof *ends);
    for (nends = 0; nends < nloans; nends++) {
        ends[nends] = end_of_loan(&loans[nends]);
        ends[nends].peer_rank = -1;
    }
    return mpy_sockets_are_dropped || !nloans ? 0 : mpy_socket_refuse(loans->fd, mpy_tcp_text(ends), err, n);
}

int mpy_fd_tcp_add_lent(mpy_fdtable_t *t, char *err, size_t n) {
    if (nloans && !have_met && take_for_outside(err, n))
        return -1;
    for (const mpy_tcp_end_t *end = ends; end < ends + nends; end++) {
        if (!end->is_lent)
            continue;
        mpy_desc_t *d = mpy_fdtable_add_desc(t);
        if (!d || !(d->path = strdup("socket:")))
            return mpy_reason(err, n, "out of memory while saving descriptors");
        d->kind = MPY_FD_TCP;
        d->number = end->number;
        d->flags = fcntl(end->fd, F_GETFL);
    }
    return 0;
}

static int tcp_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    (void)t, (void)d, (void)err, (void)n;
    return 0;
}

static int tcp_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    const mpy_tcp_end_t *end = mpy_tcp_find(ends, nends, d->number);
    (void)t, (void)err, (void)n;
    mpy_blob_put_u32(b, (uint32_t)end->domain);
    mpy_blob_put_u32(b, end->is_lent);
    mpy_blob_put_u32(b, (uint32_t)end->pids_number);
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
    end->is_lent = mpy_reader_u32(r) != 0;
    end->pids_number = (int)mpy_reader_u32(r);
    end->peer_rank = (int)mpy_reader_u32(r);
    end->peer_number = (int)mpy_reader_u32(r);
    end->peer_domain = (int)mpy_reader_u32(r);
    end->has_shut_down = mpy_reader_u32(r) != 0;
    const void *data = mpy_reader_bytes(r, &end->bytes);
    if (r->failed || (end->peer_rank < 0 && !end->is_lent) || end->peer_rank >= (ranks ? ranks->size : 0) ||
        !(end->data = malloc(end->bytes + 1)))
        return -1;
    memcpy(end->data, data, end->bytes);
    return 0;
}

/* A lent connection to outside the job (--drop-sockets) is not rejoined. */
static void drop(mpy_desc_t *d, mpy_tcp_end_t *end) {
    d->which = end->domain;
    free(end->data);
    nends--;
}

int mpy_fd_tcp_rejoin(mpy_fdtable_t *t, char *err, size_t n) {
    ends = calloc((size_t)t->ndescs + 1, sizeof *ends);
    if (!ends)
        return mpy_reason(err, n, "out of memory while restoring descriptors");
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) {
        if (d->kind != MPY_FD_TCP)
            continue;
        mpy_tcp_end_t *end = &ends[nends++];
        if (read_end(d, &d->saved, end))
            return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
        if (end->peer_rank < 0)
            drop(d, end);
    }
    return ranks ? mpy_tcp_rejoin(ranks, ends, nends, own_address, err, n) : 0;
}

static int tcp_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    mpy_tcp_end_t *end = mpy_tcp_find(ends, nends, d->number);
    if (!end && !d->which)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    d->made = mpy_fdtable_temp(t, end ? end->fd : mpy_socket_reset(d->which));
    if (end && end->is_lent && d->made >= 0) {
        end->fd = fcntl(d->made, F_DUPFD_CLOEXEC, t->temp_base);
        mpy_fd_lower_add(end->fd);
    }
    if (d->made < 0 || (end && end->is_lent && (end->fd < 0 || mpy_fds_borrow(end->fd, 0, end->pids_number))))
        return mpy_reason(err, n, "cannot recreate the TCP connection of descriptor %d: %s", d->number,
                          strerror(errno));
    mpy_socket_options_restore(d->made, r);
    return 0;
}

const mpy_fd_ops_t mpy_fd_tcp_ops = {tcp_check, tcp_save, tcp_make, NULL};
