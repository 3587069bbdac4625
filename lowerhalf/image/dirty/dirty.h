/* dirty.h - which pages of the program have changed since its last published image. Three ways to find out stand behind
 * this interface: the kernel watches memory and tells what was written (pagemap.c or soft_dirty.c), or hashes of pages
 * are compared (hashes.c). With the first two, memory that the kernel cannot watch is hashed.
 *
 * Half: lower. The worker begins and watches; whoever writes the image, perhaps a forked process, asks and finishes.
 */
#ifndef MANAPY_DIRTY_H
#define MANAPY_DIRTY_H
#include "image/file/polyval.h"
#include <manapy/image.h>

/* What is remembered of an image. */
typedef struct mpy_dirty_image {
    uint64_t epoch;               /* of its checkpoint */
    uint8_t seal[MPY_IMAGE_SEAL]; /* of its header ... */
    uint32_t crc;                 /* ... and its header_crc */
    volatile uint32_t finished;   /* the image is complete, and so is this */
    struct mpy_hashes *hashes;
    struct mpy_held *held;
} mpy_dirty_image_t;

/* Begins an image of at most `pages` pages. *image is what is remembered of it; NULL if there is no memory for that.
 * Returns the base: what is remembered of the image of `base_epoch`. NULL: this process knows of no such image, so the
 * new one must be full. The base is valid until the next call. Images that can't become a base are forgotten. */
const mpy_dirty_image_t *mpy_dirty_begin(uint64_t epoch, uint64_t base_epoch, uint64_t pages,
                                         mpy_dirty_image_t **image);

/* Which way is used if a person wants `way` (auto, pagemap, soft-dirty or hash)? NULL if the kernel cannot do that. */
const char *mpy_dirty_way(const char *way);
/* Has this process opened a device that may write to its memory, such as an RNIC? The kernel does not see that. */
int mpy_dirty_has_device(void);
/* Watches the memory [lo, hi), which is one mapping, from now on: `way`, which must not be hash. Call it for all such
 * memory, ascending, while the program is halted, then mpy_dirty_watched. Returns false if it cannot be watched. */
int mpy_dirty_watch(mpy_dirty_image_t *image, const char *way, uint64_t lo, uint64_t hi);
void mpy_dirty_watched(const char *way);

/* Watched memory: has the base the page at `address`, as it is now? *end: up to where (at most `hi`) the answer is the
 * same. It is fast for ascending addresses. */
int mpy_dirty_is_unwritten(uint64_t address, uint64_t hi, uint64_t *end);
/* Watched memory: the image has these pages. Must be called for ascending addresses. */
void mpy_dirty_hold(mpy_dirty_image_t *image, uint64_t lo, uint64_t hi);

/* Other memory: is this page as in the base? Remembers it for the next image. Must be called for pages in ascending
 * order. hash: the job's, in its initial state. */
int mpy_dirty_is_same(mpy_dirty_image_t *image, const mpy_polyval_t *hash, uint64_t address, const void *page);

/* The image is complete and has this header. */
void mpy_dirty_finish(mpy_dirty_image_t *image, const mpy_image_header_t *header);
#endif
