/* twophase.c - two-phase commit (manapy-launch --protocol 2pc): MANA's first algorithm, from the collective clock's
 * paper (section 2.2), for comparison with it.
 *
 * Upper half, upper TLS, no libc. A barrier of our own on the communicator precedes each blocking collective. A rank
 * that waits in the barrier can be interrupted. A rank that has left it knows that all members have reached the
 * collective.
 *
 * Invariants
 *  1. The collective is counted on its communicator's clock when the barrier is complete; the barrier is never counted.
 *     So a target only promises a collective that all members have reached, and the clock does the rest as usual.
 *  2. At a safe state either all members have counted the collective or none has. In the second case, members that are
 *     in the barrier, or have passed it but not counted, make the barrier again after a restart, which has discarded
 *     it.
 *  3. Only blocking collectives of the collective chapter have the barrier. Constructors and the collectives on windows
 *     and files are only counted, as under the clock; this is all they need. Nonblocking and persistent collectives end
 *     the job.
 */
#include "twophase.h"
#include "clock/clock.h"
#include "core/objects.h"
#include "p2p/request.h"

/* Returns the generation of the lower half in which the barrier was complete or failed. (If it failed, the collective
 * will fail, too.) */
static uint32_t barrier(mpy_thread_t *t, mpy_comm_t *c) {
    mpy_wait_t w = {.comm = c, .source = MPY_ALL_MEMBERS};
    uint32_t generation;
    int real, done = 0, rc;
    mpy_cross_in(t);
    do {
        generation = MPY_LOWER->generation;
        rc = MPY_REAL(Ibarrier)(c->obj.real, &real);
        while (rc == 0 && !done && generation == MPY_LOWER->generation) {
            rc = MPY_REAL(Test)(&real, &done, MPI_STATUS_IGNORE);
            if (rc == 0 && !done) mpy_wait_round(t, &w); /* a restart may happen here */
        }
    } while (rc == 0 && !done);
    mpy_cross_out(t);
    if (MPY_UNLIKELY(t->state != MPY_STATE_RUNNING)) mpy_clock_unblocked(t);
    return generation;
}

void mpy_two_phase_enter(mpy_thread_t *t, mpy_comm_t *c) {
    mpy_clock_row_t *row = mpy_row(c->row);
    if (c->foreign) { /* members outside the job don't know this barrier, and no checkpoint is possible meanwhile */
        mpy_clock_enter(t, row);
        return;
    }
    for (;;) {
        uint32_t generation = barrier(t, c);
        mpy_clock_enter(t, row); /* may park, so a restart may happen here, too */
        if (generation == MPY_LOWER->generation) return;
        mpy_clock_take_back(t, row);
    }
}

void mpy_two_phase_refuse(const char *function) {
    mpy_die("%s: two-phase commit (--protocol 2pc) has no nonblocking or persistent collectives; the default, "
            "--protocol cc, supports them",
            function);
}
