/* digest.c - reads lines "KEY MESSAGE" ("-" is empty), and prints SHA-256 of MESSAGE and HMAC-SHA-256 under KEY, both
 * in hex. The message is passed on in pieces of growing length. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "wire/wire.h"

static void print(const uint8_t d[MPY_SHA256_BYTES], char end) {
    for (int i = 0; i < MPY_SHA256_BYTES; i++) printf("%02x", d[i]);
    putchar(end);
}

int main(void) {
    static char key[1 << 16], message[1 << 16];
    static uint8_t k[1 << 15], m[1 << 15], digest[MPY_SHA256_BYTES];
    while (scanf("%65535s %65535s", key, message) == 2) {
        size_t nk = key[0] == '-' ? 0 : strlen(key) / 2, nm = message[0] == '-' ? 0 : strlen(message) / 2;
        if (nk > 0 && !mpy_hex_decode(key, k, nk)) return 1;
        if (nm > 0 && !mpy_hex_decode(message, m, nm)) return 1;
        mpy_sha256_t h;
        mpy_hmac_t a;
        mpy_sha256_init(&h);
        mpy_hmac_init(&a, k, nk);
        for (size_t at = 0, part = 1; at < nm; at += part, part++) {
            size_t n = part < nm - at ? part : nm - at;
            mpy_sha256_update(&h, m + at, n);
            mpy_hmac_update(&a, m + at, n);
        }
        mpy_sha256_final(&h, digest);
        print(digest, ' ');
        mpy_hmac_final(&a, digest);
        print(digest, '\n');
    }
    return 0;
}
