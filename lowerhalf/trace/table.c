/* table.c - rings for threads, and the side table of communicators, in the file of one process. See file.h.
 *
 * May run on either half's TLS: no libc, nothing thread-local, built without stack protector.
 *
 * Invariants
 *  1. A page is stored into only after room for it was reserved: a store into a hole of a full file system would cause
 *     a SIGBUS. The file is opened each time for this: in a process that isn't ours, a descriptor kept for long may
 *     become another file's.
 *  2. Counts (rings, comms, members) are raised after the entries that they cover are written.
 */
#include "base/sys.h"
#include "file.h"
#include <fcntl.h>
#include <manapy/lock.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
enum { TABLE_STEP = 1 << 16 }; /* bytes reserved at a time */

bool mpy_trace_reserve(const mpy_trace_t *trace, uint64_t offset, uint64_t bytes) {
    long fd = mpy_sys(SYS_open, trace->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0) return false;
    long r = mpy_sys(SYS_fallocate, fd, 0, offset, bytes);
    mpy_sys(SYS_close, fd);
    return r == 0;
}

/* Reserves a table up to `end`. Its reserved part ends at *reserved, the table itself at `limit`. */
static bool reserve_to(const mpy_trace_t *trace, uint64_t *reserved, uint64_t end, uint64_t limit) {
    if (end <= *reserved) return true;
    uint64_t to = (end + TABLE_STEP - 1) / TABLE_STEP * TABLE_STEP;
    if (to > limit) to = limit;
    if (end > limit || !mpy_trace_reserve(trace, *reserved, to - *reserved)) return false;
    *reserved = to;
    return true;
}

/* ---- rings ---- */

mpy_trace_ring_t *mpy_trace_ring_at(const mpy_trace_t *trace, uint32_t i) {
    return (mpy_trace_ring_t *)((char *)trace->file + trace->file->rings_offset + i * trace->file->ring_stride);
}

/* A ring that no thread uses any more, or the next one; the capacity if there is none. */
static uint32_t find_free(const mpy_trace_t *trace) {
    for (uint32_t i = 0; i < trace->file->rings; i++) {
        const mpy_trace_ring_t *ring = mpy_trace_ring_at(trace, i);
        if (ring->first != 0 && !ring->used) return i;
    }
    return trace->file->rings;
}

/* Prepares a ring. If a thread that has ended used it, the ring continues with its numbers. */
static bool ring_make(mpy_trace_t *trace, uint32_t i) {
    const mpy_trace_file_t *file = trace->file;
    mpy_trace_ring_t *ring = mpy_trace_ring_at(trace, i);
    if (i < file->rings && ring->first != 0) return true;
    if (!mpy_trace_reserve(trace, file->rings_offset + i * file->ring_stride, file->ring_stride)) return false;
    /* Map the pages now, so that not every 64th call causes a fault. If the kernel can't do this, faults map them. */
    mpy_sys(SYS_madvise, ring, file->ring_stride, MADV_POPULATE_WRITE);
    ring->head = file->past[i];
    ring->first = file->past[i] + 1;
    ring->serials = (uint64_t)i << 48;
    return true;
}

mpy_trace_ring_t *mpy_trace_ring_take(mpy_trace_t *trace, int32_t tid, int index) {
    mpy_trace_file_t *file = trace->file;
    mpy_trace_ring_t *ring = NULL;
    if (file == NULL) return NULL;
    mpy_lock_acquire(&trace->lock);
    uint32_t i = index >= 0 ? (uint32_t)index : find_free(trace);
    if (i < file->rings_capacity && ring_make(trace, i)) {
        ring = mpy_trace_ring_at(trace, i);
        ring->tid = tid;
        ring->mark = 0;
        __atomic_store_n(&ring->used, 1, __ATOMIC_RELEASE);
        if (i >= file->rings) __atomic_store_n(&file->rings, i + 1, __ATOMIC_RELEASE);
    }
    mpy_lock_release(&trace->lock);
    return ring;
}

void mpy_trace_ring_drop(mpy_trace_t *trace, mpy_trace_ring_t *ring) {
    mpy_lock_acquire(&trace->lock);
    ring->used = 0;
    mpy_lock_release(&trace->lock);
}

/* ---- communicators ---- */

static bool is_range(const int32_t *members, uint32_t n, int32_t stride) {
    for (uint32_t i = 0; i < n; i++)
        if (members[i] != members[0] + (int32_t)i * stride) return false;
    return true;
}

/* Stores the members, as a range or in the pool. */
static void set_members(mpy_trace_t *trace, mpy_trace_comm_t *c, const int32_t *members, uint32_t n) {
    mpy_trace_file_t *file = trace->file;
    c->members = n;
    c->first = n > 0 ? members[0] : 0;
    c->stride = n > 1 ? members[1] - members[0] : 1;
    if (c->stride != 0 && is_range(members, n, c->stride)) return;
    c->stride = 0;
    c->place = UINT64_MAX;
    uint64_t start = file->members, end = start + n;
    if (end > file->members_capacity) return;
    if (!reserve_to(trace, &trace->members_end, file->members_offset + end * sizeof(int32_t),
                    file->members_offset + file->members_capacity * sizeof(int32_t)))
        return;
    int32_t *pool = (int32_t *)((char *)file + file->members_offset);
    for (uint32_t i = 0; i < n; i++) pool[start + i] = members[i];
    c->place = start;
    __atomic_store_n(&file->members, (uint32_t)end, __ATOMIC_RELEASE);
}

static void set_name(mpy_trace_comm_t *c, const char *name) {
    size_t i = 0;
    for (; name != NULL && name[i] && i < sizeof c->name - 1; i++) c->name[i] = name[i];
    c->name[i] = 0;
}

uint32_t mpy_trace_comm_add(mpy_trace_t *trace, uint64_t cid, uint64_t ggid, const int32_t *members, uint32_t n,
                            uint32_t remote, const char *name) {
    mpy_trace_file_t *file = trace->file;
    if (file == NULL) return MPY_TRACE_NO_COMM;
    mpy_lock_acquire(&trace->lock);
    uint32_t i = file->comms;
    uint64_t end = file->comms_offset + (i + 1ul) * sizeof(mpy_trace_comm_t),
             limit = file->comms_offset + file->comms_capacity * sizeof(mpy_trace_comm_t);
    bool room = i < file->comms_capacity && reserve_to(trace, &trace->comms_end, end, limit);
    if (room) {
        mpy_trace_comm_t *c = (mpy_trace_comm_t *)((char *)file + file->comms_offset) + i;
        c->cid = cid;
        c->ggid = ggid;
        c->remote = remote;
        c->place = 0;
        set_name(c, name);
        set_members(trace, c, members, n);
        __atomic_store_n(&file->comms, i + 1, __ATOMIC_RELEASE);
    }
    mpy_lock_release(&trace->lock);
    return room ? i : MPY_TRACE_NO_COMM;
}
