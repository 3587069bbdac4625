/* pagemap.c - the kernel watches memory: it marks a page when somebody writes to it (userfaultfd(2) with
 * UFFD_FEATURE_WP_ASYNC; PAGEMAP_SCAN of /proc/PID/pagemap; both since Linux 6.7).
 *
 * Half: lower, on the worker, while the program is halted.
 *
 * Invariants
 *  1. Only private memory without a file is watched. The kernel marks writes of the program, of system calls and of
 *     other processes. It does not mark what a device writes to memory that was pinned before (devices.c).
 *  2. Memory that is mapped anew, or moved, is not watched at its address: the kernel says so for each mapping. Pages
 *     that are unmapped or emptied are not present, and pages that come there later are marked.
 *  3. Only pages that are present, or swapped out, are protected. To protect others would take page tables for all of
 *     the address space that a program reserves.
 *  4. A mapping that was not watched may have pages with old marks: kernels before 6.13 leave them on pages that are
 *     moved by mremap(2). So its marks are removed first.
 */
#include "base/proc/scan.h"
#include "isolate/fdguard.h"
#include "tables.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <manapy/syscall.h>

#define FEATURE_WP_ASYNC (1ull << 15) /* of linux/userfaultfd.h of Linux 6.7; the header here may be older */

enum { REGIONS = 512 };
static int uffd = -1, pagemap = -1;
static long owner; /* the process whose memory they show: a fork of it, in a tree that restarts, opens its own */

int mpy_pagemap_possible(void) {
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURE_WP_ASYNC};
    if (pagemap >= 0 && owner == mpy_sys(SYS_getpid)) return 1;
    owner = mpy_sys(SYS_getpid);
    pagemap = -1;
    long fd = mpy_sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (mpy_sys_failed(fd)) return 0;
    uffd = mpy_fd_high((int)fd);
    fd = ioctl(uffd, UFFDIO_API, &api) ? -1 : mpy_sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    pagemap = fd < 0 ? -1 : mpy_fd_high((int)fd);
    if (pagemap < 0) mpy_fd_close(uffd);
    return pagemap >= 0;
}

static int is_watched(uint64_t address) {
    mpy_scanned_t region;
    mpy_scan_t scan = {.size = sizeof scan, .start = address, .end = address + MPY_IMAGE_PAGE,
                       .vec = (uint64_t)&region, .vec_len = 1, .category_mask = MPY_SCAN_WATCHED,
                       .return_mask = MPY_SCAN_WATCHED};
    return ioctl(pagemap, MPY_SCAN, &scan) == 1;
}

/* Protects what is written or new. Adds the rest, which was protected before, to `unwritten`. */
static int protect(uint64_t lo, uint64_t hi, mpy_held_t *unwritten) {
    static mpy_scanned_t regions[REGIONS];
    mpy_scan_t scan = {.size = sizeof scan, .flags = MPY_SCAN_WP_MATCHING, .start = lo, .end = hi,
                       .vec = (uint64_t)regions, .vec_len = REGIONS,
                       .category_anyof_mask = MPY_SCAN_PRESENT | MPY_SCAN_SWAPPED, .return_mask = MPY_SCAN_WRITTEN};
    for (; scan.start < hi; scan.start = scan.walk_end) {
        const int found = ioctl(pagemap, MPY_SCAN, &scan);
        if (found < 0 || scan.walk_end <= scan.start) return 0;
        for (int i = 0; i < found; i++)
            if (!regions[i].categories) mpy_held_add(unwritten, regions[i].start, regions[i].end);
    }
    return 1;
}

static int begin(uint64_t lo, uint64_t hi) {
    struct uffdio_register memory = {.range = {lo, hi - lo}, .mode = UFFDIO_REGISTER_MODE_WP};
    struct uffdio_writeprotect clear = {.range = {lo, hi - lo}}; /* invariant 4 */
    return ioctl(uffd, UFFDIO_REGISTER, &memory) == 0 && ioctl(uffd, UFFDIO_WRITEPROTECT, &clear) == 0;
}

int mpy_pagemap_watch(uint64_t lo, uint64_t hi, mpy_held_t *unwritten) {
    return (is_watched(lo) || begin(lo, hi)) && protect(lo, hi, unwritten);
}
