/* advice.c - a program's advice to the kernel about its memory: madvise, mlock, mbind. It is saved with each region,
 * and given again after a restart.
 *
 * Half: lower; libc may be called.
 *
 * Invariants
 *  1. None of it changes what the memory holds. Advice that this host refuses (a lock beyond RLIMIT_MEMLOCK, nodes that
 *     it does not have) is left out. For locks, on which a program may rely, one line says so.
 */
#define _GNU_SOURCE
#include "advice.h"
#include "isolate/trapstate.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MPOL_DEFAULT = 0, MPOL_F_ADDR = 2, NODES_MAX = 64 };

static const struct { char name[3]; uint32_t flag; int advice;
} advices[] = {
    {"hg", MPY_REGION_HUGE, MADV_HUGEPAGE},      {"nh", MPY_REGION_NO_HUGE, MADV_NOHUGEPAGE},
    {"dc", MPY_REGION_DONT_FORK, MADV_DONTFORK}, {"wf", MPY_REGION_WIPE_ON_FORK, MADV_WIPEONFORK},
    {"dd", MPY_REGION_DONT_DUMP, MADV_DONTDUMP}, {"sr", MPY_REGION_SEQUENTIAL, MADV_SEQUENTIAL},
    {"rr", MPY_REGION_RANDOM, MADV_RANDOM},      {"mg", MPY_REGION_MERGEABLE, MADV_MERGEABLE},
};
enum { ADVICES = sizeof advices / sizeof *advices };
static const struct {
    char name[3];
    uint32_t flag;
} others[] = {{"gd", MPY_REGION_GROWSDOWN}, {"lo", MPY_REGION_LOCKED}, {"lf", MPY_REGION_LOCKED_ON_FAULT},
            {"mw", MPY_REGION_MAY_WRITE}};

static int has(const char *vmflags, const char *name) {
    for (const char *at = vmflags; (at = strstr(at, name)); at++)
        if (at > vmflags && at[-1] == ' ') return 1;
    return 0;
}

uint32_t mpy_advice_flags(const char *vmflags) {
    uint32_t flags = 0;
    for (int i = 0; i < ADVICES; i++)
        if (has(vmflags, advices[i].name)) flags |= advices[i].flag;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (has(vmflags, others[i].name)) flags |= others[i].flag;
    return flags;
}

void mpy_advice_policy(mpy_image_region_t *r) {
    int mode = MPOL_DEFAULT;
    uint64_t nodes[1024 / NODES_MAX] = {0}; /* the kernel requires room for all possible nodes */
    if (syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, r->lo, MPOL_F_ADDR) || mode == MPOL_DEFAULT) return;
    r->policy = (uint32_t)mode;
    r->nodes = nodes[0];
}

static void advise(const mpy_image_region_t *r, uint32_t which) {
    for (int i = 0; i < ADVICES; i++)
        if (r->flags & which & advices[i].flag)
            syscall(SYS_madvise, r->lo, r->hi - r->lo, advices[i].advice); /* madvise() is interposed */
}

static const uint32_t before_pages = MPY_REGION_HUGE | MPY_REGION_NO_HUGE;

void mpy_advice_place(const mpy_image_region_t *r) {
    advise(r, before_pages);
    if (r->policy != MPOL_DEFAULT) syscall(SYS_mbind, r->lo, r->hi - r->lo, r->policy, &r->nodes, NODES_MAX + 1, 0);
}

static void locked(int failed) {
    static int said;
    if (failed && !said++)
        MPY_LOWER->svc->say(
            "memory that the program has locked cannot be locked here (ulimit -l); it may be swapped out");
}

void mpy_advice_apply(const mpy_image_region_t *r) {
    advise(r, ~before_pages);
    if (r->flags & (MPY_REGION_DONT_FORK | MPY_REGION_WIPE_ON_FORK)) MPY_TRAP->fork_advice = 1;
    if (r->flags & MPY_REGION_LOCKED)
        locked(mlock2((void *)r->lo, r->hi - r->lo, r->flags & MPY_REGION_LOCKED_ON_FAULT ? MLOCK_ONFAULT : 0) &&
               r->prot != PROT_NONE);
}

void mpy_advice_future(void) {
    if (MPY_TRAP->lock_future) locked(mlockall((int)MPY_TRAP->lock_future));
}
