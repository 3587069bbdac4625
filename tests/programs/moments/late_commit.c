/* late_commit.c - a library to be preloaded: while the file exists that LATE_COMMIT names, a restart cannot give its
 * new files of POSIX shared memory their names, which is among the last things that it does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
    const char *late = getenv("LATE_COMMIT");
    while (strstr(from, "/.manapy-") && late && access(late, F_OK) == 0) usleep(1000);
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
