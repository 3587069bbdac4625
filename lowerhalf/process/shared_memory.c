/* shared_memory.c - memory without a file that several processes of a rank's tree share: shared anonymous memory,
 * memfds, deleted files (the semaphores of Python's multiprocessing, for example).
 *
 * Lower half; libc allowed.
 *
 * After a restart such memory lies in one file, which all processes of the tree have. Each process writes the memory
 * into its image, and each puts it back.
 *
 * Invariants
 *  1. The place of memory in that file is given by the first process of the tree that maps it, and the address there.
 *     So no two pages have the same place, and all processes find the same place for a page.
 */
#define _GNU_SOURCE
#include "shared_memory.h"
#include "base/reason.h"
#include "children.h"

#include <manapy/boundary.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { ADDRESS_BITS = 44, SIZE_BITS = 52 }; /* of the arena; of the file, which is sparse */
_Static_assert(MPY_ARENA_HI - MPY_ARENA_LO <= 1ul << ADDRESS_BITS, "addresses do not fit");

typedef struct found {
    int maps;      /* the process maps a part of the memory */
    int all;       /* one of its mappings has all of it, at: */
    uint64_t address;
} found_t;

static void look_at_line(const char *line, const mpy_shared_map_t *m, found_t *found)
{
    unsigned long lo, hi, offset, inode;
    unsigned major, minor;
    char perms[5];
    if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu", &lo, &hi, perms, &offset, &major, &minor, &inode) != 7)
        return;
    if (inode != m->inode || makedev(major, minor) != m->device || perms[3] != 's' || lo < MPY_HEAP_LO ||
        hi > MPY_ARENA_HI || offset >= m->offset + m->bytes || m->offset >= offset + (hi - lo))
        return;
    found->maps = 1;
    if (offset > m->offset || m->offset + m->bytes > offset + (hi - lo))
        return;
    found->all = 1;
    found->address = lo + (m->offset - offset);
}

static found_t look_at(int pid, const mpy_shared_map_t *m)
{
    char path[64], *line = NULL;
    size_t room = 0;
    found_t found = {0};
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    while (file && !found.all && getline(&line, &room, file) > 0)
        look_at_line(line, m, &found);
    free(line);
    if (file)
        fclose(file);
    return found;
}

int mpy_shared_memory_place(const mpy_shared_map_t *m, uint64_t *place, char *err, size_t n)
{
    int first = -1, pid, other = 0;
    found_t at = {0};
    for (int i = 0; (pid = mpy_children_saved((size_t)i)); i++) {
        found_t found = look_at(pid, m);
        if (found.maps && pid != getpid())
            other = pid;
        if (found.maps && first < 0)
            first = i, at = found;
    }
    if (!other)
        return 0;
    if (!at.all)
        return mpy_reason(err, n, "process %d shares memory without a file with its relative, process %d, but maps "
                          "another part of it; unmap it before the checkpoint", getpid(), other);
    *place = ((uint64_t)first << ADDRESS_BITS) + (at.address - MPY_ARENA_LO);
    return 1;
}

int mpy_shared_memory_make(void)
{
    int fd = memfd_create("manapy-tree", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, 1l << SIZE_BITS)) {
        close(fd);
        return -1;
    }
    return fd;
}
