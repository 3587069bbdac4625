/* handshake.c - the client's half of the handshake that opens a connection (control.h), as text. No I/O, no memory from the heap: it also runs inside
 * other programs (lowerhalf/rdma/kv.c).
 *
 * Invariant: keyed hashes are compared in constant time.
 */
#define _GNU_SOURCE
#include "handshake.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "sha256.h"

enum { NONCE_BYTES = 16 };

static void hex(const uint8_t *data, size_t n, char *out) {
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[data[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[data[i] & 15];
    }
    out[2 * n] = '\0';
}

static void keyed_hash(const uint8_t secret[MPY_SECRET_BYTES], const char *a, const char *b, const char *c, const char *d, char out[2 * MPY_SHA256_BYTES + 1]) {
    uint8_t digest[MPY_SHA256_BYTES];
    mpy_hmac_t m;
    mpy_hmac_init(&m, secret, MPY_SECRET_BYTES);
    mpy_hmac_update(&m, a, strlen(a));
    mpy_hmac_update(&m, b, strlen(b));
    mpy_hmac_update(&m, c, strlen(c));
    mpy_hmac_update(&m, d, strlen(d));
    mpy_hmac_final(&m, digest);
    hex(digest, sizeof digest, out);
}

mpy_handshake_status_t mpy_handshake_answer(
    mpy_handshake_t *h, const char *greeting, const char *service, int *version, const char *role, const uint8_t secret[MPY_SECRET_BYTES]) {
    char word[33], theirs[2 * NONCE_BYTES + 1], ours[2 * NONCE_BYTES + 1], hash[2 * MPY_SHA256_BYTES + 1];
    int wanted = *version, end = 0;
    if (sscanf(greeting, "%32s %d %32[0-9a-f]%n", word, version, theirs, &end) != 3 || strcmp(word, service) != 0 || strlen(theirs) != 2 * NONCE_BYTES ||
        greeting[end] != '\0')
        return MPY_HANDSHAKE_STRANGER;
    if (*version != wanted) return MPY_HANDSHAKE_VERSION;
    uint8_t random[NONCE_BYTES];
    if (getrandom(random, sizeof random, 0) != sizeof random) return MPY_HANDSHAKE_RANDOM;
    hex(random, sizeof random, ours);
    keyed_hash(secret, "client", theirs, ours, role, hash);
    snprintf(h->line, sizeof h->line, "AUTH %s %s %s", role, ours, hash);
    keyed_hash(secret, "server", ours, theirs, "", hash);
    snprintf(h->expected, sizeof h->expected, "OK %s", hash);
    return MPY_HANDSHAKE_GOOD;
}

bool mpy_handshake_check(const mpy_handshake_t *h, const char *answer) {
    size_t n = strlen(h->expected);
    if (strlen(answer) != n) return false;
    unsigned differs = 0;
    for (size_t i = 0; i < n; i++) differs |= (unsigned)(h->expected[i] ^ answer[i]);
    return differs == 0;
}
