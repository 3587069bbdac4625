/* fds_scan.c - finds the program's descriptors, their kinds, and which of them share an open file description.
 *
 * Lower half; libc allowed. Uses /proc/thread-self, not /proc/self: the latter is empty once the thread that started
 * the process has ended.
 */
#define _GNU_SOURCE
#include "fds_table.h"
#include "base/proc/deleted.h"
#include "base/proc/fds.h"
#include "base/proc/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SCANS = 10 }; /* while the program is halted, only the lower half opens or closes anything */

mpy_desc_t *mpy_fdtable_add_desc(mpy_fdtable_t *t) {
    if (t->ndescs == t->descs_room) {
        int room = t->descs_room ? 2 * t->descs_room : 32;
        mpy_desc_t *descs = realloc(t->descs, (size_t)room * sizeof *descs);
        if (!descs)
            return NULL;
        t->descs = descs;
        t->descs_room = room;
    }
    mpy_desc_t *d = &t->descs[t->ndescs++];
    *d = (mpy_desc_t){.made = -1, .extra = -1};
    return d;
}

mpy_fdnumber_t *mpy_fdtable_add_number(mpy_fdtable_t *t) {
    if (t->nnumbers == t->numbers_room) {
        int room = t->numbers_room ? 2 * t->numbers_room : 32;
        mpy_fdnumber_t *numbers = realloc(t->numbers, (size_t)room * sizeof *numbers);
        if (!numbers)
            return NULL;
        t->numbers = numbers;
        t->numbers_room = room;
    }
    mpy_fdnumber_t *number = &t->numbers[t->nnumbers++];
    *number = (mpy_fdnumber_t){0};
    return number;
}

void mpy_fdtable_free(mpy_fdtable_t *t) {
    for (int i = 0; i < t->ndescs; i++) {
        free(t->descs[i].path);
        if (t->descs[i].made >= 0)
            mpy_fd_close(t->descs[i].made);
        if (t->descs[i].extra >= 0)
            mpy_fd_close(t->descs[i].extra);
    }
    free(t->descs);
    free(t->numbers);
    *t = (mpy_fdtable_t){0};
}

int mpy_fdtable_temp(mpy_fdtable_t *t, int fd) {
    if (fd < 0)
        return fd;
    int temp = fcntl(fd, F_DUPFD_CLOEXEC, t->temp_base);
    mpy_fd_lower_add(temp);
    mpy_fd_close(fd);
    return temp;
}

mpy_desc_t *mpy_fdtable_object(mpy_fdtable_t *t, const mpy_desc_t *d) {
    for (mpy_desc_t *other = t->descs; other < t->descs + t->ndescs; other++)
        if (other != d && other->made >= 0 && other->kind == d->kind && other->object == d->object)
            return other;
    return NULL;
}

int mpy_fdtable_reopen(mpy_fdtable_t *t, int fd, int flags) {
    char path[MPY_FD_PATH];
    return mpy_fdtable_temp(t, open(mpy_fd_path(path, 0, fd), flags | O_CLOEXEC | O_NOCTTY));
}

/* Does changing the flag of `a` change the flag of `b`? Uses O_APPEND: every kind has it and, unlike O_NONBLOCK, it
 * does not affect a thread that is in a system call. */
static int same_by_flag(int a, int b) {
    int flags = fcntl(a, F_GETFL), same = 0;
    if (fcntl(a, F_SETFL, flags ^ O_APPEND) == 0) {
        same = ((fcntl(b, F_GETFL) ^ flags) & O_APPEND) != 0;
        fcntl(a, F_SETFL, flags);
    }
    return same;
}

int mpy_fd_same(int a, int b, int stopped) {
    int pid = getpid();
    long order = syscall(SYS_kcmp, pid, pid, KCMP_FILE, a, b);
    if (order >= 0)
        return order == 0;
    return stopped && same_by_flag(a, b); /* kcmp was denied: some container runtimes filter it */
}

char *mpy_fdinfo_read(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", fd);
    return mpy_proc_text(path, NULL);
}

char *mpy_fdinfo_read_of(int pid, int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%d", pid, fd);
    return mpy_proc_text(path, NULL);
}

static int nameless(const mpy_desc_t *d) {
    const char *slash = strrchr(d->path, '/');
    struct stat st;
    if (mpy_is_memfd(d->path) || d->st.st_nlink == 0)
        return 1;
    /* A file that was deleted on NFS while open: it disappears when we end. */
    if (slash && !strncmp(slash + 1, ".nfs", 4))
        return 1;
    return mpy_deleted_mark(d->path) && (stat(d->path, &st) || st.st_ino != d->st.st_ino);
}

static mpy_fd_kind_t socket_kind(int fd) {
    int domain = 0;
    socklen_t bytes = sizeof domain;
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof peer;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes);
    if (domain == AF_UNIX && (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) == 0 || errno != ENOTCONN))
        return MPY_FD_PAIR;
    return mpy_fd_tcp_is_inside(fd) ? MPY_FD_TCP : MPY_FD_SOCKET;
}

static mpy_fd_kind_t kind_of(const mpy_desc_t *d) {
    const char *anonymous = strncmp(d->path, "anon_inode:", 11) ? NULL : d->path + 11;
    if (anonymous) {
        if (!strcmp(anonymous, "[eventfd]"))
            return MPY_FD_EVENT;
        if (!strcmp(anonymous, "[timerfd]"))
            return MPY_FD_TIMER;
        if (!strcmp(anonymous, "[signalfd]"))
            return MPY_FD_SIGNAL;
        return !strcmp(anonymous, "[eventpoll]") ? MPY_FD_EPOLL : MPY_FD_OTHER;
    }
    if (!strncmp(d->path, "pipe:[", 6))
        return d->flags & O_PATH ? MPY_FD_OTHER : MPY_FD_PIPE;
    if (!strncmp(d->path, "socket:[", 8))
        return d->flags & O_PATH ? MPY_FD_OTHER : socket_kind(d->number);
    if (d->path[0] != '/')
        return MPY_FD_OTHER;
    if (d->flags & O_PATH)
        return d->st.st_nlink ? MPY_FD_FILE : MPY_FD_OTHER;
    switch (d->st.st_mode & S_IFMT) {
    case S_IFREG:
        return nameless(d) ? MPY_FD_CONTENT : MPY_FD_FILE;
    case S_IFDIR:
        return d->st.st_nlink ? MPY_FD_FILE : MPY_FD_OTHER;
    case S_IFCHR:
        return mpy_fd_is_pty(d) ? MPY_FD_PTY : MPY_FD_DEVICE;
    case S_IFIFO:
        return d->st.st_nlink ? MPY_FD_FIFO : MPY_FD_OTHER;
    }
    return MPY_FD_OTHER;
}

/* Two numbers can share a description only if these properties are equal. */
static int alike(const mpy_desc_t *d, const struct stat *st, int flags) {
    return d->st.st_dev == st->st_dev && d->st.st_ino == st->st_ino && d->st.st_rdev == st->st_rdev &&
           d->flags == flags;
}

static int find(const mpy_fdtable_t *t, int fd, const struct stat *st, int flags, int which, int stopped) {
    for (int i = 0; i < t->ndescs; i++) {
        const mpy_desc_t *d = &t->descs[i];
        /* stdio is matched by stream, not by description: the streams may differ at the restart */
        if (which >= 0 || d->kind == MPY_FD_STDIO) {
            if (which >= 0 && d->kind == MPY_FD_STDIO && d->which == which)
                return i;
        } else if (alike(d, st, flags) && mpy_fd_same(d->number, fd, stopped)) {
            return i;
        }
    }
    return -1;
}

/* Returns 0 also if the descriptor has disappeared meanwhile. */
static int add(mpy_fdtable_t *t, int fd, int stopped, char *err, size_t n) {
    char path[MPY_FD_PATH], link[PATH_MAX + 64];
    struct stat st;
    int cloexec = fcntl(fd, F_GETFD), flags = fcntl(fd, F_GETFL);
    ssize_t length = readlink(mpy_fd_path(path, 0, fd), link, sizeof link - 1);
    if (cloexec < 0 || flags < 0 || length < 0 || fstat(fd, &st))
        return 0;
    link[length] = 0;
    int which = mpy_fd_stdio_match(fd, &st, flags, stopped);
    int index = find(t, fd, &st, flags, which, stopped);
    if (index < 0) {
        mpy_desc_t *d = mpy_fdtable_add_desc(t);
        if (!d || !(d->path = strdup(link)))
            return mpy_reason(err, n, "out of memory while looking at descriptor %d", fd);
        d->number = fd;
        d->flags = flags;
        d->st = st;
        d->which = which;
        d->kind = which >= 0 ? MPY_FD_STDIO : kind_of(d);
        index = t->ndescs - 1;
    }
    mpy_fdnumber_t *number = mpy_fdtable_add_number(t);
    if (!number)
        return mpy_reason(err, n, "out of memory while looking at descriptor %d", fd);
    *number = (mpy_fdnumber_t){.number = fd, .desc = index, .cloexec = cloexec & FD_CLOEXEC};
    return 0;
}

static int scan_once(mpy_fdtable_t *t, int stopped, char *err, size_t n) {
    *t = (mpy_fdtable_t){0};
    mpy_fd_list_t list = mpy_fd_list_open(0);
    if (!list.dir)
        return mpy_reason(err, n, "can't list the open descriptors: /proc/self/fd: %s", strerror(errno));
    int rc = 0;
    for (int fd; !rc && (fd = mpy_fd_list_next(&list)) >= 0;)
        if (!mpy_fd_is_lower(fd))
            rc = add(t, fd, stopped, err, n);
    mpy_fd_list_close(&list);
    if (rc)
        mpy_fdtable_free(t);
    return rc;
}

/* A thread of the lower half has opened it when the table was made, and had not said yet that it is ours. */
static int has_ours(const mpy_fdtable_t *t) {
    for (const mpy_fdnumber_t *i = t->numbers; i < t->numbers + t->nnumbers; i++)
        if (mpy_fd_is_lower(i->number) || fcntl(i->number, F_GETFD) < 0)
            return 1;
    return 0;
}

int mpy_fdtable_scan(mpy_fdtable_t *t, int stopped, char *err, size_t n) {
    for (int left = SCANS;; left--) {
        if (scan_once(t, stopped, err, n))
            return -1;
        if (!stopped || left == 1 || !has_ours(t))
            return 0;
        mpy_fdtable_free(t);
    }
}
