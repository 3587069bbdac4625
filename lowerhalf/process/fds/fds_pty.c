/* fds_pty.c - pseudo-terminals whose master a process of the rank's tree has. All other terminals come from outside,
 * and are devices (fds_device.c).
 *
 * Lower half; libc allowed.
 *
 * A controlling terminal is inherited by fork, so the terminals must be there when a restart makes the processes. The
 * rank's image lists them, and the first process of the restart opens all descriptors of them before it makes the
 * others. Each process then has copies of all, puts its own into place, and closes the rest. What waits in a terminal
 * is saved and restored by the owner of its master: the first process of the tree that has it (fds_tty.c).
 *
 * Invariants
 *  1. An open slave is known by the first process that has it, and its number there. All processes find the same, and
 *     nothing changes while they are halted.
 *  2. A master is never closed before another descriptor of it is in place: the kernel would send SIGHUP.
 *  3. The window has its size before any process has the terminal as its controlling one: SIGWINCH.
 *  4. /dev/tty, if that is such a terminal, becomes a slave of its own in each process.
 */
#define _GNU_SOURCE
#include "fds.h"
#include "fds_table.h"
#include "base/proc/fds.h"
#include "base/proc/text.h"
#include "isolate/pts.h"
#include "isolate/trapstate.h"
#include "process/children.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <manapy/proc_stat.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MAJOR_PTS = 136, ENDS_MAX = 256, OPEN_TRIES = 64 };
enum { MASTER, SLAVE, OWN }; /* what a descriptor is; stored in images. OWN: invariant 4 */

typedef struct holder { int owner, number; } holder_t; /* index of a process, and its descriptor; owner -1: nobody */

static int is_ptmx(dev_t device) {
    return device == makedev(5, 2);
}

static int pts_of(dev_t device) {
    return major(device) == MAJOR_PTS ? (int)minor(device) : -1;
}

/* The number of the terminal that this descriptor of ours is an end of; -1: it is not a pseudo-terminal. */
static int number_of(int fd) {
    unsigned device = 0; /* in the kernel's encoding */
    if (ioctl(fd, TIOCGDEV, &device))
        return -1;
    return pts_of(makedev(device >> 8 & 0xfff, (device & 0xff) | (device >> 12 & 0xfff00)));
}

/* ---- who has which ---- */

typedef int visit_t(void *context, int owner, int fd, const struct stat *st);

/* Visits the terminals' descriptors of all processes of the tree, in order, until a visit returns other than 0. */
static void visit_all(visit_t *visit, void *context) {
    char path[MPY_FD_PATH];
    struct stat st;
    int pid, done = 0;
    for (int owner = 0; !done && (pid = mpy_rank_process(owner)) > 0; owner++) {
        mpy_fd_list_t list = mpy_fd_list_open(pid);
        for (int fd; !done && (fd = mpy_fd_list_next(&list)) >= 0;)
            if (!(pid == getpid() && mpy_fd_is_lower(fd)) && !stat(mpy_fd_path(path, pid, fd), &st) &&
                S_ISCHR(st.st_mode) && (is_ptmx(st.st_rdev) || pts_of(st.st_rdev) >= 0))
                done = visit(context, owner, fd, &st);
        mpy_fd_list_close(&list);
    }
}

static int info_number(int owner, int fd, const char *name, int base) {
    uint64_t value;
    char *text = mpy_fdinfo_read_of(mpy_rank_process(owner), fd);
    int number = text && mpy_text_number(text, name, base, &value) ? (int)value : -1;
    free(text);
    return number;
}

typedef struct search { int number; holder_t found; } search_t;

static int is_master(void *context, int owner, int fd, const struct stat *st) {
    search_t *s = context;
    if (is_ptmx(st->st_rdev) && info_number(owner, fd, "tty-index:", 10) == s->number)
        s->found = (holder_t){owner, fd};
    return s->found.owner >= 0;
}

static holder_t find_master(int number) {
    search_t s = {number, {-1, -1}};
    if (number >= 0)
        visit_all(is_master, &s);
    return s.found;
}

typedef struct slaves {
    int number, n;
    holder_t holders[ENDS_MAX]; /* one for each open slave: invariant 1 */
    int sought_pid, sought_fd;  /* which of them is this one? */
    holder_t sought;
} slaves_t;

static int same(int pid, int fd, int other, int others_fd) {
    return (pid == other && fd == others_fd) || syscall(SYS_kcmp, pid, other, KCMP_FILE, fd, others_fd) == 0;
}

static int note_slave(void *context, int owner, int fd, const struct stat *st) {
    slaves_t *s = context;
    int pid = mpy_rank_process(owner);
    if (pts_of(st->st_rdev) != s->number)
        return 0;
    for (int i = 0; i < s->n; i++)
        if (same(mpy_rank_process(s->holders[i].owner), s->holders[i].number, pid, fd))
            return 0;
    if (s->n < ENDS_MAX)
        s->holders[s->n++] = (holder_t){owner, fd};
    if (s->sought.owner < 0 && s->sought_pid && same(pid, fd, s->sought_pid, s->sought_fd))
        s->sought = (holder_t){owner, fd};
    return 0;
}

static void find_slaves(slaves_t *s, int number, int fd) {
    *s = (slaves_t){.number = number, .sought_pid = fd < 0 ? 0 : getpid(), .sought_fd = fd, .sought = {-1, -1}};
    visit_all(note_slave, s);
}

int mpy_fd_is_pty(const mpy_desc_t *d) {
    return is_ptmx(d->st.st_rdev) ||
           ((pts_of(d->st.st_rdev) >= 0 || d->st.st_rdev == makedev(5, 0)) &&
            find_master(number_of(d->number)).owner >= 0);
}

/* The process whose session a terminal controls, and the group in the foreground: as the kernel knows them. */
typedef struct control { int leader, group; } control_t;

static control_t control_of(int number) {
    char text[1024];
    int pid, session, terminal, group;
    for (int owner = 0; (pid = mpy_rank_process(owner)) > 0; owner++) {
        const char *fields = mpy_proc_stat_fields(pid, text);
        if (fields && sscanf(fields, " %*c %*d %*d %d %d %d", &session, &terminal, &group) == 3 && session == pid &&
            (terminal >> 8 & 0xfff) == MAJOR_PTS && ((terminal & 0xff) | (terminal >> 12 & 0xfff00)) == number)
            return (control_t){pid, group};
    }
    return (control_t){0, 0};
}

/* A restart can give a terminal to a session that it makes: not to that of the tree's first process. */
static int check_control(const mpy_desc_t *d, char *err, size_t n) {
    mpy_proc_stat_t s;
    pid_t session = 0;
    int made = 0, leader = control_of(number_of(d->number)).leader;
    if (ioctl(d->number, TIOCGSID, &session) || session <= 0)
        return 0;
    for (int i = 0; leader && !mpy_proc_stat(leader, &s) && mpy_rank_process(i) > 0; i++)
        made |= mpy_rank_process(i) == s.parent;
    if (made)
        return 0;
    return mpy_reason(err, n, "descriptor %d is the controlling terminal of process %d, which mpirun has started or "
                      "which is not of this rank; let a child have it (setsid)", d->number, (int)session);
}

/* ---- descriptors ---- */

static int pty_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    slaves_t slaves;
    (void)t;
    if (!is_ptmx(d->st.st_rdev))
        return 0;
    find_slaves(&slaves, number_of(d->number), -1);
    if (slaves.n == ENDS_MAX)
        return mpy_reason(err, n, "descriptor %d is a pseudo-terminal that is open %d times; up to %d can be saved",
                          d->number, slaves.n, ENDS_MAX - 1);
    return mpy_tty_check(d->number, slaves.n == 0, err, n) ? -1 : check_control(d, err, n);
}

static int pty_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    int number = number_of(d->number), what = is_ptmx(d->st.st_rdev) ? MASTER : pts_of(d->st.st_rdev) < 0 ? OWN : SLAVE;
    holder_t owner = find_master(number);
    slaves_t slaves;
    (void)t;
    find_slaves(&slaves, number, what == SLAVE ? d->number : -1);
    if (number < 0 || owner.owner < 0 || (what == SLAVE && slaves.sought.owner < 0))
        return mpy_reason(err, n, "descriptor %d is a pseudo-terminal that has just been closed elsewhere", d->number);
    mpy_blob_put_u32(b, (uint32_t)mpy_pts_shown(number));
    mpy_blob_put_u32(b, (uint32_t)what);
    mpy_blob_put_u32(b, (uint32_t)slaves.sought.owner);
    mpy_blob_put_u32(b, (uint32_t)slaves.sought.number);
    int keeps = what == MASTER && mpy_rank_process(owner.owner) == getpid();
    mpy_blob_put_u32(b, (uint32_t)keeps);
    return keeps ? mpy_tty_save(d->number, b, err, n) : 0;
}

/* ---- the list in the rank's image ---- */

typedef struct end { holder_t holder; int fd; } end_t;

typedef struct pty {
    int shown, real, master;
    int leader, group; /* as the program knows them */
    end_t *ends;
    uint32_t nends;
} pty_t;

static pty_t ptys[MPY_PTS_MAX]; /* of a restart */
static uint32_t nptys;

typedef struct numbers { int n, numbers[MPY_PTS_MAX]; } numbers_t;

static int note_master(void *context, int owner, int fd, const struct stat *st) {
    numbers_t *all = context;
    int number = is_ptmx(st->st_rdev) ? info_number(owner, fd, "tty-index:", 10) : -1;
    for (int i = 0; i < all->n; i++)
        if (all->numbers[i] == number)
            return 0;
    if (number >= 0 && all->n < MPY_PTS_MAX)
        all->numbers[all->n++] = number;
    return number >= 0 && all->n == MPY_PTS_MAX;
}

static int window_of(int number, struct winsize *window) {
    char path[64];
    holder_t master = find_master(number);
    if (mpy_rank_process(master.owner) == getpid())
        return ioctl(master.number, TIOCGWINSZ, window);
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    int fd = mpy_fd_high(open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    int bad = fd < 0 || ioctl(fd, TIOCGWINSZ, window);
    if (fd >= 0)
        mpy_fd_close(fd);
    return bad ? -1 : 0;
}

static int save_one(int number, mpy_blob_t *b, mpy_tid_map_t *shown, char *err, size_t n) {
    slaves_t slaves;
    struct winsize window;
    control_t control = control_of(number);
    find_slaves(&slaves, number, -1);
    if (window_of(number, &window))
        return mpy_reason(err, n, "the pseudo-terminal /dev/pts/%d of this rank can't be opened: %s", number,
                          strerror(errno));
    mpy_blob_put_u32(b, (uint32_t)mpy_pts_shown(number));
    mpy_blob_put_bytes(b, &window, sizeof window);
    mpy_blob_put_u32(b, (uint32_t)(control.leader ? shown(control.leader) : 0));
    mpy_blob_put_u32(b, (uint32_t)(control.leader ? shown(control.group) : 0));
    mpy_blob_put_u32(b, (uint32_t)slaves.n);
    for (int i = 0; i < slaves.n; i++) {
        mpy_blob_put_u32(b, (uint32_t)slaves.holders[i].owner);
        mpy_blob_put_u32(b, (uint32_t)slaves.holders[i].number);
        mpy_blob_put_u32(b, (uint32_t)info_number(slaves.holders[i].owner, slaves.holders[i].number, "flags:", 8));
    }
    return 0;
}

int mpy_ptys_save(mpy_blob_t *b, mpy_tid_map_t *shown, char *err, size_t n) {
    numbers_t all = {0};
    if (mpy_rank_process(0) == getpid())
        visit_all(note_master, &all);
    if (all.n == MPY_PTS_MAX)
        return mpy_reason(err, n, "the rank has more than %d pseudo-terminals; close some before the checkpoint",
                          MPY_PTS_MAX - 1);
    mpy_blob_put_u32(b, (uint32_t)all.n);
    for (int i = 0; i < all.n; i++)
        if (save_one(all.numbers[i], b, shown, err, n))
            return -1;
    return 0;
}

/* ---- restart ---- */

/* With the program's number, if that is free. The kernel gives the lowest one that is. */
static int open_master(pty_t *p) {
    int wrong[OPEN_TRIES], nwrong = 0, fd;
    for (;;) {
        fd = mpy_fd_high(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
        if (fd < 0 || ioctl(fd, TIOCGPTN, &p->real) || p->real >= p->shown || nwrong == OPEN_TRIES)
            break;
        wrong[nwrong++] = fd;
    }
    while (nwrong > 0)
        mpy_fd_close(wrong[--nwrong]);
    return fd;
}

static int make_one(pty_t *p, mpy_reader_t *r, char *err, size_t n) {
    size_t bytes;
    *p = (pty_t){.shown = (int)mpy_reader_u32(r)};
    const void *window = mpy_reader_bytes(r, &bytes);
    p->leader = (int)mpy_reader_u32(r);
    p->group = (int)mpy_reader_u32(r);
    uint32_t nends = mpy_reader_count(r, 12);
    if (r->failed || !window || bytes != sizeof(struct winsize))
        return mpy_reason(err, n, "the image's record of pseudo-terminals is damaged");
    p->master = open_master(p);
    p->ends = calloc(nends + 1, sizeof *p->ends);
    if (p->master < 0 || !p->ends || ioctl(p->master, TIOCSWINSZ, window)) /* invariant 3 */
        return mpy_reason(err, n, "cannot recreate a pseudo-terminal of the rank: %s", strerror(errno));
    ioctl(p->master, TIOCSPTLCK, &(int){0});
    for (; p->nends < nends; p->nends++) {
        end_t *e = &p->ends[p->nends];
        e->holder.owner = (int)mpy_reader_u32(r);
        e->holder.number = (int)mpy_reader_u32(r);
        e->fd = mpy_tty_peer(p->master, (int)mpy_reader_u32(r));
        if (e->fd < 0)
            return mpy_reason(err, n, "can't open a pseudo-terminal of the rank again: %s", strerror(errno));
    }
    return 0;
}

int mpy_ptys_make(mpy_reader_t *r, char *err, size_t n) {
    uint32_t count = mpy_reader_count(r, 28);
    if (r->failed || count >= MPY_PTS_MAX)
        return mpy_reason(err, n, "the image's record of pseudo-terminals is damaged");
    for (; nptys < count; nptys++)
        if (make_one(&ptys[nptys], r, err, n))
            return -1;
    return 0;
}

void mpy_ptys_high(void) {
    for (pty_t *p = ptys; p < ptys + nptys; p++) {
        p->master = mpy_fd_high(p->master);
        for (uint32_t i = 0; i < p->nends; i++)
            p->ends[i].fd = mpy_fd_high(p->ends[i].fd);
    }
}

void mpy_fds_control(int session) {
    for (const pty_t *p = ptys; p < ptys + nptys; p++) {
        int fd = p->leader == session ? mpy_tty_peer(p->master, O_RDWR) : -1;
        if (fd < 0)
            continue;
        ioctl(fd, TIOCSCTTY, 0);
        mpy_fd_close(fd);
    }
}

void mpy_fds_foreground(int session, int (*real)(int group)) {
    for (const pty_t *p = ptys; p < ptys + nptys; p++) {
        int group = p->leader == session ? real(p->group) : 0;
        if (group > 0)
            ioctl(p->master, TIOCSPGRP, &group);
    }
}

/* For the traps. Copies in other processes of the tree are of no use any more. */
void mpy_ptys_settle(void) {
    MPY_TRAP->npts = 0;
    for (pty_t *p = ptys; p < ptys + nptys; p++) {
        if (p->shown != p->real)
            MPY_TRAP->pts[MPY_TRAP->npts++] = (mpy_idpair_t){p->shown, p->real};
        mpy_fd_close(p->master);
        for (uint32_t i = 0; i < p->nends; i++)
            mpy_fd_close(p->ends[i].fd);
        free(p->ends);
    }
    nptys = 0;
}

static int source(const pty_t *p, int what, holder_t holder) {
    for (uint32_t i = 0; what == SLAVE && i < p->nends; i++)
        if (p->ends[i].holder.owner == holder.owner && p->ends[i].holder.number == holder.number)
            return p->ends[i].fd;
    return what == MASTER ? p->master : -1;
}

static int pty_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    int shown = (int)mpy_reader_u32(r), what = (int)mpy_reader_u32(r);
    holder_t holder = {(int)mpy_reader_u32(r), (int)mpy_reader_u32(r)};
    d->which = (int)mpy_reader_u32(r);
    for (const pty_t *p = ptys; p < ptys + nptys && !r->failed; p++) {
        if (p->shown != shown)
            continue;
        if (what == OWN)
            d->made = mpy_fdtable_temp(t, mpy_tty_peer(p->master, d->flags));
        else
            mpy_fd_lower_add(d->made = fcntl(source(p, what, holder), F_DUPFD_CLOEXEC, t->temp_base));
    }
    return d->made < 0 ? mpy_reason(err, n, "descriptor %d, a pseudo-terminal: damaged record", d->number) : 0;
}

static int pty_finish(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t;
    return d->which ? mpy_tty_restore(d->number, r, err, n) : 0;
}

const mpy_fd_ops_t mpy_fd_pty_ops = {pty_check, pty_save, pty_make, pty_finish};
