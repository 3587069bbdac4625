/* backoff.h - when a path that has failed is probed again: later each time if it fails repeatedly although it answers
 * probes.
 *
 * A path may answer probes and fail as soon as there is traffic on it (for example if packets of some size are lost, or
 * one in a hundred). Then connections would move back and forth for ever. So a path that fails after being up for less
 * than STABLE_NS waits twice as long as the last time, at most MOST_NS. A failed probe means an outage, which ends when
 * a probe succeeds. Then earlier failures are forgotten, as they are when the path has been up for STABLE_NS.
 *
 * Pure functions: the caller gives the time in ns (shift_now), which is never 0. All zero: a path that has never been
 * up.
 */
#ifndef MANAPY_RDMA_BACKOFF_H
#define MANAPY_RDMA_BACKOFF_H

#include <stdint.h>

typedef struct shift_backoff {
    uint64_t up_since; /* the start of the last time that it was up */
    uint64_t wait;     /* ns, after its last failure */
    uint64_t until;    /* it isn't probed before this time, as long as there is another path */
} shift_backoff_t;

void shift_backoff_up(shift_backoff_t *b, uint64_t now);     /* it works, according to probes */
void shift_backoff_failed(shift_backoff_t *b, uint64_t now); /* it was up */
void shift_backoff_silent(shift_backoff_t *b);               /* a probe has failed */

#endif
