/* handshake.c - the client's half of the handshake that opens a connection (control.h), and the seals of its lines, as
 * text. No I/O and no heap memory: it also runs inside other programs (lowerhalf/rdma/kv/kv.c).
 *
 * Invariant: keyed hashes are compared in constant time.
 */
#define _GNU_SOURCE
#include "handshake.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/hex.h"
#include "base/sha256.h"

enum { NONCE_BYTES = 16 };

static void keyed_digest(const uint8_t secret[MPY_SECRET_BYTES], const char *a, const char *b, const char *c,
                         const char *d, uint8_t digest[MPY_SHA256_BYTES]) {
    mpy_hmac_t m;
    mpy_hmac_init(&m, secret, MPY_SECRET_BYTES);
    mpy_hmac_update(&m, a, strlen(a));
    mpy_hmac_update(&m, b, strlen(b));
    mpy_hmac_update(&m, c, strlen(c));
    mpy_hmac_update(&m, d, strlen(d));
    mpy_hmac_final(&m, digest);
}

static void keyed_hash(const uint8_t secret[MPY_SECRET_BYTES], const char *a, const char *b, const char *c,
                       const char *d, char out[2 * MPY_SHA256_BYTES + 1]) {
    uint8_t digest[MPY_SHA256_BYTES];
    keyed_digest(secret, a, b, c, d, digest);
    mpy_hex(digest, sizeof digest, out);
}

_Static_assert(MPY_SECRET_BYTES == MPY_SHA256_BYTES, "a digest is a key");

void mpy_seal(const uint8_t key[MPY_SECRET_BYTES], const char *end, uint64_t number, const char *line, size_t length,
              char seal[MPY_SEAL_HEX + 1]) {
    uint8_t digest[MPY_SHA256_BYTES];
    char head[64];
    mpy_hmac_t m;
    mpy_hmac_init(&m, key, MPY_SECRET_BYTES);
    mpy_hmac_update(&m, head, (size_t)snprintf(head, sizeof head, "%s %llu ", end, (unsigned long long)number));
    mpy_hmac_update(&m, line, length);
    mpy_hmac_final(&m, digest);
    mpy_hex(digest, MPY_SEAL_HEX / 2, seal);
}

bool mpy_equal_secretly(const char *a, const char *b, size_t n) {
    unsigned differs = 0;
    for (size_t i = 0; i < n; i++) differs |= (unsigned)(a[i] ^ b[i]);
    return differs == 0;
}

mpy_handshake_status_t mpy_handshake_answer(mpy_handshake_t *h, const char *greeting, const char *service, int *version,
                                            const char *role, const uint8_t secret[MPY_SECRET_BYTES]) {
    char word[33], theirs[2 * NONCE_BYTES + 1], ours[2 * NONCE_BYTES + 1], hash[2 * MPY_SHA256_BYTES + 1];
    int wanted = *version, end = 0;
    if (sscanf(greeting, "%32s %d %32[0-9a-f]%n", word, version, theirs, &end) != 3 || strcmp(word, service) != 0 ||
        strlen(theirs) != 2 * NONCE_BYTES || greeting[end] != '\0')
        return MPY_HANDSHAKE_STRANGER;
    if (*version != wanted) return MPY_HANDSHAKE_VERSION;
    uint8_t random[NONCE_BYTES];
    if (getrandom(random, sizeof random, 0) != sizeof random) return MPY_HANDSHAKE_RANDOM;
    mpy_hex(random, sizeof random, ours);
    keyed_hash(secret, "client", theirs, ours, role, hash);
    snprintf(h->line, sizeof h->line, "AUTH %s %s %s", role, ours, hash);
    keyed_hash(secret, "server", ours, theirs, "", hash);
    snprintf(h->expected, sizeof h->expected, "OK %s", hash);
    keyed_digest(secret, "session", theirs, ours, role, h->key);
    return MPY_HANDSHAKE_GOOD;
}

bool mpy_handshake_check(const mpy_handshake_t *h, const char *answer) {
    size_t n = strlen(h->expected);
    return strlen(answer) == n && mpy_equal_secretly(h->expected, answer, n);
}
