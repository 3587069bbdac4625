/* backoff.c - see backoff.h. */
#include "links/backoff.h"

#define FIRST_NS UINT64_C(200000000)
#define MOST_NS UINT64_C(5000000000)
#define STABLE_NS UINT64_C(30000000000) /* longer than all the retries that traffic needs to fail */

void shift_backoff_up(shift_backoff_t *b, uint64_t now) { b->up_since = now; }

void shift_backoff_failed(shift_backoff_t *b, uint64_t now) {
    uint64_t twice = 2 * b->wait < MOST_NS ? 2 * b->wait : MOST_NS;
    b->wait = b->wait && now - b->up_since < STABLE_NS ? twice : FIRST_NS;
    b->until = now + b->wait;
}

void shift_backoff_silent(shift_backoff_t *b) { b->wait = b->until = 0; }
