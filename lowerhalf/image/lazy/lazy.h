/* lazy.h - a restart whose program runs before all of its memory has been read: see lazy.c. */
#ifndef MANAPY_LAZY_H
#define MANAPY_LAZY_H

#include "image/file/chain.h"

/* Can memory be read later? Otherwise `why_not` says why it can't, in a few words. */
int mpy_lazy_begin(char *why_not, size_t n);
/* Notes a part to be read later, unless its pages must be there at once: then it returns 0, and the caller reads them.
 * Returns 1 if it was noted, -1 if there is no memory. */
int mpy_lazy_note(const mpy_image_t *newest, const mpy_image_part_t *part);
/* From now on the pages that were noted come when they are touched, and one after the other. Nobody may have touched
 * them before. Returns 0, or -1 with one line in `error`. */
int mpy_lazy_start(const mpy_image_t *newest, char *error, size_t n);
/* Waits until all of them have come. Returns -1 if `cancelled` is true before. */
int mpy_lazy_wait(int (*cancelled)(void));
#endif
