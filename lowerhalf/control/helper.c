/* helper.c - the command `manapy` as a process beside a rank: the coordinator, `manapy _step`. Lower half; libc; still one thread.
 *
 * Invariants
 *  1. A helper gets none of the rank's descriptors but those that it is given, and isn't taken for a rank by the process manager.
 */
#define _GNU_SOURCE
#include "helper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 8, ABOVE = 16 /* those that dup2 overwrites */ };

bool mpy_helper_path(char out[PATH_MAX], char *error, size_t n) {
    const char *given = getenv("MANAPY_COORDINATOR"); /* for running from a build tree */
    if (given != NULL) {
        snprintf(out, PATH_MAX, "%s", given);
    } else {
        ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 8);
        if (length <= 0) return snprintf(error, n, "/proc/self/exe: %s", strerror(errno)), false;
        out[length] = '\0';
        strcpy(strrchr(out, '/') + 1, "manapy");
    }
    if (access(out, X_OK) == 0) return true;
    snprintf(error, n, "cannot start the coordinator %s: %s (is manapy installed completely?)", out, strerror(errno));
    return false;
}

void mpy_helper_become(char *const argv[], const int *descriptors, int count) {
    int moved[DESCRIPTORS_MAX];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; i < count; i++) moved[i] = fcntl(descriptors[i], F_DUPFD_CLOEXEC, ABOVE);
    for (int i = 0; i < count; i++) syscall(SYS_dup2, moved[i], i); /* not libc's: it is interposed */
    close_range((unsigned)count, ~0u, 0);
    unsetenv("PMI_FD");
    execv(argv[0], argv);
    dprintf(2, "cannot execute %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}
