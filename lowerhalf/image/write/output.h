/* output.h - an image that is being written: see output.c. */
#ifndef MANAPY_IMAGE_OUTPUT_H
#define MANAPY_IMAGE_OUTPUT_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include <manapy/image.h>

#include "image/file/seal.h"
#include "zip.h"

/* An array that grows. Set `size`, the bytes of an item; all else is 0 at first. */
typedef struct mpy_vector {
    void *items;
    size_t count, room, size;
} mpy_vector_t;

/* Makes room for `count` more items; returns the first one, or NULL if there is no memory. */
void *mpy_vector_push(mpy_vector_t *v, size_t count);
void mpy_vector_free(mpy_vector_t *v);

/* Why an image could not be written. */
typedef struct mpy_image_failure {
    int error_number; /* errno, or 0 */
    char what[PATH_MAX + 64];
} mpy_image_failure_t;

typedef struct mpy_image_output {
    int fd;
    uint64_t offset;         /* bytes so far */
    uint64_t gathered;       /* how many of them are still to be written */
    uint64_t synced;         /* write-back has been started up to this offset */
    mpy_image_keys_t keys;
    mpy_hmac_t seal;         /* of the sections so far */
    mpy_image_header_t header; /* its sections are complete when the image is */
    mpy_vector_t runs;       /* mpy_image_run_t */
    mpy_vector_t kept;       /* mpy_image_kept_t */
    uint64_t kept_bytes;
    mpy_zip_t zip;           /* compresses page data */
    int (*cancelled)(void);  /* asked again and again; if true, writing fails */
    mpy_image_failure_t *failure;
} mpy_image_output_t;

/* The functions return 0, or -1 with a reason in `failure`. */
int mpy_image_output_fail(mpy_image_output_t *o, const char *what); /* with errno; returns -1 */
int mpy_image_output_cancelled(mpy_image_output_t *o);
int mpy_image_output_put(mpy_image_output_t *o, const void *data, uint64_t bytes);
int mpy_image_output_align(mpy_image_output_t *o, uint64_t unit); /* at most MPY_IMAGE_PAGE */
int mpy_image_output_run(mpy_image_output_t *o, const mpy_image_run_t *run); /* counts its bytes as memory */
int mpy_image_output_kept(mpy_image_output_t *o, uint64_t address, uint64_t bytes); /* also counts them */
int mpy_image_output_section(mpy_image_output_t *o, uint32_t kind, const void *data, uint64_t bytes, uint64_t count);
int mpy_image_output_vector(mpy_image_output_t *o, uint32_t kind, const mpy_vector_t *v);
/* Puts the data of a run, whose kind, address and lengths are set, and sets the rest. Does not add the run. */
int mpy_image_output_stored(mpy_image_output_t *o, mpy_image_run_t *run, const void *stored);
/* The header, and fsync. */
int mpy_image_output_finish(mpy_image_output_t *o);

#endif
