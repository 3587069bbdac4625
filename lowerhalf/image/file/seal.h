/* seal.h - seals prove that a rank of the job has written an image: keyed hashes (image.h lists their input) under keys
 * from the job's secret. Checksums only detect damage; anybody can compute them.
 */
#ifndef MANAPY_IMAGE_SEAL_H
#define MANAPY_IMAGE_SEAL_H

#include <manapy/control.h>
#include <manapy/image.h>

#include "base/sha256.h"
#include "polyval.h"

typedef struct mpy_image_keys {
    uint8_t head[MPY_SHA256_BYTES], data[MPY_SHA256_BYTES];
    mpy_polyval_t hash; /* in its initial state */
} mpy_image_keys_t;

__attribute__((visibility("default"))) void mpy_image_keys(mpy_image_keys_t *keys,
                                                           const uint8_t secret[MPY_SECRET_BYTES]);

/* The seal of a run. `hash` has processed its data in the image. */
__attribute__((visibility("default"))) void mpy_image_seal_run(const mpy_image_keys_t *keys, const mpy_image_run_t *run,
                                                               mpy_polyval_t *hash, uint8_t seal[MPY_RUN_SEAL]);

/* The seal of header and sections: begin, add the sections in their order, finish with the header. All fields of the
 * header except seal and checksum must be set. */
void mpy_image_seal_begin(mpy_hmac_t *m, const mpy_image_keys_t *keys);
void mpy_image_seal_finish(mpy_hmac_t *m, const mpy_image_header_t *header, uint8_t seal[MPY_IMAGE_SEAL]);

#endif
