/* traffic.c - how far each protected queue pair has advanced, as records among those of the process's MPI calls
 * (<manapy/trace.h>, MPY_OP_RDMA_QP).
 *
 * The file belongs to the recorder of the MPI calls: manapy-launch, or libmanapy_trace.so before a program of `manapy
 * trace run`. Without a recorder (a program without MPI, --no-trace), or before it has started, nothing is recorded.
 * `manapy rdma status` and `events` do not need it.
 *
 * Invariants:
 * 1. A device's ring has one producer at a time: the thread that holds the device's lock.
 * 2. A record contains only known numbers: none is written for a queue pair whose sends are not counted (counts.c).
 */
#include "journal/journal.h"
#include "manapy/fnv.h"
#include "trace/file.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static mpy_trace_t *trace_of_process(void) {
    mpy_trace_t *(*find)(void) = dlsym(RTLD_DEFAULT, "manapy_trace_of_process");
    mpy_trace_t *trace = find ? find() : NULL;
    return trace && trace->file ? trace : NULL;
}

void shift_record_begin(shift_device_t *d) {
    mpy_trace_t *trace = d->ring ? NULL : trace_of_process();
    if (!trace)
        return;
    d->ring = mpy_trace_ring_take(trace, (int)syscall(SYS_gettid), -1);
    for (int p = 0; d->ring && p < d->paths; p++)
        d->path[p].traced = mpy_trace_comm_add(trace, mpy_fnv1a(d->path[p].name, strlen(d->path[p].name)), 0, NULL, 0,
                                               0, d->path[p].name);
}

static void put(shift_qp_t *q, const shift_counts_t *n) {
    shift_device_t *d = q->o.device;
    uint64_t now = mpy_trace_ticks();
    mpy_trace_put(d->ring, now, now,
                  (mpy_trace_call_t){.op = MPY_OP_RDMA_QP,
                                     .comm = q->qp->qp_num,
                                     .peer = (int32_t)q->legs[0].peer_qpn,
                                     .tag = (int32_t)d->path[q->path].traced,
                                     .bytes = n->bytes,
                                     .request = n->posted,
                                     .context = n->completed});
    q->recorded = n->posted + n->completed;
}

void shift_record(shift_qp_t *q, const shift_counts_t *n) {
    if (q->o.device->ring && n->known)
        put(q, n);
}

void shift_record_moved(shift_qp_t *q) {
    if (!q->o.device->ring)
        return;
    shift_counts_t n = shift_count(q);
    if (n.known && n.posted + n.completed != q->recorded)
        put(q, &n);
}

void shift_record_end(shift_device_t *d) {
    mpy_trace_t *trace = d->ring ? trace_of_process() : NULL;
    if (trace)
        mpy_trace_ring_drop(trace, d->ring);
    d->ring = NULL;
}
