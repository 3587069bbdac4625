/* zip.h - see zip.c. */
#ifndef MANAPY_IMAGE_ZIP_H
#define MANAPY_IMAGE_ZIP_H

#include <stddef.h>
#include <stdint.h>

typedef struct mpy_zip {
    int on, automatic;
    char *frame;          /* room for the content of a frame that shrinks; the workspace follows */
    size_t workspace;     /* its bytes */
    uint64_t left_out;    /* bytes to write as they are before the next frame is tried */
    unsigned failures;    /* frames in succession that did not pay */
    uint64_t plain_bytes; /* written as they are, while the disk is measured ... */
    int64_t plain_ns;     /* ... and the time that this took */
    double byte_ns;       /* what writing a byte costs; 0: not known */
} mpy_zip_t;

/* how: "auto", "on" or "off". Without libzstd, or without memory, nothing is compressed. */
void mpy_zip_begin(mpy_zip_t *zip, const char *how);
void mpy_zip_end(mpy_zip_t *zip);

/* How many of the next `bytes` bytes are to be written as they are. 0: mpy_zip_try is to be called with as many of them
 * as make a frame, at most MPY_FRAME_MAX. */
uint64_t mpy_zip_plain(mpy_zip_t *zip, uint64_t bytes);
/* The length of the frame, now in zip->frame; or 0 if these bytes are to be written as they are. */
size_t mpy_zip_try(mpy_zip_t *zip, const void *from, size_t bytes);

/* Does mpy_zip_measure have to be called after bytes were written as they are? ns: the time that this took. */
int mpy_zip_measures(const mpy_zip_t *zip);
void mpy_zip_measure(mpy_zip_t *zip, int fd, uint64_t bytes, int64_t ns);

#endif
