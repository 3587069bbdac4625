/* arena.c - manages the address space of the upper half.
 *
 * Half: lower; called from trap handlers on the upper TLS: no libc (sys.h only).
 *
 * Address space comes from a list of freed ranges (first fit), or else from a bump pointer. Mappings of 2 MiB and more
 * are aligned to 2 MiB so that the kernel can use huge pages.
 *
 * Invariants
 *  1. All state is in the trap block and in the table that it points to, under the lock. Handlers run with every signal
 *     blocked, so the holder is never interrupted by a handler that needs the lock. Others read the ranges below the
 *     arena without it.
 *  2. A range in the free list is unmapped, except for mappings that the program itself made there with MAP_FIXED
 *     (those are removed from the list). So callers still map with MAP_FIXED_NOREPLACE and retry.
 *  3. If a free range is lost (the table is full), address space is lost, but nothing breaks.
 *  4. In a forked child of the program the lock is free: it lies in a page that a fork fills with zeros. If another
 *     thread was changing the table at this moment, arena_busy is set, and the child does not use the table (invariant
 *     3). One store changes arena_next, so that it always lies above all allocated ranges.
 */
#include "arena.h"
#include "base/page.h"
#include "base/sys.h"
#include <sys/mman.h>

#define HUGE 0x200000ul
#define TABLE_BYTES (MPY_FREE_MAX * sizeof(mpy_range_t))

volatile uint32_t *mpy_wiped_words;

int mpy_arena_attach(void) {
    long page = mpy_sys6(SYS_mmap, 0, MPY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(page)) return (int)page;
    mpy_wiped_words = (volatile uint32_t *)page;
    return (int)mpy_sys(SYS_madvise, page, MPY_PAGE, MADV_WIPEONFORK);
}

static void lock(void) {
    while (__atomic_exchange_n(&mpy_wiped_words[MPY_WIPED_ARENA], 1, __ATOMIC_ACQUIRE)) mpy_sys(SYS_sched_yield);
    /* invariant 4: the thread that was changing it exists only in the parent */
    if (MPY_TRAP->arena_busy) MPY_TRAP->nfree = 0;
    __atomic_store_n(&MPY_TRAP->arena_busy, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
static void unlock(void) {
    __atomic_store_n(&MPY_TRAP->arena_busy, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&mpy_wiped_words[MPY_WIPED_ARENA], 0, __ATOMIC_RELEASE);
}

int mpy_arena_init(void) {
    long table = mpy_sys6(SYS_mmap, MPY_HEAP_LO, TABLE_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    MPY_TRAP->free = (mpy_range_t *)MPY_HEAP_LO;
    MPY_TRAP->arena_next = MPY_HEAP_LO + TABLE_BYTES;
    MPY_TRAP->nfree = 0;
    return table == MPY_HEAP_LO ? 0 : -1;
}

/* Ranges that are ascending, disjoint and not adjacent. */
typedef struct list { mpy_range_t *at; uint32_t *n, max; } list_t;

static list_t free_ranges(void) { return (list_t){MPY_TRAP->free, &MPY_TRAP->nfree, MPY_FREE_MAX}; }
static list_t low_ranges(void) { return (list_t){MPY_TRAP->low, &MPY_TRAP->nlow, MPY_LOW_MAX}; }

static void remove_at(list_t l, uint32_t i) {
    for (--*l.n; i < *l.n; i++) l.at[i] = l.at[i + 1];
}

static int insert_at(list_t l, uint32_t i, uint64_t lo, uint64_t hi) { /* 0: it is full */
    if (*l.n == l.max) return 0;
    for (uint32_t j = (*l.n)++; j > i; j--) l.at[j] = l.at[j - 1];
    l.at[i] = (mpy_range_t){lo, hi};
    return 1;
}

static uint32_t first_ending_after(list_t l, uint64_t lo) { /* index of the first range with hi > lo */
    uint32_t a = 0, b = *l.n;
    while (a < b) {
        uint32_t m = (a + b) / 2;
        if (l.at[m].hi <= lo) a = m + 1; else b = m;
    }
    return a;
}

/* Takes [lo, hi) out of the ranges. 0: part of the rest was lost. */
static int carve(list_t l, uint64_t lo, uint64_t hi) {
    int all = 1;
    for (uint32_t i = first_ending_after(l, lo); i < *l.n && l.at[i].lo < hi;) {
        mpy_range_t r = l.at[i];
        remove_at(l, i);
        if (r.lo < lo) all &= insert_at(l, i++, r.lo, lo);
        if (hi < r.hi) all &= insert_at(l, i++, hi, r.hi);
    }
    return all;
}

/* Takes out the ranges that meet [*lo, *hi), and makes it as long as all of them. Returns where to insert it. */
static uint32_t gather(list_t l, uint64_t *lo, uint64_t *hi) {
    uint32_t i = first_ending_after(l, *lo - 1); /* includes a range that ends exactly at lo */
    while (i < *l.n && l.at[i].lo <= *hi) {
        if (l.at[i].lo < *lo) *lo = l.at[i].lo;
        if (l.at[i].hi > *hi) *hi = l.at[i].hi;
        remove_at(l, i);
    }
    return i;
}

static void release(uint64_t lo, uint64_t hi) {
    mpy_trapstate_t *s = MPY_TRAP;
    if (lo < MPY_HEAP_LO + TABLE_BYTES) lo = MPY_HEAP_LO + TABLE_BYTES;
    if (hi > s->arena_next) hi = s->arena_next;
    if (lo >= hi) return;
    uint32_t i = gather(free_ranges(), &lo, &hi);
    if (hi == s->arena_next) {
        s->arena_next = lo;
    } else if (insert_at(free_ranges(), i, lo, hi) && hi - lo > s->largest_free) { /* else: invariant 3 */
        s->largest_free = hi - lo;
    }
}

uint64_t mpy_arena_take(uint64_t bytes) { return mpy_arena_take_aligned(bytes, bytes >= HUGE ? HUGE : MPY_PAGE); }

uint64_t mpy_arena_take_aligned(uint64_t bytes, uint64_t align) {
    mpy_trapstate_t *s = MPY_TRAP;
    uint64_t found = 0;
    bytes = MPY_PAGE_UP(bytes);
    if (bytes == 0 || bytes > MPY_ARENA_HI - MPY_HEAP_LO) return 0;
    lock();
    uint64_t largest = 0;
    for (uint32_t i = 0; i < s->nfree && bytes <= s->largest_free; i++) {
        if (s->free[i].hi - s->free[i].lo > largest) largest = s->free[i].hi - s->free[i].lo;
        if (i + 1 == s->nfree) s->largest_free = largest; /* all ranges have been checked */
        uint64_t lo = (s->free[i].lo + align - 1) & ~(align - 1);
        if (lo + bytes <= s->free[i].hi) { found = lo; carve(free_ranges(), lo, lo + bytes); break; }
    }
    if (!found) {
        uint64_t lo = (s->arena_next + align - 1) & ~(align - 1);
        if (lo + bytes <= MPY_ARENA_HI) {
            uint64_t gap = s->arena_next;
            s->arena_next = lo + bytes;
            if (gap < lo) release(gap, lo);
            found = lo;
        }
    }
    unlock();
    return found;
}

int mpy_arena_take_at(uint64_t lo, uint64_t bytes) {
    mpy_trapstate_t *s = MPY_TRAP;
    uint64_t hi = MPY_PAGE_UP(lo + bytes);
    if (lo < MPY_HEAP_LO || lo >= MPY_ARENA_HI || !bytes || bytes > MPY_ARENA_HI - lo) return 0;
    lock();
    uint32_t i = first_ending_after(free_ranges(), lo);
    int ok = lo >= s->arena_next; /* above all ranges that were ever allocated */
    if (!ok && i < s->nfree && s->free[i].lo <= lo)
        ok = s->free[i].hi >= hi || (s->free[i].hi == s->arena_next && hi > s->arena_next);
    if (ok) {
        carve(free_ranges(), lo, hi);
        if (hi > s->arena_next) {
            uint64_t gap = s->arena_next;
            s->arena_next = hi;
            if (gap < lo) release(gap, lo);
        }
    }
    unlock();
    return ok;
}

void mpy_arena_give(uint64_t lo, uint64_t bytes) {
    lock();
    release(lo, MPY_PAGE_UP(lo + bytes));
    unlock();
}

void mpy_arena_claim(uint64_t lo, uint64_t bytes) {
    uint64_t hi = MPY_PAGE_UP(lo + bytes);
    if (lo < MPY_HEAP_LO || hi > MPY_ARENA_HI) return;
    lock();
    carve(free_ranges(), lo, hi);
    if (hi > MPY_TRAP->arena_next) {
        uint64_t gap = MPY_TRAP->arena_next;
        MPY_TRAP->arena_next = hi;
        if (gap < lo) release(gap, lo);
    }
    unlock();
}

int mpy_arena_low_add(uint64_t lo, uint64_t bytes) {
    uint64_t hi = MPY_PAGE_UP(lo + bytes);
    lock();
    uint32_t i = gather(low_ranges(), &lo, &hi);
    int ok = insert_at(low_ranges(), i, lo, hi);
    unlock();
    return ok;
}

int mpy_arena_low_remove(uint64_t lo, uint64_t bytes) {
    lock();
    int ok = carve(low_ranges(), lo, MPY_PAGE_UP(lo + bytes));
    unlock();
    return ok;
}
