/* crew.c - threads that compress frames at the same time.
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
#include "crew.h"

#include "base/zstd.h"

#include <linux/futex.h>
#include <manapy/image.h>
#include <manapy/syscall.h>
#include <sched.h>
#include <sys/mman.h>

#define STACK (256ul << 10)
enum { SHRINKS = 10 }; /* by at least 1 / SHRINKS */

static void compress(const mpy_crew_t *crew, mpy_frame_t *f) {
    f->length = mpy_zstd_compress(f->frame + MPY_FRAME_MAX, crew->workspace, f->frame, f->bytes - f->bytes / SHRINKS,
                                  f->from, f->bytes);
}

typedef struct helper {
    mpy_crew_t *crew;
    int index;
} helper_t;

static int help(void *argument) {
    const helper_t self = *(const helper_t *)argument;
    mpy_crew_t *crew = self.crew;
    for (uint32_t seen = 0;;) {
        while (__atomic_load_n(&crew->round, __ATOMIC_ACQUIRE) == seen)
            mpy_sys(SYS_futex, &crew->round, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen, 0);
        seen++;
        if (crew->stop) return 0;
        if (self.index < crew->count) compress(crew, &crew->frames[self.index]);
        if (__atomic_sub_fetch(&crew->working, 1, __ATOMIC_ACQ_REL) == 0)
            mpy_sys(SYS_futex, &crew->working, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1);
    }
}

void mpy_crew_begin(mpy_crew_t *crew, int threads, size_t workspace) {
    const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                      CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    *crew = (mpy_crew_t){.workspace = workspace};
    const int wanted = (threads < MPY_CREW_MAX ? threads : MPY_CREW_MAX) - 1;
    if (wanted <= 0) return;
    long at = mpy_sys(SYS_mmap, 0, MPY_CREW_MAX * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(at)) return;
    crew->stacks = (char *)at;
    for (int i = 0; i < wanted; i++) {
        helper_t *self = (helper_t *)(crew->stacks + (i + 1) * STACK) - 1; /* above what it will use of its stack */
        *self = (helper_t){crew, i + 1};
        void *top = (void *)((uintptr_t)self & ~15ul);
        if (clone(help, top, flags, self, &crew->ids[i], NULL, &crew->ids[i]) < 0) return;
        crew->helpers++;
    }
}

static void rouse(mpy_crew_t *crew) {
    __atomic_store_n(&crew->working, (uint32_t)crew->helpers, __ATOMIC_RELEASE);
    __atomic_add_fetch(&crew->round, 1, __ATOMIC_ACQ_REL);
    mpy_sys(SYS_futex, &crew->round, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, MPY_CREW_MAX);
}

static void await(const uint32_t *futex, int flags) {
    for (uint32_t left; (left = __atomic_load_n(futex, __ATOMIC_ACQUIRE)) != 0;)
        mpy_sys(SYS_futex, futex, FUTEX_WAIT | flags, left, 0);
}

void mpy_crew_end(mpy_crew_t *crew) {
    crew->stop = 1;
    rouse(crew);
    for (int i = 0; i < crew->helpers; i++) await(&crew->ids[i], 0); /* the kernel wakes without the flag */
    if (crew->stacks) mpy_sys(SYS_munmap, crew->stacks, MPY_CREW_MAX * STACK);
    crew->stacks = NULL;
    crew->helpers = 0;
}

void mpy_crew_compress(mpy_crew_t *crew, int count) {
    crew->count = count;
    if (count > 1) rouse(crew);
    compress(crew, &crew->frames[0]);
    if (count > 1) await(&crew->working, FUTEX_PRIVATE_FLAG);
}
