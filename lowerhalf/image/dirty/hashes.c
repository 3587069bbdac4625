/* hashes.c - finds changed pages by a table of hashes, which needs nothing from the kernel.
 *
 * Half: lower. mpy_dirty_begin runs on the worker. The other functions may run in a process that was forked from it
 * (background.c). So they take no lock and get no memory, and all of a table is shared memory.
 *
 * Invariants
 *  1. A table has the pages that its image holds, in a run or kept, with 64 bits of POLYVAL under the key of the job's
 *     seals. A program can't make two pages with one hash without that key. Two different pages have the same hash with
 *     a probability of at most 2^-56 (256 blocks a page). The table is never written to a file.
 *  2. The coordinator says which checkpoint is the last published one, by its epoch. A table counts only if it is
 *     finished and of that epoch. So it doesn't matter whether a checkpoint has failed, or how.
 *  3. Two tables exist: of the last published image, as far as this rank knows, and of the last image begun.
 *  4. A page that is not in the base's table counts as changed: new memory, and pages that were zero.
 */
#include "dirty.h"
#include <manapy/syscall.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

typedef struct entry {
    uint64_t page; /* address / MPY_IMAGE_PAGE */
    uint64_t hash;
} entry_t;

struct mpy_dirty_pages {
    mpy_dirty_image_t image;
    uint64_t bytes;       /* of this mapping */
    uint64_t room, count; /* entries */
    entry_t entries[];
};
typedef struct mpy_dirty_pages table_t;

static table_t *published, *newest; /* invariant 3 */
static uint64_t cursor;             /* in `published`; pages come in ascending order */

static int is_of(const table_t *t, uint64_t epoch) { return t && t->image.finished && t->image.epoch == epoch; }

static void forget(table_t **t) {
    if (*t) mpy_sys(SYS_munmap, *t, (*t)->bytes);
    *t = NULL;
}

/* Only the parts that are used need memory. */
static table_t *make(uint64_t epoch, uint64_t pages) {
    const int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    const uint64_t bytes = sizeof(table_t) + pages * sizeof(entry_t);
    long at = mpy_sys(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mpy_sys_failed(at)) return NULL;
    table_t *t = (table_t *)at;
    t->image.epoch = epoch, t->image.pages = t;
    t->bytes = bytes, t->room = pages;
    return t;
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
    cursor = 0;
    *image = newest ? &newest->image : NULL;
    return newest && published ? &published->image : NULL;
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

int mpy_dirty_is_same(mpy_dirty_image_t *image, const mpy_polyval_t *hash, uint64_t address, const void *page) {
    table_t *t = image->pages;
    const entry_t now = {address / MPY_IMAGE_PAGE, hash_of(hash, page)};
    if (t->count < t->room) t->entries[t->count++] = now;
    if (!published) return 0;
    const entry_t *entries = published->entries;
    while (cursor < published->count && entries[cursor].page < now.page) cursor++;
    return cursor < published->count && entries[cursor].page == now.page && entries[cursor].hash == now.hash;
}

void mpy_dirty_finish(mpy_dirty_image_t *image, const mpy_image_header_t *header) {
    memcpy(image->seal, header->seal, sizeof image->seal);
    image->crc = header->header_crc;
    __atomic_store_n(&image->finished, 1, __ATOMIC_RELEASE);
}
