/* verify.c - checks the page data of an image, and that the mapped files it relies on still have their old content.
 * Lower half or Python's process; libc allowed.
 *
 * Invariants
 *  1. A FILE run is compared by its checksum, over the whole length of the run. Beyond the end of the file the pages of
 *     a mapping are zero up to the page's end, so zeros are summed here, too.
 *  2. Nothing is mapped: if a file shrinks meanwhile, this causes a message, not SIGBUS.
 */
#include "base/io/whole.h"
#include "base/reason.h"
#include "chain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE (512u << 10) /* stays in the second-level cache between read and checksum */

/* Sum up `bytes` of fd from `offset`. With `pad`, a file that is too short is filled up with zeros; without, it is an
 * error. */
static int sum_file(const mpy_image_t *im, int fd, const char *path, uint64_t offset, uint64_t bytes, int pad,
                    unsigned char *piece, mpy_image_sum_t *sum, char *err, size_t n) {
    mpy_image_sum_begin(im, sum);
    while (bytes) {
        size_t want = bytes < PIECE ? (size_t)bytes : PIECE;
        ssize_t got = mpy_read_whole(fd, piece, want, (off_t)offset);
        if (got < 0) return mpy_reason(err, n, "%s: cannot read: %s", path, strerror(errno));
        if ((size_t)got < want && !pad)
            return mpy_reason(err, n, "%s: truncated: ends at byte %llu", path,
                              (unsigned long long)offset + (unsigned long long)got);
        memset(piece + got, 0, want - (size_t)got);
        mpy_image_sum_add(im, sum, piece, want);
        offset += want;
        bytes -= want;
    }
    return 0;
}

/* The mapped file that is open now. Runs are ascending, so runs of the same file follow each other. */
typedef struct mapped { uint32_t file; int fd; } mapped_t;

static int check_file(const mpy_image_t *im, const mpy_image_run_t *run, uint32_t file, mapped_t *m,
                      unsigned char *piece, char *err, size_t n) {
    const char *path = mpy_image_file_path(im, file);
    mpy_image_sum_t sum;
    if (file != m->file) {
        if (m->fd >= 0) close(m->fd);
        m->fd = open(path, O_RDONLY | O_CLOEXEC);
        m->file = file;
    }
    if (m->fd < 0)
        return mpy_reason(err, n, "%s: %s, which the program has mapped, cannot be opened: %s", im->path, path,
                          strerror(errno));
    if (sum_file(im, m->fd, path, run->offset, run->bytes, 1, piece, &sum, err, n)) return -1;
    if (sum.crc != run->crc)
        return mpy_reason(err, n, "%s: %s, which the program has mapped, was changed since the checkpoint", im->path,
                          path);
    return 0;
}

static int check_mapped(const mpy_image_t *im, void (*progress)(uint64_t), char *err, size_t n) {
    unsigned char *piece = malloc(PIECE);
    if (!piece) return mpy_reason(err, n, "%s: no memory", im->path);
    mapped_t mapped = {UINT32_MAX, -1};
    int rc = 0;
    uint64_t region = 0;
    for (uint64_t i = 0; i < im->nruns && rc == 0; i++) {
        const mpy_image_run_t *run = &im->runs[i];
        while (im->regions[region].hi <= run->address) region++; /* terminates: invariant 2 of reader.c */
        if (run->kind != MPY_RUN_FILE) continue;
        rc = check_file(im, run, im->regions[region].file, &mapped, piece, err, n);
        if (rc == 0 && progress) progress(run->bytes);
    }
    if (mapped.fd >= 0) close(mapped.fd);
    free(piece);
    return rc;
}

int mpy_image_check_files(const mpy_image_t *im, char *err, size_t n) { return check_mapped(im, NULL, err, n); }

/* ---- the pages in the image and in its parents ---- */

typedef struct check {
    unsigned char *piece; /* PIECE bytes */
    void (*progress)(uint64_t);
} check_t;

static int check_data(void *context, const mpy_image_part_t *part, char *err, size_t n) {
    const check_t *check = context;
    const mpy_image_t *im = part->image;
    mpy_image_sum_t sum;
    if (sum_file(im, im->fd, im->path, part->run->offset, part->run->stored, 0, check->piece, &sum, err, n) ||
        mpy_image_check_sum(im, part->run, &sum, err, n))
        return -1;
    for (size_t i = 0; check->progress && i < part->nwanted; i++) check->progress(part->wanted[i].bytes);
    return 0;
}

int mpy_image_check_runs(const mpy_image_t *im, void (*progress)(uint64_t), char *err, size_t n) {
    check_t check = {malloc(PIECE), progress};
    if (!check.piece) return mpy_reason(err, n, "%s: no memory", im->path);
    int rc = mpy_image_each_part(im, check_data, &check, err, n) ? -1 : check_mapped(im, progress, err, n);
    free(check.piece);
    return rc;
}

int mpy_image_verify(const char *path, int rank, int size, const uint8_t *secret, void (*progress)(uint64_t), char *err,
                     size_t n) {
    mpy_image_t image;
    mpy_image_keys_t keys;
    if (secret) mpy_image_keys(&keys, secret);
    if (mpy_image_open(&image, path, rank, size, secret ? &keys : NULL, err, n)) return -1;
    int rc = mpy_image_check_runs(&image, progress, err, n);
    for (uint64_t i = 1; i < image.nmembers && rc == 0; i++) {
        mpy_image_t member;
        rc = mpy_image_open_member(&image, &image.members[i], &member, err, n);
        if (rc == 0) {
            rc = mpy_image_check_runs(&member, progress, err, n);
            mpy_image_close(&member);
        }
    }
    mpy_image_close(&image);
    return rc;
}
