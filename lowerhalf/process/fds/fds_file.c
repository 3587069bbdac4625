/* fds_file.c - files with a name (opened again by name) and without (deleted, O_TMPFILE, memfd: their content is
 * saved).
 *
 * Lower half; libc allowed.
 *
 * Policy for files with a name
 *   read only    must exist and reach at least to the saved offset
 *   writable     must exist and be at least as long as at the checkpoint. mpy_fds_commit() removes what was added
 *   since,
 *                so that output doesn't appear twice
 * Deleted files become deleted files again, in the same directory if possible, up to CONTENT_MAX bytes each.
 *
 * Invariants
 *  1. Nothing of the program's files is changed before mpy_fd_file_commit().
 *  2. While saving, no descriptor is opened and closed on a file on which the program holds fcntl locks: that would
 *     drop the locks.
 */
#define _GNU_SOURCE
#include "fds_table.h"
#include "base/io/whole.h"
#include "base/proc/deleted.h"
#include "base/proc/fds.h"
#include "process/memory/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CONTENT_MAX (64ul << 20)
#define OPEN_FLAGS                                                                                                     \
    (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DSYNC | O_SYNC | O_DIRECT | O_NOATIME | O_LARGEFILE | O_PATH | O_NOFOLLOW | \
     O_DIRECTORY)

/* Files to truncate, kept from restore to commit. */
typedef struct cut {
    int number; /* the program's descriptor: closing one of our own would drop the program's fcntl locks */
    off_t bytes;
    char *path;
    struct cut *next;
} cut_t;

static cut_t *cuts;

/* Files of /proc and /sys have no size, and often no meaningful offset. */
static int is_virtual(const char *path) {
    return !strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5);
}

static int writable(int flags) {
    return !(flags & O_PATH) && (flags & O_ACCMODE) != O_RDONLY;
}

/* ---- with a name ---- */

/* In /proc, what follows the part for this process; NULL: the path is not there. */
static const char *in_own_proc(const char *path) {
    char own[32];
    int length = snprintf(own, sizeof own, "/proc/%d/", getpid());
    return strncmp(path, own, (size_t)length) ? NULL : path + length;
}

/* After a restart the thread or the other process has another id, or does not exist. */
static int is_of_one_thread_or_another_process(const char *path) {
    const char *own = in_own_proc(path);
    int id, end = 0;
    return own ? sscanf(own, "task/%d/%n", &id, &end) == 1 && end : sscanf(path, "/proc/%d/%n", &id, &end) == 1 && end;
}

static int file_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    struct stat st;
    (void)t;
    if (is_of_one_thread_or_another_process(d->path))
        return mpy_reason(err, n, "descriptor %d is open on %s, which is of a thread or of another process", d->number,
                          d->path);
    if (strlen(d->path) >= 4096 || lstat(d->path, &st))
        return mpy_reason(err, n, "descriptor %d is open on %s, which no longer exists under that name: %s", d->number,
                          d->path, strerror(errno));
    if ((st.st_mode & S_IFMT) != (d->st.st_mode & S_IFMT) && !S_ISLNK(st.st_mode))
        return mpy_reason(err, n, "descriptor %d is open on %s, but another file has that name now", d->number,
                          d->path);
    return 0;
}

static int file_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    const char *own = in_own_proc(d->path);
    (void)t, (void)err, (void)n;
    if (own) { /* the process will have another pid */
        char path[4096];
        snprintf(path, sizeof path, "/proc/self/%s", own);
        mpy_blob_put_string(b, path);
    } else {
        mpy_blob_put_string(b, d->path);
    }
    off_t offset = d->flags & O_PATH ? 0 : lseek(d->number, 0, SEEK_CUR);
    mpy_blob_put_i64(b, offset < 0 ? 0 : offset);
    mpy_blob_put_i64(b, d->st.st_size);
    return 0;
}

static int cut_later(mpy_desc_t *d, off_t bytes) {
    cut_t *cut = malloc(sizeof *cut);
    if (!cut)
        return -1;
    *cut = (cut_t){d->number, bytes, strdup(d->path), cuts};
    cuts = cut;
    return cut->path ? 0 : -1;
}

static int file_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    const char *path = mpy_memory_file_now(mpy_reader_string(r));
    off_t offset = mpy_reader_i64(r), bytes = mpy_reader_i64(r);
    int directory = S_ISDIR(d->st.st_mode);
    struct stat st;
    if (r->failed || offset < 0 || bytes < 0)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    if (((d->flags & O_PATH && d->flags & O_NOFOLLOW) ? lstat : stat)(path, &st))
        return mpy_reason(err, n,
                          "%s, which the program had open as descriptor %d at the checkpoint, cannot be found: %s",
                          path, d->number, strerror(errno));
    if ((st.st_mode & S_IFMT) != (d->st.st_mode & S_IFMT))
        return mpy_reason(err, n,
                          "%s, which the program had open as descriptor %d at the checkpoint, is no longer a %s", path,
                          d->number, directory ? "directory" : "file");

    int flags = d->flags & OPEN_FLAGS;
    if (!(flags & O_PATH))
        flags &= ~O_NOFOLLOW;
    if (!directory)
        flags &= ~O_DIRECTORY; /* O_TMPFILE contains this flag */
    int fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
    /* These flags are hints. They fail if we no longer own the file, or if the file system has no O_DIRECT. */
    if (fd < 0 && (errno == EPERM || errno == EINVAL))
        fd = open(path, (flags & ~(O_NOATIME | O_DIRECT)) | O_CLOEXEC | O_NOCTTY);
    d->made = mpy_fdtable_temp(t, fd);
    if (d->made < 0)
        return mpy_reason(err, n,
                          "%s, which the program had open as descriptor %d at the checkpoint, can't be opened: %s",
                          path, d->number, strerror(errno));
    if (flags & O_PATH)
        return 0;
    if (S_ISREG(st.st_mode) && !is_virtual(path)) {
        if (writable(flags) && st.st_size < bytes)
            return mpy_reason(
                err, n,
                "%s, which the program was writing, is shorter (%lld bytes) than at the checkpoint (%lld): it was cut "
                "later; put back the file as it was then, or restart another checkpoint",
                path, (long long)st.st_size, (long long)bytes);
        if (st.st_size < offset && offset <= bytes)
            return mpy_reason(err, n, "%s, which the program was reading at byte %lld, has only %lld bytes now", path,
                              (long long)offset, (long long)st.st_size);
        if (writable(flags) && st.st_size > bytes && cut_later(d, bytes))
            return mpy_reason(err, n, "out of memory");
    }
    if (lseek(d->made, offset, SEEK_SET) < 0 && !is_virtual(path) && offset)
        return mpy_reason(err, n, "can't go to byte %lld of %s: %s", (long long)offset, path, strerror(errno));
    return 0;
}

int mpy_fd_file_commit(char *err, size_t n) {
    int rc = 0;
    while (cuts) {
        cut_t *cut = cuts;
        struct stat st;
        if (!rc && !fstat(cut->number, &st) && st.st_size > cut->bytes && ftruncate(cut->number, cut->bytes))
            rc =
                mpy_reason(err, n, "cannot shorten %s to its length at the checkpoint: %s", cut->path, strerror(errno));
        cuts = cut->next;
        free(cut->path);
        free(cut);
    }
    return rc;
}

/* ---- without a name ---- */

static int is_memfd(const mpy_desc_t *d) {
    return mpy_is_memfd(d->path);
}

static int is_in_memory(const mpy_desc_t *d) {
    return mpy_memory_file_is_mapped(d->st.st_dev, d->st.st_ino, (uint64_t)d->st.st_size);
}

static int content_check(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    struct statfs fs;
    (void)t;
    /* A restart makes another file. What the program writes then would not be in the one that the other name shows. */
    if (writable(d->flags) && d->st.st_nlink > 0 && mpy_deleted_mark(d->path))
        return mpy_reason(err, n,
                          "descriptor %d writes to %s, which has lost this name but has another name; open it by that "
                          "one before the checkpoint",
                          d->number, d->path);
    if ((uint64_t)d->st.st_size > CONTENT_MAX && !is_in_memory(d))
        return mpy_reason(err, n, "descriptor %d is a %s of %lld bytes (%s); up to %lu are saved", d->number,
                          is_memfd(d) ? "memfd" : "deleted file", (long long)d->st.st_size, d->path, CONTENT_MAX);
    if (fstatfs(d->number, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC)
        return mpy_reason(err, n, "descriptor %d is a file of huge pages without a name (%s), which can't be saved",
                          d->number, d->path);
    return 0;
}

static int same_file(const mpy_desc_t *a, const mpy_desc_t *b) {
    return a->kind == MPY_FD_CONTENT && b->kind == MPY_FD_CONTENT && a->st.st_ino == b->st.st_ino &&
           a->st.st_dev == b->st.st_dev;
}

/* Returns a number of the program through which the content can be read, or -1 if the program has opened the file only
 * for writing. */
static int readable(const mpy_fdtable_t *t, const mpy_desc_t *d) {
    for (const mpy_desc_t *other = t->descs; other < t->descs + t->ndescs; other++)
        if (same_file(d, other) && (other->flags & O_ACCMODE) != O_WRONLY && !(other->flags & O_DIRECT))
            return other->number;
    return -1;
}

static int locked(const mpy_fdtable_t *t, const mpy_desc_t *d) {
    int found = 0;
    for (const mpy_desc_t *other = t->descs; other < t->descs + t->ndescs && !found; other++) {
        char *text = same_file(d, other) ? mpy_fdinfo_read(other->number) : NULL;
        found = text && strstr(text, "POSIX ");
        free(text);
    }
    return found;
}

static int first_of_object(const mpy_fdtable_t *t, const mpy_desc_t *d) {
    for (const mpy_desc_t *other = t->descs; other < d; other++)
        if (same_file(d, other))
            return 0;
    return 1;
}

static int read_all(int fd, uint8_t *to, size_t bytes) {
    ssize_t got = mpy_read_whole(fd, to, bytes, 0);
    if (got >= 0 && (size_t)got < bytes)
        errno = ENODATA;
    return got < 0 || (size_t)got < bytes ? -1 : 0;
}

static int content_put(mpy_fdtable_t *t, const mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    char path[MPY_FD_PATH];
    int own = readable(t, d);
    int fd = own >= 0 ? own : mpy_fd_high(open(mpy_fd_path(path, 0, d->number), O_RDONLY | O_CLOEXEC));
    size_t bytes = (size_t)d->st.st_size;
    mpy_blob_put_u64(b, bytes); /* length and bytes, as mpy_reader_bytes reads them */
    uint8_t *to = mpy_blob_extend(b, bytes);
    int rc = 0;
    if (fd < 0 || (to && read_all(fd, to, bytes)))
        rc = mpy_reason(err, n, "descriptor %d is a deleted file (%s) that can't be read: %s", d->number, d->path,
                        strerror(errno));
    if (own < 0 && fd >= 0 && !locked(t, d)) /* invariant 2: otherwise it stays open */
        mpy_fd_close(fd);
    return rc;
}

static int content_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    int first = first_of_object(t, d), seals = is_memfd(d) ? fcntl(d->number, F_GET_SEALS) : 0;
    off_t offset = lseek(d->number, 0, SEEK_CUR);
    char name[4096];
    snprintf(name, sizeof name, "%s", d->path);
    char *tail = mpy_deleted_mark(name);
    if (tail)
        *tail = 0;
    mpy_blob_put_u64(b, d->st.st_dev);
    mpy_blob_put_u64(b, d->st.st_ino);
    mpy_blob_put_i64(b, offset < 0 ? 0 : offset);
    mpy_blob_put_string(b, name);
    mpy_blob_put_u32(b, (uint32_t)is_memfd(d));
    mpy_blob_put_u32(b, (uint32_t)(seals < 0 ? 0 : seals));
    mpy_blob_put_u32(b, (uint32_t)mpy_memory_file_sharing(d->st.st_dev, d->st.st_ino));
    mpy_blob_put_u64(b, (uint64_t)d->st.st_size);
    mpy_blob_put_u32(b, (uint32_t)first);
    if (first && is_in_memory(d))
        mpy_blob_put_u64(b, 0); /* its pages are in the image */
    return first && !is_in_memory(d) ? content_put(t, d, b, err, n) : 0;
}

/* Creates an empty file without a name, in the old directory if possible. */
static int create(const char *name, int memfd) {
    if (memfd)
        return memfd_create(name + strlen(MPY_MEMFD), MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char directory[4096];
    snprintf(directory, sizeof directory, "%s", name);
    char *slash = strrchr(directory, '/');
    if (slash)
        slash[slash == directory] = 0;
    const char *places[] = {directory, getenv("TMPDIR"), "/tmp", "."};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int fd = places[i] ? open(places[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
        if (fd >= 0)
            return fd;
        char path[4096 + 32];
        snprintf(path, sizeof path, "%s/.manapy-XXXXXX", places[i] ? places[i] : "");
        if (places[i] && (fd = mkostemp(path, O_CLOEXEC)) >= 0) {
            unlink(path);
            return fd;
        }
    }
    return memfd_create(slash ? slash + 1 : name, MFD_CLOEXEC);
}

static int content_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    uint64_t dev = mpy_reader_u64(r), ino = mpy_reader_u64(r);
    off_t offset = mpy_reader_i64(r);
    const char *name = mpy_reader_string(r);
    int memfd = (int)mpy_reader_u32(r);
    uint32_t seals = mpy_reader_u32(r);
    mpy_sharing_t shared = mpy_reader_u32(r);
    uint64_t size = mpy_reader_u64(r);
    int first = (int)mpy_reader_u32(r);
    size_t bytes = 0;
    const uint8_t *content = first ? mpy_reader_bytes(r, &bytes) : (const uint8_t *)"";
    d->object = dev * 0x9E3779B97F4A7C15ul ^ ino;
    d->which = shared ? 0 : (int)seals;
    mpy_desc_t *base = first ? d : mpy_fdtable_object(t, d);
    if (r->failed || !content || !base || (base != d && base->extra < 0) || (memfd && !mpy_is_memfd(name)))
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    if (first) {
        int fd = shared ? mpy_memory_file_open(dev, ino, size, shared, err, n) : create(name, memfd);
        if (shared && (fd < 0 || mpy_memory_file_end_as(dev, ino, size, (int)seals, err, n)))
            return -1;
        d->extra = mpy_fdtable_temp(t, fd);
        if (d->extra < 0 || (!shared && ftruncate(d->extra, (off_t)size)) ||
            mpy_write_whole(d->extra, content, bytes, 0))
            return mpy_reason(err, n, "can't write the deleted file %s of %zu bytes again, which was descriptor %d: %s",
                              name, bytes, d->number, strerror(errno));
    }
    int flags = d->flags & OPEN_FLAGS & ~(O_NOFOLLOW | O_DIRECTORY | O_PATH);
    d->made = mpy_fdtable_reopen(t, base->extra, flags);
    if (d->made < 0)
        d->made = mpy_fdtable_reopen(t, base->extra, flags & ~(O_NOATIME | O_DIRECT));
    if (d->made < 0 || lseek(d->made, offset, SEEK_SET) < 0)
        return mpy_reason(err, n, "can't open the deleted file %s again, which was descriptor %d: %s", name, d->number,
                          strerror(errno));
    return 0;
}

/* Set permissions and seals last: they may forbid what is needed to create the file. */
static int content_finish(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t, (void)r, (void)err, (void)n;
    if (d->extra >= 0) {
        fchmod(d->extra, d->st.st_mode & 07777);
        if (d->which)
            fcntl(d->extra, F_ADD_SEALS, d->which);
    }
    return 0;
}

const mpy_fd_ops_t mpy_fd_file_ops = {file_check, file_save, file_make, NULL};
const mpy_fd_ops_t mpy_fd_content_ops = {content_check, content_save, content_make, content_finish};
