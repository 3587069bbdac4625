/* load.c - the data of runs, read into memory. Lower half, libc allowed; one thread at a time.
 *
 * Invariants
 *  1. A frame is expanded after it has been checked, and never beyond the memory of its run.
 */
#include "base/reason.h"
#include "reader.h"

#include "base/zstd.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif
#define PIECE (512ul << 10)

int mpy_image_check_loadable(const mpy_image_t *im, char *err, size_t n) {
    for (; im; im = im->parent)
        for (uint64_t i = 0; i < im->nruns; i++)
            if (im->runs[i].kind == MPY_RUN_ZIPPED && !mpy_zstd_open())
                return mpy_reason(err, n, "%s: it is compressed, and " MPY_ZSTD_MISSING, im->path);
    return 0;
}

/* This avoids one page fault per page, and finds out whether an access would end in SIGBUS. Kernels before 5.14 can't
 * do it; there the read causes the faults. */
static int populate(const mpy_image_t *im, char *to, uint64_t bytes, char *err, size_t n) {
    if (madvise(to, bytes, MADV_POPULATE_WRITE) && errno == EFAULT)
        return mpy_reason(err, n, "%s: no room for memory that processes share: /dev/shm is full here, or smaller than "
                          "at the checkpoint (see `df /dev/shm`)", im->path);
    return 0;
}

/* Reads in pieces, so that the checksum finds the data in the cache. */
static int read_data(const mpy_image_t *im, const mpy_image_run_t *run, char *to, char *err, size_t n) {
    mpy_image_sum_t sum;
    mpy_image_sum_begin(im, &sum);
    for (uint64_t done = 0, piece; done < run->stored; done += piece) {
        piece = run->stored - done < PIECE ? run->stored - done : PIECE;
        if (populate(im, to + done, piece, err, n)) return -1;
        if (mpy_image_read_at(im, to + done, piece, run->offset + done, err, n)) return -1;
        mpy_image_sum_add(im, &sum, to + done, piece);
    }
    return mpy_image_check_sum(im, run, &sum, err, n);
}

int mpy_image_read_run(const mpy_image_t *im, const mpy_image_run_t *run, char *to, char *err, size_t n) {
    static _Alignas(MPY_IMAGE_PAGE) char frame[MPY_FRAME_MAX];
    if (run->kind == MPY_RUN_DATA) return read_data(im, run, to, err, n);
    if (read_data(im, run, frame, err, n)) return -1;
    if (populate(im, to, run->bytes, err, n)) return -1;
    if (mpy_zstd_expand(frame, run->stored, to, run->bytes))
        return mpy_reason(err, n, "%s: damaged: the frame at byte %llu of the file does not contain %llu bytes",
                          im->path, (unsigned long long)run->offset, (unsigned long long)run->bytes);
    return 0;
}
