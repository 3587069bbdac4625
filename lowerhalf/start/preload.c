/* preload.c - libraries of LD_PRELOAD that are linked to an MPI, such as profiling libraries.
 *
 * Half: lower, first of all; libc may be called.
 *
 * They are for the program. But the dynamic linker loads them into manapy-launch, too, and with them the library that
 * they are linked to. There its symbols come before those of the real MPI, which is loaded later: if the two are
 * different libraries (libmpi_abi.so.1 and libmpi.so.12 of MPICH have the same internal names), the real one calls into
 * the other one. So the command starts itself again without LD_PRELOAD. The list for the program is in another variable
 * meanwhile, which the program does not get.
 */
#include "preload.h"
#include "base/rank.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DYNAMIC_LINKERS "LD_PRELOAD="
#define OURS "MANAPY_LD_PRELOAD="

static const char *value_of(const char *entry, const char *name) {
    return strncmp(entry, name, strlen(name)) ? NULL : entry + strlen(name);
}

const char *mpy_preload_of_program(const char *entry) {
    const char *list = value_of(entry, OURS);
    return list ? list : value_of(entry, DYNAMIC_LINKERS);
}

void mpy_preload_leave(char **argv, char **env) {
    if (!dlsym(RTLD_DEFAULT, "MPI_Init")) return;
    for (; *env; env++) {
        const char *list = value_of(*env, DYNAMIC_LINKERS);
        if (!list) continue;
        char path[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
        if (n < 0) mpy_fail(1, "/proc/self/exe: %s", strerror(errno));
        path[n] = 0;
        if (setenv("MANAPY_LD_PRELOAD", list, 1) || unsetenv("LD_PRELOAD")) mpy_fail(1, "out of memory");
        execv(path, argv);
        mpy_fail(1, "%s: %s", path, strerror(errno));
    }
}
