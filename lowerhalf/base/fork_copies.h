/* fork_copies.h - what fork(2) does with pages that a device may write to (registered memory). Header only; libc. */
#ifndef MANAPY_FORK_COPIES_H
#define MANAPY_FORK_COPIES_H

#include <stdio.h>
#include <sys/utsname.h>

/* Does a fork copy them, so that the parent keeps its own and the child has their content? From Linux 5.12 on. */
static inline int mpy_fork_copies_pinned_pages(void) {
    struct utsname name;
    int major = 0, minor = 0;
    return uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
           (major > 5 || (major == 5 && minor >= 12));
}

#endif
