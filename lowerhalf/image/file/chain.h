/* chain.h - the memory that an image and its parents hold: see chain.c. All functions return 0, or -1 with one line in
 * err, which starts with the path of the image that is damaged. */
#ifndef MANAPY_IMAGE_CHAIN_H
#define MANAPY_IMAGE_CHAIN_H

#include "reader.h"

/* A run with data of an image, and the parts of it that the newest image of the chain needs: ascending, at least
 * one. */
typedef struct mpy_image_part {
    const mpy_image_t *image;
    const mpy_image_run_t *run;
    const mpy_image_kept_t *wanted;
    size_t nwanted;
} mpy_image_part_t;

/* Returns 0 to go on. */
typedef int mpy_image_visit_t(void *context, const mpy_image_part_t *part, char *err, size_t n);

/* Calls `visit` for the runs that hold the memory of an image: its own, then those of its parents. Each page is
 * wanted once. */
int mpy_image_each_part(const mpy_image_t *image, mpy_image_visit_t *visit, void *context, char *err, size_t n);

/* Reads the run of a part, checks it, and copies what is wanted to its address, plus `shift`. The pages there must be
 * mapped, writable and zero. room: MPY_RUN_MAX bytes to work with. */
int mpy_image_place_part(const mpy_image_part_t *part, uint64_t shift, char *room, char *err, size_t n);

/* Copies memory from runs, which are checked. Pages in no run are zero. */
int mpy_image_peek(const mpy_image_t *image, uint64_t address, void *to, size_t bytes, char *err, size_t n);

/* Open, copy the memory [address, address + bytes) to `to`, close. All runs with data must lie there. `to` must
 * be page-aligned and zero. secret: the job's, or NULL. */
MPY_IMAGE_API int mpy_image_load(const char *path, const uint8_t *secret, uint64_t address, uint64_t bytes, char *to,
                                 char *err, size_t n);

#endif
