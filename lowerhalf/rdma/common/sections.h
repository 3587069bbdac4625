/* sections.h - which data verbs are in progress, for threads that must wait until none is.
 *
 * In the default state a data verb takes no lock. Its thread writes the object's address into a slot of its own, reads
 * the object's state, calls the provider, and clears the slot. A thread that has changed the state executes a memory
 * barrier on every thread of the process (membarrier(2)) and checks the slots. Every verb that is not in a slot then
 * sees the new state. (These are hazard pointers; the expensive half of the fence is on the rare side.)
 *
 * Invariants:
 * - Slots are never unmapped. A thread that ends leaves its slot to the next one.
 * - Sections nest as signal handlers do. Sections for which a slot has no room are counted instead, and stand for every
 *   object.
 * - Nothing here locks, or calls libc in a data verb, except in the thread's first one.
 */
#ifndef MANAPY_RDMA_SECTIONS_H
#define MANAPY_RDMA_SECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHIFT_NESTED = 5 };

typedef struct shift_thread {
    const void *in[SHIFT_NESTED];
    uint32_t depth;
    bool taken; /* by a running thread */
    struct shift_thread *next;
} __attribute__((aligned(64))) shift_thread_t;

#define SHIFT_HIDDEN __attribute__((visibility("hidden")))
extern SHIFT_HIDDEN __thread shift_thread_t *shift_me __attribute__((tls_model("initial-exec")));
extern SHIFT_HIDDEN bool shift_fences; /* the kernel refuses membarrier, so every section begins with a fence */
extern SHIFT_HIDDEN uint32_t shift_deep; /* number of sections without room in a slot */

SHIFT_HIDDEN shift_thread_t *shift_thread_new(void);

static inline shift_thread_t *shift_enter(const void *object) {
    shift_thread_t *me = shift_me;
    if (__builtin_expect(!me, 0))
        me = shift_thread_new();
    uint32_t d = me->depth;
    me->depth = d + 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* from here on a signal handler uses the next place */
    if (__builtin_expect(d >= SHIFT_NESTED, 0))
        __atomic_fetch_add(&shift_deep, 1, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n(&me->in[d], object, __ATOMIC_RELAXED);
    if (__builtin_expect(shift_fences, 0))
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return me;
}

static inline void shift_leave(shift_thread_t *me) {
    uint32_t d = me->depth - 1;
    if (__builtin_expect(d >= SHIFT_NESTED, 0))
        __atomic_fetch_sub(&shift_deep, 1, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n(&me->in[d], NULL, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    me->depth = d;
}

/* Every section that begins after this sees everything that the caller has written before. */
SHIFT_HIDDEN void shift_barrier(void);

/* Is a thread in a section of this object that began before the last shift_barrier? Once false, it stays false for
 * these sections. */
SHIFT_HIDDEN bool shift_inside(const void *object);

#endif
