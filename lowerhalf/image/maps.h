/* maps.h - see maps.c. */
#ifndef MANAPY_MAPS_H
#define MANAPY_MAPS_H
#include "isolate/trap/trap.h"
#include <stddef.h>
#include <stdint.h>

typedef struct mpy_map {
    uint64_t lo, hi, offset;
    uint64_t device, inode;
    uint32_t prot;
    int shared;
    int deleted;     /* the file's name is gone */
    uint32_t advice; /* MPY_REGION_* of manapy/image.h, if asked for */
    char *path;      /* "" for anonymous memory */
} mpy_map_t;

/* The upper half's mappings, ascending. Returns how many, or -1 with one line in `error`. With advice the kernel looks
 * at every page. */
long mpy_maps_read(mpy_map_t **out, int with_advice, char *error, size_t n);
void mpy_maps_free(mpy_map_t *maps, long count);
/* -1 and one line if a mapping can't be saved (device memory). */
int mpy_maps_check(char *error, size_t n);

/* Of the code that is mapped now. */
int mpy_maps_low_calls(mpy_low_calls_t *out, char *error, size_t n);
#endif
