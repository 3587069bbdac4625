/* free_memory.c - is there memory for a copy of the ranks of this host? Both the host and the job's share of it count:
 * memory cgroups, of version 1 or 2 (cgroups(7)), with their limits at every level.
 *
 * Half: lower; libc may be called.
 *
 * Invariants
 *  1. A limit that can't be read does not count. If the host's own free memory can't be read, the answer is no.
 *  2. Pages of files that the kernel can drop count as free.
 *  3. A deleted file that is mapped as shared memory may be copied as a whole. If it is on a disk or has huge pages, it
 *     is not in what the kernel says of the process.
 */
#include "free_memory.h"
#include "maps.h"
#include "shmem.h"
#include "text.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* -1: there is none. */
static long number(const char *path, const char *name) {
    uint64_t value = 0;
    return mpy_proc_number(path, name, 10, &value) && value <= LONG_MAX ? (long)value : -1;
}

/* ---- cgroups ---- */

typedef struct version {
    const char *mounts[2]; /* places of the whole tree; the second: on systems that have both versions */
    const char *limit, *used, *droppable;
} version_t;

static const version_t versions[] = {
    {{"/sys/fs/cgroup/memory", NULL}, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
    {{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, "memory.max", "memory.current", "inactive_file "},
};

/* The cgroup of this process, from a line such as 4:cpu,memory:/slurm/job_1 (version 1) or 0::/job_1 (version 2). */
static const version_t *cgroup_of(char *line, char **path) {
    char *controllers = strchr(line, ':'), *rest = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!rest) return NULL;
    *rest = 0;
    *path = rest + 1;
    (*path)[strcspn(*path, "\n")] = 0;
    if (!strcmp(line, "0:")) return &versions[1];
    for (char *save, *one = strtok_r(controllers + 1, ",", &save); one; one = strtok_r(NULL, ",", &save))
        if (!strcmp(one, "memory")) return &versions[0];
    return NULL;
}

/* What one cgroup may still use, in kB; LONG_MAX if it has no limit. */
static long room_in(const version_t *v, const char *mount, const char *path) {
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s%s/%s", mount, path, v->limit);
    long limit = number(file, "");
    snprintf(file, sizeof file, "%s%s/%s", mount, path, v->used);
    long used = number(file, "");
    snprintf(file, sizeof file, "%s%s/memory.stat", mount, path);
    long droppable = number(file, v->droppable);
    if (limit < 0 || used < 0) return LONG_MAX;
    return (limit - used + (droppable > 0 ? droppable : 0)) / 1024;
}

/* The same for a cgroup and all above it. Changes the path. */
static long room_along(const version_t *v, char *path) {
    long room = LONG_MAX;
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = 0;
        for (int i = 0; i < 2 && v->mounts[i]; i++) {
            long here = room_in(v, v->mounts[i], path);
            if (here < room) room = here;
        }
    }
    return room;
}

static long room_in_cgroups(void) {
    char line[PATH_MAX + 256], *path;
    long room = LONG_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        const version_t *v = cgroup_of(line, &path);
        long here = v ? room_along(v, path) : LONG_MAX;
        if (here < room) room = here;
    }
    if (f) fclose(f);
    return room;
}

/* Invariant 3, in kB. */
static long deleted_files(void) {
    const mpy_shmem_t shmem = mpy_shmem_look();
    uint64_t bytes = 0;
    mpy_proc_maps_t maps = mpy_proc_maps_open(0);
    for (mpy_proc_map_t m; mpy_proc_maps_next(&maps, &m) > 0;)
        if (m.perms[3] == 's' && m.deleted && !mpy_shmem_has(&shmem, m.device)) bytes += m.hi - m.lo;
    mpy_proc_maps_close(&maps);
    return (long)(bytes / 1024);
}

const char *mpy_memory_lacking(int ranks) {
    long own = number("/proc/self/status", "RssAnon:"), mapped = number("/proc/self/status", "RssShmem:");
    long wanted = (own + mapped + deleted_files()) * ranks;
    if (own < 0 || mapped < 0 || wanted > number("/proc/meminfo", "MemAvailable:"))
        return "the host has too little free memory for a copy";
    return wanted > room_in_cgroups() ? "the job's memory cgroup has too little room for a copy" : NULL;
}
