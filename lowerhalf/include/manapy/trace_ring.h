/* trace_ring.h - writing into the rings of trace.h. Header only; no libc, no thread-local variable, no lock: for every
 * recorder.
 *
 * Invariants
 *  1. Those of trace.h. Only the thread that owns a ring calls these functions.
 *  2. A call is identified by the seq of its record, not by the record's address: after a restart the ring is in
 *     another file and at another address, and continues with the same numbers. If the record of an exit no longer
 *     exists (deeper calls have overwritten it), the exit is dropped.
 */
#ifndef MANAPY_TRACE_RING_H
#define MANAPY_TRACE_RING_H

#include <manapy/trace.h>
#include <stddef.h>

#define MPY_TRACE_PAGE 4096ul
#define MPY_TRACE_STRIDE (MPY_TRACE_PAGE + MPY_TRACE_CAPACITY * sizeof(mpy_trace_record_t))
#define MPY_TRACE_AHEAD 4 /* records */
#define MPY_TRACE_INLINE static inline __attribute__((always_inline))

MPY_TRACE_INLINE uint64_t mpy_trace_ticks(void) { return __builtin_ia32_rdtsc(); }

MPY_TRACE_INLINE mpy_trace_record_t *mpy_trace_record(mpy_trace_ring_t *ring, uint64_t seq) {
    return (mpy_trace_record_t *)((char *)ring + MPY_TRACE_PAGE) + ((seq - 1) & (MPY_TRACE_CAPACITY - 1));
}

/* The known fields of a call at its entry, with the names of mpy_trace_record_t. */
typedef struct mpy_trace_call {
    uint32_t op, flags, comm;
    int32_t peer, tag;
    uint64_t bytes, request, context;
} mpy_trace_call_t;

/* Publishes a record; it is open if `exit` is 0. Returns its seq. */
MPY_TRACE_INLINE uint64_t mpy_trace_put(mpy_trace_ring_t *ring, uint64_t enter, uint64_t exit, mpy_trace_call_t call) {
    uint64_t seq = ring->head + 1;
    mpy_trace_record_t *r = mpy_trace_record(ring, seq);
    __atomic_store_n(&r->seq, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* on x86 this orders only the compiler */
    r->enter = enter;
    r->exit = exit;
    r->bytes = call.bytes;
    r->comm = call.comm;
    r->op = (uint16_t)call.op;
    r->flags = (uint16_t)call.flags;
    r->peer = call.peer;
    r->tag = call.tag;
    r->request = call.request;
    r->context = call.context;
    __atomic_store_n(&r->seq, seq, __ATOMIC_RELEASE);
    ring->head = seq;
    /* A ring is larger than the near caches, and atomic operations of an MPI library wait for stores that miss them. */
    __builtin_prefetch(mpy_trace_record(ring, seq + MPY_TRACE_AHEAD), 1);
    return seq;
}

MPY_TRACE_INLINE uint64_t mpy_trace_enter(mpy_trace_ring_t *ring, mpy_trace_call_t call) {
    return mpy_trace_put(ring, mpy_trace_ticks(), 0, call);
}

/* The record of an open call, or NULL. */
MPY_TRACE_INLINE mpy_trace_record_t *mpy_trace_open(mpy_trace_ring_t *ring, uint64_t seq) {
    mpy_trace_record_t *r = mpy_trace_record(ring, seq);
    return __builtin_expect(r->seq == seq && r->exit == 0, 1) ? r : NULL;
}

/* The call returns. Adds `flags`. */
MPY_TRACE_INLINE void mpy_trace_exit_at(mpy_trace_ring_t *ring, uint64_t seq, uint64_t exit, uint32_t flags) {
    mpy_trace_record_t *r = mpy_trace_open(ring, seq);
    if (r == NULL) return;
    if (__builtin_expect(flags != 0, 0)) r->flags |= (uint16_t)flags;
    __atomic_store_n(&r->exit, exit, __ATOMIC_RELEASE);
}
MPY_TRACE_INLINE void mpy_trace_exit(mpy_trace_ring_t *ring, uint64_t seq, uint32_t flags) {
    mpy_trace_exit_at(ring, seq, mpy_trace_ticks(), flags);
}

/* The same for a call that has received something. */
MPY_TRACE_INLINE void mpy_trace_received_at(mpy_trace_ring_t *ring, uint64_t seq, uint64_t exit, uint32_t flags,
                                            int32_t peer, int32_t tag, uint64_t bytes) {
    mpy_trace_record_t *r = mpy_trace_open(ring, seq);
    if (r == NULL) return;
    r->peer = peer;
    r->tag = tag;
    r->bytes = bytes;
    mpy_trace_exit_at(ring, seq, exit, flags);
}

/* A testing call (Test, Iprobe) has found nothing. `ticks`: when it began. */
MPY_TRACE_INLINE void mpy_trace_polled(mpy_trace_ring_t *ring, uint64_t ticks, uint64_t request) {
    ring->polled_request = request;
    ring->polled = ticks;
    ring->polls++;
}

/* The program begins another phase. */
MPY_TRACE_INLINE void mpy_trace_mark(mpy_trace_ring_t *ring, uint64_t mark) {
    uint64_t now = mpy_trace_ticks();
    ring->mark = mark;
    mpy_trace_put(
        ring, now, now,
        (mpy_trace_call_t){.op = MPY_OP_MARK, .comm = MPY_TRACE_NO_COMM, .peer = MPY_TRACE_NO_PEER, .context = mark});
}

/* Added to the serials of operations that are posted while recording is paused. No ring has so many records, and
 * manapy/trace/model/match.py keeps 38 bits. */
#define MPY_TRACE_PAUSED_SERIALS (1ul << 37)

/* Pause and resume the recording of the program's calls. In between no records are added to the ring. */
MPY_TRACE_INLINE void mpy_trace_pause(mpy_trace_ring_t *ring) {
    mpy_trace_enter(
        ring, (mpy_trace_call_t){
                  .op = MPY_OP_PAUSE, .comm = MPY_TRACE_NO_COMM, .peer = MPY_TRACE_NO_PEER, .context = ring->mark});
}
MPY_TRACE_INLINE void mpy_trace_resume(mpy_trace_ring_t *ring) { mpy_trace_exit(ring, ring->head, 0); }

#endif
