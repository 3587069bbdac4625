/* polyval.h - POLYVAL (RFC 8452): the keyed hash that the seals of images are made from (seal.h), fast enough for
 * gigabytes. Its value must not be used as a seal: it would reveal the key. The functions depend only on their
 * arguments.
 */
#ifndef MANAPY_POLYVAL_H
#define MANAPY_POLYVAL_H

#include <stddef.h>
#include <stdint.h>

enum { MPY_POLYVAL_BYTES = 16 };

typedef struct mpy_polyval {
    uint64_t powers[4][2]; /* of the key: H^4, H^3, H^2, H */
    uint64_t sum[2];
    uint8_t partial[MPY_POLYVAL_BYTES];
    unsigned filled; /* bytes in `partial` */
} mpy_polyval_t;

__attribute__((visibility("default"))) void mpy_polyval_init(mpy_polyval_t *p, const uint8_t key[MPY_POLYVAL_BYTES]);
__attribute__((visibility("default"))) void mpy_polyval_update(mpy_polyval_t *p, const void *data, size_t n);
/* An incomplete last block is filled up with zeros. */
__attribute__((visibility("default"))) void mpy_polyval_final(mpy_polyval_t *p, uint8_t hash[MPY_POLYVAL_BYTES]);
/* Start again with the same key. */
__attribute__((visibility("default"))) void mpy_polyval_reset(mpy_polyval_t *p);
/* update, for CPUs without PCLMUL; public so that a test can compare both. */
__attribute__((visibility("default"))) void mpy_polyval_update_plain(mpy_polyval_t *p, const void *data, size_t n);

#endif
