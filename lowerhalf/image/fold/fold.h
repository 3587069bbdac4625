/* fold.h - see fold.c. */
#ifndef MANAPY_IMAGE_FOLD_H
#define MANAPY_IMAGE_FOLD_H

#include "image/file/reader.h"

/* Writes the new file `into`: a full image with the identity and the memory of the incremental image `path`. secret: of
 * the job. Returns 0, or -1 with one line in err; then there is no file `into`. Not for several threads at a time. */
MPY_IMAGE_API int mpy_image_fold(const char *path, const uint8_t *secret, const char *into, char *err, size_t n);

#endif
