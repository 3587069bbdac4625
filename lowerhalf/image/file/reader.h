/* reader.h - opening, reading and checking an image. Used by the restore, by the launcher and, as libmanapy_image.so,
 * by Python. Plain libc code of the lower half; it knows neither MPI nor the boundary block.
 *
 * Every function that can fail returns 0, or -1 with one line in err, which starts with the path of the file.
 */
#ifndef MANAPY_IMAGE_READER_H
#define MANAPY_IMAGE_READER_H

#include <manapy/image.h>
#include <stddef.h>
#include <stdint.h>

#include "seal.h"

#define MPY_IMAGE_API __attribute__((visibility("default")))

/* An open image. Its header and sections are checked (content and structure), its page data is not yet. The same holds
 * for its parents. */
typedef struct mpy_image {
    int fd;
    char path[1024];
    mpy_image_header_t header;
    mpy_image_region_t *regions;
    mpy_image_run_t *runs;
    mpy_image_file_t *files;
    char *strings;
    mpy_image_thread_t *threads;
    mpy_image_kept_t *kept;       /* NULL if the image has none */
    mpy_image_member_t *members;  /* NULL if the rank was a single process */
    unsigned char *process, *fds; /* NULL if the image has none */
    const mpy_image_keys_t *keys; /* NULL: seals are not checked */
    uint64_t nregions, nruns, nfiles, strings_bytes, nthreads, process_bytes, fds_bytes, nkept, nmembers;
    struct mpy_image *parent; /* open, too; NULL: a full image */
} mpy_image_t;

/* Checksum and hash of a run, of the part that has been read so far. */
typedef struct mpy_image_sum {
    uint32_t crc;
    mpy_polyval_t hash;
} mpy_image_sum_t;

void mpy_image_sum_begin(const mpy_image_t *image, mpy_image_sum_t *sum);
void mpy_image_sum_add(const mpy_image_t *image, mpy_image_sum_t *sum, const void *data, size_t n);

/* rank and size: what the caller expects, or -1. keys: those of the job that wrote the image, valid as long as the
 * image is open; NULL: seals are not checked. On failure nothing stays open. */
int mpy_image_open(mpy_image_t *image, const char *path, int rank, int size, const mpy_image_keys_t *keys, char *err,
                   size_t n);
void mpy_image_close(mpy_image_t *image);
/* Opens the image of a member of the tree in the same way: that which the rank's image names, by its seal. */
int mpy_image_open_member(const mpy_image_t *image, const mpy_image_member_t *member, mpy_image_t *out, char *err,
                          size_t n);

/* Is it the image that was first written with this seal and this checksum? (identity: image.h) */
int mpy_image_is(const mpy_image_header_t *header, const uint8_t seal[MPY_IMAGE_SEAL], uint32_t crc);

/* Reads from the image's file; fewer bytes are an error. */
int mpy_image_read_at(const mpy_image_t *image, void *to, uint64_t bytes, uint64_t offset, char *err, size_t n);

/* Path of a mapped file; "" if the index or the string is invalid. */
const char *mpy_image_file_path(const mpy_image_t *image, uint32_t file);

/* Check everything that mpy_image_open has not checked: the page data of the image, and the pages of mapped files that
 * the image relies on; in the parents, the runs that the image needs. progress (may be NULL) gets the number of
 * bytes checked since its last call. The images of the tree's members are not checked. */
int mpy_image_check_runs(const mpy_image_t *image, void (*progress)(uint64_t), char *err, size_t n);

/* The same in two steps, for a restart: first the mapped files, then the data of each run, when it has been read and
 * summed. */
int mpy_image_check_files(const mpy_image_t *image, char *err, size_t n);
int mpy_image_check_sum(const mpy_image_t *image, const mpy_image_run_t *run, mpy_image_sum_t *sum, char *err,
                        size_t n);

/* For a restart (load.c): can the runs of the image be loaded here? */
int mpy_image_check_loadable(const mpy_image_t *image, char *err, size_t n);
/* Reads the data of a run of kind DATA or ZIPPED to writable memory, and checks it. */
int mpy_image_read_run(const mpy_image_t *image, const mpy_image_run_t *run, char *to, char *err, size_t n);

/* Open, check everything, the tree's members too, close. secret: the job's, or NULL. */
MPY_IMAGE_API int mpy_image_verify(const char *path, int rank, int size, const uint8_t *secret,
                                   void (*progress)(uint64_t), char *err, size_t n);

#endif
