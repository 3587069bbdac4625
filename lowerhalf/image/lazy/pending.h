/* pending.h - which pages of the program are still only in the images: see pending.c. */
#ifndef MANAPY_LAZY_PENDING_H
#define MANAPY_LAZY_PENDING_H

#include "image/file/chain.h"

enum { MPY_PENDING_PAGES = MPY_RUN_MAX / MPY_IMAGE_PAGE };
#define MPY_PENDING_NONE UINT32_MAX

/* Pages of one run that lie side by side, at `address` now; when the image was written, they lay at `origin`. */
typedef struct mpy_pending_item {
    uint64_t address, origin;
    uint32_t pages, load;
    uint32_t next; /* index of the next item of its load, or MPY_PENDING_NONE */
    uint64_t missing[MPY_PENDING_PAGES / 64]; /* bit i: page i is still only in the image */
} mpy_pending_item_t;

/* A run is read as a whole. */
typedef struct mpy_pending_load {
    const mpy_image_t *image;
    const mpy_image_run_t *run;
    uint32_t first; /* index of its first item that may have missing pages, or MPY_PENDING_NONE */
} mpy_pending_load_t;

typedef struct mpy_pending {
    mpy_pending_item_t *items;
    uint32_t *order; /* the indices of all items, ascending by address */
    mpy_pending_load_t *loads;
    size_t nitems, nloads, room_items, room_order, room_loads;
} mpy_pending_t;

/* The functions return 0, or -1 if there is no memory. */
int mpy_pending_add(mpy_pending_t *p, const mpy_image_part_t *part);
/* Call it after the last one was added. */
void mpy_pending_sort(mpy_pending_t *p);
void mpy_pending_free(mpy_pending_t *p);

/* The item with a missing page at this address, or NULL. */
mpy_pending_item_t *mpy_pending_find(const mpy_pending_t *p, uint64_t address);
/* From the first to the last item in [lo, hi): returns false if there is none. Nothing has been moved yet. */
int mpy_pending_span(const mpy_pending_t *p, uint64_t lo, uint64_t hi, uint64_t *from, uint64_t *until);
/* An item of this load with missing pages, or NULL. The next move may move the item in memory. */
mpy_pending_item_t *mpy_pending_of(mpy_pending_t *p, uint32_t load);
/* The first missing pages of an item: returns their number, and in *first the index of the first one. */
uint32_t mpy_pending_missing(const mpy_pending_item_t *item, uint32_t *first);
/* These pages of an item are missing no more. */
void mpy_pending_clear(mpy_pending_item_t *item, uint32_t first, uint32_t pages);
/* The program has removed memory, or moved it. */
void mpy_pending_drop(mpy_pending_t *p, uint64_t lo, uint64_t hi);
int mpy_pending_move(mpy_pending_t *p, uint64_t from, uint64_t to, uint64_t bytes);

#endif
