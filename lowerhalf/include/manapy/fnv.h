/* fnv.h - FNV-1a, 64 bit: identities of communicators and groups, which both halves and manapy/clock compute alike.
 * Header only. */
#ifndef MANAPY_FNV_H
#define MANAPY_FNV_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t mpy_fnv1a(const void *data, size_t size) {
    const unsigned char *p = data;
    uint64_t hash = 0xcbf29ce484222325ul;
    for (size_t i = 0; i < size; i++) hash = (hash ^ p[i]) * 0x100000001b3ul;
    return hash;
}

#endif
