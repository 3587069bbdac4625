/* fds_device.c - standard streams, other inherited descriptors, character devices; and the kinds that are refused.
 *
 * Lower half; libc allowed.
 *
 * Standard streams belong to the place where the program runs: after a restart, descriptors 0, 1, 2 and their
 * duplicates are those of the new process. To recognise them, their identity is recorded at the start. For pipes and
 * sockets the inode is enough. The program may open a file or a device again by itself, so for these a duplicate is
 * kept and compared. (Pipes are not duplicated: their reader would keep waiting after the program has closed its end.)
 * All other descriptors that were open before the program ran belong to the launcher. They are recognised by inode,
 * too. A duplicate is used for kinds that share one inode (inotify, epoll ...) and for a file that a process above us
 * has locked: the program never took that lock.
 */
#define _GNU_SOURCE
#include "fds.h"
#include "fds_table.h"
#include "base/proc/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

typedef struct identity {
    int number; /* -1: none */
    int keep;   /* duplicate, or -1 */
    int accmode;
    dev_t dev, rdev;
    ino_t ino;
    mode_t mode;
} identity_t;

static identity_t stdio[3] = {{.number = -1, .keep = -1}, {.number = -1, .keep = -1}, {.number = -1, .keep = -1}};
static identity_t *inherited; /* descriptors other than the standard streams */
static int ninherited, inherited_room;

static identity_t identify(int fd) {
    struct stat st;
    if (fstat(fd, &st))
        return (identity_t){.number = -1, .keep = -1};
    return (identity_t){fd, -1, fcntl(fd, F_GETFL) & O_ACCMODE, st.st_dev, st.st_rdev, st.st_ino, st.st_mode};
}

static int identical(const identity_t *id, const struct stat *st, int flags) {
    return id->number >= 0 && id->dev == st->st_dev && id->ino == st->st_ino && id->rdev == st->st_rdev &&
           id->accmode == (flags & O_ACCMODE);
}

static int is_anonymous(int fd) {
    char path[MPY_FD_PATH], link[PATH_MAX];
    ssize_t length = readlink(mpy_fd_path(path, 0, fd), link, sizeof link);
    return length > 11 && !strncmp(link, "anon_inode:", 11);
}

static int is_locked(int fd) {
    char *text = mpy_fdinfo_read(fd);
    int locked = text && strstr(text, "\nlock:");
    free(text);
    return locked;
}

static void note_inherited(int fd) {
    if (ninherited == inherited_room) {
        int room = inherited_room ? 2 * inherited_room : 64;
        identity_t *more = realloc(inherited, (size_t)room * sizeof *inherited);
        if (!more)
            return;
        inherited = more;
        inherited_room = room;
    }
    inherited[ninherited++] = identify(fd);
}

void mpy_fds_note_inherited(void) {
    for (int fd = 0; fd < 3; fd++) {
        if (stdio[fd].keep >= 0)
            mpy_fd_close(stdio[fd].keep);
        stdio[fd] = identify(fd);
        if (stdio[fd].number >= 0 && (S_ISREG(stdio[fd].mode) || S_ISCHR(stdio[fd].mode)))
            mpy_fd_lower_add(stdio[fd].keep = fcntl(fd, F_DUPFD_CLOEXEC, mpy_fd_base()));
    }
    mpy_fd_list_t list = mpy_fd_list_open(0);
    if (!list.dir)
        return;
    for (int fd; (fd = mpy_fd_list_next(&list)) >= 0;)
        if (fd > 2 && !mpy_fd_is_lower(fd))
            note_inherited(fd);
    mpy_fd_list_close(&list);
    mpy_fd_reserve(3 + ninherited);
    for (identity_t *id = inherited; id < inherited + ninherited; id++)
        if (is_anonymous(id->number) || (S_ISREG(id->mode) && is_locked(id->number)))
            mpy_fd_lower_add(id->keep = fcntl(id->number, F_DUPFD_CLOEXEC, mpy_fd_base()));
}

static size_t put_identity(char *text, size_t n, const identity_t *id) {
    int used = snprintf(text, n, "%d:%lx:%lx:%lx:%x ", id->number, (unsigned long)id->dev, (unsigned long)id->ino,
                        (unsigned long)id->rdev, (unsigned)id->accmode);
    return used < (int)n ? (size_t)used : 0;
}

void mpy_fds_inherited_text(char *text, size_t n) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < 3; i++)
        if (stdio[i].number >= 0)
            at += put_identity(text + at, n - at, &stdio[i]);
    for (int i = 0; i < ninherited; i++)
        at += put_identity(text + at, n - at, &inherited[i]);
    text[at] = 0;
}

/* The number at the launch of a descriptor that is open here now; -1: it was not open then. A stream's own number is
 * tried first: several streams may be the same file. */
static int number_at_launch(const identity_t *id, const char *text) {
    int number, found = -1, used;
    unsigned long dev, ino, rdev;
    unsigned accmode;
    for (; sscanf(text, "%d:%lx:%lx:%lx:%x %n", &number, &dev, &ino, &rdev, &accmode, &used) == 5; text += used)
        if (id->dev == dev && id->ino == ino && id->rdev == rdev && id->accmode == (int)accmode &&
            (found < 0 || number == id->number))
            found = number;
    return found;
}

static void forget(identity_t *id) {
    if (id->keep >= 0)
        mpy_fd_close(id->keep);
    *id = (identity_t){.number = -1, .keep = -1};
}

void mpy_fds_inherited_only(const char *text) {
    identity_t ours[3] = {stdio[0], stdio[1], stdio[2]};
    for (int i = 0; i < 3; i++)
        stdio[i] = (identity_t){.number = -1, .keep = -1};
    for (int i = 0; i < 3; i++) {
        int number = ours[i].number < 0 ? -1 : number_at_launch(&ours[i], text);
        if (number >= 0 && number < 3 && stdio[number].number < 0)
            stdio[number] = ours[i];
        else
            forget(&ours[i]);
    }
    int kept = 0;
    for (int i = 0; i < ninherited; i++) {
        int number = number_at_launch(&inherited[i], text);
        if (number < 3)
            forget(&inherited[i]);
        else
            inherited[kept] = inherited[i], inherited[kept++].number = number;
    }
    ninherited = kept;
}

void mpy_fd_keeps_high(void) {
    for (int i = 0; i < 3; i++)
        stdio[i].keep = mpy_fd_high(stdio[i].keep);
    for (int i = 0; i < ninherited; i++)
        inherited[i].keep = mpy_fd_high(inherited[i].keep);
}

int mpy_fd_stdio_match(int fd, const struct stat *st, int flags, int stopped) {
    /* Try the number's own stream first. If several streams are the same terminal, a duplicate is more likely one of
     * output. */
    const int order[4] = {fd < 3 ? fd : 1, 1, 2, 0};
    for (int i = 0; i < 4; i++) {
        const identity_t *id = &stdio[order[i]];
        if (identical(id, st, flags) && (id->keep < 0 || mpy_fd_same(id->keep, fd, stopped)))
            return order[i];
    }
    return -1;
}

int mpy_fd_inherited_match(int fd, const struct stat *st, int flags, int stopped) {
    int by_inode = S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode); /* other kinds have no inode of their own */
    for (int i = 0; i < ninherited; i++)
        if (identical(&inherited[i], st, flags) &&
            (by_inode || (inherited[i].keep >= 0 && mpy_fd_same(inherited[i].keep, fd, stopped))))
            return inherited[i].number;
    return -1;
}

static int always(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    (void)t, (void)d, (void)err, (void)n;
    return 0;
}

/* ---- standard streams ---- */

static int open_null(mpy_fdtable_t *t, int flags) {
    return mpy_fdtable_temp(t, open("/dev/null", (flags & O_ACCMODE) | O_CLOEXEC));
}

static int which_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    (void)t, (void)err, (void)n;
    mpy_blob_put_u32(b, (uint32_t)d->which);
    return 0;
}

static int stdio_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    uint32_t which = mpy_reader_u32(r);
    if (which > 2)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    mpy_fd_lower_add(d->made = fcntl((int)which, F_DUPFD_CLOEXEC, t->temp_base));
    if (d->made < 0)
        d->made = open_null(t, d->flags);
    return 0;
}

/* ---- inherited, not standard ---- */

static int inherited_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    int number = (int)mpy_reader_u32(r);
    (void)err, (void)n;
    for (int i = 0; i < ninherited; i++)
        if (inherited[i].number == number && (inherited[i].mode & S_IFMT) == (d->st.st_mode & S_IFMT))
            mpy_fd_lower_add(d->made = fcntl(number, F_DUPFD_CLOEXEC, t->temp_base));
    if (d->made < 0)
        d->made = open_null(t, d->flags);
    return 0;
}

/* ---- character devices ---- */

/* majors, from devices.txt of the kernel */
enum { MAJOR_MEMORY = 1, MAJOR_CONSOLE = 4, MAJOR_TTY = 5, MAJOR_PTY_FIRST = 136, MAJOR_PTY_LAST = 143 };

static int is_memory(dev_t rdev) {
    unsigned m = minor(rdev);
    /* null zero full random urandom */
    return major(rdev) == MAJOR_MEMORY && (m == 3 || m == 5 || m == 7 || m == 8 || m == 9);
}

static int is_terminal(dev_t rdev) {
    unsigned m = major(rdev);
    return (m == MAJOR_TTY && minor(rdev) == 0) || m == MAJOR_CONSOLE || (m >= MAJOR_PTY_FIRST && m <= MAJOR_PTY_LAST);
}

static const char nvidia[] = "/dev/nvidia"; /* and nvidiactl, nvidia-uvm, nvidia0 ... */

bool mpy_fds_have_gpu(void) {
    char link[MPY_FD_PATH], path[sizeof nvidia - 1];
    mpy_fd_list_t list = mpy_fd_list_open(0);
    bool found = false;
    for (int fd; !found && (fd = mpy_fd_list_next(&list)) >= 0;)
        found = !mpy_fd_is_lower(fd) && readlink(mpy_fd_path(link, 0, fd), path, sizeof path) == sizeof path &&
                !memcmp(path, nvidia, sizeof path);
    mpy_fd_list_close(&list);
    return found;
}

static int device_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    (void)t;
    if (is_memory(d->st.st_rdev) || is_terminal(d->st.st_rdev))
        return 0;
    if (!strncmp(d->path, nvidia, sizeof nvidia - 1) || !strncmp(d->path, "/dev/dri/", 9) ||
        !strcmp(d->path, "/dev/kfd") || !strcmp(d->path, "/dev/dxg"))
        return mpy_reason(err, n,
                          "descriptor %d is a GPU (%s), whose contents can't be saved; checkpoint before the GPU is "
                          "opened or after it is closed",
                          d->number, d->path);
    if (!strncmp(d->path, "/dev/infiniband/", 16))
        return mpy_reason(
            err, n, "descriptor %d is an RDMA device (%s) opened by the program itself; close it before the checkpoint",
            d->number, d->path);
    return mpy_reason(err, n,
                      "descriptor %d is the device %s, whose state can't be saved; close it before the checkpoint",
                      d->number, d->path);
}

static int device_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    (void)t, (void)err, (void)n;
    mpy_blob_put_string(b, d->path);
    mpy_blob_put_u32(b, (uint32_t)is_terminal(d->st.st_rdev));
    return 0;
}

static int device_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    const char *path = mpy_reader_string(r);
    int terminal = (int)mpy_reader_u32(r), flags = (d->flags & (O_ACCMODE | O_NONBLOCK)) | O_CLOEXEC | O_NOCTTY;
    if (r->failed)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    if (terminal) { /* The terminal may belong to another user now: use our own terminal, or the standard streams. */
        d->made = mpy_fdtable_temp(t, open("/dev/tty", flags));
        if (d->made < 0)
            mpy_fd_lower_add(d->made =
                                 fcntl((d->flags & O_ACCMODE) == O_RDONLY ? 0 : 1, F_DUPFD_CLOEXEC, t->temp_base));
        if (d->made < 0)
            d->made = open_null(t, flags);
    } else {
        d->made = mpy_fdtable_temp(t, open(path, flags));
    }
    if (d->made < 0)
        return mpy_reason(err, n, "can't open %s, which was descriptor %d of the program: %s", path, d->number,
                          strerror(errno));
    return 0;
}

/* ---- refused ---- */

static int other_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    static const struct { const char *link, *what; } known[] = {
        {"anon_inode:inotify", "an inotify watch; close it before the checkpoint"},
        {"anon_inode:[fanotify]", "a fanotify watch; close it before the checkpoint"},
        {"anon_inode:[perf_event]", "a performance counter (perf_event); close it before the checkpoint"},
        {"anon_inode:[io_uring]", "an io_uring; close it before the checkpoint"},
        {"anon_inode:[userfaultfd]", "a userfaultfd; close it before the checkpoint"},
        {"anon_inode:[pidfd]", "a handle of another process (pidfd); close it before the checkpoint"},
    };
    (void)t;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(d->path, known[i].link))
            return mpy_reason(err, n, "descriptor %d is %s", d->number, known[i].what);
    if (S_ISDIR(d->st.st_mode))
        return mpy_reason(err, n, "descriptor %d is a deleted directory (%s); close it before the checkpoint",
                          d->number, d->path);
    if (S_ISBLK(d->st.st_mode))
        return mpy_reason(err, n, "descriptor %d is the block device %s; close it before the checkpoint", d->number,
                          d->path);
    return mpy_reason(err, n, "descriptor %d is %s, which can't be saved; close it before the checkpoint", d->number,
                      d->path);
}

static int never_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    (void)b;
    return other_check(t, d, err, n);
}

static int never_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t, (void)r;
    return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
}

const mpy_fd_ops_t mpy_fd_stdio_ops = {always, which_save, stdio_make, NULL};
const mpy_fd_ops_t mpy_fd_inherited_ops = {always, which_save, inherited_make, NULL};
const mpy_fd_ops_t mpy_fd_device_ops = {device_check, device_save, device_make, NULL};
const mpy_fd_ops_t mpy_fd_other_ops = {other_check, never_save, never_make, NULL};
