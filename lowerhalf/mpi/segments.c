/* segments.c - the files in /dev/shm that the real MPI has mapped. They stay when a rank is killed; then the
 * coordinator removes them.
 *
 * Half: lower; the control thread calls it.
 */
#include "isolate/fdguard.h"
#include "load.h"
#include <limits.h>
#include <manapy/boundary.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mpy_mpi_segments(char *out, size_t n) {
    char line[PATH_MAX + 128];
    size_t used = 0;
    mpy_fds_low_lock(); /* the control thread also calls this while a restart is moving descriptors into place */
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f)) {
        uint64_t lo = strtoul(line, NULL, 16);
        char *path = strstr(line, "/dev/shm/");
        /* mappings of the program are not MPI's */
        if (!path || strstr(path, " (deleted)") || (lo >= MPY_ARENA_LO && lo < MPY_ARENA_HI)) continue;
        path[strcspn(path, "\n")] = 0;
        if (strpbrk(path, ", %") || used + strlen(path) + 2 > n) continue;
        used += (size_t)snprintf(out + used, n - used, "%s%s", used ? "," : "", path);
    }
    if (f) fclose(f);
    mpy_fds_low_unlock();
    if (!used) snprintf(out, n, "-");
}
