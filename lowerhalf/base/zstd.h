/* zstd.h - see zstd.c. */
#ifndef MANAPY_ZSTD_H
#define MANAPY_ZSTD_H

#include <stddef.h>

/* What is said if mpy_zstd_open fails. */
#define MPY_ZSTD_MISSING \
    "libzstd.so.1 cannot be loaded: install the package libzstd1 (Debian, Ubuntu) or libzstd (other systems)"

/* Opens the library at the first call. Returns 1, or 0 if it cannot be used here. The functions below need it. */
int mpy_zstd_open(void);

/* The memory that mpy_zstd_compress needs, in bytes. */
size_t mpy_zstd_workspace(void);

/* Makes one frame of `bytes` bytes. Returns its length, or 0 if it does not fit into `room`. */
size_t mpy_zstd_compress(void *workspace, size_t workspace_bytes, void *frame, size_t room, const void *from,
                         size_t bytes);

/* Returns 0, or -1 unless the frame is whole and contains exactly `bytes` bytes. May call malloc. */
int mpy_zstd_expand(const void *frame, size_t length, void *to, size_t bytes);

#endif
