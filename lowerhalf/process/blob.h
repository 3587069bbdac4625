/* blob.h - the byte strings that hold process and descriptor state inside an image (sections PROCESS and FDS).
 *
 * Lower half; libc allowed. Integers are little-endian and unaligned. Bytes and strings are preceded by their length
 * (u64).
 *
 * Invariants
 *  1. A writer that runs out of memory sets `failed`. So put functions need no individual checks; the caller checks
 *     once at the end.
 *  2. A reader never reads past its end, and never returns a string without its NUL. On a corrupt blob it sets `failed`
 *     and returns zeros, NULL or "" from then on.
 */
#ifndef MANAPY_STATE_BLOB_H
#define MANAPY_STATE_BLOB_H

#include <stddef.h>
#include <stdint.h>

typedef struct mpy_blob {
    uint8_t *data;
    size_t bytes, room;
    int failed;
} mpy_blob_t;

typedef struct mpy_reader {
    const uint8_t *data;
    size_t bytes, at;
    int failed;
} mpy_reader_t;

void mpy_blob_init(mpy_blob_t *b);
void mpy_blob_free(mpy_blob_t *b);
void mpy_blob_put_u32(mpy_blob_t *b, uint32_t v);
void mpy_blob_put_u64(mpy_blob_t *b, uint64_t v);
void mpy_blob_put_i64(mpy_blob_t *b, int64_t v);
void mpy_blob_put_bytes(mpy_blob_t *b, const void *p, size_t n);
void mpy_blob_put_string(mpy_blob_t *b, const char *s);
/* Appends n bytes, which the caller must fill before the next put. Returns NULL if out of memory. */
void *mpy_blob_extend(mpy_blob_t *b, size_t n);
/* Makes room for n more bytes: the next puts of so many do not fail. Returns 0, or -1 if out of memory; that is no
 * failure of the blob. */
int mpy_blob_reserve(mpy_blob_t *b, size_t n);
/* Overwrites a u32 that was put earlier at `at` (a count that becomes known later). */
void mpy_blob_set_u32(mpy_blob_t *b, size_t at, uint32_t v);

void mpy_reader_init(mpy_reader_t *r, const void *data, size_t bytes);
uint32_t mpy_reader_u32(mpy_reader_t *r);
uint64_t mpy_reader_u64(mpy_reader_t *r);
int64_t mpy_reader_i64(mpy_reader_t *r);
/* Pointer into the blob, and the length. NULL on failure (a zero length is not a failure). */
const void *mpy_reader_bytes(mpy_reader_t *r, size_t *n);
const char *mpy_reader_string(mpy_reader_t *r);
/* A reader over the next byte string. */
mpy_reader_t mpy_reader_sub(mpy_reader_t *r);
/* A count of elements that follow, each at least `least` bytes long. Fails if the blob is too short for them. */
uint32_t mpy_reader_count(mpy_reader_t *r, size_t least);

#endif
