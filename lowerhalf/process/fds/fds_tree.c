/* fds_tree.c - descriptors that several processes of a rank's tree (lowerhalf/tree) have: open file descriptions that
 * they share, and the ends of a pipe or of a socket pair.
 *
 * Lower half; libc allowed. One process restores such an object, its owner; the others get it from the owner at the
 * restart, through mpy_fds_exchange.
 *
 * Invariants
 *  1. All processes find the same owner: the first one in the list of relatives that has the description; of a pipe,
 *     the first one that can read from it, because it can save the content; of a socket pair, the first one that has
 *     one of its ends. No process changes descriptors while images are written, because all processes are halted.
 *  2. Each process opens an end of a pipe anew from the one that it gets.
 */
#define _GNU_SOURCE
#include "fds.h"
#include "fds_table.h"
#include "base/proc/fds.h"
#include "process/children.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The process with this index (process/children.h); 0: there are no more, or this process is alone. */
static int relative(int index) {
    return mpy_children_saved((size_t)index);
}

typedef int match_t(const mpy_desc_t *d, int pid, int fd, mode_t access);

/* Returns a descriptor of the process that refers to the same object as d and matches, or -1. `access`: S_IRUSR,
 * S_IWUSR, as the links in /proc show it. */
static int find(const mpy_desc_t *d, int pid, match_t *matches) {
    char path[MPY_FD_PATH];
    struct stat st, link;
    int found = -1;
    mpy_fd_list_t list = mpy_fd_list_open(pid);
    for (int fd; found < 0 && (fd = mpy_fd_list_next(&list)) >= 0;) {
        mpy_fd_path(path, pid, fd);
        if (!stat(path, &st) && !lstat(path, &link) && d->st.st_dev == st.st_dev && d->st.st_ino == st.st_ino &&
            d->st.st_rdev == st.st_rdev && matches(d, pid, fd, link.st_mode))
            found = fd;
    }
    mpy_fd_list_close(&list);
    return found;
}

static int reads(const mpy_desc_t *d, int pid, int fd, mode_t access) {
    (void)d, (void)pid, (void)fd;
    return (access & S_IRUSR) != 0;
}

static int writes(const mpy_desc_t *d, int pid, int fd, mode_t access) {
    (void)d, (void)pid, (void)fd;
    return (access & S_IWUSR) != 0;
}

static int is_same(const mpy_desc_t *d, int pid, int fd, mode_t access) {
    (void)access;
    return syscall(SYS_kcmp, getpid(), pid, KCMP_FILE, d->number, fd) == 0;
}

/* Where kcmp is denied, the same file is suspicious. */
static int may_be_same(const mpy_desc_t *d, int pid, int fd, mode_t access) {
    (void)access;
    return S_ISREG(d->st.st_mode) && syscall(SYS_kcmp, getpid(), pid, KCMP_FILE, d->number, fd) < 0;
}

static int has_it(const mpy_desc_t *d, int pid, int fd, mode_t access) {
    (void)d, (void)pid, (void)fd, (void)access;
    return 1;
}

/* Does a child that is ignored have such a descriptor? A restart finds its end closed. */
typedef struct search {
    const mpy_desc_t *desc;
    match_t *matches;
} search_t;

static int find_in(int pid, void *context) {
    const search_t *s = context;
    return find(s->desc, pid, s->matches) >= 0;
}

int mpy_fd_relative_has_inode(const mpy_desc_t *d, ino_t inode) {
    mpy_desc_t other = *d;
    other.st.st_ino = inode;
    for (int i = 0; relative(i); i++)
        if (find(&other, relative(i), has_it) >= 0)
            return 1;
    return mpy_children_ignored(find_in, &(search_t){&other, has_it});
}

int mpy_fd_relative_has(const mpy_desc_t *d, int accmode) {
    for (int i = 0; relative(i); i++)
        if (find(d, relative(i), accmode == O_RDONLY ? reads : writes) >= 0)
            return 1;
    return mpy_children_ignored(find_in, &(search_t){d, accmode == O_RDONLY ? reads : writes});
}

static int refuse(const mpy_desc_t *d, int pid, char *err, size_t n) {
    return mpy_reason(err, n, "descriptor %d (%s) is shared by process %d and its relative, process %d; let each open "
                      "it itself", d->number, d->path, getpid(), pid);
}

static int is_locked(const mpy_desc_t *d) {
    char *text = mpy_fdinfo_read(d->number);
    int locked = text && strstr(text, "POSIX");
    free(text);
    return locked;
}

/* Who has it, from the first relative on: *owner is its index. */
static int first_with(const mpy_desc_t *d, match_t *matches, int *owner) {
    for (int i = 0; relative(i); i++) {
        int fd = find(d, relative(i), matches);
        *owner = i;
        if (fd >= 0)
            return fd;
    }
    return -1;
}

static int is_self(int index) {
    return relative(index) == getpid();
}

static int pair_elsewhere(mpy_desc_t *d) {
    mpy_unix_state_t state;
    mpy_desc_t other = *d;
    int owner = 0, keeper = 0, fd = -1;
    if (mpy_unix_state(d->st.st_ino, &state))
        return 0;
    other.st.st_ino = state.peer;
    for (; relative(owner) && fd < 0; owner++) {
        d->which = MPY_FD_SHARE_SAME;
        if ((fd = find(d, relative(owner), has_it)) >= 0)
            break;
        d->which = MPY_FD_SHARE_OTHER_END;
        if (state.peer && (fd = find(&other, relative(owner), has_it)) >= 0)
            break;
    }
    if (fd < 0 || is_self(owner))
        return 0;
    d->owner = owner;
    d->owners_number = fd;
    d->keeps = d->which == MPY_FD_SHARE_OTHER_END && first_with(d, has_it, &keeper) >= 0 && is_self(keeper);
    return 1;
}

/* Kinds of which several processes may have one description. */
static int can_be_shared(mpy_fd_kind_t kind) {
    return kind == MPY_FD_FILE || kind == MPY_FD_CONTENT || kind == MPY_FD_EVENT || kind == MPY_FD_TIMER ||
           kind == MPY_FD_SIGNAL || kind == MPY_FD_EPOLL || kind == MPY_FD_SOCKET || kind == MPY_FD_TCP;
}

/* Has the process what the entry of this process's epoll set watches? */
static int has_entry(int pid, const struct kcmp_epoll_slot *entry) {
    mpy_fd_list_t list = mpy_fd_list_open(pid);
    int found = 0;
    for (int fd; !found && (fd = mpy_fd_list_next(&list)) >= 0;)
        found = syscall(SYS_kcmp, pid, getpid(), KCMP_EPOLL_TFD, fd, entry) == 0;
    mpy_fd_list_close(&list);
    return found;
}

int mpy_fd_relative_with_entry(const struct kcmp_epoll_slot *entry) {
    for (int i = 0; relative(i); i++)
        if (!is_self(i) && has_entry(relative(i), entry))
            return relative(i);
    return 0;
}

int mpy_fd_elsewhere(mpy_desc_t *d, char *err, size_t n) {
    int owner = 0, pipe = d->kind == MPY_FD_PIPE;
    if (!relative(0) || S_ISCHR(d->st.st_mode) || S_ISDIR(d->st.st_mode))
        return 0;
    if (d->kind == MPY_FD_PAIR)
        return pair_elsewhere(d);
    int fd = first_with(d, pipe ? reads : is_same, &owner), other = owner;
    for (int i = 0; !pipe && relative(i); i++)
        if (!is_self(i) && (find(d, relative(i), may_be_same) >= 0 ||
                            (!can_be_shared(d->kind) && find(d, relative(i), is_same) >= 0)))
            return refuse(d, relative(i), err, n);
    if (fd < 0 || is_self(owner))
        return 0;
    if (!pipe && is_locked(d))
        return refuse(d, relative(other), err, n);
    d->owner = owner;
    d->owners_number = fd;
    d->which = pipe ? MPY_FD_SHARE_PIPE : MPY_FD_SHARE_SAME;
    return 1;
}

/* ---- the kind of such a description in all processes but the owner ---- */

static int check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    (void)t, (void)d, (void)err, (void)n;
    return 0;
}

static int save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    (void)t;
    mpy_blob_put_u32(b, (uint32_t)d->owner);
    mpy_blob_put_u32(b, (uint32_t)d->owners_number);
    mpy_blob_put_u32(b, (uint32_t)d->which);
    mpy_blob_put_u32(b, (uint32_t)d->keeps);
    return d->keeps ? mpy_fd_end_save(d, b, err, n) : 0;
}

static int make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t;
    d->owner = (int)mpy_reader_u32(r);
    d->owners_number = (int)mpy_reader_u32(r);
    d->which = (int)mpy_reader_u32(r);
    d->keeps = (int)mpy_reader_u32(r);
    return r->failed ? mpy_reason(err, n, "descriptor %d: damaged record", d->number) : 0;
}

static int finish(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t;
    return d->keeps ? mpy_fd_end_restore(d, r, err, n) : 0;
}

const mpy_fd_ops_t mpy_fd_elsewhere_ops = {check, save, make, finish};

int (*mpy_fds_exchange)(mpy_fd_want_t *wants, int count, char *err, size_t n);
void (*mpy_fds_made)(void);

static int take(mpy_fdtable_t *t, mpy_desc_t *d, int got, char *err, size_t n) {
    if (d->which != MPY_FD_SHARE_PIPE) {
        d->made = mpy_fdtable_temp(t, got);
        if (d->made < 0 || (d->keeps && fcntl(d->made, F_SETFL, d->flags & (O_APPEND | O_NONBLOCK))))
            return mpy_reason(err, n, "descriptor %d: %s", d->number, strerror(errno));
        return 0;
    }
    d->made = mpy_fdtable_reopen(t, got, (d->flags & O_ACCMODE) | O_NONBLOCK);
    mpy_fd_close(got);
    if (d->made < 0 || fcntl(d->made, F_SETFL, d->flags & (O_APPEND | O_NONBLOCK | O_DIRECT)))
        return mpy_reason(err, n, "can't open the pipe of descriptor %d again: %s", d->number, strerror(errno));
    return 0;
}

static const mpy_fdtable_t *giving;

int mpy_fds_wanted(int number, int other_end) {
    for (const mpy_fdnumber_t *i = giving->numbers; i < giving->numbers + giving->nnumbers; i++)
        if (i->number == number)
            return other_end ? giving->descs[i->desc].extra : number;
    for (const mpy_desc_t *d = giving->descs; d < giving->descs + giving->ndescs; d++)
        if (d->number == number && d->kind == MPY_FD_TCP) /* lent: the program of this process has no number for it */
            return d->made;
    return -1;
}

int mpy_fds_fetch(mpy_fdtable_t *t, char *err, size_t n) {
    if (!mpy_fds_exchange)
        return 0;
    mpy_fd_want_t *wants = calloc(2 * (size_t)t->ndescs + 1, sizeof *wants);
    int count = 0;
    if (!wants)
        return mpy_reason(err, n, "out of memory while restoring descriptors");
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs; d++) {
        if (d->kind != MPY_FD_ELSEWHERE)
            continue;
        wants[count++] = (mpy_fd_want_t){d->owner, d->owners_number, d->which == MPY_FD_SHARE_OTHER_END, -1};
        if (d->keeps)
            wants[count++] = (mpy_fd_want_t){d->owner, d->owners_number, 0, -1};
    }
    giving = t;
    int bad = mpy_fds_exchange(wants, count, err, n), at = 0;
    for (mpy_desc_t *d = t->descs; d < t->descs + t->ndescs && !bad; d++) {
        if (d->kind != MPY_FD_ELSEWHERE)
            continue;
        bad = take(t, d, wants[at++].got, err, n);
        if (d->keeps)
            d->extra = mpy_fdtable_temp(t, wants[at++].got);
    }
    free(wants);
    return bad;
}
