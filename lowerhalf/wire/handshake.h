/* handshake.h - see handshake.c. */
#ifndef MANAPY_HANDSHAKE_H
#define MANAPY_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <manapy/control.h>

enum { MPY_HANDSHAKE_LINE = 160 }; /* room for the AUTH line with a role of up to 16 characters */

typedef struct mpy_handshake {
    char line[MPY_HANDSHAKE_LINE]; /* for the server, without the newline */
    char expected[3 + 64 + 1];     /* the answer that the server must send */
    uint8_t key[MPY_SECRET_BYTES]; /* of this connection, for sealed lines */
} mpy_handshake_t;

typedef enum {
    MPY_HANDSHAKE_GOOD = 0,
    MPY_HANDSHAKE_STRANGER,
    MPY_HANDSHAKE_VERSION,
    MPY_HANDSHAKE_RANDOM
} mpy_handshake_status_t;

/* The client's half: computes what to send to a server that has greeted with `greeting`. service: the greeting's first
 * word. STRANGER: it isn't that service; VERSION: it speaks another version, which is stored in *version; RANDOM: no
 * random numbers, see errno. */
mpy_handshake_status_t mpy_handshake_answer(mpy_handshake_t *h, const char *greeting, const char *service, int *version,
                                            const char *role, const uint8_t secret[MPY_SECRET_BYTES]);
/* Is this the answer of a server that knows the secret? */
bool mpy_handshake_check(const mpy_handshake_t *h, const char *answer);

enum { MPY_SEAL_HEX = 32 };

/* The seal of line number `number` (0, 1 ...) of a connection, sent from this end ("client" or "server"). */
void mpy_seal(const uint8_t key[MPY_SECRET_BYTES], const char *end, uint64_t number, const char *line, size_t length,
              char seal[MPY_SEAL_HEX + 1]);
/* Are n bytes equal? Compares in constant time. */
bool mpy_equal_secretly(const char *a, const char *b, size_t n);

#endif
