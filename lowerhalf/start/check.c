/* check.c - checks a checkpoint before the job begins to continue it. Half: lower, before the program starts. */
#include "image/file/reader.h"
#include "join/jobdir.h"
#include "lower.h"
#include "wire/wire.h"
#include <limits.h>
#include <manapy/image_path.h>

bool mpy_checkpoint_secret(const char *checkpoint, uint8_t secret[MPY_SECRET_BYTES], char *error, size_t n) {
    char job_dir[PATH_MAX], unused[PATH_MAX];
    return mpy_secret_read(checkpoint, secret, error, n) ||
           (mpy_jobdir_of_checkpoint(checkpoint, job_dir, unused) && mpy_secret_read(job_dir, secret, error, n));
}

bool mpy_continue_check(const char *checkpoint, int rank, int size, char *damage, size_t n) {
    char path[PATH_MAX + MPY_IMAGE_PATH_MORE];
    uint8_t secret[MPY_SECRET_BYTES];
    if (mpy_has_local_images(checkpoint)) return true; /* it is located and checked when there is a job */
    mpy_image_path(path, sizeof path, checkpoint, rank);
    return mpy_checkpoint_secret(checkpoint, secret, damage, n) &&
           mpy_image_verify(path, rank, size, secret, NULL, damage, n) == 0;
}
