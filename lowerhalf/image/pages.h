/* pages.h - see pages.c. */
#ifndef MANAPY_PAGES_H
#define MANAPY_PAGES_H
#include "dirty/dirty.h"
#include "image/write/output.h"
#include "maps.h"

enum { MPY_PAGES_NOT_OPEN = -1, MPY_PAGES_UNREADABLE = -2 }; /* the program has no descriptor of a file; only others */

/* A region whose pages are saved. */
typedef struct mpy_pages {
    const mpy_map_t *map;
    const mpy_image_file_t *file; /* that the region maps; NULL: the image can't rely on one */
    char *copy;                   /* mpy_pages_copy has made it; NULL: the pages are read where they are */
    int watched;                  /* the kernel tells which pages have changed */
    int fd;                       /* of the program, which can read the file; or: */
} mpy_pages_t;

/* Opens what both functions below read of this process. A process that was forked calls it again. */
int mpy_pages_begin(mpy_image_output_t *o);
void mpy_pages_end(void);
/* May the kernel watch this memory? */
int mpy_pages_may_be_watched(const mpy_map_t *map);
/* Writes the pages and their runs. `track` (may be NULL) decides which pages the image need not have, because its
 * parent has them. */
int mpy_pages_write(mpy_image_output_t *o, const mpy_pages_t *p, mpy_dirty_image_t *track);
/* Copies the pages that mpy_pages_write would write, as they are now. They can then be written later, or by a process
 * that does not have them. Returns 1, and makes no copy, if they are more than *most bytes, which becomes 0; otherwise
 * *most becomes less by what was copied. */
int mpy_pages_copy(mpy_image_output_t *o, mpy_pages_t *p, uint64_t *most);
void mpy_pages_free_copy(mpy_pages_t *p);
/* Before the first image of this process: a table that keeps the checksums of files, also those that a forked process
 * computes. Without it each image reads all mapped files. */
void mpy_pages_remember(void);
#endif
