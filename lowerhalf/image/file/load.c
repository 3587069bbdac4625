/* load.c - the data of runs, read into memory. Lower half, libc allowed; one thread at a time.
 *
 * Invariants
 *  1. A frame is expanded after it has been checked, and never beyond the memory of its run.
 */
#include "reader.h"

#include "base/zstd.h"

#include <stdio.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif
#define PIECE (512ul << 10)
#define FAIL(...) return snprintf(err, n, __VA_ARGS__), -1

int mpy_image_check_loadable(const mpy_image_t *im, char *err, size_t n) {
    for (; im; im = im->parent)
        for (uint64_t i = 0; i < im->nruns; i++)
            if (im->runs[i].kind == MPY_RUN_ZIPPED && !mpy_zstd_open())
                FAIL("%s: it is compressed, and " MPY_ZSTD_MISSING, im->path);
    return 0;
}

/* Reads in pieces, so that the checksum finds the data in the cache. Populating the pages first avoids one page fault
 * per page. Kernels before 5.14 can't do that; there the read causes the faults. */
static int read_data(const mpy_image_t *im, const mpy_image_run_t *run, char *to, char *err, size_t n) {
    mpy_image_sum_t sum;
    mpy_image_sum_begin(im, &sum);
    for (uint64_t done = 0, piece; done < run->stored; done += piece) {
        piece = run->stored - done < PIECE ? run->stored - done : PIECE;
        madvise(to + done, piece, MADV_POPULATE_WRITE);
        if (mpy_image_read_at(im, to + done, piece, run->offset + done, err, n)) return -1;
        mpy_image_sum_add(im, &sum, to + done, piece);
    }
    return mpy_image_check_sum(im, run, &sum, err, n);
}

int mpy_image_read_run(const mpy_image_t *im, const mpy_image_run_t *run, char *to, char *err, size_t n) {
    static _Alignas(MPY_IMAGE_PAGE) char frame[MPY_FRAME_MAX];
    if (run->kind == MPY_RUN_DATA) return read_data(im, run, to, err, n);
    if (read_data(im, run, frame, err, n)) return -1;
    madvise(to, run->bytes, MADV_POPULATE_WRITE);
    if (mpy_zstd_expand(frame, run->stored, to, run->bytes))
        FAIL("%s: damaged: the frame at byte %llu of the file does not contain %llu bytes", im->path,
             (unsigned long long)run->offset, (unsigned long long)run->bytes);
    return 0;
}
