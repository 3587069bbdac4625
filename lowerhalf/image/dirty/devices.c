/* devices.c - devices that write to the memory of this process.
 *
 * Half: lower; libc may be called.
 *
 * Invariants
 *  1. The kernel marks a page as written when a device pins it, not when the device writes to it later. So the kernel
 *     is not asked while the process has such a device open, and pages that it has pinned stay marked.
 */
#include "dirty.h"
#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Terminals and such as /dev/null do not write to memory by themselves. */
static int is_harmless(dev_t device) {
    enum { MEMORY = 1, SERIAL = 4, CONSOLE = 5, TERMINAL = 136, TERMINAL_LAST = 143 };
    const unsigned kind = major(device);
    return kind == MEMORY || kind == SERIAL || kind == CONSOLE || (kind >= TERMINAL && kind <= TERMINAL_LAST);
}

int mpy_dirty_has_device(void) {
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    struct stat st;
    int found = directory == NULL;
    while (!found && (entry = readdir(directory)) != NULL)
        found = fstatat(dirfd(directory), entry->d_name, &st, 0) == 0 && S_ISCHR(st.st_mode) &&
                !is_harmless(st.st_rdev);
    if (directory) closedir(directory);
    return found;
}
