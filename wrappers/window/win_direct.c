/* win_direct.c - Put, Get and flush on memory of a node's segment, without the real library.
 *
 * Upper half, upper TLS, no libc but memmove. A window that the real library allocated is mapped here, too, with the
 * parts of all ranks of the node (win_memory.c). What the library would do with a contiguous Put there is to copy, so
 * that is done here: a crossing takes longer than a small copy. Everything else (derived types, large or wrong
 * arguments, ranks of other nodes, accumulations) is the real library's.
 *
 * Invariants
 *  1. The copy is made with in_lower = 1: no snapshot finds half of it, and a restart, which may have other parts,
 *     comes before they are read or after the call.
 *  2. A part is `issued` from the return of a real operation on it until a real flush to its rank begins. Set after the
 *     operation and cleared before the flush: of two threads, the one that flushes is ordered after the other's
 *     operation by the program, or needn't complete it.
 *  3. A flush orders our copies before all that this thread reads or writes later (a full fence), as MPI says of the
 *     operations that it completes. What else closes an epoch is ordered behind them as stores are on x86.
 *  4. MPI libraries make progress only in calls: of FLUSHES_SPARED flushes that need nothing one goes to the library.
 */
#include "win.h"

enum {
    COPY_MAX = 32768, /* bytes; above, the library may know better ways to copy, and a crossing is nothing */
    FLUSHES_SPARED = 16,
};

/* Where the operation goes to, and how many bytes; NULL: not here. With in_lower set. */
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

bool mpy_win_flushed(mpy_thread_t *t, mpy_win_t *w, int rank) {
    if (w->parts == NULL || rank < 0) return false;
    mpy_guard_in(t);
    mpy_part_t *part = w->parts != NULL ? &w->parts[rank] : NULL;
    bool spared = part != NULL && part->base != NULL && !part->issued && ++w->flushes % FLUSHES_SPARED != 0;
    if (part != NULL && !spared) part->issued = 0;
    mpy_guard_out(t);
    if (spared) __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return spared;
}
