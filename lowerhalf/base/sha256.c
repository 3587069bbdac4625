/* sha256.c - SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for the authentication of control connections. Lower half; needs
 * only memcpy and memset. Not meant for bulk data: images are checked with CRC-32C.
 */
#include "sha256.h"

#include <string.h>

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t state[8], const uint8_t block[64]) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
             h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + k[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g,
        state[7] += h;
}

void mpy_sha256_init(mpy_sha256_t *h) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, initial, sizeof initial);
    h->bytes = 0;
}

void mpy_sha256_update(mpy_sha256_t *h, const void *data, size_t n) {
    const uint8_t *p = data;
    while (n > 0) {
        size_t at = h->bytes % 64, part = 64 - at < n ? 64 - at : n;
        memcpy(h->block + at, p, part);
        h->bytes += part, p += part, n -= part;
        if (h->bytes % 64 == 0) compress(h->state, h->block);
    }
}

void mpy_sha256_final(mpy_sha256_t *h, uint8_t digest[MPY_SHA256_BYTES]) {
    uint64_t bits = h->bytes * 8;
    static const uint8_t pad[64] = {0x80};
    mpy_sha256_update(h, pad, 1 + (119 - h->bytes % 64) % 64);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    mpy_sha256_update(h, length, 8);
    for (int i = 0; i < MPY_SHA256_BYTES; i++) digest[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void mpy_hmac_init(mpy_hmac_t *m, const void *key, size_t n) {
    uint8_t block[64] = {0}, inner_pad[64];
    if (n > sizeof block) {
        mpy_sha256_init(&m->inner);
        mpy_sha256_update(&m->inner, key, n);
        mpy_sha256_final(&m->inner, block);
    } else {
        memcpy(block, key, n);
    }
    for (size_t i = 0; i < sizeof block; i++) inner_pad[i] = block[i] ^ 0x36, m->outer_pad[i] = block[i] ^ 0x5c;
    mpy_sha256_init(&m->inner);
    mpy_sha256_update(&m->inner, inner_pad, sizeof inner_pad);
}

void mpy_hmac_update(mpy_hmac_t *m, const void *data, size_t n) { mpy_sha256_update(&m->inner, data, n); }

void mpy_hmac_final(mpy_hmac_t *m, uint8_t digest[MPY_SHA256_BYTES]) {
    uint8_t inner[MPY_SHA256_BYTES];
    mpy_sha256_final(&m->inner, inner);
    mpy_sha256_t outer;
    mpy_sha256_init(&outer);
    mpy_sha256_update(&outer, m->outer_pad, sizeof m->outer_pad);
    mpy_sha256_update(&outer, inner, sizeof inner);
    mpy_sha256_final(&outer, digest);
}
