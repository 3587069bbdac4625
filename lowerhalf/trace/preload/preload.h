/* preload.h - the recorder that is preloaded into any MPI program (libmanapy_trace.so), without the split process:
 * contract of the files here.
 *
 * It is loaded in front of the MPI library, with functions of the same names, which wrappers/generate/recorder.py makes
 * from the table of the wrappers. It needs no mpi.h: one library serves MPICH's binary interface and Open MPI's. It
 * distinguishes them when it finds the program's MPI library (abi.c).
 *
 * Invariants
 *  1. Every call is passed to the next function of that name. Arguments, results and return value are not changed. One
 *     exception: if the program ignores a status, the recorder passes its own, to learn what was received.
 *  2. A handle is passed on with its 64 bits unchanged. mpy_handle() returns the part that is compared.
 *  3. A thread that is in a recorded call records no other one (`busy`). So there is no second record for calls that
 *     MPI libraries make themselves, for Fortran's functions that call C's, and for a profiling library between the
 *     program and MPI.
 *  4. An error in the recorder may lose records, but never affects the program.
 *  5. cid is equal on all members and differs between communicators. It is computed as in wrappers/clock/clock.c,
 *     from the parent's cid, its SEQ at the call and the smallest world rank. For communicators that are not collective
 *     on a parent, it is computed from the groups, the tag and a count.
 *  6. While recording is paused all of this continues: objects are created and freed, collectives count, requests have
 *     serials of their own. Only no clock is read and no record is written: the thread's ring is one without records
 *     (`first` is 0), which only gives out numbers. mpy_now to mpy_received_at separate this from trace_ring.h.
 */
#ifndef MANAPY_TRACE_PRELOAD_H
#define MANAPY_TRACE_PRELOAD_H

#include "trace/file.h"
#include <stdbool.h>
#include <stdint.h>

/* a handle as it is passed: an int in MPICH's interface (the upper 32 bits are undefined), a pointer in Open MPI's */
typedef uint64_t mpy_word_t;

/* The arguments after `...` of a function, if they are passed in registers. This is enough for MPI_Pcontrol, the only
 * such function. */
#define MPY_VARARGS void *a, void *b, void *c, void *d, void *e
#define MPY_VARARGS_NAMES a, b, c, d, e

/* ---- abi.c: the MPI library ---- */

typedef struct mpy_abi {
    uint64_t handle_mask;
    uint32_t handle_size;
    uint64_t comm_null, comm_world, comm_self, request_null, win_null, file_null, type_null;
    int any_source, any_tag, proc_null, root, graph, cart, dist_graph, lock_shared, nocheck;
    const void *in_place, *status_ignore;
    uint32_t status_size, status_source, status_tag; /* offsets in a status */
    bool mpich;
} mpy_abi_t;
extern mpy_abi_t mpy_abi;
extern const char *const mpy_names[]; /* "PMPI_Send", by index (made) */
extern void *mpy_real[][2];           /* MPI_X and PMPI_X: the next functions after ours; NULL: not searched yet */

/* Doesn't return if there is none: the program calls a function that its MPI library does not have. */
void *mpy_resolve(int index, int p);
void *mpy_library_function(const char *name); /* of the MPI library itself, or NULL */
bool mpy_abi_find(const char **why_not);

static inline uint64_t mpy_handle(mpy_word_t word) { return word & mpy_abi.handle_mask; }
static inline uint64_t mpy_handle_at(const void *handles, int i) {
    return mpy_abi.handle_size == 4 ? ((const uint32_t *)handles)[i] : ((const uint64_t *)handles)[i];
}
static inline int32_t mpy_peer(int rank) {
    return rank >= 0                    ? rank
           : rank == mpy_abi.any_source ? MPY_TRACE_ANY
           : rank == mpy_abi.proc_null  ? MPY_TRACE_NULL
                                        : MPY_TRACE_NO_PEER;
}
static inline int32_t mpy_root(int root) {
    return root >= 0 ? root : root == mpy_abi.proc_null ? MPY_TRACE_NULL : MPY_TRACE_NO_PEER;
}
static inline int32_t mpy_tag(int tag) { return tag >= 0 ? tag : MPY_TRACE_ANY; }
static inline int32_t mpy_lock_kind(int lock_type, int assert) {
    if (assert & mpy_abi.nocheck) return MPY_TRACE_LOCK_UNCHECKED;
    return lock_type == mpy_abi.lock_shared ? MPY_TRACE_LOCK_SHARED : MPY_TRACE_LOCK_EXCLUSIVE;
}
uint64_t mpy_type_size_slow(mpy_word_t type);
static inline uint64_t mpy_bytes(int64_t count, mpy_word_t type) {
    /* Like mpy_basic_size of mpich.h, which only abi.c may include: here its constants would also be used for Open
     * MPI. */
    uint64_t size = mpy_abi.mpich && (type & 0xff000000) == 0x4c000000 ? type >> 8 & 0xff
                    : count > 0                                        ? mpy_type_size_slow(type)
                                                                       : 0;
    return count > 0 ? (uint64_t)count * size : 0;
}
typedef struct mpy_came { int32_t peer, tag; uint64_t bytes; } mpy_came_t;
mpy_came_t mpy_status_read(const void *status);
static inline const void *mpy_status_at(const void *statuses, int i) {
    return (const char *)statuses + (uint32_t)i * mpy_abi.status_size;
}
enum { MPY_STATUS_MAX = 32 }; /* bytes */

/* ---- objects.c: communicators, windows and files. Each counts the calls that all its members make together. ---- */

/* recorder.c sets both */
extern bool mpy_multiple; /* MPI_THREAD_MULTIPLE: the tables need their lock */
extern mpy_trace_t mpy_trace;

typedef struct mpy_object {
    uint64_t cid, seq, ggid;
    uint32_t index; /* in the side table */
    int32_t size, remote_size; /* of the local and of the remote group; 0: no such group */
    int32_t outdegree; /* of its topology */
    int32_t smallest;
    int32_t *members; /* world ranks of both groups; -1: a process of another world */
    struct mpy_epoch *access, *exposure; /* of a window: epochs.c */
} mpy_object_t;

mpy_object_t *mpy_comm_of(mpy_word_t comm); /* NULL: none */
mpy_object_t *mpy_win_of(mpy_word_t win);
mpy_object_t *mpy_file_of(mpy_word_t file);
/* Call it after a collective on `parent` (NULL: none) that has created it, when SEQ was `seq`. `handle` points to the
 * program's handle. */
void mpy_comm_made(const mpy_object_t *parent, uint64_t seq, const void *handle);
void mpy_win_made(const mpy_object_t *parent, uint64_t seq, const void *handle);
void mpy_file_made(const mpy_object_t *parent, uint64_t seq, const void *handle);
/* identified only by its members, or by those of two groups */
void mpy_comm_made_of_groups(const void *handle, int64_t salt);
void mpy_comm_gone(uint64_t handle);
void mpy_win_gone(uint64_t handle);
void mpy_file_gone(uint64_t handle);
void mpy_objects_start(void); /* MPI_COMM_WORLD and MPI_COMM_SELF */
void mpy_comm_named(mpy_word_t comm, const char *name);

/* ---- requests.c: which operation a request is ---- */

typedef struct mpy_operation {
    uint64_t serial;
    mpy_trace_call_t call;    /* fields at the time when it was posted */
    bool receives, persistent;
    uint32_t starts;          /* number of starts of a persistent operation so far */
    mpy_object_t *parent;     /* of an Idup: */
    uint64_t seq;
    const void *newcomm;
} mpy_operation_t;

void mpy_request_put(uint64_t handle, const mpy_operation_t *operation);
bool mpy_request_get(uint64_t handle, mpy_operation_t *out);
uint32_t mpy_request_started(uint64_t handle, uint64_t serial); /* the number of this start of a persistent one */
/* Removes the operation with this serial. One handle may stand for several operations that were complete when they were
 * posted. */
void mpy_request_drop(uint64_t handle, uint64_t serial);
void mpy_message_put(uint64_t handle, const mpy_operation_t *operation);
bool mpy_message_take(uint64_t handle, mpy_operation_t *out);

/* ---- recorder.c: beginning, end, threads ---- */

typedef struct mpy_tls {
    mpy_trace_ring_t *ring; /* ring for its calls: `own`, or `off` while recording is paused (MPI_Pcontrol) */
    mpy_trace_ring_t *own;
    mpy_trace_ring_t off;   /* invariant 6 */
    bool busy, asked;
} mpy_tls_t;
extern __thread mpy_tls_t mpy_tls __attribute__((tls_model("initial-exec")));
mpy_trace_ring_t *mpy_begin_slow(void);

/* ---- the functions of trace_ring.h, which do nothing while recording is paused ---- */

static inline bool mpy_is_on(const mpy_trace_ring_t *ring) { return __builtin_expect(ring->first != 0, 1); }
static inline uint64_t mpy_now(const mpy_trace_ring_t *ring) { return mpy_is_on(ring) ? mpy_trace_ticks() : 0; }
static inline uint64_t mpy_put(mpy_trace_ring_t *ring, uint64_t enter, uint64_t exit, mpy_trace_call_t call) {
    return mpy_is_on(ring) ? mpy_trace_put(ring, enter, exit, call) : ++ring->head;
}
static inline uint64_t mpy_open(mpy_trace_ring_t *ring, mpy_trace_call_t call) {
    return mpy_put(ring, mpy_now(ring), 0, call);
}
static inline void mpy_close_at(mpy_trace_ring_t *ring, uint64_t seq, uint64_t exit, uint32_t flags) {
    if (mpy_is_on(ring)) mpy_trace_exit_at(ring, seq, exit, flags);
}
static inline void mpy_close(mpy_trace_ring_t *ring, uint64_t seq, uint32_t flags) {
    mpy_close_at(ring, seq, mpy_now(ring), flags);
}
static inline void mpy_received_at(mpy_trace_ring_t *ring, uint64_t seq, uint64_t exit, uint32_t flags, int32_t peer,
                                   int32_t tag, uint64_t bytes) {
    if (mpy_is_on(ring)) mpy_trace_received_at(ring, seq, exit, flags, peer, tag, bytes);
}

/* ---- a call ---- */

/* The thread enters a call: returns its ring, or NULL if the call isn't recorded. */
static inline mpy_trace_ring_t *mpy_begin(void) {
    if (__builtin_expect(mpy_tls.busy, 0)) return NULL;
    mpy_trace_ring_t *ring = mpy_tls.ring;
    if (__builtin_expect(ring == NULL, 0) && (ring = mpy_begin_slow()) == NULL) return NULL;
    mpy_tls.busy = true;
    return ring;
}
/* the serial of the next record */
static inline uint64_t mpy_serial(const mpy_trace_ring_t *ring) { return ring->serials + ring->head + 1; }

static inline uint64_t mpy_enter(mpy_trace_ring_t *ring, const mpy_object_t *o, mpy_trace_call_t call) {
    call.comm = o != NULL ? o->index : MPY_TRACE_NO_COMM;
    call.context = ring->mark;
    return mpy_open(ring, call);
}
static inline uint64_t mpy_count(mpy_object_t *o) {
    if (o == NULL) return 0;
    return mpy_multiple ? __atomic_add_fetch(&o->seq, 1, __ATOMIC_RELAXED) : ++o->seq;
}
/* The same for a collective on `o`. Its SEQ is stored in *count. */
static inline uint64_t mpy_enter_collective(mpy_trace_ring_t *ring, mpy_object_t *o, mpy_trace_call_t call,
                                            uint64_t *count) {
    call.comm = o != NULL ? o->index : MPY_TRACE_NO_COMM;
    call.context = *count = mpy_count(o);
    return mpy_open(ring, call);
}
static inline uint32_t mpy_failed(int rc) { return rc == 0 ? 0 : MPY_TRACE_FAILED; }
static inline int mpy_exit(mpy_trace_ring_t *ring, uint64_t seq, int rc) {
    mpy_close(ring, seq, mpy_failed(rc));
    mpy_tls.busy = false;
    return rc;
}
/* After a call that has posted an operation: records its request. */
static inline int mpy_exit_posted(mpy_trace_ring_t *ring, uint64_t seq, int rc, const void *request,
                                  const mpy_operation_t *operation) {
    mpy_close(ring, seq, mpy_failed(rc));
    if (__builtin_expect(rc == 0, 1)) mpy_request_put(mpy_handle_at(request, 0), operation);
    mpy_tls.busy = false;
    return rc;
}
static inline int mpy_exit_received(mpy_trace_ring_t *ring, uint64_t seq, int rc, const void *status) {
    uint64_t now = mpy_now(ring);
    if (__builtin_expect(rc == 0, 1)) {
        mpy_came_t came = mpy_status_read(status);
        mpy_received_at(ring, seq, now, 0, came.peer, came.tag, came.bytes);
    } else {
        mpy_close_at(ring, seq, now, MPY_TRACE_FAILED);
    }
    mpy_tls.busy = false;
    return rc;
}

#endif
