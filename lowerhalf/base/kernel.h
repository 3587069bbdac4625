/* kernel.h - the version of the kernel. Header only; libc. */
#ifndef MANAPY_KERNEL_H
#define MANAPY_KERNEL_H

#include <stdio.h>
#include <sys/utsname.h>

/* The version as one number that can be compared: MPY_KERNEL(5, 12) for Linux 5.12. 0: not known. */
#define MPY_KERNEL(major, minor) ((major) * 1000 + (minor))
static inline int mpy_kernel(void) {
    struct utsname name;
    int major, minor;
    return uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2 ? MPY_KERNEL(major, minor) : 0;
}

/* Does fork(2) copy pages that a device may write to (registered memory), so that the parent keeps its own and the
 * child has their content? */
static inline int mpy_fork_copies_pinned_pages(void) { return mpy_kernel() >= MPY_KERNEL(5, 12); }

#endif
