/* backoff.h - when a path that has failed is probed again: each time later, if it fails again and again though it
 * answers.
 *
 * A path may answer probes and fail as soon as there is traffic on it (packets of some size are lost, or one in a
 * hundred). Connections would go there and back for ever. So a path that has been up for less than STABLE_NS when it
 * fails waits twice as long as the last time, at most MOST_NS. A probe that fails shows an outage, which is over when
 * one succeeds: then what was before is forgotten, as it is when the path has been up for STABLE_NS.
 *
 * Pure: the caller gives the time, ns (shift_now), which is never 0. All zero: a path that has never been up.
 */
#ifndef MANAPY_RDMA_BACKOFF_H
#define MANAPY_RDMA_BACKOFF_H

#include <stdint.h>

typedef struct shift_backoff {
    uint64_t up_since; /* of the last time that it was up */
    uint64_t wait;     /* ns, after its last failure */
    uint64_t until;    /* it isn't probed before this, as long as there is another path */
} shift_backoff_t;

void shift_backoff_up(shift_backoff_t *b, uint64_t now);     /* it works, as far as probes tell */
void shift_backoff_failed(shift_backoff_t *b, uint64_t now); /* it was up */
void shift_backoff_silent(shift_backoff_t *b);               /* a probe has failed */

#endif
