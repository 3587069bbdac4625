/* clock.h - the collective clock of one rank: counting collectives, identities of communicators. See clock.c. */
#ifndef MANAPY_WRAPPERS_CLOCK_H
#define MANAPY_WRAPPERS_CLOCK_H

#include "core/runtime.h"

static inline mpy_clock_row_t *mpy_row(uint32_t index) { return &MPY_UPPER->clock.rows[index]; }
MPY_HIDDEN void mpy_clock_enter_slow(mpy_thread_t *t, mpy_clock_row_t *row);
MPY_HIDDEN void mpy_clock_leave_slow(mpy_thread_t *t);
MPY_HIDDEN void mpy_clock_finish(mpy_thread_t *t);
/* Sleeps until clock.wake differs from `wake`, or for a limited time; with in_lower = 0. */
MPY_HIDDEN void mpy_clock_sleep(mpy_thread_t *t, uint32_t wake);

/* At the entry of every blocking collective, before mpy_cross_in_collective: counts the call, or parks first. On return
 * the thread has in_lower = 1 (so that no freeze can come in between) and seq is incremented. */
static inline void mpy_clock_enter(mpy_thread_t *t, mpy_clock_row_t *row) {
    t->in_lower = 1;
    /* Store these before phase is read: if the control thread misses them, the call sees the phase. */
    t->state_cid = row->cid;
    t->state = MPY_STATE_IN_COLLECTIVE;
    row->seq++;
    __asm__ volatile("" ::: "memory");
    if (MPY_UNLIKELY(MPY_LOWER->phase != MPY_PHASE_NONE)) mpy_clock_enter_slow(t, row);
}
/* Takes back a call that mpy_clock_enter has counted but that has not been made yet. */
MPY_HIDDEN void mpy_clock_take_back(mpy_thread_t *t, mpy_clock_row_t *row);
static inline void mpy_cross_in_collective(mpy_thread_t *t) {
    if (MPY_UNLIKELY(t->lower_fs == 0)) mpy_bind(t);
    mpy_hook_in(t);
}
static inline void mpy_clock_leave(mpy_thread_t *t) {
    t->state = MPY_STATE_RUNNING;
    __asm__ volatile("" ::: "memory");
    t->in_lower = 0;
    __asm__ volatile("" ::: "memory");
    if (MPY_UNLIKELY(MPY_LOWER->phase != MPY_PHASE_NONE)) mpy_clock_leave_slow(t);
}
static inline void mpy_cross_out_collective(mpy_thread_t *t) {
    mpy_hook_out(t);
    mpy_clock_leave(t);
}
/* Called when a collective that counted on `row` has returned the error `rc`. True: its arguments were wrong, and it
 * isn't counted any more (invariant 6 of clock.c). In the lower half. */
MPY_HIDDEN bool mpy_clock_failed(mpy_clock_row_t *row, int rc);
static inline void mpy_collective_leave(mpy_thread_t *t, mpy_clock_row_t *row, int rc) {
    if (MPY_UNLIKELY(rc != 0)) mpy_clock_failed(row, rc);
    mpy_cross_out_collective(t);
}
/* Identity of a new communicator (the design's "State"). */
MPY_HIDDEN uint64_t mpy_ggid(const int32_t *world, int n);
MPY_HIDDEN uint64_t mpy_child_cid(uint64_t parent_cid, uint64_t parent_seq, int32_t smallest_world_rank);
MPY_HIDDEN uint64_t mpy_group_cid(uint64_t ggid, int tag, uint64_t count);
MPY_HIDDEN uint32_t mpy_row_add(uint64_t cid, const int32_t *world, int n, int handle);
/* freed here, but perhaps not by all members: the row stays, without handle and name */
MPY_HIDDEN void mpy_row_leave(uint32_t row);
MPY_HIDDEN void mpy_row_remove(uint32_t row);
/* State for the protocol while a blocking point-to-point call or a failing poll waits (slow path: only while
 * pending). */
MPY_HIDDEN void mpy_clock_blocked(mpy_thread_t *t, const mpy_comm_t *comm_or_null, const int32_t *peers, uint32_t n,
                                  int all_members, int mode);
MPY_HIDDEN void mpy_clock_unblocked(mpy_thread_t *t);

#endif
