/* pts.c - numbers of pseudo-terminals.
 *
 * Lower half; also runs in the SIGSYS handler on the upper TLS: no libc, no stack protector.
 *
 * Invariant: MPY_TRAP->pts has each shown number once, and each real number once. The rule below makes a permutation of
 * it, so a terminal that is opened later has a number of its own, whatever number the kernel gives it.
 */
#include "pts.h"
#include "trapstate.h"

static const mpy_idpair_t *by_real(int real) {
    for (uint32_t i = 0; i < MPY_TRAP->npts; i++)
        if (MPY_TRAP->pts[i].real == real) return &MPY_TRAP->pts[i];
    return 0;
}

static const mpy_idpair_t *by_shown(int shown) {
    for (uint32_t i = 0; i < MPY_TRAP->npts; i++)
        if (MPY_TRAP->pts[i].shown == shown) return &MPY_TRAP->pts[i];
    return 0;
}

int mpy_pts_shown(int real) {
    const mpy_idpair_t *pair = by_real(real);
    if (pair) return pair->shown;
    while ((pair = by_shown(real))) real = pair->real; /* another one has its number: take the number of that one */
    return real;
}

int mpy_pts_real(int shown) {
    const mpy_idpair_t *pair = by_shown(shown);
    if (pair) return pair->real;
    while ((pair = by_real(shown))) shown = pair->shown;
    return shown;
}
