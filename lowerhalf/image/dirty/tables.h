/* tables.h - the state that is kept of the pages of an image: see hashes.c, held.c. For this folder alone. */
#ifndef MANAPY_DIRTY_TABLES_H
#define MANAPY_DIRTY_TABLES_H
#include "dirty.h"

typedef struct mpy_hash_entry {
    uint64_t page; /* address / MPY_IMAGE_PAGE */
    uint64_t hash;
} mpy_hash_entry_t;

typedef struct mpy_hashes {
    uint64_t bytes;       /* of this mapping */
    uint64_t room, count; /* entries, ascending by page */
    mpy_hash_entry_t entries[];
} mpy_hashes_t;

typedef struct mpy_range {
    uint64_t lo, hi;
} mpy_range_t;

typedef struct mpy_held {
    uint64_t bytes;       /* of this mapping */
    uint64_t room, count; /* ranges, ascending */
    mpy_range_t ranges[];
} mpy_held_t;

/* Zeroed memory that processes forked from this one share. Only the parts that are used take any. NULL if there is
 * none. */
void *mpy_tables_map(uint64_t bytes);
void mpy_tables_unmap(void *table, uint64_t bytes);

mpy_hashes_t *mpy_hashes_make(uint64_t pages);
/* Adds the page. Is it in the base (may be NULL) with the same hash? *cursor: where to look next in the base. */
int mpy_hashes_add(mpy_hashes_t *new, const mpy_hashes_t *base, uint64_t *cursor, const mpy_polyval_t *hash,
                   uint64_t address, const void *page);

mpy_held_t *mpy_held_make(uint64_t ranges);
void mpy_held_add(mpy_held_t *held, uint64_t lo, uint64_t hi);
/* Leaves only what `both` have. If there is no memory for it, nothing is left. */
void mpy_held_cut(mpy_held_t **held, const mpy_held_t *both);
/* Is the page held? *end: up to where (at most `hi`) the answer is the same. *cursor: where to look next; the addresses
 * should ascend. */
int mpy_held_has(const mpy_held_t *held, uint64_t *cursor, uint64_t address, uint64_t hi, uint64_t *end);

/* Can this kernel do it? */
int mpy_pagemap_possible(void);
int mpy_soft_dirty_possible(void);
/* Watches a mapping from now on. Adds to `unwritten` what was watched before and nobody has written to. Returns false
 * if it cannot be watched. */
int mpy_pagemap_watch(uint64_t lo, uint64_t hi, mpy_held_t *unwritten);
/* From now on: from the next mpy_soft_dirty_clear on. */
int mpy_soft_dirty_watch(uint64_t lo, uint64_t hi, mpy_held_t *unwritten);
void mpy_soft_dirty_clear(void);
#endif
