/* hex.h - bytes and numbers as hexadecimal text. Header only; no libc. */
#ifndef MANAPY_HEX_H
#define MANAPY_HEX_H

#include <stddef.h>
#include <stdint.h>

/* Writes 2n lower-case digits and a NUL to `out`. */
static inline void mpy_hex(const void *data, size_t n, char *out) {
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[p[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[p[i] & 15];
    }
    out[2 * n] = '\0';
}

/* The value of a digit, or -1. */
static inline int mpy_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The value of two digits, or -1. The second one is read only if the first is a digit. */
static inline int mpy_hex_byte(const char *digits) {
    int high = mpy_hex_digit(digits[0]), low = high < 0 ? -1 : mpy_hex_digit(digits[1]);
    return low < 0 ? -1 : high << 4 | low;
}

/* The number of all digits at the beginning; *end: what follows them. strtoul would read the locale. */
static inline uint64_t mpy_hex_number(const char *text, const char **end) {
    uint64_t value = 0;
    for (int digit; (digit = mpy_hex_digit(*text)) >= 0; text++) value = 16 * value + (uint64_t)digit;
    *end = text;
    return value;
}

#endif
