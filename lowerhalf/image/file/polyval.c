/* polyval.c - POLYVAL of RFC 8452: sums of products in GF(2^128), bits of a block in little-endian order. No libc.
 *
 * A product a.b here is a times b times x^-128 (the RFC's dot), which is associative. So four blocks are multiplied
 * side by side, by H^4, H^3, H^2 and H, and their sum is reduced once.
 */
#include "polyval.h"

#include <cpuid.h>
#include <emmintrin.h>
#include <wmmintrin.h>

enum { BLOCK = MPY_POLYVAL_BYTES };
/* x^127 + x^126 + x^121, the lower half of the polynomial without its 1; folding supplies the 1 */
#define FOLD 0xc200000000000000ull

typedef struct wide { __m128i low, high; } wide_t;

/* ---- one bit at a time ---- */

static void product_plain(uint64_t a[2], const uint64_t b[2]) {
    uint64_t low = 0, high = 0;
    for (int i = 0; i < 128; i++) {
        uint64_t use = -(a[i / 64] >> (i % 64) & 1);
        low ^= b[0] & use, high ^= b[1] & use;
        uint64_t odd = -(low & 1); /* divide by x */
        low ^= odd & 1, high ^= odd & FOLD;
        low = low >> 1 | high << 63;
        high = high >> 1 | (odd & 1ull << 63);
    }
    a[0] = low, a[1] = high;
}

static void blocks_plain(mpy_polyval_t *p, const uint8_t *data, size_t n) {
    for (; n > 0; data += BLOCK, n--) {
        uint64_t block[2];
        __builtin_memcpy(block, data, BLOCK);
        p->sum[0] ^= block[0], p->sum[1] ^= block[1];
        product_plain(p->sum, p->powers[3]);
    }
}

/* ---- by carry-less multiplication ---- */

__attribute__((target("pclmul"))) static inline wide_t multiply(__m128i a, __m128i b) {
    __m128i middle = _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x10), _mm_clmulepi64_si128(a, b, 0x01));
    return (wide_t){_mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x00), _mm_slli_si128(middle, 8)),
                    _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x11), _mm_srli_si128(middle, 8))};
}

__attribute__((target("pclmul"))) static inline __m128i reduce(wide_t w) {
    __m128i fold = _mm_set_epi64x(0, (long long)FOLD);
    for (int half = 0; half < 2; half++)
        w.low = _mm_xor_si128(_mm_shuffle_epi32(w.low, 0x4e), _mm_clmulepi64_si128(w.low, fold, 0x00));
    return _mm_xor_si128(w.low, w.high);
}

__attribute__((target("pclmul"))) static void blocks_fast(mpy_polyval_t *p, const uint8_t *data, size_t n) {
    __m128i sum = _mm_loadu_si128((const __m128i *)p->sum), h[4];
    for (int i = 0; i < 4; i++) h[i] = _mm_loadu_si128((const __m128i *)p->powers[i]);
    for (; n >= 4; data += 4 * BLOCK, n -= 4) {
        wide_t w = multiply(_mm_xor_si128(sum, _mm_loadu_si128((const __m128i *)data)), h[0]);
        for (int i = 1; i < 4; i++) {
            wide_t more = multiply(_mm_loadu_si128((const __m128i *)(data + i * BLOCK)), h[i]);
            w = (wide_t){_mm_xor_si128(w.low, more.low), _mm_xor_si128(w.high, more.high)};
        }
        sum = reduce(w);
    }
    for (; n > 0; data += BLOCK, n--)
        sum = reduce(multiply(_mm_xor_si128(sum, _mm_loadu_si128((const __m128i *)data)), h[3]));
    _mm_storeu_si128((__m128i *)p->sum, sum);
}

static int has_pclmul(void) {
    static int known; /* 1: no, 2: yes */
    unsigned a, b, c = 0, d;
    if (!known) known = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) ? 2 : 1;
    return known == 2;
}

/* ---- ---- */

static void update(mpy_polyval_t *p, const uint8_t *data, size_t n,
                   void (*blocks)(mpy_polyval_t *, const uint8_t *, size_t)) {
    if (p->filled > 0) {
        while (p->filled < BLOCK && n > 0) p->partial[p->filled++] = *data++, n--;
        if (p->filled < BLOCK) return;
        blocks(p, p->partial, 1);
        p->filled = 0;
    }
    blocks(p, data, n / BLOCK);
    data += n / BLOCK * BLOCK;
    for (n %= BLOCK; n > 0; n--) p->partial[p->filled++] = *data++;
}

void mpy_polyval_init(mpy_polyval_t *p, const uint8_t key[BLOCK]) {
    __builtin_memcpy(p->powers[3], key, BLOCK);
    for (int i = 2; i >= 0; i--) {
        __builtin_memcpy(p->powers[i], p->powers[i + 1], BLOCK);
        product_plain(p->powers[i], p->powers[3]);
    }
    mpy_polyval_reset(p);
}

void mpy_polyval_reset(mpy_polyval_t *p) { p->sum[0] = p->sum[1] = 0, p->filled = 0; }

void mpy_polyval_update(mpy_polyval_t *p, const void *data, size_t n) {
    update(p, data, n, has_pclmul() ? blocks_fast : blocks_plain);
}
void mpy_polyval_update_plain(mpy_polyval_t *p, const void *data, size_t n) { update(p, data, n, blocks_plain); }

void mpy_polyval_final(mpy_polyval_t *p, uint8_t hash[BLOCK]) {
    static const uint8_t zeros[BLOCK];
    if (p->filled > 0) mpy_polyval_update(p, zeros, BLOCK - p->filled);
    __builtin_memcpy(hash, p->sum, BLOCK);
}
