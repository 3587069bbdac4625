/* zip.h - see zip.c. */
#ifndef MANAPY_IMAGE_ZIP_H
#define MANAPY_IMAGE_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "compressors.h"

typedef struct mpy_zip {
    int on, automatic;
    mpy_compressors_t pool;
    char *rooms;          /* of its frames */
    int ahead, next;      /* frames that were made together, and how many of them were asked for */
    double frame_ns;      /* what making one of them has taken */
    char *frame;          /* the content of the last one that was asked for */
    uint64_t left_out;    /* bytes to write as they are before the next frame is tried */
    unsigned failures;    /* frames in succession that did not pay */
    int worth;            /* a frame has shrunk, so the disk is to be measured */
    uint64_t plain_from;  /* where in the file this began ... */
    uint64_t plain_bytes; /* ... bytes that were written as they are since then ... */
    int64_t plain_ns;     /* ... and the time that this took */
    double byte_ns;       /* what writing a byte costs; 0: not known */
} mpy_zip_t;

/* how: "auto", "on" or "off". Without libzstd, or without memory, nothing is compressed. threads: how many may compress
 * at the same time, the caller included. */
void mpy_zip_begin(mpy_zip_t *zip, const char *how, int threads);
void mpy_zip_end(mpy_zip_t *zip);

/* How many of the next `bytes` bytes are to be written as they are. 0: mpy_zip_try is to be called with as many of them
 * as make a frame, at most MPY_FRAME_MAX. */
uint64_t mpy_zip_plain(mpy_zip_t *zip, uint64_t bytes);
/* The length of the frame, now in zip->frame; or 0 if these bytes are to be written as they are. more: so many bytes
 * behind them will probably be asked for next, and do not change before mpy_zip_end; or 0. */
size_t mpy_zip_try(mpy_zip_t *zip, const void *from, size_t bytes, uint64_t more);

/* Does mpy_zip_measure have to be called after bytes were written as they are? offset: where in the file; ns: the time
 * that this took. */
int mpy_zip_measures(const mpy_zip_t *zip);
void mpy_zip_measure(mpy_zip_t *zip, int fd, uint64_t offset, uint64_t bytes, int64_t ns);

#endif
