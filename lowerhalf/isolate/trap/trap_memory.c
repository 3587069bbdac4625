/* trap_memory.c - the upper half's mmap, munmap, mremap, brk and shmat, kept inside the arena; and mlockall, whose
 * flags only this file records. Other locks and advice are trapped only to be counted (mpy_memory_calls).
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc.
 *
 * Invariants
 *  1. A mapping without MAP_FIXED is placed in the arena: at its hint if that is a free range there, as the kernel
 *     does (allocators extend memory in place so). MAP_FIXED is obeyed, and so are MAP_32BIT and a hint between 4
 *     GiB and the arena, except for code: CUDA and others need addresses that they have chosen. (System calls of code
 *     there are not trapped, because with `ulimit -s unlimited` the lower half's own libraries may be there.)
 *  2. brk never reaches the kernel: otherwise both libcs would share one break and corrupt each other's heap.
 */
#include "base/page.h"
#include "base/sys.h"
#include "foreign.h"
#include "isolate/arena.h"
#include "trap.h"
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#define FIXED 0x10
#define FIXED_NOREPLACE 0x100000
#define ANONYMOUS 0x20
#define ANON_PRIVATE 0x22
#define HUGETLB 0x40000
#define HUGE_SHIFT 26     /* the flags above it: the logarithm of the size of huge pages; 0: the host's usual size */
#define USUAL_HUGE_LOG 21 /* (unless the host was started with another default) */
#define BIT32 0x40
#define PROT_EXEC_ 4
#define EEXIST_ (-17)
#define ENOMEM_ (-12)

static int in_arena(uint64_t a) { return a >= MPY_HEAP_LO && a < MPY_ARENA_HI; }

/* Memory is at an address that the program has chosen. */
static void placed(uint64_t at, uint64_t bytes, long prot) {
    mpy_arena_claim(at, bytes);
    if (in_arena(at) || (MPY_TRAP->low_exec && at + bytes <= MPY_LOW_END)) return;
    if (at + bytes > MPY_ARENA_LO || prot & PROT_EXEC_ || !mpy_arena_low_add(at, bytes)) MPY_TRAP->foreign = at;
}

/* The program's memory at these addresses is gone. */
static void removed(uint64_t at, uint64_t bytes) {
    if (in_arena(at)) mpy_arena_give(at, bytes);
    else if (at < MPY_ARENA_LO && !mpy_arena_low_remove(at, bytes)) MPY_TRAP->foreign = at;
}

/* The hint of an mmap(2), obeyed although it is outside the arena. Returns 0 if something else is there. */
static long mmap_below_arena(const mpy_trap_t *t, uint64_t hint, uint64_t bytes) {
    if (hint < MPY_LOW_END || hint >= MPY_ARENA_LO || bytes > MPY_ARENA_LO - hint) return 0;
    if (t->a[2] & PROT_EXEC_) return 0;
    long r = mpy_sys6(SYS_mmap, (long)hint, t->a[1], t->a[2], t->a[3] | FIXED_NOREPLACE, t->a[4], t->a[5]);
    if (r == EEXIST_) return 0;
    if (!mpy_sys_failed(r)) placed((uint64_t)r, bytes, t->a[2]);
    return r;
}

/* The size of the pages of which the memory must consist, if they are huge pages; else 0. Then the kernel makes the
 * memory a multiple of it, and wants such an address. */
static uint64_t huge_page(const mpy_trap_t *t) {
    struct statfs fs;
    if (t->a[3] & ANONYMOUS) {
        const unsigned log = (unsigned)t->a[3] >> HUGE_SHIFT & 63;
        return t->a[3] & HUGETLB ? 1ul << (log ? log : USUAL_HUGE_LOG) : 0;
    }
    return mpy_sys(SYS_fstatfs, t->a[4], &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC ? (uint64_t)fs.f_bsize : 0;
}

/* MAP_32BIT: below 2 GiB, where the kernel chooses. Invariant 1 forbids this for code. */
static long mmap_low(const mpy_trap_t *t, uint64_t bytes) {
    long r = mpy_sys6(SYS_mmap, t->a[0], t->a[1], t->a[2], t->a[3], t->a[4], t->a[5]);
    if (!mpy_sys_failed(r)) placed((uint64_t)r, bytes, t->a[2]);
    return r;
}

/* Its size; negative: an error. */
static long bytes_of_segment(long id) {
    /* struct shmid64_ds: ipc64_perm is 48 bytes, then the size */
    struct { long pad[6]; uint64_t bytes; long rest[16]; } info;
    long r = mpy_sys(SYS_shmctl, id, 2 /* IPC_STAT */, &info);
    return mpy_sys_failed(r) ? r : (long)info.bytes;
}

long mpy_trap_mmap(mpy_trap_t *t) {
    if (t->a[2] & PROT_EXEC_ && !(t->a[3] & ANONYMOUS)) mpy_foreign_check((int)t->a[4]);
    const uint64_t huge = huge_page(t), align = huge ? huge : MPY_PAGE;
    const uint64_t bytes = huge ? ((uint64_t)t->a[1] + huge - 1) & ~(huge - 1) : (uint64_t)t->a[1];
    if (t->a[3] & (FIXED | FIXED_NOREPLACE)) {
        long r = mpy_sys6(SYS_mmap, t->a[0], t->a[1], t->a[2], t->a[3], t->a[4], t->a[5]);
        if (!mpy_sys_failed(r)) placed((uint64_t)r, bytes, t->a[2]);
        return r;
    }
    if (t->a[3] & BIT32 && !(t->a[2] & PROT_EXEC_)) return mmap_low(t, bytes);
    uint64_t hint = ((uint64_t)t->a[0] + align - 1) & ~(align - 1);
    long low = mmap_below_arena(t, hint, bytes);
    if (low) return low;
    for (int tries = 0; tries < 64; tries++, hint = 0) {
        uint64_t at = mpy_arena_take_at(hint, bytes) ? hint : 0;
        if (!at) at = huge ? mpy_arena_take_aligned(bytes, huge) : mpy_arena_take(bytes);
        if (!at) return bytes ? ENOMEM_ : -22;
        long r = mpy_sys6(SYS_mmap, (long)at, t->a[1], t->a[2], t->a[3] | FIXED_NOREPLACE, t->a[4], t->a[5]);
        if (r == EEXIST_) continue; /* the program itself has mapped memory there: the range stays taken */
        if (mpy_sys_failed(r)) mpy_arena_give(at, bytes);
        return r;
    }
    return ENOMEM_;
}

long mpy_trap_munmap(mpy_trap_t *t) {
    long r = mpy_sys(SYS_munmap, t->a[0], t->a[1]);
    if (r == 0) removed((uint64_t)t->a[0], (uint64_t)t->a[1]);
    return r;
}

long mpy_trap_mremap(mpy_trap_t *t) {
    uint64_t old = (uint64_t)t->a[0], old_bytes = MPY_PAGE_UP((uint64_t)t->a[1]);
    uint64_t bytes = MPY_PAGE_UP((uint64_t)t->a[2]);
    long flags = t->a[3];
    if (flags & MREMAP_FIXED) {
        long r = mpy_sys6(SYS_mremap, t->a[0], t->a[1], t->a[2], flags, t->a[4], 0);
        if (mpy_sys_failed(r)) return r;
        placed((uint64_t)r, bytes, 0);
        if (!(flags & MREMAP_DONTUNMAP)) removed(old, old_bytes);
        return r;
    }
    /* In place, if the addresses after it are free. The kernel doesn't know about ranges that are reserved but not
     * mapped (the heap). */
    uint64_t more = bytes > old_bytes ? bytes - old_bytes : 0;
    long r = ENOMEM_;
    if (flags & MREMAP_DONTUNMAP) {
        if (!(flags & MREMAP_MAYMOVE)) return -22; /* EINVAL; with MAYMOVE it may go elsewhere */
    } else if (!more || !in_arena(old) || mpy_arena_take_at(old + old_bytes, more)) {
        r = mpy_sys(SYS_mremap, old, t->a[1], t->a[2], 0);
        if (mpy_sys_failed(r) && more && in_arena(old)) mpy_arena_give(old + old_bytes, more);
    }
    if (!mpy_sys_failed(r)) {
        if (bytes < old_bytes) removed(old + bytes, old_bytes - bytes);
        else if (more && !in_arena(old)) placed(old + old_bytes, more, 0);
        return r;
    }
    if (r != ENOMEM_) return r;
    if (!(flags & MREMAP_MAYMOVE)) return r;
    uint64_t at = mpy_arena_take(bytes);
    if (!at) return ENOMEM_;
    r = mpy_sys(SYS_mremap, old, t->a[1], t->a[2], flags | MREMAP_FIXED, at);
    if (mpy_sys_failed(r)) mpy_arena_give(at, bytes);
    else if (!(flags & MREMAP_DONTUNMAP)) removed(old, old_bytes);
    return r;
}

long mpy_trap_brk(mpy_trap_t *t) {
    mpy_trapstate_t *s = MPY_TRAP;
    uint64_t want = (uint64_t)t->a[0];
    if (want < s->brk_lo || want > s->brk_max) return (long)s->brk_now;
    uint64_t have_end = MPY_PAGE_UP(s->brk_now), want_end = MPY_PAGE_UP(want);
    if (want_end > have_end) {
        long r =
            mpy_sys6(SYS_mmap, (long)have_end, (long)(want_end - have_end), 3, ANON_PRIVATE | FIXED_NOREPLACE, -1, 0);
        if (mpy_sys_failed(r)) return (long)s->brk_now;
    } else if (want_end < have_end) {
        mpy_sys(SYS_munmap, want_end, have_end - want_end);
    }
    s->brk_now = want;
    return (long)want;
}

long mpy_trap_shmat(mpy_trap_t *t) {
    long bytes = bytes_of_segment(t->a[0]);
    if (mpy_sys_failed(bytes)) return bytes;
    uint64_t at = t->a[1] ? 0 : mpy_arena_take((uint64_t)bytes);
    if (!t->a[1] && !at) return ENOMEM_;
    long r = mpy_sys(SYS_shmat, t->a[0], at ? (long)at : t->a[1], t->a[2]);
    if (at && mpy_sys_failed(r)) mpy_arena_give(at, (uint64_t)bytes);
    if (!at && !mpy_sys_failed(r)) placed((uint64_t)r, (uint64_t)bytes, 0);
    return r;
}

long mpy_trap_mlock(mpy_trap_t *t) { return mpy_sys(t->nr, t->a[0], t->a[1], t->a[2]); }

long mpy_trap_mlockall(mpy_trap_t *t) {
    long r = mpy_sys(t->nr, t->a[0]);
    if (r == 0)
        MPY_TRAP->lock_future =
            t->nr == SYS_mlockall && t->a[0] & MCL_FUTURE ? (uint32_t)t->a[0] & ~(uint32_t)MCL_CURRENT : 0;
    return r;
}

long mpy_trap_madvise(mpy_trap_t *t) {
    long r = mpy_sys(t->nr, t->a[0], t->a[1], t->a[2]);
    if (r == 0 && (t->a[2] == MADV_DONTFORK || t->a[2] == MADV_WIPEONFORK)) MPY_TRAP->fork_advice = 1;
    return r;
}
