/* devices.c - devices that write to the memory of this process.
 *
 * Half: lower; libc may be called.
 *
 * Invariants
 *  1. The kernel marks a page as written when a device pins it, not when the device writes to it later. So the kernel
 *     is not asked while the process has such a device open, and pages that it has pinned stay marked.
 */
#include "dirty.h"

#include "base/proc/fds.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Terminals and such as /dev/null do not write to memory by themselves. */
static int is_harmless(dev_t device) {
    enum { MEMORY = 1, SERIAL = 4, CONSOLE = 5, TERMINAL = 136, TERMINAL_LAST = 143 };
    const unsigned kind = major(device);
    return kind == MEMORY || kind == SERIAL || kind == CONSOLE || (kind >= TERMINAL && kind <= TERMINAL_LAST);
}

int mpy_dirty_has_device(void) {
    mpy_fd_list_t list = mpy_fd_list_open(0);
    struct stat st;
    int found = list.dir == NULL;
    for (int fd; !found && (fd = mpy_fd_list_next(&list)) >= 0;)
        found = fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && !is_harmless(st.st_rdev);
    mpy_fd_list_close(&list);
    return found;
}
