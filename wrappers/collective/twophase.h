/* twophase.h - the entry of the program's collectives, under the clock or under two-phase commit. See twophase.c. */
#ifndef MANAPY_TWOPHASE_H
#define MANAPY_TWOPHASE_H

#include "clock/clock.h"

/* At the entry of a blocking collective of the program on `c`, like mpy_clock_enter. Under two-phase commit a barrier
 * precedes it. */
MPY_HIDDEN void mpy_two_phase_enter(mpy_thread_t *t, mpy_comm_t *c);
static inline void mpy_collective_enter(mpy_thread_t *t, mpy_comm_t *c) {
    if (MPY_LIKELY(MPY_LOWER->protocol == MPY_PROTOCOL_CC))
        mpy_clock_enter(t, mpy_row(c->row));
    else
        mpy_two_phase_enter(t, c);
}
/* The same for a collective that returns a request. Two-phase commit does not support it: ends the job with one line
 * that names `function`. */
MPY_HIDDEN void mpy_two_phase_refuse(const char *function) __attribute__((noreturn));
static inline void mpy_clock_start(mpy_thread_t *t, mpy_clock_row_t *row, const char *function) {
    if (MPY_UNLIKELY(MPY_LOWER->protocol != MPY_PROTOCOL_CC)) mpy_two_phase_refuse(function);
    mpy_clock_enter(t, row);
}

#endif
