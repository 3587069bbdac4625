/* fds.c - the order in which descriptors are saved and restored; what each kind needs is in fds_*.c.
 *
 * Lower half; libc allowed. Blob: magic, descriptions (kind, number, flags, type, bytes of the kind, locks), numbers
 * (number, description, close-on-exec), pseudo-terminals of the tree (in the rank's own image).
 */
#define _GNU_SOURCE
#include "fds.h"
#include "fds_table.h"
#include "base/proc/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31534446u /* "FDS1" */
#define SET_FLAGS (O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME)
#define LOWER_ROOM 1024 /* numbers for the lower half, including MPI's connections */
#define HOLD_MS 30000 /* for threads of the lower half that are opening or closing a descriptor */
#define CHECK_TRIES 4 /* the program runs meanwhile: a check may see one end of a pipe but not yet the other */

static const mpy_fd_ops_t *const ops[MPY_FD_KINDS] = {
    [MPY_FD_OTHER] = &mpy_fd_other_ops,         [MPY_FD_STDIO] = &mpy_fd_stdio_ops,
    [MPY_FD_INHERITED] = &mpy_fd_inherited_ops, [MPY_FD_FILE] = &mpy_fd_file_ops,
    [MPY_FD_CONTENT] = &mpy_fd_content_ops,     [MPY_FD_DEVICE] = &mpy_fd_device_ops,
    [MPY_FD_FIFO] = &mpy_fd_fifo_ops,           [MPY_FD_PIPE] = &mpy_fd_pipe_ops,
    [MPY_FD_PAIR] = &mpy_fd_pair_ops,           [MPY_FD_SOCKET] = &mpy_fd_socket_ops,
    [MPY_FD_EVENT] = &mpy_fd_event_ops,         [MPY_FD_TIMER] = &mpy_fd_timer_ops,
    [MPY_FD_SIGNAL] = &mpy_fd_signal_ops,       [MPY_FD_EPOLL] = &mpy_fd_epoll_ops,
    [MPY_FD_ELSEWHERE] = &mpy_fd_elsewhere_ops, [MPY_FD_TCP] = &mpy_fd_tcp_ops,
    [MPY_FD_PTY] = &mpy_fd_pty_ops,
};

/* ---- checkpoint ---- */

static int async_check(const mpy_desc_t *d, char *err, size_t n) {
    if (d->kind != MPY_FD_STDIO && d->flags & O_ASYNC)
        return mpy_reason(
            err, n,
            "descriptor %d (%s) sends signals (O_ASYNC), which can't be saved; clear the flag before the checkpoint",
            d->number, d->path);
    return 0;
}

static int check_one(mpy_fdtable_t *t, mpy_desc_t *d, int stopped, char *err, size_t n) {
    int inherited = d->kind == MPY_FD_STDIO ? -1 : mpy_fd_inherited_match(d->number, &d->st, d->flags, stopped);
    int elsewhere = inherited >= 0 || d->kind == MPY_FD_STDIO ? 0 : mpy_fd_elsewhere(d, err, n);
    if (elsewhere > 0)
        d->kind = MPY_FD_ELSEWHERE;
    if (elsewhere < 0)
        return -1;
    /* pipes and sockets that mpirun or the shell left open belong to them, whatever they look like */
    if (inherited >= 0) {
        d->kind = MPY_FD_INHERITED;
        d->which = inherited;
    } else if (ops[d->kind]->check(t, d, err, n) || mpy_fdlocks_check(d, err, n) || async_check(d, err, n)) {
        return d->kind == MPY_FD_SOCKET ? MPY_FDS_LASTS : -1;
    }
    return 0;
}

/* The first failure, but one that lasts comes before others. */
static int check(mpy_fdtable_t *t, int stopped, char *err, size_t n) {
    char later[512];
    int failed = 0;
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) {
        int result = check_one(t, d, stopped, failed ? later : err, failed ? sizeof later : n);
        if (result == MPY_FDS_LASTS)
            return failed ? (mpy_reason(err, n, "%s", later), result) : result;
        failed = failed ? failed : result;
    }
    return failed;
}

int mpy_fds_check(char *err, size_t n) {
    for (int left = CHECK_TRIES;; left--) {
        mpy_fdtable_t t;
        if (mpy_fdtable_scan(&t, 0, err, n))
            return -1;
        int rc = check(&t, 0, err, n);
        mpy_fdtable_free(&t);
        if (rc == 0)
            mpy_reason(err, n, "%s", "");
        if (rc == 0 && mpy_fd_tcp_check_lent(err, n))
            return MPY_FDS_LASTS;
        if (rc == 0 || left == 1)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
}

static int save_desc(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    mpy_blob_t part;
    mpy_blob_put_u32(b, d->kind);
    mpy_blob_put_u32(b, (uint32_t)d->number);
    mpy_blob_put_u32(b, (uint32_t)d->flags);
    mpy_blob_put_u32(b, d->st.st_mode);
    mpy_blob_put_string(b, d->path);
    mpy_blob_init(&part);
    int rc = ops[d->kind]->save(t, d, &part, err, n);
    mpy_blob_put_bytes(b, part.data, part.bytes);
    b->failed |= part.failed;
    mpy_blob_free(&part);
    mpy_blob_init(&part);
    rc = rc ? rc : mpy_fdlocks_save(d, &part, err, n);
    mpy_blob_put_bytes(b, part.data, part.bytes);
    b->failed |= part.failed;
    mpy_blob_free(&part);
    return rc;
}

int mpy_fds_save(mpy_blob_t *b, mpy_tid_map_t *shown, char *err, size_t n) {
    mpy_fdtable_t t;
    if (mpy_fdtable_scan(&t, 1, err, n))
        return -1;
    int rc = check(&t, 1, err, n);
    rc = rc ? rc : mpy_fd_tcp_add_lent(&t, err, n);
    mpy_blob_put_u32(b, MAGIC);
    mpy_blob_put_u32(b, (uint32_t)t.ndescs);
    for (int i = 0; !rc && i < t.ndescs; i++)
        rc = save_desc(&t, &t.descs[i], b, err, n);
    mpy_blob_put_u32(b, (uint32_t)t.nnumbers);
    for (int i = 0; !rc && i < t.nnumbers; i++) {
        mpy_blob_put_u32(b, (uint32_t)t.numbers[i].number);
        mpy_blob_put_u32(b, (uint32_t)t.numbers[i].desc);
        mpy_blob_put_u32(b, (uint32_t)t.numbers[i].cloexec);
    }
    mpy_fd_tcp_note_inside(&t);
    mpy_fdtable_free(&t);
    rc = rc ? rc : mpy_ptys_save(b, shown, err, n);
    if (!rc && b->failed)
        rc = mpy_reason(err, n, "out of memory while saving descriptors");
    return rc;
}

/* ---- restart ---- */

static int load(mpy_fdtable_t *t, mpy_reader_t *r, int *highest) {
    *highest = 2;
    if (mpy_reader_u32(r) != MAGIC)
        return -1;
    for (uint32_t left = mpy_reader_count(r, 32); left; left--) {
        mpy_desc_t *d = mpy_fdtable_add_desc(t);
        if (!d)
            return -1;
        d->kind = mpy_reader_u32(r);
        d->number = (int)mpy_reader_u32(r);
        d->flags = (int)mpy_reader_u32(r);
        d->st.st_mode = mpy_reader_u32(r);
        d->path = strdup(mpy_reader_string(r));
        d->saved = mpy_reader_sub(r);
        d->locks = mpy_reader_sub(r);
        if (r->failed || !d->path || d->kind >= MPY_FD_KINDS)
            return -1;
    }
    for (uint32_t left = mpy_reader_count(r, 12); left; left--) {
        mpy_fdnumber_t *number = mpy_fdtable_add_number(t);
        if (!number)
            return -1;
        number->number = (int)mpy_reader_u32(r);
        number->desc = (int)mpy_reader_u32(r);
        number->cloexec = (int)mpy_reader_u32(r);
        if (r->failed || number->number < 0 || number->desc < 0 || number->desc >= t->ndescs)
            return -1;
        if (number->number > *highest)
            *highest = number->number;
    }
    return r->failed ? -1 : 0;
}

/* Raises the limit so that there is room for the program's highest number and, above it, for one or two temporary
 * descriptors of each description. */
static int make_room(const mpy_fdtable_t *t, struct rlimit *before, char *err, size_t n) {
    rlim_t need = (rlim_t)t->temp_base + 2 * (rlim_t)t->ndescs + 64;
    if (getrlimit(RLIMIT_NOFILE, before) || before->rlim_cur >= need)
        return 0;
    struct rlimit more = {.rlim_cur = need, .rlim_max = before->rlim_max > need ? before->rlim_max : need};
    if (setrlimit(RLIMIT_NOFILE, &more))
        return mpy_reason(err, n,
                          "the limit on open descriptors (ulimit -n, %lu) is too low here: the restart needs %lu",
                          (unsigned long)before->rlim_max, (unsigned long)need);
    return 0;
}

static int has_number(const mpy_fdtable_t *t, int fd) {
    for (int i = 0; i < t->nnumbers; i++)
        if (t->numbers[i].number == fd)
            return 1;
    return 0;
}

/* Closes descriptors of the new process whose numbers the program doesn't use. */
static void close_strangers(const mpy_fdtable_t *t) {
    int strangers[256], found;
    do {
        mpy_fd_list_t list = mpy_fd_list_open(0);
        found = 0;
        for (int fd; found < 256 && (fd = mpy_fd_list_next(&list)) >= 0;)
            if (!mpy_fd_is_lower(fd) && !has_number(t, fd))
                strangers[found++] = fd;
        mpy_fd_list_close(&list);
        for (int i = 0; i < found; i++)
            syscall(SYS_close, strangers[i]);
    } while (found == 256);
}

/* TCP connections, or the others. */
static int make(mpy_fdtable_t *t, int tcp, char *err, size_t n) {
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) {
        if ((d->kind == MPY_FD_TCP) != tcp)
            continue;
        if (ops[d->kind]->make(t, d, &d->saved, err, n))
            return -1;
        int flags = fcntl(d->made, F_GETFL), want = d->flags & SET_FLAGS;
        if (d->flags & O_PATH || d->kind == MPY_FD_ELSEWHERE)
            continue;
        /* shared with other processes: add the flags that the program needs, but remove none */
        if (d->kind == MPY_FD_STDIO || d->kind == MPY_FD_INHERITED)
            want = flags | (d->flags & O_NONBLOCK);
        if (fcntl(d->made, F_SETFL, want) && fcntl(d->made, F_SETFL, want & ~(O_NOATIME | O_DIRECT)))
            return mpy_reason(err, n, "can't set the flags of descriptor %d: %s", d->number, strerror(errno));
    }
    return 0;
}

/* Those that other processes restore (`elsewhere`), or the others. No thread of the lower half has a low number. */
static int place(mpy_fdtable_t *t, int elsewhere, char *err, size_t n) {
    for (int i = 0; i < t->nnumbers; i++) {
        const mpy_fdnumber_t *number = &t->numbers[i];
        if ((t->descs[number->desc].kind == MPY_FD_ELSEWHERE) != elsewhere)
            continue;
        if (mpy_fd_is_lower(number->number))
            return mpy_reason(err, n,
                              "descriptor %d of the program is in use by the new process's own connections: too many "
                              "descriptors were open at the checkpoint",
                              number->number);
        if (dup3(t->descs[number->desc].made, number->number, number->cloexec ? O_CLOEXEC : 0) < 0)
            return mpy_reason(err, n, "can't put descriptor %d back: %s", number->number, strerror(errno));
    }
    return 0;
}

static int settle(mpy_fdtable_t *t, int elsewhere, char *err, size_t n) {
    mpy_fds_hold(HOLD_MS);
    if (!elsewhere)
        close_strangers(t);
    int rc = place(t, elsewhere, err, n);
    mpy_fds_release();
    return rc;
}

static int finish(mpy_fdtable_t *t, char *err, size_t n) {
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++)
        if (ops[d->kind]->finish && ops[d->kind]->finish(t, d, &d->saved, err, n))
            return -1;
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) {
        if (d->made >= 0)
            mpy_fd_close(d->made);
        if (d->extra >= 0)
            mpy_fd_close(d->extra);
        d->made = d->extra = -1;
    }
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) /* locks come after closing: see fds_lock.c */
        if (mpy_fdlocks_restore(d, &d->locks, err, n))
            return -1;
    return 0;
}

static int load_or_say(mpy_fdtable_t *t, mpy_reader_t *r, int *highest, char *err, size_t n) {
    if (load(t, r, highest) == 0)
        return 0;
    mpy_fdtable_free(t);
    return mpy_reason(err, n, "the image's record of open descriptors is damaged");
}

int mpy_fds_make_terminals(mpy_reader_t *r, char *err, size_t n) {
    mpy_fdtable_t t = {0};
    int highest;
    if (load_or_say(&t, r, &highest, err, n))
        return -1;
    mpy_fdtable_free(&t);
    return mpy_ptys_make(r, err, n);
}

int mpy_fds_make_way(mpy_reader_t *r, char *err, size_t n) {
    mpy_fdtable_t t = {0};
    int highest;
    struct rlimit limit;
    if (load_or_say(&t, r, &highest, err, n))
        return -1;
    mpy_fd_reserve(highest + 1);
    t.temp_base = highest + 1 + LOWER_ROOM;
    if (make_room(&t, &limit, err, n))
        err[0] = 0; /* mpy_fds_restore may need less; it reports what is missing */
    mpy_fdtable_free(&t);
    mpy_fd_keeps_high();
    mpy_ptys_high();
    return 0;
}

int mpy_fds_restore(mpy_reader_t *r, char *err, size_t n) {
    mpy_fdtable_t t = {0};
    int highest, base = mpy_fd_base();
    struct rlimit before;
    if (load_or_say(&t, r, &highest, err, n))
        return -1;
    t.temp_base = highest + 1 > base ? highest + 1 : base;
    mpy_fds_low_lock();
    int rc = make_room(&t, &before, err, n);
    if (!rc) {
        rc = make(&t, 0, err, n);
        if (!rc && mpy_fds_made)
            mpy_fds_made();
        /* When all ranks have their listening sockets: a connection must not get the port of one. */
        rc = rc ? rc : mpy_fd_tcp_rejoin(&t, err, n);
        rc = rc ? rc : make(&t, 1, err, n);
        rc = rc ? rc : settle(&t, 0, err, n);
        rc = rc ? rc : mpy_fds_fetch(&t, err, n);
        rc = rc ? rc : settle(&t, 1, err, n);
        rc = rc ? rc : finish(&t, err, n);
        if (!rc)
            mpy_ptys_settle();
        mpy_fd_tcp_note_inside(&t);
    }
    mpy_fds_low_unlock();
    mpy_fdtable_free(&t);
    if (before.rlim_cur <= before.rlim_max)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){before.rlim_cur, before.rlim_max});
    return rc;
}

int mpy_fds_commit(char *err, size_t n) {
    mpy_fd_pairs_commit();
    return mpy_fd_file_commit(err, n);
}
