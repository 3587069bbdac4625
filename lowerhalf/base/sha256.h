/* sha256.h - see sha256.c. */
#ifndef MANAPY_SHA256_H
#define MANAPY_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define MPY_SHA256_BYTES 32

typedef struct mpy_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} mpy_sha256_t;

void mpy_sha256_init(mpy_sha256_t *h);
void mpy_sha256_update(mpy_sha256_t *h, const void *data, size_t n);
void mpy_sha256_final(mpy_sha256_t *h, uint8_t digest[MPY_SHA256_BYTES]);

typedef struct mpy_hmac {
    mpy_sha256_t inner;
    uint8_t outer_pad[64];
} mpy_hmac_t;

void mpy_hmac_init(mpy_hmac_t *m, const void *key, size_t n);
void mpy_hmac_update(mpy_hmac_t *m, const void *data, size_t n);
void mpy_hmac_final(mpy_hmac_t *m, uint8_t digest[MPY_SHA256_BYTES]);

#endif
