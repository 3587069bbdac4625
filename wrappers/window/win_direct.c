/* win_direct.c - Put, Get and flush on memory of a node's segment, without the real library.
 *
 * Upper half, upper TLS, no libc except memmove. A window that the real library allocated is mapped here, too, with the
 * parts of all ranks of the node (win_memory.c). For a contiguous Put the library would only copy, so this file makes
 * the copy itself: a crossing takes longer than a small copy. The real library does everything else (derived types,
 * large or wrong arguments, ranks of other nodes, accumulations).
 *
 * Invariants
 *  1. The copy is made with in_lower = 1. So no snapshot contains half of it, and a restart, which may have other
 *     parts, happens before they are read or after the call.
 *  2. A part is `issued` from the return of a real operation on it until a real flush to its rank begins, which is no
 *     flush_local: that completes nothing at the target. It is set after the operation and cleared before the flush. If
 *     one thread flushes and another issues an operation, either the program orders the flush after the operation, or
 *     the flush need not complete it.
 *  3. A flush orders our copies before everything that this thread reads or writes later (a full fence), as MPI
 *     requires for the operations that it completes. Other calls that close an epoch follow the copies, because x86
 *     keeps the order of stores.
 *  4. MPI libraries make progress only in calls: one of FLUSHES_SPARED unneeded flushes goes to the library.
 */
#include "win.h"

enum {
    /* bytes; above this size the library may copy faster, and a crossing costs little in comparison */
    COPY_MAX = 32768,
    FLUSHES_SPARED = 16,
};

/* The target address of the operation, and its number of bytes. NULL: not accessible here. With in_lower set. */
static inline char *target(const mpy_win_t *w, const void *origin, MPY_WIN_TARGET, size_t *bytes) {
    const mpy_part_t *part = w->parts;
    if (part == NULL || rank < 0 || rank >= w->team.size) return NULL;
    part += rank;
    if (part->base == NULL || origin == NULL || disp < 0) return NULL;
    if (datatype != target_datatype || !mpy_is_basic(datatype) || n != target_n || n <= 0 || n > COPY_MAX) return NULL;
    MPI_Aint size = (MPI_Aint)n * mpy_basic_size(datatype), at;
    if (size == 0 || size > COPY_MAX || __builtin_mul_overflow(disp, part->unit, &at) || at > part->size - size)
        return NULL;
    *bytes = (size_t)size;
    return part->base + at;
}

bool mpy_win_put(mpy_thread_t *t, mpy_win_t *w, const void *origin, MPY_WIN_TARGET) {
    size_t bytes;
    mpy_guard_in(t);
    char *to = target(w, origin, n, datatype, rank, disp, target_n, target_datatype, &bytes);
    if (to != NULL) __builtin_memmove(to, origin, bytes);
    mpy_guard_out(t);
    return to != NULL;
}

bool mpy_win_get(mpy_thread_t *t, mpy_win_t *w, void *origin, MPY_WIN_TARGET) {
    size_t bytes;
    mpy_guard_in(t);
    const char *from = target(w, origin, n, datatype, rank, disp, target_n, target_datatype, &bytes);
    if (from != NULL) __builtin_memmove(origin, from, bytes);
    mpy_guard_out(t);
    return from != NULL;
}

bool mpy_win_flushed(mpy_thread_t *t, mpy_win_t *w, int rank, bool at_target) {
    if (w->parts == NULL || rank < 0) return false;
    mpy_guard_in(t);
    mpy_part_t *part = w->parts != NULL ? &w->parts[rank] : NULL;
    bool spared = part != NULL && part->base != NULL && !part->issued && ++w->flushes % FLUSHES_SPARED != 0;
    if (part != NULL && !spared && at_target) part->issued = 0;
    mpy_guard_out(t);
    if (spared) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return spared;
}
