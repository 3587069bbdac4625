/* recorder.c - this rank's trace in the split process: its file, rings for upper threads, and its state over a
 * checkpoint and a restart.
 *
 * Half: lower. bind, unbind, comm and mark run on the upper TLS (no libc); the others are ordinary code of the lower
 * half.
 *
 * The wrappers (wrappers/tools/trace.h) write the records into memory that no image contains. A call must find its
 * record after a restart, too. So the rings of the new file continue with the numbers of the old one, and records that
 * were open are opened again.
 *
 * Invariants
 *  1. t->ring is a ring of this process, used by that thread alone, or NULL. t->trace is the same ring, or NULL while
 *     recording is paused. The record of the pause is then the newest one of the ring, and open. So a restart finds it
 *     among the open ones, and the thread is paused there, too.
 *  2. `past` of the new file shows which records a restart takes back (those after the checkpoint): every ring of the
 *     previous generation continues after its number in the image, whichever thread uses it.
 */
#include "recorder.h"
#include "base/rank.h"
#include "base/sys.h"
#include "file.h"
#include <stdio.h>

static mpy_trace_t trace;

/* ---- rings ---- */

static void reopen(mpy_trace_ring_t *ring, const mpy_trace_saved_t *saved) {
    uint64_t now = mpy_trace_ticks();
    ring->mark = saved->mark;
    for (uint32_t i = 0; i < saved->open; i++) {
        const mpy_trace_record_t *r = &saved->records[i];
        mpy_trace_put(ring, now, 0,
                      (mpy_trace_call_t){.op = r->op,
                                         .flags = r->flags,
                                         .comm = MPY_TRACE_NO_COMM,
                                         .peer = r->peer,
                                         .tag = r->tag,
                                         .bytes = r->bytes,
                                         .request = r->request,
                                         .context = r->context});
    }
}

void mpy_recorder_start(const char *program) {
    char job[64], error[512];
    uint64_t past[MPY_TRACE_RINGS];
    if (!mpy_options.trace) return;
    mpy_trace_job_name(MPY_LOWER->job_dir, job, sizeof job);
    mpy_trace_identity_t who = {.job = job,
                                .producer = "manapy-launch",
                                .program = program,
                                .rank = MPY_LOWER->rank,
                                .size = MPY_LOWER->size,
                                .generation = MPY_LOWER->generation,
                                .past = past};
    for (uint32_t i = 0; i < MPY_TRACE_RINGS; i++) past[i] = MPY_UPPER->trace[i].head - MPY_UPPER->trace[i].open;
    if (!mpy_trace_create(&trace, &who, error, sizeof error)) {
        mpy_say("calls of rank %d are not recorded: %s", MPY_LOWER->rank, error);
        return;
    }
    for (uint32_t i = 0; i < MPY_TRACE_RINGS; i++) {
        const mpy_trace_saved_t *saved = &MPY_UPPER->trace[i];
        if (saved->thread == 0) continue;
        mpy_trace_ring_t *ring = mpy_trace_ring_take(&trace, 0, (int)i); /* the thread sets its id in bind */
        if (ring != NULL) reopen(ring, saved);
        bool paused = saved->open > 0 && saved->records[saved->open - 1].op == MPY_OP_PAUSE;
        MPY_UPPER->threads[saved->thread - 1].ring = ring;
        MPY_UPPER->threads[saved->thread - 1].trace = paused ? NULL : ring;
    }
}

/* Finds the current index of a communicator by its identity. */
static uint32_t comm_of(uint64_t cid) {
    const mpy_trace_comm_t *comms = (const mpy_trace_comm_t *)((const char *)trace.file + trace.file->comms_offset);
    for (uint32_t i = 0; i < trace.file->comms && cid != 0; i++)
        if (comms[i].cid == cid) return i;
    return MPY_TRACE_NO_COMM;
}

void mpy_recorder_rebuilt(void) {
    if (trace.file == NULL) return;
    for (uint32_t i = 0; i < trace.file->rings; i++) {
        const mpy_trace_saved_t *saved = &MPY_UPPER->trace[i];
        for (uint32_t k = 0; k < saved->open && saved->thread != 0; k++) {
            mpy_trace_ring_t *ring = mpy_trace_ring_at(&trace, i);
            if (ring->first != 0) mpy_trace_record(ring, ring->first + k)->comm = comm_of(saved->cids[k]);
        }
    }
}

void mpy_recorder_bind(mpy_thread_t *t) {
    if (trace.file == NULL) return;
    int32_t tid = (int32_t)mpy_sys(SYS_gettid);
    if (t->ring == NULL) t->trace = t->ring = mpy_trace_ring_take(&trace, tid, -1);
    if (t->ring != NULL)
        t->ring->tid = tid;
    else
        __atomic_add_fetch(&trace.file->unrecorded, 1, __ATOMIC_RELAXED);
}

void mpy_recorder_unbind(mpy_thread_t *t) {
    if (t->ring != NULL && t->trace == NULL) mpy_trace_resume(t->ring);
    if (t->ring != NULL) mpy_trace_ring_drop(&trace, t->ring);
    t->trace = t->ring = NULL;
}

void mpy_recorder_forked(void) { trace.file = NULL; }

/* ---- a checkpoint ---- */

static uint32_t thread_of(const mpy_trace_ring_t *ring) {
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++)
        if (MPY_UPPER->threads[i].used && MPY_UPPER->threads[i].ring == ring) return i + 1;
    return 0;
}

/* Saves the open records at the end of the ring, and marks that their duration is no longer meaningful. */
static void save_ring(mpy_trace_ring_t *ring, mpy_trace_saved_t *saved) {
    *saved = (mpy_trace_saved_t){.head = ring->head, .mark = ring->mark, .thread = thread_of(ring)};
    uint64_t seq = saved->head;
    for (mpy_trace_record_t *r;
         seq >= ring->first && (r = mpy_trace_open(ring, seq)) != NULL && saved->head - seq < MPY_TRACE_CAPACITY;
         seq--) {
        r->flags |= MPY_TRACE_STOPPED;
        if (saved->thread != 0 && saved->head - seq < MPY_TRACE_OPEN_MAX) saved->open++;
    }
    const mpy_trace_comm_t *comms = (const mpy_trace_comm_t *)((const char *)trace.file + trace.file->comms_offset);
    for (uint32_t i = 0; i < saved->open; i++) {
        saved->records[i] = *mpy_trace_record(ring, saved->head - saved->open + 1 + i);
        uint32_t comm = saved->records[i].comm;
        saved->cids[i] = comm < trace.file->comms ? comms[comm].cid : 0;
    }
}

void mpy_recorder_save(void) {
    for (uint32_t i = 0; i < MPY_TRACE_RINGS; i++) {
        mpy_trace_saved_t *saved = &MPY_UPPER->trace[i];
        saved->thread = saved->open = 0; /* untraced, or unused in this generation: only its number is kept */
        if (trace.file == NULL || i >= trace.file->rings) continue;
        mpy_trace_ring_t *ring = mpy_trace_ring_at(&trace, i);
        if (ring->first != 0) save_ring(ring, saved);
    }
}

void mpy_recorder_leave(void) { mpy_trace_end(&trace, MPY_TRACE_SAVED); }

/* ---- services ---- */

uint32_t mpy_recorder_comm(uint64_t cid, uint64_t ggid, const int32_t *members, uint32_t n, uint32_t remote,
                           const char *name) {
    return mpy_trace_comm_add(&trace, cid, ggid, members, n, remote, name);
}

int mpy_recorder_mark(uint64_t mark) {
    uint64_t fs = mpy_fs_get();
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++) {
        const mpy_thread_t *t = &MPY_UPPER->threads[i];
        if (t->used != 1 || t->upper_fs != fs || t->ring == NULL) continue;
        if (t->trace != NULL)
            mpy_trace_mark(t->ring, mark);
        else
            t->ring->mark = mark; /* paused: later records contain it */
        return t->trace != NULL;
    }
    return 0;
}

/* For libmanapy_shift.so, which records RDMA traffic in the same file (rdma/journal/traffic.c). */
__attribute__((visibility("default"))) mpy_trace_t *manapy_trace_of_process(void) { return &trace; }

void mpy_recorder_sample(void) { mpy_trace_sample(&trace); }

void mpy_recorder_end(void) { mpy_trace_end(&trace, MPY_TRACE_FINALIZED); }
