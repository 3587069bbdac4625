/* compressors.c - threads that compress frames at the same time.
 *
 * Half: lower. A forked process may call these functions (invariant 1 of output.c).
 *
 * Invariants
 *  1. A helper is a thread of the kernel, made by clone(2): libc does not know it. It has the thread-local storage of
 *     its creator. So it calls only the compressor, which allocates nothing and takes no lock, and futex(2), without
 *     errno. It has its creator's blocked signals, priority and processors.
 *  2. Helpers exist only while an image is written by somebody who waits for them: a halted rank, or a forked process.
 *     They end with it.
 */
#include "compressors.h"

#include "base/zstd.h"

#include <linux/futex.h>
#include <manapy/image.h>
#include <manapy/syscall.h>
#include <sched.h>
#include <sys/mman.h>

#define STACK (256ul << 10)
enum { SHRINKS = 10 }; /* by at least 1 / SHRINKS */

static void compress(const mpy_compressors_t *pool, mpy_frame_t *f) {
    f->length = mpy_zstd_compress(f->frame + MPY_FRAME_MAX, pool->workspace, f->frame, f->bytes - f->bytes / SHRINKS,
                                  f->from, f->bytes);
}

typedef struct helper {
    mpy_compressors_t *pool;
    int index;
} helper_t;

static int help(void *argument) {
    const helper_t self = *(const helper_t *)argument;
    mpy_compressors_t *pool = self.pool;
    for (uint32_t seen = 0;;) {
        while (__atomic_load_n(&pool->round, __ATOMIC_ACQUIRE) == seen)
            mpy_sys(SYS_futex, &pool->round, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen, 0);
        seen++;
        if (pool->stop) return 0;
        if (self.index < pool->count) compress(pool, &pool->frames[self.index]);
        if (__atomic_sub_fetch(&pool->working, 1, __ATOMIC_ACQ_REL) == 0)
            mpy_sys(SYS_futex, &pool->working, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1);
    }
}

void mpy_compressors_begin(mpy_compressors_t *pool, int threads, size_t workspace) {
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                      CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    *pool = (mpy_compressors_t){.workspace = workspace};
    const int wanted = (threads < MPY_COMPRESSORS_MAX ? threads : MPY_COMPRESSORS_MAX) - 1;
    if (wanted <= 0) return;
    long at = mpy_sys(SYS_mmap, 0, MPY_COMPRESSORS_MAX * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    if (mpy_sys_failed(at)) return;
    pool->stacks = (char *)at;
    for (int i = 0; i < wanted; i++) {
        helper_t *self = (helper_t *)(pool->stacks + (i + 1) * STACK) - 1; /* above what it will use of its stack */
        *self = (helper_t){pool, i + 1};
        void *top = (void *)((uintptr_t)self & ~15ul);
        if (clone(help, top, flags, self, &pool->ids[i], NULL, &pool->ids[i]) < 0) return;
        pool->helpers++;
    }
}

static void rouse(mpy_compressors_t *pool) {
    __atomic_store_n(&pool->working, (uint32_t)pool->helpers, __ATOMIC_RELEASE);
    __atomic_add_fetch(&pool->round, 1, __ATOMIC_ACQ_REL);
    mpy_sys(SYS_futex, &pool->round, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, MPY_COMPRESSORS_MAX);
}

static void await(const uint32_t *futex, int flags) {
    for (uint32_t left; (left = __atomic_load_n(futex, __ATOMIC_ACQUIRE)) != 0;)
        mpy_sys(SYS_futex, futex, FUTEX_WAIT | flags, left, 0);
}

void mpy_compressors_end(mpy_compressors_t *pool) {
    pool->stop = 1;
    rouse(pool);
    for (int i = 0; i < pool->helpers; i++) await(&pool->ids[i], 0); /* the kernel wakes without the flag */
    if (pool->stacks) mpy_sys(SYS_munmap, pool->stacks, MPY_COMPRESSORS_MAX * STACK);
    pool->stacks = NULL;
    pool->helpers = 0;
}

void mpy_compressors_run(mpy_compressors_t *pool, int count) {
    pool->count = count;
    if (count > 1) rouse(pool);
    compress(pool, &pool->frames[0]);
    if (count > 1) await(&pool->working, FUTEX_PRIVATE_FLAG);
}
