/* remake.c - at a restart: files whose content is only in memory are recreated: shared anonymous memory, memfds,
 * deleted files that are mapped, memory of System V, and files of POSIX shared memory.
 *
 * Lower half; libc allowed.
 *
 * Each process puts back what it has saved (uses.c). If a file is used more often - by two mappings, a mapping and a
 * descriptor, several processes or ranks - then all these places must show one file again.
 *
 * Invariants
 *  1. A file without a name is known by the device and inode that it had at the checkpoint. The first process of the
 *     tree that needs it makes a memfd, and notes it in a table that all of them have; the others open that.
 *  2. For a file of POSIX shared memory there is a new file, which takes the old name at the commit. Until then its
 *     name is made of the number of this attempt to restart, so the ranks of a host find the same new file. An earlier
 *     run's processes that still live keep the old one, and a restart that fails leaves it as it was.
 *  3. A file without a name that other ranks have, too, is no memfd, but such a new file, which is deleted at the
 *     commit. All of these ranks write the same content into it.
 *  4. The process that has made a file without a name keeps a descriptor of it until the commit. So the limit on
 *     descriptors also limits these files (mpy_memory_files_check), and this process uses all of its hard limit.
 */
#define _GNU_SOURCE
#include "base/proc/fds.h"
#include "base/reason.h"
#include "files.h"
#include "isolate/fdguard.h"

#include <errno.h>
#include <fcntl.h>
#include <manapy/fnv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files without a name ---- */

enum { SLOTS = 2 * MPY_MEMORY_FILES_MAX };

static struct table {
    pthread_mutex_t lock;
    uint32_t n;
    struct made {
        uint64_t device, inode; /* at the checkpoint */
        int pid, fd;            /* who has made it, and its descriptor */
        bool of_ranks;          /* invariant 3 */
        bool ends;              /* as: */
        uint64_t bytes;
        int seals;
    } files[MPY_MEMORY_FILES_MAX];
    uint32_t slots[SLOTS]; /* 1 + index of a file, from the place that its numbers hash to on; 0: free */
} *table;                  /* all processes of the tree have it; only what is used of it needs memory */

void mpy_memory_files_share(void) {
    pthread_mutexattr_t attributes;
    if (table)
        return;
    void *p = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return;
    table = p;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&table->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static int lock(char *err, size_t n) {
    mpy_memory_files_share();
    if (!table)
        return mpy_reason(err, n, "no memory for a restart");
    if (pthread_mutex_lock(&table->lock) == 0)
        return 0;
    return mpy_reason(err, n, "another process of the rank has ended during the restart");
}

/* The slot of a file, or the free one where it belongs. */
static uint32_t *slot_of(uint64_t device, uint64_t inode) {
    for (size_t i = mpy_fnv1a_words(device, inode, 0) % SLOTS;; i = (i + 1) % SLOTS) {
        const struct made *f = table->slots[i] ? &table->files[table->slots[i] - 1] : NULL;
        if (!f || (f->device == device && f->inode == inode))
            return &table->slots[i];
    }
}

static struct made *find(uint64_t device, uint64_t inode) {
    const uint32_t slot = *slot_of(device, inode);
    return slot ? &table->files[slot - 1] : NULL;
}

static uint64_t attempt, host_hash;

void mpy_memory_files_begin(uint64_t number, const char *host) {
    attempt = number;
    host_hash = mpy_fnv1a(host, strlen(host));
}

typedef char name_t[64];

/* The name of a new file, the same in all ranks of this restart. `a` and `b` identify the old file. */
static const char *name_now(name_t name, uint64_t a, uint64_t b) {
    snprintf(name, sizeof(name_t), "%s.manapy-%016lx", MPY_POSIX_MEMORY, (unsigned long)mpy_fnv1a_words(attempt, a, b));
    return name;
}

static const char *name_of(name_t name, const struct made *f) {
    return name_now(name, mpy_fnv1a_words(host_hash, f->device, f->inode), 0);
}

/* Another rank may have made it. */
static int open_new(const char *name) {
    struct stat st;
    int fd = mpy_fd_high(open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0 || (fstat(fd, &st) == 0 && st.st_uid == geteuid()))
        return fd;
    mpy_fd_close(fd);
    errno = EPERM;
    return -1;
}

static void remove_made(void) {
    name_t name;
    for (struct made *f = table ? table->files : NULL; f && f < table->files + table->n; f++)
        if (f->of_ranks && f->pid == getpid())
            unlink(name_of(name, f));
}

/* The program gets its own limits later (process.c). */
static void allow_descriptors(void) {
    static bool done;
    struct rlimit limit;
    if (!done && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit.rlim_max, limit.rlim_max});
    done = true;
}

static struct made *make(uint64_t device, uint64_t inode, bool of_ranks) {
    struct made f = {.device = device, .inode = inode, .pid = getpid(), .of_ranks = of_ranks};
    name_t name;
    if (table->n == MPY_MEMORY_FILES_MAX) {
        errno = ENOSPC;
        return NULL;
    }
    allow_descriptors();
    if (of_ranks)
        f.fd = open_new(name_of(name, &f));
    else
        f.fd = mpy_fd_high(memfd_create("manapy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (f.fd < 0)
        return NULL;
    static bool removes;
    if (of_ranks && !removes)
        removes = atexit(remove_made) == 0;
    table->files[table->n] = f;
    *slot_of(device, inode) = table->n + 1;
    return &table->files[table->n++];
}

/* Ranks of the host do this at the same time, each with the size that it needs: without the lock one could cut off what
 * another has just added. */
static int grow(int fd, uint64_t bytes) {
    struct stat st;
    if (flock(fd, LOCK_EX))
        return -1;
    int bad = fstat(fd, &st) || ((uint64_t)st.st_size < bytes && ftruncate(fd, (off_t)bytes));
    return flock(fd, LOCK_UN) || bad ? -1 : 0;
}

int mpy_memory_file_open(uint64_t device, uint64_t inode, uint64_t bytes, mpy_sharing_t sharing, char *err, size_t n) {
    char path[MPY_FD_PATH];
    int fd = -1;
    if (lock(err, n))
        return -1;
    struct made *f = find(device, inode);
    if (!f)
        f = make(device, inode, sharing == MPY_SHARED_BY_RANKS);
    if (f)
        fd = mpy_fd_high(open(mpy_fd_path(path, f->pid, f->fd), O_RDWR | O_CLOEXEC));
    if (fd < 0 || grow(fd, bytes))
        mpy_reason(err, n, "cannot recreate shared memory without a file: %s%s", strerror(errno),
                   errno == EMFILE ? " (raise the limit, ulimit -Hn)" : "");
    pthread_mutex_unlock(&table->lock);
    return fd;
}

int mpy_memory_file_end_as(uint64_t device, uint64_t inode, uint64_t bytes, int seals, char *err, size_t n) {
    if (lock(err, n))
        return -1;
    struct made *f = find(device, inode);
    if (f)
        f->ends = true, f->bytes = bytes, f->seals = seals;
    pthread_mutex_unlock(&table->lock);
    return 0;
}

/* Only those that this process has made. */
static void settle_made(void) {
    for (struct made *f = table ? table->files : NULL; f && f < table->files + table->n; f++) {
        if (f->pid != getpid())
            continue;
        if (f->ends && ftruncate(f->fd, (off_t)f->bytes) == 0 && f->seals && fcntl(f->fd, F_ADD_SEALS, f->seals))
            fprintf(stderr, "manapy: a memfd of %lu bytes cannot be sealed again: %s\n", (unsigned long)f->bytes,
                    strerror(errno));
        mpy_fd_close(f->fd);
    }
    remove_made();
}

/* ---- POSIX shared memory ---- */

typedef struct named {
    char *path;
    name_t now;
    struct named *next;
} named_t;

static named_t *named;

static void remove_new_files(void) {
    for (named_t *f = named; f; f = f->next)
        unlink(f->now);
}

static named_t *name_for(const char *path) {
    named_t *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return NULL;
    }
    name_now(f->now, mpy_fnv1a(path, strlen(path)), 0);
    if (!named)
        atexit(remove_new_files);
    f->next = named;
    return named = f;
}

const char *mpy_memory_file_now(const char *path) {
    for (const named_t *f = named; f; f = f->next)
        if (!strcmp(f->path, path))
            return f->now;
    return path;
}

int mpy_memory_file_open_posix(const char *path, uint64_t bytes, char *err, size_t n) {
    const char *now = mpy_memory_file_now(path);
    if (now == path) {
        named_t *f = name_for(path);
        if (!f)
            return mpy_reason(err, n, "no memory for a restart");
        now = f->now;
    }
    int fd = open_new(now);
    if (fd >= 0 && grow(fd, bytes) == 0)
        return fd;
    mpy_reason(err, n, "cannot recreate %s: %s", path, strerror(errno));
    if (fd >= 0)
        mpy_fd_close(fd);
    return -1;
}

int mpy_memory_files_commit(char *err, size_t n) {
    int bad = 0;
    settle_made();
    while (named) {
        named_t *f = named;
        if (rename(f->now, f->path) && errno != ENOENT) /* another process has done it */
            bad = mpy_reason(err, n, "cannot recreate %s: %s", f->path, strerror(errno));
        named = f->next;
        free(f->path);
        free(f);
    }
    return bad;
}
