/* memory_files.c - files whose content is only in memory: shared anonymous memory, memfds, deleted files that are
 * mapped, and files of POSIX shared memory.
 *
 * Lower half; libc allowed.
 *
 * Each process saves what it has mapped of such a file in its image, and puts it back. So does one that has a
 * descriptor only. A file that is used once needs no more: its memory becomes new memory. If it is used more often - by
 * two mappings, a mapping and a descriptor, several processes - then all these places must show one file again.
 *
 * Invariants
 *  1. A file without a name is known by the device and inode that it had at the checkpoint. The first process of the
 *     tree that needs it makes a memfd, and notes it in a table that all of them have; the others open that.
 *  2. For a file of POSIX shared memory there is a new file, which takes the old name at the commit. Until then its
 *     name is made of the number of this attempt to restart, so the ranks of a host find the same new file. An earlier
 *     run's processes that still live keep the old one, and a restart that fails leaves it as it was.
 *  3. A file without a name that other ranks may have, too, is no memfd, but such a new file, which is deleted at the
 *     commit. All of these ranks write the same content into it.
 */
#define _GNU_SOURCE
#include "memory_files.h"
#include "base/reason.h"
#include "children.h"
#include "isolate/fdguard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <manapy/boundary.h>
#include <manapy/fnv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { FILES_MAX = 1024 };

static const char posix_memory[] = "/dev/shm/";

bool mpy_memory_file_is_posix(const char *path)
{
    return !strncmp(path, posix_memory, sizeof posix_memory - 1);
}

bool mpy_memory_file_find(uint64_t device, uint64_t inode, char *path, size_t n)
{
    struct stat st;
    bool found = false;
    DIR *dir = stat(posix_memory, &st) == 0 && st.st_dev == device ? opendir(posix_memory) : NULL;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        found = entry->d_ino == inode;
        snprintf(path, n, "%s%s", posix_memory, entry->d_name);
    }
    if (dir)
        closedir(dir);
    return found;
}

/* ---- mappings of files without a name ---- */

static bool has_no_name(const char *path)
{
    static const char deleted[] = " (deleted)";
    size_t n = strlen(path), tail = sizeof deleted - 1;
    return n > tail && !strcmp(path + n - tail, deleted);
}

static bool is_system_v(const char *path)
{
    return !strncmp(path, "/SYSV", 5);
}

uint64_t mpy_memory_file_inode(const char *path, uint64_t inode)
{
    return is_system_v(path) ? inode | 1ul << 63 : inode;
}

/* Only forks have shared anonymous memory and memfds. Of other deleted files that are mapped nobody knows who has them;
 * they are taken for the rank's own. */
static bool can_be_of_ranks(const char *path)
{
    return MPY_LOWER->size > 1 && (is_system_v(path) || mpy_memory_file_is_posix(path));
}

typedef struct mapping {
    uint64_t device, inode, lo, hi, offset;
    bool reads, can_be_of_ranks;
} mapping_t;

/* A line of /proc/PID/maps. False if it is not a shared mapping of a file without a name. */
static bool parse(char *line, mapping_t *m)
{
    unsigned long inode;
    unsigned major, minor;
    char perms[5];
    int path = 0;
    line[strcspn(line, "\n")] = 0;
    if (!has_no_name(line) ||
        sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %n", &m->lo, &m->hi, perms, &m->offset, &major, &minor, &inode,
               &path) != 7 ||
        perms[3] != 's')
        return false;
    m->device = makedev(major, minor);
    m->inode = mpy_memory_file_inode(line + path, inode);
    m->reads = perms[0] == 'r';
    m->can_be_of_ranks = can_be_of_ranks(line + path);
    return true;
}

static void each_mapping(int pid, void (*visit)(const mapping_t *m, bool own))
{
    char path[64], *line = NULL;
    size_t room = 0;
    mapping_t m;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    while (file && getline(&line, &room, file) > 0)
        if (parse(line, &m))
            visit(&m, pid == getpid());
    free(line);
    if (file)
        fclose(file);
}

/* ---- what other ranks have ---- */

/* As far as the last look around has found it. What is not here is new, and may be theirs. */
static struct { uint64_t device, inode; bool theirs; } around[FILES_MAX];
static size_t naround;

static size_t place_of(uint64_t device, uint64_t inode)
{
    size_t i = 0;
    while (i < naround && (around[i].device != device || around[i].inode != inode))
        i++;
    return i;
}

static void note_ours(const mapping_t *m, bool own)
{
    (void)own;
    size_t i = place_of(m->device, m->inode);
    if (!m->can_be_of_ranks || i < naround || naround == FILES_MAX)
        return;
    around[naround].device = m->device, around[naround].inode = m->inode;
    around[naround++].theirs = false;
}

static void note_theirs(const mapping_t *m, bool own)
{
    (void)own;
    size_t i = place_of(m->device, m->inode);
    if (i < naround)
        around[i].theirs = true;
}

static bool is_ours(int pid)
{
    bool found = pid == getpid();
    for (size_t i = 0; !found && mpy_children_saved(i); i++)
        found = mpy_children_saved(i) == pid;
    return found;
}

static void each_process_of_the_rank(void (*visit)(int pid))
{
    int pid = mpy_children_saved(0) ? mpy_children_saved(0) : getpid();
    for (size_t i = 1; pid; pid = mpy_children_saved(i++))
        visit(pid);
}

static void note_process(int pid) { each_mapping(pid, note_ours); }

void mpy_memory_files_look_around(void)
{
    struct stat st;
    naround = 0;
    each_process_of_the_rank(note_process);
    DIR *dir = naround ? opendir("/proc") : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int pid = atoi(entry->d_name);
        if (pid > 0 && !is_ours(pid) && fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && st.st_uid == geteuid())
            each_mapping(pid, note_theirs);
    }
    if (dir)
        closedir(dir);
}

/* ---- who uses which file without a name ---- */

typedef struct use {
    uint64_t device, inode;
    uint64_t from, bytes; /* of this process's mapping that can be read; else 0, 0 */
    bool by_ranks;        /* other ranks can have it */
} use_t;

static use_t *uses;
static size_t nuses, uses_room;

static void note(use_t use)
{
    if (nuses == uses_room) {
        size_t room = uses_room ? 2 * uses_room : 64;
        use_t *more = realloc(uses, room * sizeof *more);
        if (!more)
            return;
        uses = more;
        uses_room = room;
    }
    uses[nuses++] = use;
}

static void note_use(const mapping_t *m, bool own)
{
    size_t i = place_of(m->device, m->inode);
    if (m->lo >= MPY_HEAP_LO && m->hi <= MPY_ARENA_HI)
        note((use_t){.device = m->device,
                     .inode = m->inode,
                     .from = m->offset,
                     .bytes = own && m->reads ? m->hi - m->lo : 0,
                     .by_ranks = m->can_be_of_ranks && (i == naround || around[i].theirs)});
}

static void note_descriptors(int pid)
{
    char path[64 + sizeof((struct dirent *)0)->d_name], link[PATH_MAX + 64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, entry->d_name);
        ssize_t length = readlink(path, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        if (has_no_name(link) && !(pid == getpid() && mpy_fd_is_lower(atoi(entry->d_name))) && !stat(path, &st))
            note((use_t){.device = st.st_dev, .inode = st.st_ino});
    }
    if (dir)
        closedir(dir);
}

static void note_all_of(int pid)
{
    each_mapping(pid, note_use);
    note_descriptors(pid);
}

void mpy_memory_files_look(void)
{
    nuses = 0;
    each_process_of_the_rank(note_all_of);
}

mpy_sharing_t mpy_memory_file_sharing(uint64_t device, uint64_t inode)
{
    int found = 0;
    for (const use_t *u = uses; u < uses + nuses; u++) {
        if (u->device != device || u->inode != inode)
            continue;
        if (u->by_ranks)
            return MPY_SHARED_BY_RANKS;
        found++;
    }
    return found > 1 ? MPY_SHARED_IN_RANK : MPY_UNSHARED;
}

bool mpy_memory_file_is_mapped(uint64_t device, uint64_t inode, uint64_t bytes)
{
    for (const use_t *u = uses; u < uses + nuses; u++)
        if (u->device == device && u->inode == inode && u->from == 0 && u->bytes > 0 && u->bytes >= bytes)
            return true;
    return false;
}

/* ---- restart: files without a name ---- */

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
    } files[FILES_MAX];
} *table; /* all processes of the tree have it */

void mpy_memory_files_share(void)
{
    pthread_mutexattr_t attributes;
    void *p = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table || p == MAP_FAILED)
        return;
    table = p;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&table->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static int lock(char *err, size_t n)
{
    mpy_memory_files_share();
    if (!table)
        return mpy_reason(err, n, "no memory for a restart");
    if (pthread_mutex_lock(&table->lock) == 0)
        return 0;
    return mpy_reason(err, n, "another process of the rank has ended during the restart");
}

static struct made *find(uint64_t device, uint64_t inode)
{
    for (struct made *f = table->files; f < table->files + table->n; f++)
        if (f->device == device && f->inode == inode)
            return f;
    return NULL;
}

static uint64_t attempt, host_hash;

void mpy_memory_files_begin(uint64_t number, const char *host)
{
    attempt = number;
    host_hash = mpy_fnv1a(host, strlen(host));
}

typedef char name_t[64];

/* A file that only this restart knows, of which `a` and `b` say what it stands for. */
static const char *name_now(name_t name, uint64_t a, uint64_t b)
{
    snprintf(name, sizeof(name_t), "%s.manapy-%016lx", posix_memory, (unsigned long)mpy_fnv1a_words(attempt, a, b));
    return name;
}

static const char *name_of(name_t name, const struct made *f)
{
    return name_now(name, mpy_fnv1a_words(host_hash, f->device, f->inode), 0);
}

/* Another rank may have made it. */
static int open_new(const char *name)
{
    struct stat st;
    int fd = mpy_fd_high(open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd < 0 || (fstat(fd, &st) == 0 && st.st_uid == geteuid()))
        return fd;
    mpy_fd_close(fd);
    errno = EPERM;
    return -1;
}

static void remove_made(void)
{
    name_t name;
    for (struct made *f = table ? table->files : NULL; f && f < table->files + table->n; f++)
        if (f->of_ranks && f->pid == getpid())
            unlink(name_of(name, f));
}

static struct made *make(uint64_t device, uint64_t inode, bool of_ranks)
{
    struct made f = {.device = device, .inode = inode, .pid = getpid(), .of_ranks = of_ranks};
    name_t name;
    if (table->n == FILES_MAX)
        return NULL;
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
    return &table->files[table->n++];
}

static int grow(int fd, uint64_t bytes)
{
    struct stat st;
    return fstat(fd, &st) || ((uint64_t)st.st_size < bytes && ftruncate(fd, (off_t)bytes)) ? -1 : 0;
}

int mpy_memory_file_open(uint64_t device, uint64_t inode, uint64_t bytes, mpy_sharing_t sharing, char *err, size_t n)
{
    char path[64];
    int fd = -1;
    if (lock(err, n))
        return -1;
    struct made *f = find(device, inode);
    if (!f)
        f = make(device, inode, sharing == MPY_SHARED_BY_RANKS);
    if (f) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", f->pid, f->fd);
        fd = mpy_fd_high(open(path, O_RDWR | O_CLOEXEC));
    }
    if (fd < 0 || grow(fd, bytes))
        mpy_reason(err, n, "can't make shared memory without a file again: %s", f ? strerror(errno) : "too many");
    pthread_mutex_unlock(&table->lock);
    return fd;
}

int mpy_memory_file_end_as(uint64_t device, uint64_t inode, uint64_t bytes, int seals, char *err, size_t n)
{
    if (lock(err, n))
        return -1;
    struct made *f = find(device, inode);
    if (f)
        f->ends = true, f->bytes = bytes, f->seals = seals;
    pthread_mutex_unlock(&table->lock);
    return 0;
}

/* Only those that this process has made. */
static void settle_made(void)
{
    for (struct made *f = table ? table->files : NULL; f && f < table->files + table->n; f++) {
        if (f->pid != getpid())
            continue;
        if (f->ends && ftruncate(f->fd, (off_t)f->bytes) == 0 && f->seals)
            fcntl(f->fd, F_ADD_SEALS, f->seals);
        mpy_fd_close(f->fd);
    }
    remove_made();
}

/* ---- restart: POSIX shared memory ---- */

typedef struct named {
    char *path;
    name_t now;
    struct named *next;
} named_t;

static named_t *named;

static void remove_new_files(void)
{
    for (named_t *f = named; f; f = f->next)
        unlink(f->now);
}

static named_t *name_for(const char *path)
{
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

const char *mpy_memory_file_now(const char *path)
{
    for (const named_t *f = named; f; f = f->next)
        if (!strcmp(f->path, path))
            return f->now;
    return path;
}

int mpy_memory_file_open_posix(const char *path, uint64_t bytes, char *err, size_t n)
{
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
    mpy_reason(err, n, "can't make %s again: %s", path, strerror(errno));
    if (fd >= 0)
        mpy_fd_close(fd);
    return -1;
}

int mpy_memory_files_commit(char *err, size_t n)
{
    int bad = 0;
    settle_made();
    while (named) {
        named_t *f = named;
        if (rename(f->now, f->path) && errno != ENOENT) /* another process has done it */
            bad = mpy_reason(err, n, "can't make %s again: %s", f->path, strerror(errno));
        named = f->next;
        free(f->path);
        free(f);
    }
    return bad;
}
