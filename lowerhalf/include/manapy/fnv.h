/* fnv.h - FNV-1a, 64 bit (Fowler, Noll, Vo): identities of communicators and groups (both halves, the preloaded
 * recorder and manapy/core/fnv.py compute the same values); names of files; hash tables. Header only, no libc.
 */
#ifndef MANAPY_FNV_H
#define MANAPY_FNV_H

#include <stddef.h>
#include <stdint.h>

#define MPY_FNV1A_EMPTY 0xcbf29ce484222325ul /* hash of no bytes */

/* Extends a hash: the result is the hash of the bytes of `hash` followed by `data`. */
static inline uint64_t mpy_fnv1a_more(uint64_t hash, const void *data, size_t size) {
    const unsigned char *p = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ p[i]) * 0x100000001b3ul;
    return hash;
}

static inline uint64_t mpy_fnv1a(const void *data, size_t size) { return mpy_fnv1a_more(MPY_FNV1A_EMPTY, data, size); }

/* Hash of three words, little-endian, for identities of communicators. It is never 0, which marks a free row of the
 * clock. */
static inline uint64_t mpy_fnv1a_words(uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t words[3] = {a, b, c};
    uint64_t hash = mpy_fnv1a(words, sizeof words);
    return hash ? hash : 1;
}

#endif
