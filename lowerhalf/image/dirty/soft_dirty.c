/* soft_dirty.c - the kernel watches memory, by an older interface (soft-dirty bits; proc_pid_pagemap(5),
 * proc_pid_clear_refs(5)).
 *
 * Half: lower, on the worker, while the program is halted.
 *
 * Invariants
 *  1. A bit is set when somebody writes to a page, and in all of a new mapping, also if the kernel joins it to an older
 *     one. All bits of the process are cleared at once, after all memory was looked at. As in pagemap.c, a device that
 *     writes to memory sets none.
 *  2. Memory that was emptied, and then read, shows the kernel's page of zeros, whose bit is clear. It is not mapped
 *     exclusively. So only pages that are, or that are swapped out, count as unwritten.
 */
#include "isolate/fdguard.h"
#include "tables.h"
#include <fcntl.h>
#include <manapy/syscall.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ENTRIES = 4096 };
#define SOFT_DIRTY (1ull << 55)
#define EXCLUSIVE (1ull << 56)
#define SWAPPED (1ull << 62)
#define PRESENT (1ull << 63)

static int pagemap = -1, clear_refs = -1;

static int open_high(const char *path, int flags) {
    long fd = mpy_sys(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC);
    return mpy_sys_failed(fd) ? -1 : mpy_fd_high((int)fd);
}

/* A new mapping has the bit, unless the kernel has none. */
static int has_bits(void) {
    uint64_t entry = 0;
    long page = mpy_sys(SYS_mmap, 0, MPY_IMAGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(page)) return 0;
    *(volatile char *)page = 1;
    const int got = pread(pagemap, &entry, sizeof entry, page / MPY_IMAGE_PAGE * 8) == sizeof entry;
    mpy_sys(SYS_munmap, page, MPY_IMAGE_PAGE);
    return got && entry & SOFT_DIRTY;
}

int mpy_soft_dirty_possible(void) {
    static long known; /* the process for which it is; see pagemap.c */
    static int possible;
    if (known == mpy_sys(SYS_getpid)) return possible;
    known = mpy_sys(SYS_getpid);
    pagemap = open_high("/proc/self/pagemap", O_RDONLY);
    clear_refs = open_high("/proc/self/clear_refs", O_WRONLY);
    possible = pagemap >= 0 && clear_refs >= 0 && has_bits();
    if (possible) return 1;
    if (pagemap >= 0) mpy_fd_close(pagemap);
    if (clear_refs >= 0) mpy_fd_close(clear_refs);
    return 0;
}

int mpy_soft_dirty_watch(uint64_t lo, uint64_t hi, mpy_held_t *unwritten) {
    static uint64_t entries[ENTRIES];
    for (uint64_t at = lo, pages; at < hi; at += pages * MPY_IMAGE_PAGE) {
        pages = (hi - at) / MPY_IMAGE_PAGE;
        if (pages > ENTRIES) pages = ENTRIES;
        const ssize_t bytes = (ssize_t)(pages * sizeof *entries);
        if (pread(pagemap, entries, (size_t)bytes, (off_t)(at / MPY_IMAGE_PAGE * 8)) != bytes) return 0;
        for (uint64_t i = 0; i < pages; i++) {
            const uint64_t e = entries[i], address = at + i * MPY_IMAGE_PAGE;
            const int own = (e & SWAPPED) || ((e & PRESENT) && (e & EXCLUSIVE));
            if (own && !(e & SOFT_DIRTY)) mpy_held_add(unwritten, address, address + MPY_IMAGE_PAGE);
        }
    }
    return 1;
}

void mpy_soft_dirty_clear(void) {
    static const char all[] = "4";
    /* if it fails, pages only count as changed once more */
    if (pwrite(clear_refs, all, sizeof all - 1, 0) < 0) return;
}
