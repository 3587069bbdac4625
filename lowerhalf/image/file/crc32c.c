/* crc32c.c - CRC-32C. No libc, no thread-local variable, no mutable state except the choice made at the first call.
 *
 * The crc32 instruction has a latency of 3 cycles and a throughput of 1. So three streams of STREAM bytes are summed
 * side by side and then joined. Appending n zero bytes to a message multiplies its CRC by x^(8n) mod P. This is one
 * carry-less multiplication by a constant and one crc32 instruction for the reduction (Gopal et al., "Fast CRC
 * Computation for iSCSI Polynomial Using CRC32 Instruction", Intel 2011).
 *
 * Invariants
 *  1. Inside, `c` is the raw remainder; the complement is applied once on entry and once on return.
 *  2. SHIFT_1 and SHIFT_2 are the reflected x^(8n-33) mod P for n = STREAM and 2 STREAM: the product of two reflected
 *     32-bit values lacks one factor x, and the crc32 instruction adds x^32.
 */
#include "crc32c.h"

#include <cpuid.h>
#include <nmmintrin.h>
#include <wmmintrin.h>

#define POLY 0x82F63B78u /* reflected */
#define STREAM 1360u     /* three of them are a page less 16 bytes */
#define SHIFT_1 0x3f70cc6fu
#define SHIFT_2 0x5aa1f3cfu

uint32_t mpy_crc32c_plain(uint32_t crc, const void *data, size_t bytes) {
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const unsigned char *p = data;
    uint32_t c = ~crc;
    while (bytes--) {
        c ^= *p++;
        c = (c >> 4) ^ nibble[c & 15];
        c = (c >> 4) ^ nibble[c & 15];
    }
    return ~c;
}

static inline uint64_t load64(const unsigned char *p) {
    uint64_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t shift(uint64_t c, uint32_t constant) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)c), _mm_cvtsi64_si128((long long)constant), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_fast(uint32_t crc, const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint64_t c = (uint32_t)~crc;
    while (bytes >= 3 * STREAM) {
        uint64_t c1 = 0, c2 = 0;
        for (unsigned i = 0; i < STREAM; i += 16) {
            c = _mm_crc32_u64(c, load64(p + i));
            c1 = _mm_crc32_u64(c1, load64(p + STREAM + i));
            c2 = _mm_crc32_u64(c2, load64(p + 2 * STREAM + i));
            c = _mm_crc32_u64(c, load64(p + i + 8));
            c1 = _mm_crc32_u64(c1, load64(p + STREAM + i + 8));
            c2 = _mm_crc32_u64(c2, load64(p + 2 * STREAM + i + 8));
        }
        c = shift(c, SHIFT_2) ^ shift(c1, SHIFT_1) ^ c2;
        p += 3 * STREAM;
        bytes -= 3 * STREAM;
    }
    for (; bytes >= 8; bytes -= 8, p += 8) c = _mm_crc32_u64(c, load64(p));
    for (; bytes; bytes--, p++) c = _mm_crc32_u8((uint32_t)c, *p);
    return ~(uint32_t)c;
}

uint32_t mpy_crc32c(uint32_t crc, const void *data, size_t bytes) {
    static volatile int choice; /* 0 not chosen yet, 1 fast, 2 plain; all threads choose the same */
    if (__builtin_expect(choice == 0, 0)) {
        unsigned a, b, c = 0, d;
        choice = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) && (c & bit_PCLMUL) ? 1 : 2;
    }
    return choice == 1 ? crc32c_fast(crc, data, bytes) : mpy_crc32c_plain(crc, data, bytes);
}

/* a * b mod P, reflected (bit 31 is x^0). */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u) r ^= b;
        b = (b >> 1) ^ (b & 1 ? POLY : 0);
    }
    return r;
}

uint32_t mpy_crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
    uint32_t power = 0x80000000u, base = 0x00800000u; /* 1 and x^8 */
    for (uint64_t n = bytes_b; n; n >>= 1, base = multiply(base, base))
        if (n & 1) power = multiply(power, base);
    return multiply(crc_a, power) ^ crc_b;
}
