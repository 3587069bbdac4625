/* trap_clone.c - new child processes; after a restart also new threads, with unambiguous ids.
 *
 * Half: lower, in the SIGSYS handler on the upper TLS, and in the new thread or process before it is the program's: no
 * libc.
 *
 * A child that fork(2) makes keeps both halves. If possible the lower half makes it (mpy_trap_fork), so that it can be
 * saved, too.
 *
 * After a restart the program keeps its ids, and the kernel may give the same ids to new threads or children. glibc
 * gets a thread's id from clone itself, so two threads would have one id (for example as owners of locks), and a signal
 * for the child would reach the thread or rank with this id. The kernel's numbers can't be chosen. So a thread that
 * gets such an id keeps it and sleeps for ever, and a process ends at once; then the call is tried again.
 *
 * Invariants
 *  1. Entries in the list of ids are written atomically. The entry of a thread that has ended is {0, 0}, which
 *     translates 0 to 0.
 *  2. A thread starts on the stack that it is given. On top of this stack is a copy of the trap's signal frame, in
 *     which the child returns from the call; rt_sigreturn starts it. Nothing remains of our own frames.
 *  3. A child without a stack of its own (vfork) that shares our memory would overwrite the handler's frames. It gets a
 *     copy of the memory; its parent still waits for its exec or end.
 */
#include "base/sys.h"
#include "isolate/fdguard.h"
#include "isolate/jump.h"
#include "trap.h"
#include <errno.h>
#include <linux/sched.h>
#include <stddef.h>
#include <string.h>

enum { LEGACY_BYTES = 512, RESERVED_AT = 464, MAGIC1 = 0x46505853, WALL = 0x40000000 };

long (*mpy_trap_fork)(mpy_taken_t *taken);
volatile uint32_t mpy_memory_missing;

/* ---- ids ---- */

static void drop(uint32_t i) {
    const mpy_idpair_t none = {0, 0};
    __atomic_store(&MPY_TRAP->ids[i], &none, __ATOMIC_RELAXED);
}

/* Does the program, process `group`, know another thread or process by this id of the kernel's? */
static int taken(int32_t id, long group) {
    for (uint32_t i = 0; i < MPY_TRAP->nids; i++) {
        mpy_idpair_t pair = mpy_id_pair(i);
        if (pair.shown != id) continue;
        if (pair.shown == MPY_TRAP->pid || mpy_sys(SYS_tgkill, group, pair.real, 0) == 0 ||
            mpy_sys(SYS_kill, pair.real, 0) == 0)
            return 1;
        drop(i);
    }
    return 0;
}

/* A new thread or process has this kernel id, so the former owner has ended. */
static void renew(int32_t id) {
    for (uint32_t i = 0; i < MPY_TRAP->nids; i++)
        if (mpy_id_pair(i).real == id) drop(i);
}

/* ---- the call ---- */

typedef struct request {
    uint64_t flags; /* with the signal */
    uint64_t stack; /* its end; 0: none of its own */
    uint64_t parent_tid, child_tid, tls;
    long group; /* the calling process */
} request_t;

static request_t parse(const mpy_trap_t *t) {
    request_t r = {.flags = SIGCHLD, .group = mpy_sys(SYS_getpid)}; /* as fork(2) */
    if (t->nr == SYS_vfork) r.flags |= CLONE_VM | CLONE_VFORK;
    if (t->nr == SYS_clone) {
        r.flags = (uint64_t)t->a[0];
        r.stack = (uint64_t)t->a[1];
        r.parent_tid = (uint64_t)t->a[2];
        r.child_tid = (uint64_t)t->a[3];
        r.tls = (uint64_t)t->a[4];
    }
    return r;
}

/* Ends a process at once, unless it does not know its id (in its own namespace). The program only notices a SIGCHLD. */
static void reap(const request_t *r, long pid) {
    mpy_sys(SYS_kill, pid, SIGKILL);
    mpy_sys(SYS_wait4, pid, 0, WALL, 0);
    if (r->flags & CLONE_PIDFD) mpy_sys(SYS_close, *(const int *)r->parent_tid);
}

/* As fork(3) calls clone(2), or less. */
static int is_plain(const request_t *r) {
    const uint64_t known = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID;
    return (r->flags & ~known) == SIGCHLD && !r->stack;
}

/* What clone(2) does with the words of the flags, for a child that fork(3) has made. */
static void set_words(const request_t *r, long id) {
    if (id > 0 && r->flags & CLONE_PARENT_SETTID) *(int32_t *)r->parent_tid = (int32_t)id;
    if (id) return;
    if (r->flags & CLONE_CHILD_SETTID) *(int32_t *)r->child_tid = (int32_t)mpy_sys(SYS_getpid);
    mpy_sys(SYS_set_tid_address, r->flags & CLONE_CHILD_CLEARTID ? r->child_tid : 0);
    mpy_sys(SYS_set_robust_list, 0, 3 * sizeof(long));
}

static long make_process(const request_t *r) {
    long id = is_plain(r) && mpy_trap_fork ? mpy_trap_fork(taken) : -ENOSYS;
    if (id == -ENOSYS) return mpy_sys(SYS_clone, r->flags, r->stack, r->parent_tid, r->child_tid, r->tls);
    if (id >= 0) set_words(r, id);
    return id;
}

/* A child with its own memory returns from this handler like the parent. */
static long new_process(mpy_trap_t *t, const request_t *r) {
    for (;;) {
        long id = make_process(r);
        if (id < 0) return id;
        int32_t who = id ? (int32_t)id : (int32_t)mpy_sys(SYS_gettid);
        if (!taken(who, r->group)) {
            renew(who);
            if (id == 0 && r->stack) t->uc->uc_mcontext.gregs[REG_RSP] = (greg_t)r->stack;
            return id;
        }
        if (id == 0) mpy_sys(SYS_exit_group, 0);
        reap(r, id);
    }
}

typedef struct birth {
    uint64_t ucontext;
    long group;
    int process;
    volatile uint32_t *asleep;
} birth_t;

static void begin(void *argument) {
    const birth_t *b = argument;
    if (!taken((int32_t)mpy_sys(SYS_gettid), b->group)) mpy_sigreturn(b->ucontext);
    if (b->process) mpy_sys(SYS_exit, 0);
    mpy_sys(SYS_set_tid_address, 0);
    mpy_sleep_stackless(b->asleep);
}

/* Invariant 2. The frame is the ucontext and the extended state that it points to, which is 64-aligned. */
static birth_t *prepare(const mpy_trap_t *t, const request_t *r, volatile uint32_t *asleep) {
    const ucontext_t *from = t->uc;
    const char *state = (const char *)from->uc_mcontext.fpregs;
    const uint32_t *sw = (const uint32_t *)(state + RESERVED_AT);
    uint64_t state_bytes = !state ? 0 : sw[0] == MAGIC1 ? sw[1] : LEGACY_BYTES;
    uint64_t bytes = offsetof(ucontext_t, uc_sigmask) + 8;
    uint64_t state_at = (r->stack - state_bytes) & ~63ul, at = (state_at - bytes) & ~15ul;
    ucontext_t *uc = (ucontext_t *)at;
    memcpy((void *)state_at, state, state_bytes);
    memcpy(uc, from, bytes);
    uc->uc_mcontext.fpregs = state ? (fpregset_t)state_at : 0;
    uc->uc_mcontext.gregs[REG_RAX] = 0;
    uc->uc_mcontext.gregs[REG_RSP] = (greg_t)r->stack;
    /* as clone(2) requires; and our frame may lie on the parent's alternate stack */
    uc->uc_stack = (stack_t){.ss_flags = SS_DISABLE};
    birth_t *b = (birth_t *)(at - ((sizeof *b + 15) & ~15ul));
    *b = (birth_t){at, r->group, !(r->flags & CLONE_THREAD), asleep};
    return b;
}

/* A child that shares our memory, on a stack of its own. */
static long new_thread(const mpy_trap_t *t, const request_t *r) {
    for (;;) {
        volatile uint32_t asleep = 0;
        birth_t *b = prepare(t, r, &asleep);
        const long args[5] = {(long)r->flags, (long)((uint64_t)b & ~15ul), (long)r->parent_tid, (long)r->child_tid,
                              (long)r->tls};
        long id = mpy_clone(args, begin, b);
        if (id < 0) return id;
        if (!taken((int32_t)id, r->group)) {
            renew((int32_t)id);
            return id;
        }
        if (!(r->flags & CLONE_THREAD)) {
            reap(r, id);
        } else {
            while (!asleep) mpy_sys(SYS_sched_yield); /* it is on the stack that the next one gets */
            mpy_thread_lower_add((int)id);
        }
    }
}

long mpy_trap_clone(mpy_trap_t *t) {
    request_t r = parse(t);
    while (!(r.flags & CLONE_THREAD) && mpy_memory_missing) mpy_futex_wait(&mpy_memory_missing, 1);
    if (!(r.flags & CLONE_VM)) return new_process(t, &r);
    if (r.stack) return new_thread(t, &r);
    r.flags &= ~(uint64_t)CLONE_VM; /* invariant 3 */
    return new_process(t, &r);
}
