/* uses.c - finds at a checkpoint which processes use a file whose content is only in memory.
 *
 * Lower half; libc allowed.
 *
 * Invariants
 *  1. A process of the rank that uses such a file saves what it has mapped of it, or its descriptor's content. A file
 *     that is used once needs no more: its memory becomes new memory.
 *  2. CHECK reads /proc, while nothing has stopped, to find the files that another rank of the host uses. A file that
 *     is newer than this counts as shared.
 */
#define _GNU_SOURCE
#include "files.h"
#include "base/proc/deleted.h"
#include "base/proc/fds.h"
#include "base/proc/maps.h"
#include "base/reason.h"
#include "isolate/fdguard.h"
#include "isolate/trapstate.h"
#include "process/children.h"

#include <dirent.h>
#include <fcntl.h>
#include <manapy/boundary.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

bool mpy_memory_file_is_posix(const char *path) {
    return !strncmp(path, MPY_POSIX_MEMORY, sizeof MPY_POSIX_MEMORY - 1);
}

bool mpy_memory_file_find(uint64_t device, uint64_t inode, char *path, size_t n) {
    struct stat st;
    bool found = false;
    DIR *dir = stat(MPY_POSIX_MEMORY, &st) == 0 && st.st_dev == device ? opendir(MPY_POSIX_MEMORY) : NULL;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        found = entry->d_ino == inode;
        snprintf(path, n, "%s%s", MPY_POSIX_MEMORY, entry->d_name);
    }
    if (dir)
        closedir(dir);
    return found;
}

/* ---- mappings ---- */

static bool is_system_v(const char *path) {
    return !strncmp(path, "/SYSV", 5);
}

uint64_t mpy_memory_file_inode(const char *path, uint64_t inode) {
    return is_system_v(path) ? inode | 1ul << 63 : inode;
}

/* Only forks have shared anonymous memory and memfds. Of other deleted files that are mapped nobody knows who has them;
 * they are taken for the rank's own. */
static bool can_be_of_ranks(const char *path) {
    return MPY_LOWER->size > 1 && (is_system_v(path) || mpy_memory_file_is_posix(path));
}

typedef struct mapping {
    uint64_t device, inode, lo, hi, offset;
    bool own, reads, has_name, can_be_of_ranks; /* own: of this process */
} mapping_t;

/* The MPI library of the lower half shares memory with other ranks, too, but no image contains that. Below the arena
 * only the own process knows what the program has mapped. Of others all memory there counts: if it is the lower half's,
 * the own program does not have it. */
static bool is_of_the_program(const mapping_t *m) {
    if (m->lo < MPY_ARENA_LO)
        return !m->own || mpy_in_upper(m->lo);
    return m->lo >= MPY_HEAP_LO && m->hi <= MPY_ARENA_HI;
}

/* Visits the shared mappings of files whose content is only in memory. */
static void each_mapping(int pid, void (*visit)(const mapping_t *m)) {
    mpy_proc_maps_t maps = mpy_proc_maps_open(pid);
    for (mpy_proc_map_t m; mpy_proc_maps_next(&maps, &m) > 0;)
        if (m.perms[3] == 's' && (m.deleted || mpy_memory_file_is_posix(m.path)))
            visit(&(mapping_t){.device = m.device,
                               .inode = mpy_memory_file_inode(m.path, m.inode),
                               .lo = m.lo,
                               .hi = m.hi,
                               .offset = m.offset,
                               .own = pid == getpid(),
                               .reads = m.perms[0] == 'r',
                               .has_name = !m.deleted,
                               .can_be_of_ranks = can_be_of_ranks(m.path)});
    mpy_proc_maps_close(&maps);
}

/* ---- lists of files, found by what identifies them ---- */

typedef struct file_id {
    uint64_t device, inode;
} file_id_t;

/* Each item of a list starts with an file_id_t. */
static int by_id(const void *a, const void *b) {
    const file_id_t *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static void sort_by_id(void *items, size_t count, size_t size) {
    if (count)
        qsort(items, count, size, by_id);
}

/* Is there room for another item? */
static bool have_room(void **items, size_t count, size_t *room, size_t size) {
    if (count < *room)
        return true;
    size_t more = *room ? 2 * *room : 64;
    void *grown = realloc(*items, more * size);
    if (!grown)
        return false;
    *items = grown;
    *room = more;
    return true;
}

/* ---- what other ranks have ---- */

/* Files as the last look at /proc has found them. theirs: another rank uses the file. A file that is not here is new,
 * and another rank may use it. */
typedef struct seen {
    file_id_t id;
    bool theirs;
} seen_t;

static seen_t *around; /* ascending; a file that several mappings of ours show is there once */
static size_t naround, around_room;

static seen_t *find_seen(uint64_t device, uint64_t inode) {
    const file_id_t id = {device, inode};
    return naround ? bsearch(&id, around, naround, sizeof *around, by_id) : NULL;
}

static void note_ours(const mapping_t *m) {
    if (!m->can_be_of_ranks || !is_of_the_program(m))
        return;
    if (have_room((void **)&around, naround, &around_room, sizeof *around))
        around[naround++] = (seen_t){.id = {m->device, m->inode}};
}

static void sort_ours(void) {
    size_t kept = 0;
    sort_by_id(around, naround, sizeof *around);
    for (size_t i = 0; i < naround; i++)
        if (i == 0 || by_id(&around[i], &around[kept - 1]))
            around[kept++] = around[i];
    naround = kept;
}

static void note_theirs(const mapping_t *m) {
    seen_t *seen = find_seen(m->device, m->inode);
    if (seen)
        seen->theirs = true;
}

static bool is_ours(int pid) {
    size_t i = 0;
    while (mpy_rank_process(i) && mpy_rank_process(i) != pid)
        i++;
    return mpy_rank_process(i) == pid;
}

void mpy_memory_files_look_around(void) {
    struct stat st;
    naround = 0;
    for (size_t i = 0; mpy_rank_process(i); i++)
        each_mapping(mpy_rank_process(i), note_ours);
    sort_ours();
    DIR *dir = naround ? opendir("/proc") : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        int pid = atoi(entry->d_name);
        if (pid > 0 && !is_ours(pid) && fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && st.st_uid == geteuid())
            each_mapping(pid, note_theirs);
    }
    if (dir)
        closedir(dir);
}

bool mpy_memory_file_is_theirs(uint64_t device, uint64_t inode) {
    const seen_t *seen = find_seen(device, inode);
    return seen && seen->theirs;
}

/* ---- who uses which file without a name ---- */

typedef struct use {
    file_id_t id;
    uint64_t from, bytes; /* of this process's mapping that can be read; else 0, 0 */
    bool own;             /* of this process */
    bool by_ranks;        /* other ranks can have it */
} use_t;

static use_t *uses; /* ascending once the look has ended */
static size_t nuses, uses_room;

static void note(use_t use) {
    if (have_room((void **)&uses, nuses, &uses_room, sizeof *uses))
        uses[nuses++] = use;
}

static void note_use(const mapping_t *m) {
    const seen_t *seen = find_seen(m->device, m->inode);
    if (!m->has_name && is_of_the_program(m))
        note((use_t){.id = {m->device, m->inode},
                     .from = m->offset,
                     .bytes = m->own && m->reads ? m->hi - m->lo : 0,
                     .own = m->own,
                     .by_ranks = m->can_be_of_ranks && (!seen || seen->theirs)});
}

static void note_descriptors(int pid) {
    char path[MPY_FD_PATH], link[PATH_MAX + 64];
    struct stat st;
    mpy_fd_list_t list = mpy_fd_list_open(pid);
    for (int fd; (fd = mpy_fd_list_next(&list)) >= 0;) {
        mpy_fd_path(path, pid, fd);
        ssize_t length = readlink(path, link, sizeof link - 1);
        link[length > 0 ? length : 0] = 0;
        if (mpy_deleted_mark(link) && !(pid == getpid() && mpy_fd_is_lower(fd)) && !stat(path, &st))
            note((use_t){.id = {st.st_dev, st.st_ino}, .own = pid == getpid()});
    }
    mpy_fd_list_close(&list);
}

void mpy_memory_files_look(void) {
    nuses = 0;
    for (size_t i = 0; mpy_rank_process(i); i++) {
        each_mapping(mpy_rank_process(i), note_use);
        note_descriptors(mpy_rank_process(i));
    }
    sort_by_id(uses, nuses, sizeof *uses);
}

static bool is_use_of(const use_t *u, file_id_t id) {
    return u < uses + nuses && by_id(u, &id) == 0;
}

static const use_t *first_use(file_id_t id) {
    size_t lo = 0, hi = nuses;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        if (by_id(&uses[middle], &id) < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return uses + lo;
}

mpy_sharing_t mpy_memory_file_sharing(uint64_t device, uint64_t inode) {
    const file_id_t id = {device, inode};
    int found = 0;
    for (const use_t *u = first_use(id); is_use_of(u, id); u++) {
        if (u->by_ranks)
            return MPY_SHARED_BY_RANKS;
        found++;
    }
    return found > 1 ? MPY_SHARED_IN_RANK : MPY_UNSHARED;
}

bool mpy_memory_file_is_mapped(uint64_t device, uint64_t inode, uint64_t bytes) {
    const file_id_t id = {device, inode};
    for (const use_t *u = first_use(id); is_use_of(u, id); u++)
        if (u->from == 0 && u->bytes > 0 && u->bytes >= bytes)
            return true;
    return false;
}

static size_t count_descriptors(void) {
    size_t count = 0;
    mpy_fd_list_t list = mpy_fd_list_open(getpid());
    while (mpy_fd_list_next(&list) >= 0)
        count++;
    mpy_fd_list_close(&list);
    return count;
}

int mpy_memory_files_check(char *err, size_t n) {
    struct rlimit limit;
    size_t all = 0, ours = 0;
    for (const use_t *u = uses, *next; u < uses + nuses; u = next) {
        bool own = false;
        for (next = u; is_use_of(next, u->id); next++)
            own = own || next->own;
        if (mpy_memory_file_sharing(u->id.device, u->id.inode) == MPY_UNSHARED)
            continue;
        all++;
        ours += own;
    }
    if (all > MPY_MEMORY_FILES_MAX)
        return mpy_reason(err, n, "the program shares memory in %zu files without a name; a restart can recreate %d",
                          all, MPY_MEMORY_FILES_MAX);
    const size_t need = ours ? ours + count_descriptors() : 0;
    if (ours && getrlimit(RLIMIT_NOFILE, &limit) == 0 && need > limit.rlim_max)
        return mpy_reason(err, n,
                          "the program shares memory in %zu files without a name; a restart needs %zu descriptors for "
                          "them and its own, and the limit (ulimit -Hn) is %lu",
                          ours, need, (unsigned long)limit.rlim_max);
    return 0;
}
