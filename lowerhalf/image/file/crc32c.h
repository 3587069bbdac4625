/* crc32c.h - CRC-32C (Castagnoli), the checksum of images. The functions depend only on their arguments. They can be
 * used in both halves, in signal handlers and before libc is initialized.
 *
 * mpy_crc32c(0, p, n) is the checksum of n bytes. mpy_crc32c(mpy_crc32c(0, a, n), b, m) is the checksum of a followed
 * by b.
 */
#ifndef MANAPY_CRC32C_H
#define MANAPY_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#define MPY_CRC_API __attribute__((visibility("default"))) /* exported by libmanapy_image.so */

MPY_CRC_API uint32_t mpy_crc32c(uint32_t crc, const void *data, size_t bytes);

/* Checksum of a followed by b, from the checksums of a and b and the length of b. So parts can be summed in
 * parallel. */
MPY_CRC_API uint32_t mpy_crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);

/* The fallback for CPUs without SSE4.2 and PCLMUL; public so that a test can compare both. */
MPY_CRC_API uint32_t mpy_crc32c_plain(uint32_t crc, const void *data, size_t bytes);

#endif
