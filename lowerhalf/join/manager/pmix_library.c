/* pmix_library.c - finds and opens the real libpmix. Lower half, in the process that speaks PMIx (pmix_agent.c); libc.
 *
 * Order of search: MANAPY_LIBPMIX; the file that the nearest ancestor has mapped: mpirun is the server, and client and
 * server work best with the same version; what the dynamic linker finds as libpmix.so.2.
 *
 * Invariants
 *  1. If MANAPY_LIBPMIX names a file, no other one is tried.
 *  2. An open library has all functions.
 */
#define _GNU_SOURCE
#include "pmix_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <manapy/proc_stat.h>

#include "base/proc/maps.h"
#include "base/reason.h"

#define SONAME "libpmix.so.2"

/* The file that a process has mapped as its libpmix. */
static bool mapped_by(long pid, char out[PATH_MAX]) {
    bool found = false;
    mpy_proc_maps_t maps = mpy_proc_maps_open((int)pid); /* refused for processes of others: Slurm's are root's */
    for (mpy_proc_map_t m; !found && mpy_proc_maps_next(&maps, &m) > 0;) {
        const char *base = strrchr(m.path, '/');
        found = base != NULL && strncmp(base, "/libpmix.so", 11) == 0 && !m.deleted && access(m.path, R_OK) == 0;
        if (found) snprintf(out, PATH_MAX, "%s", m.path);
    }
    mpy_proc_maps_close(&maps);
    return found;
}

static bool mapped_by_ancestor(char out[PATH_MAX]) {
    mpy_proc_stat_t stat;
    for (long pid = getppid(); pid > 1; pid = stat.parent) {
        if (mapped_by(pid, out)) return true;
        if (mpy_proc_stat(pid, &stat) != 0) return false;
    }
    return false;
}

static void *open_any(char path[PATH_MAX]) {
    const char *given = getenv("MANAPY_LIBPMIX");
    if (given != NULL && given[0] != '\0') {
        snprintf(path, PATH_MAX, "%s", given);
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    void *library = mapped_by_ancestor(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library != NULL) return library;
    strcpy(path, SONAME);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

bool mpy_pmix_library_open(mpy_pmix_library_t *l, char *error, size_t n) {
    void *library = open_any(l->path);
    if (library == NULL)
        return mpy_refuse(error, n, "libpmix cannot be loaded: %s (install it, or name it with MANAPY_LIBPMIX)",
                          dlerror());
    const struct { const char *name; void **function; } wanted[] = {
        {"PMIx_Init", (void **)&l->init},     {"PMIx_Finalize", (void **)&l->finalize},
        {"PMIx_Put", (void **)&l->put},       {"PMIx_Commit", (void **)&l->commit},
        {"PMIx_Fence", (void **)&l->fence},   {"PMIx_Get", (void **)&l->get},
        {"PMIx_Abort", (void **)&l->abort},   {"PMIx_Error_string", (void **)&l->error_string}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].function = dlsym(library, wanted[i].name);
        if (*wanted[i].function == NULL)
            return mpy_refuse(error, n, "%s is no usable libpmix: it has no %s (name another one with MANAPY_LIBPMIX)",
                              l->path, wanted[i].name);
    }
    return true;
}
