/* maps.h - reads the mappings of a process: /proc/PID/maps (proc(5)). Header only; libc.
 *
 *     mpy_proc_maps_t maps = mpy_proc_maps_open(0);
 *     for (mpy_proc_map_t m; mpy_proc_maps_next(&maps, &m) > 0;) ...
 *     mpy_proc_maps_close(&maps);
 */
#ifndef MANAPY_PROC_MAPS_H
#define MANAPY_PROC_MAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "deleted.h"

typedef struct mpy_proc_map {
    uint64_t lo, hi, offset, device, inode;
    char perms[5]; /* "r-xp"; 's' at the end: shared */
    bool deleted;  /* the file */
    char *path;    /* as the kernel writes it (newlines: \012), also "[heap]" and "", until the next line is read */
} mpy_proc_map_t;

typedef struct mpy_proc_maps {
    FILE *file; /* NULL: it can't be read (errno) */
    char *line;
    size_t room;
} mpy_proc_maps_t;

/* pid 0: this process. */
static inline mpy_proc_maps_t mpy_proc_maps_open(int pid) {
    char path[48] = "/proc/self/maps";
    if (pid) snprintf(path, sizeof path, "/proc/%d/maps", pid);
    return (mpy_proc_maps_t){.file = fopen(path, "re")};
}

/* Returns 1, 0 after the last mapping, or -1 if the line can't be understood. */
static inline int mpy_proc_maps_next(mpy_proc_maps_t *maps, mpy_proc_map_t *m) {
    unsigned long lo, hi, offset, inode;
    unsigned major, minor;
    int at = 0;
    *m = (mpy_proc_map_t){.path = NULL};
    if (!maps->file || getline(&maps->line, &maps->room, maps->file) <= 0) return 0;
    if (sscanf(maps->line, "%lx-%lx %4s %lx %x:%x %lu %n", &lo, &hi, m->perms, &offset, &major, &minor, &inode,
               &at) < 7)
        return -1;
    m->lo = lo, m->hi = hi, m->offset = offset, m->device = makedev(major, minor), m->inode = inode;
    m->path = maps->line + at;
    m->path[strcspn(m->path, "\n")] = 0;
    char *mark = mpy_deleted_mark(m->path);
    /* shared memory without a file may have a name instead of the mark (PR_SET_VMA_ANON_NAME) */
    m->deleted = mark != NULL || !strncmp(m->path, "[anon_shmem:", 12);
    if (mark) *mark = 0;
    return 1;
}

static inline void mpy_proc_maps_close(mpy_proc_maps_t *maps) {
    if (maps->file) fclose(maps->file);
    free(maps->line);
    *maps = (mpy_proc_maps_t){.file = NULL};
}

#endif
