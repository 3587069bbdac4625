/* blob.h - the byte strings in which process and descriptor state travels inside an image (sections PROCESS and FDS).
 *
 * Lower half; libc allowed. Integers are little-endian and unaligned; bytes and strings are preceded by their length
 * (u64).
 *
 * Invariants
 *  1. A writer that ran out of memory only remembers it (`failed`): put functions need no checks one by one, the caller
 *     looks at the end.
 *  2. A reader never reads past its end, and never hands out a string without its NUL: on a corrupt blob it sets
 *     `failed` and returns zeros, NULL or "" from then on.
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
/* n bytes of room at the end, to be filled by the caller before the next put, and counted; NULL when out of memory. */
void *mpy_blob_extend(mpy_blob_t *b, size_t n);
/* Overwrite a u32 put earlier at `at` (a count that is known only later). */
void mpy_blob_set_u32(mpy_blob_t *b, size_t at, uint32_t v);

void mpy_reader_init(mpy_reader_t *r, const void *data, size_t bytes);
uint32_t mpy_reader_u32(mpy_reader_t *r);
uint64_t mpy_reader_u64(mpy_reader_t *r);
int64_t mpy_reader_i64(mpy_reader_t *r);
/* Pointer into the blob and length; NULL on failure (a zero length is not one). */
const void *mpy_reader_bytes(mpy_reader_t *r, size_t *n);
const char *mpy_reader_string(mpy_reader_t *r);
/* A reader over the next byte string. */
mpy_reader_t mpy_reader_sub(mpy_reader_t *r);
/* A count that announces elements of at least `least` bytes each: fails when they can't be there. */
uint32_t mpy_reader_count(mpy_reader_t *r, size_t least);

#endif
