/* fs_base.h - the FS base of this thread, which determines whose thread-local storage it uses. Header only; no libc. */
#ifndef MANAPY_FS_BASE_H
#define MANAPY_FS_BASE_H

#include <stdint.h>

static inline uint64_t mpy_fs_get(void) {
    uint64_t base;
    __asm__ volatile("rdfsbase %0" : "=r"(base));
    return base;
}

static inline void mpy_fs_set(uint64_t base) { __asm__ volatile("wrfsbase %0" ::"r"(base) : "memory"); }

#endif
