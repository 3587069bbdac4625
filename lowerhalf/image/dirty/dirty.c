/* dirty.c - the state that is kept of recent images, to find changed pages.
 *
 * Half: lower. mpy_dirty_begin, _watch and _watched run on the worker. The other functions may run in a process that
 * was forked from it (background.c). So they take no lock and get no memory, and what they write is shared memory.
 *
 * Invariants
 *  1. The coordinator says which checkpoint is the last published one, by its epoch. The state of an image is used only
 *     if the image is finished and of that epoch. So it doesn't matter whether a checkpoint has failed, or how.
 *  2. Two images are remembered: the last published one, as far as this rank knows, and the last one begun.
 *  3. When the kernel reports written pages, it clears its record of them. So these pages are removed from the base
 *     immediately, even if the image fails later. (The new image holds nothing yet.)
 *  4. A page of which no state is kept counts as changed: new memory, and pages that were zero.
 */
#include "tables.h"
#include <stddef.h>
#include <string.h>

static mpy_dirty_image_t *published, *newest; /* invariant 2 */
static mpy_held_t *unwritten;                 /* watched memory, as far as the kernel was asked in this checkpoint */
static uint64_t hash_cursor, held_cursor;     /* in `published`; pages come in ascending order */

static int is_of(const mpy_dirty_image_t *image, uint64_t epoch) {
    return image && image->finished && image->epoch == epoch;
}

static void forget(mpy_dirty_image_t **image) {
    mpy_dirty_image_t *old = *image;
    *image = NULL;
    if (!old) return;
    if (old->hashes) mpy_tables_unmap(old->hashes, old->hashes->bytes);
    if (old->held) mpy_tables_unmap(old->held, old->held->bytes);
    mpy_tables_unmap(old, sizeof *old);
}

static mpy_dirty_image_t *make(uint64_t epoch, uint64_t pages) {
    mpy_dirty_image_t *image = mpy_tables_map(sizeof *image);
    if (!image) return NULL;
    image->epoch = epoch;
    image->hashes = mpy_hashes_make(pages);
    image->held = mpy_held_make(pages / 2 + 1); /* with a gap behind each page */
    if (!image->hashes || !image->held) forget(&image);
    return image;
}

const mpy_dirty_image_t *mpy_dirty_begin(uint64_t epoch, uint64_t base_epoch, uint64_t pages,
                                         mpy_dirty_image_t **image) {
    if (base_epoch && is_of(newest, base_epoch)) {
        forget(&published);
        published = newest;
        newest = NULL;
    } else if (!base_epoch || !is_of(published, base_epoch)) {
        forget(&published);
    }
    forget(&newest);
    newest = make(epoch, pages);
    hash_cursor = held_cursor = 0;
    *image = newest;
    return newest ? published : NULL;
}

static const char pagemap[] = "pagemap", soft_dirty[] = "soft-dirty", hash[] = "hash";

const char *mpy_dirty_way(const char *way) {
    const int any = !strcmp(way, "auto");
    if ((any || !strcmp(way, pagemap)) && mpy_pagemap_possible()) return pagemap;
    if ((any || !strcmp(way, soft_dirty)) && mpy_soft_dirty_possible()) return soft_dirty;
    return any || !strcmp(way, hash) ? hash : NULL;
}

int mpy_dirty_watch(mpy_dirty_image_t *image, const char *way, uint64_t lo, uint64_t hi) {
    if (!unwritten) unwritten = mpy_held_make(image->held->room);
    if (!unwritten) return 0;
    return (!strcmp(way, pagemap) ? mpy_pagemap_watch : mpy_soft_dirty_watch)(lo, hi, unwritten);
}

void mpy_dirty_watched(const char *way) {
    if (!unwritten) return; /* the kernel was not asked */
    if (!strcmp(way, soft_dirty)) mpy_soft_dirty_clear();
    if (published) mpy_held_cut(&published->held, unwritten);
    mpy_tables_unmap(unwritten, unwritten->bytes);
    unwritten = NULL;
}

int mpy_dirty_is_unwritten(uint64_t address, uint64_t hi, uint64_t *end) {
    return mpy_held_has(published ? published->held : NULL, &held_cursor, address, hi, end);
}

void mpy_dirty_hold(mpy_dirty_image_t *image, uint64_t lo, uint64_t hi) { mpy_held_add(image->held, lo, hi); }

int mpy_dirty_is_same(mpy_dirty_image_t *image, const mpy_polyval_t *key, uint64_t address, const void *page) {
    return mpy_hashes_add(image->hashes, published ? published->hashes : NULL, &hash_cursor, key, address, page);
}

void mpy_dirty_finish(mpy_dirty_image_t *image, const mpy_image_header_t *header) {
    memcpy(image->seal, header->seal, sizeof image->seal);
    image->crc = header->header_crc;
    __atomic_store_n(&image->finished, 1, __ATOMIC_RELEASE);
}
