/* dirty.h - which pages of the program have changed since its last published image. One way to find out stands behind
 * this interface: hashes of all pages (hashes.c).
 *
 * Half: lower. The worker begins; whoever writes the image, perhaps a forked process, asks and finishes.
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
    struct mpy_dirty_pages *pages; /* of hashes.c */
} mpy_dirty_image_t;

/* Begins an image of at most `pages` pages. *image is what is remembered of it; NULL if there is no memory for that.
 * Returns the base: what is remembered of the image of `base_epoch`. NULL: this process knows of no such image, so the
 * new one must be full. The base is valid until the next call. Images that can't become a base are forgotten. */
const mpy_dirty_image_t *mpy_dirty_begin(uint64_t epoch, uint64_t base_epoch, uint64_t pages,
                                         mpy_dirty_image_t **image);
/* Is this page as in the base? Remembers it for the next image. Must be called for pages in ascending order. hash: the
 * job's, in its initial state. */
int mpy_dirty_is_same(mpy_dirty_image_t *image, const mpy_polyval_t *hash, uint64_t address, const void *page);
/* The image is complete and has this header. */
void mpy_dirty_finish(mpy_dirty_image_t *image, const mpy_image_header_t *header);
#endif
