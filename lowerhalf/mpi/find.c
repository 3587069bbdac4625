/* find.c - finds the real MPI's library.
 *
 * Half: lower.
 *
 * Order of search: --mpi, MANAPY_LIBMPI, the prefix of the mpirun that started us, the prefix in which manapy is
 * installed, those of the mpiruns on PATH (for srun, which has no MPI beside it); for Open MPI then the dynamic
 * linker's. The launcher decides which family is looked for: a library of another family would not find the other
 * ranks. The standard ABI is used only if there is no other library, because it costs a translation. `manapy doctor`
 * knows the same rules (manapy/mpi/_find.py).
 *
 * Invariant
 *  1. The answer does not change: the first library that was found is the one of this process.
 */
#include "base/rank.h"
#include "join/manager/pmi.h"
#include "load.h"
#include "parts.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <manapy/proc_exe.h>
#include <manapy/proc_stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char found[PATH_MAX];

static int try_file(const char *path) {
    if (access(path, R_OK)) return 0;
    return realpath(path, found) != NULL;
}

static int try_family(const char *prefix, mpy_family_t family) {
    static const char *const places[][7] = {
        [FAMILY_MPICH] = {"lib/libmpi.so.12", "lib64/libmpi.so.12", "lib/libmpich.so.12",
                          "lib/x86_64-linux-gnu/libmpich.so.12", "lib/x86_64-linux-gnu/libmpi.so.12",
                          "lib/release/libmpi.so.12"},
        [FAMILY_OPEN_MPI] = {"lib/libmpi.so.40", "lib64/libmpi.so.40", "lib/x86_64-linux-gnu/libmpi.so.40",
                             "lib64/openmpi/lib/libmpi.so.40"},
        [FAMILY_STANDARD] = {"lib/libmpi_abi.so.1", "lib64/libmpi_abi.so.1",
                             "lib/x86_64-linux-gnu/libmpi_abi.so.1"}};
    for (size_t i = 0; places[family][i]; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", prefix, places[family][i]);
        if (try_file(path)) return 1;
    }
    return 0;
}

/* The family that can find the other ranks. A library of the standard ABI may be of either kind. */
static mpy_family_t wanted_family(void) { return mpy_pmi_uses_pmix() ? FAMILY_OPEN_MPI : FAMILY_MPICH; }

static int try_wanted(const char *prefix) {
    return try_family(prefix, wanted_family()) || try_family(prefix, FAMILY_STANDARD);
}

static int try_prefix(const char *prefix) {
    return try_wanted(prefix) || try_family(prefix, FAMILY_MPICH) || try_family(prefix, FAMILY_OPEN_MPI);
}

static int try_any(const char *path) { /* path: a file, or a prefix */
    char inside[PATH_MAX];
    snprintf(inside, sizeof inside, "%s/.", path);
    return access(inside, X_OK) == 0 ? try_prefix(path) : try_file(path);
}

/* The nearest ancestor that is a process manager determines the prefix of the MPI. */
static int try_ancestors(void) {
    static const char *const managers[] = {"hydra_pmi_proxy", "mpiexec", "mpirun", "prterun",
                                           "prted",           "orted",   "orterun"};
    for (long pid = getppid(); pid > 1;) {
        char exe[PATH_MAX];
        if (mpy_proc_exe(pid, exe)) {
            char *name = strrchr(exe, '/');
            for (size_t i = 0; name && i < sizeof managers / sizeof *managers; i++)
                if (!strncmp(name + 1, managers[i], strlen(managers[i]))) {
                    *name = 0;
                    char *bin = strrchr(exe, '/');
                    if (bin) *bin = 0;
                    return try_wanted(exe[0] ? exe : "/");
                }
        }
        mpy_proc_stat_t stat;
        if (mpy_proc_stat(pid, &stat)) return 0;
        pid = stat.parent;
    }
    return 0;
}

static int try_own_prefix(void) {
    char prefix[PATH_MAX];
    snprintf(prefix, sizeof prefix, "%s", mpy_self_path());
    for (int i = 0; i < 2; i++) *strrchr(prefix, '/') = 0;
    return try_family(prefix, wanted_family());
}

/* The MPI whose mpirun or mpiexec is in a folder of PATH. A folder that is relative depends on where the job runs. */
static int try_path(mpy_family_t family) {
    const char *path = getenv("PATH"), *end;
    for (; path && *path; path = *end ? end + 1 : end) {
        end = strchrnul(path, ':');
        for (int i = 0; i < 2 && *path == '/'; i++) {
            char name[PATH_MAX + 16], file[PATH_MAX];
            snprintf(name, sizeof name, "%.*s/%s", (int)(end - path), path, i == 0 ? "mpirun" : "mpiexec");
            struct stat is;
            if (access(name, X_OK) || stat(name, &is) || !S_ISREG(is.st_mode) || !realpath(name, file)) continue;
            for (char *slash, up = 0; up < 2 && (slash = strrchr(file, '/')); up++) *slash = 0;
            if (try_family(file, family)) return 1;
        }
    }
    return 0;
}

/* What programs linked to Open MPI would get. */
static int try_linker(void) {
    struct link_map *map;
    void *library = wanted_family() == FAMILY_OPEN_MPI ? dlopen("libmpi.so.40", RTLD_LAZY | RTLD_LOCAL) : NULL;
    return library && !dlinfo(library, RTLD_DI_LINKMAP, &map) && try_file(map->l_name);
}

const char *mpy_mpi_path(void) {
    if (found[0]) return found;
    const char *env = getenv("MANAPY_LIBMPI");
    if (mpy_options.mpi) return try_any(mpy_options.mpi) ? found : NULL; /* exactly the requested one, or none */
    if (env && *env) return try_any(env) ? found : NULL;
    return try_ancestors() || try_own_prefix() || try_path(wanted_family()) || try_path(FAMILY_STANDARD) || try_linker()
               ? found
               : NULL;
}
