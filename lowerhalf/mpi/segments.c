/* segments.c - the files in /dev/shm that the real MPI has mapped. They stay when a rank is killed; then the
 * coordinator removes them.
 *
 * Half: lower; the control thread calls it.
 */
#include "base/proc/maps.h"
#include "isolate/fdguard.h"
#include "isolate/trapstate.h"
#include "load.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void mpy_mpi_segments(char *out, size_t n) {
    size_t used = 0;
    mpy_fds_low_lock(); /* the control thread also calls this while a restart is moving descriptors into place */
    mpy_proc_maps_t maps = mpy_proc_maps_open(0);
    for (mpy_proc_map_t m; mpy_proc_maps_next(&maps, &m) > 0;) {
        const char *path = strstr(m.path, "/dev/shm/");
        /* mappings of the program are not MPI's */
        if (!path || m.deleted || mpy_in_upper(m.lo)) continue;
        if (strpbrk(path, ", %") || used + strlen(path) + 2 > n) continue;
        used += (size_t)snprintf(out + used, n - used, "%s%s", used ? "," : "", path);
    }
    mpy_proc_maps_close(&maps);
    mpy_fds_low_unlock();
    if (!used) snprintf(out, n, "-");
}
