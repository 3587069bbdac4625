/* preload.c - libraries of LD_PRELOAD that are linked to an MPI, such as profiling libraries.
 *
 * Half: lower, first of all; libc may be called.
 *
 * They are for the program. But the dynamic linker loads them into manapy-launch, too, and with them the library that
 * they are linked to. There its symbols come before those of the real MPI, which is loaded later: if the two are
 * different libraries (libmpi_abi.so.1 and libmpi.so.12 of MPICH have the same internal names), the real library calls
 * functions of the other one. So the command starts itself again without LD_PRELOAD. The list for the program is in
 * another variable meanwhile, which the program does not get.
 */
#include "preload.h"
#include "lower.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DYNAMIC_LINKERS "LD_PRELOAD"
#define KEPT "MANAPY_LD_PRELOAD"

static const char *value_of(const char *entry, const char *name) {
    size_t n = strlen(name);
    return strncmp(entry, name, n) || entry[n] != '=' ? NULL : entry + n + 1;
}

const char *mpy_preload_of_program(const char *entry) {
    const char *list = value_of(entry, KEPT);
    return list ? list : value_of(entry, DYNAMIC_LINKERS);
}

void mpy_preload_leave(char **argv) {
    const char *list = getenv(DYNAMIC_LINKERS);
    if (!list || !dlsym(RTLD_DEFAULT, "MPI_Init")) return;
    if (setenv(KEPT, list, 1) || unsetenv(DYNAMIC_LINKERS)) mpy_fail(1, "out of memory");
    execv(mpy_self_path(), argv);
    mpy_fail(1, "%s: %s", mpy_self_path(), strerror(errno));
}
