/* seal.c - see seal.h. Runs in the lower half or in Python's process.
 *
 * Invariants
 *  1. Values of POLYVAL leave this file only through HMAC.
 */
#include "seal.h"

#include <stddef.h>
#include <string.h>

_Static_assert(MPY_IMAGE_SEAL == MPY_SHA256_BYTES, "a seal is a keyed hash");

static void derive(const uint8_t secret[MPY_SECRET_BYTES], const char *use, uint8_t key[MPY_SHA256_BYTES]) {
    mpy_hmac_t m;
    mpy_hmac_init(&m, secret, MPY_SECRET_BYTES);
    mpy_hmac_update(&m, use, strlen(use));
    mpy_hmac_final(&m, key);
}

void mpy_image_keys(mpy_image_keys_t *keys, const uint8_t secret[MPY_SECRET_BYTES]) {
    uint8_t hash[MPY_SHA256_BYTES];
    derive(secret, "image head", keys->head);
    derive(secret, "image data", keys->data);
    derive(secret, "image hash", hash);
    mpy_polyval_init(&keys->hash, hash);
}

void mpy_image_seal_run(const mpy_image_keys_t *keys, const mpy_image_run_t *run, mpy_polyval_t *hash,
                        uint8_t seal[MPY_RUN_SEAL]) {
    uint8_t value[MPY_POLYVAL_BYTES], digest[MPY_SHA256_BYTES];
    mpy_hmac_t m;
    mpy_polyval_final(hash, value);
    mpy_hmac_init(&m, keys->data, sizeof keys->data);
    mpy_hmac_update(&m, &run->kind, sizeof run->kind);
    mpy_hmac_update(&m, &run->address, sizeof run->address);
    mpy_hmac_update(&m, &run->bytes, sizeof run->bytes);
    mpy_hmac_update(&m, &run->stored, sizeof run->stored);
    mpy_hmac_update(&m, value, sizeof value);
    mpy_hmac_final(&m, digest);
    memcpy(seal, digest, MPY_RUN_SEAL);
}

void mpy_image_seal_begin(mpy_hmac_t *m, const mpy_image_keys_t *keys) {
    mpy_hmac_init(m, keys->head, sizeof keys->head);
}

void mpy_image_seal_finish(mpy_hmac_t *m, const mpy_image_header_t *header, uint8_t seal[MPY_IMAGE_SEAL]) {
    mpy_hmac_update(m, header, offsetof(mpy_image_header_t, seal));
    mpy_hmac_final(m, seal);
}
