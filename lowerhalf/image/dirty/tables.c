/* tables.c - memory for the tables of tables.h. Half: lower, also in a process that was forked from it; no libc. */
#include "tables.h"
#include <manapy/syscall.h>
#include <stddef.h>
#include <sys/mman.h>

void *mpy_tables_map(uint64_t bytes) {
    const int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    long at = mpy_sys(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return mpy_sys_failed(at) ? NULL : (void *)at;
}

void mpy_tables_unmap(void *table, uint64_t bytes) { mpy_sys(SYS_munmap, table, bytes); }
