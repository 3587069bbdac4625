/* hashes.c - finds changed pages by a table of hashes, which needs nothing from the kernel.
 *
 * Half: lower; also in a process that was forked from the worker (invariants of dirty.c).
 *
 * Invariants
 *  1. A table has the pages that its image holds, in a run or kept, with 64 bits of POLYVAL under the key of the job's
 *     seals. A program can't make two pages with one hash without that key. Two different pages have the same hash with
 *     a probability of at most 2^-56 (256 blocks a page). The table is never written to a file.
 */
#include "tables.h"
#include <stddef.h>
#include <string.h>

mpy_hashes_t *mpy_hashes_make(uint64_t pages) {
    const uint64_t bytes = sizeof(mpy_hashes_t) + pages * sizeof(mpy_hash_entry_t);
    mpy_hashes_t *t = mpy_tables_map(bytes);
    if (t) t->bytes = bytes, t->room = pages;
    return t;
}

static uint64_t hash_of(const mpy_polyval_t *initial, const void *page) {
    mpy_polyval_t p = *initial;
    uint8_t value[MPY_POLYVAL_BYTES];
    uint64_t first;
    mpy_polyval_update(&p, page, MPY_IMAGE_PAGE);
    mpy_polyval_final(&p, value);
    memcpy(&first, value, sizeof first);
    return first;
}

int mpy_hashes_add(mpy_hashes_t *new, const mpy_hashes_t *base, uint64_t *cursor, const mpy_polyval_t *hash,
                   uint64_t address, const void *page) {
    const mpy_hash_entry_t now = {address / MPY_IMAGE_PAGE, hash_of(hash, page)};
    if (new->count < new->room) new->entries[new->count++] = now;
    if (!base) return 0;
    uint64_t i = *cursor;
    while (i < base->count && base->entries[i].page < now.page) i++;
    *cursor = i;
    return i < base->count && base->entries[i].page == now.page && base->entries[i].hash == now.hash;
}
