/* trap_signal.c - the program's signal actions and masks. The two signals that manapy needs are kept out of its reach.
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc.
 *
 * Invariants
 *  1. For a signal that the program catches, the kernel's handler is the signal entry in the code page; the program's
 *     own action is in the trap block. The kernel is asked for the old action first, because a vfork child shares the
 *     table but not the actions. So the table is written only for actions with a handler function.
 *  2. SIGSYS and MPY_SIGNAL_STOP are never blocked (a trap with SIGSYS blocked kills the process) and never belong to
 *     the program: its actions for them are recorded and shown, not installed.
 *  3. In a chain, SIGTERM from outside announces the end of an allocation; a checkpoint precedes this end. So SIGTERM
 *     with the default action doesn't end the rank: the kernel has `shield` as its handler, and the program sees
 *     SIG_DFL. It is a handler, not SIG_IGN, because an exec resets a handler to the default, and because a handler can
 *     find out for which process the signal is meant. These processes end as usual: children without exec, a process
 *     that sends the signal to itself, and a process below the MPI process that gets it from its parent. (A script's
 *     `timeout` only passes it on.)
 */
#include "base/sys.h"
#include "trap.h"

#define FLAG_RESTORER 0x04000000ul
#define BIT(sig) (1ul << ((sig) - 1))
#define RESERVED (BIT(SIGSYS) | BIT(MPY_SIGNAL_STOP))

static int reserved(long sig) { return sig == SIGSYS || sig == MPY_SIGNAL_STOP; }

static int shielded; /* this rank is part of a chain */

/* Every signal is blocked while it runs, including the stop signal: no image may contain a thread inside it, at an
 * address of this lower half. */
static void shield(int sig, siginfo_t *info, void *context) {
    (void)context;
    long pid = mpy_sys(SYS_getpid);
    const bool meant = info->si_code <= 0 &&
                       (info->si_pid == pid || (MPY_TRAP->below_mpi && info->si_pid == mpy_sys(SYS_getppid)));
    if (pid == MPY_TRAP->real_pid && !meant) return;
    mpy_ksigaction_t fatal = {0};
    mpy_sys(SYS_rt_sigaction, sig, &fatal, 0, 8);
    mpy_sys(SYS_kill, pid, sig); /* stays blocked until we return */
}

/* Converts the kernel's action to the one that the program knows. */
static mpy_ksigaction_t shown(const mpy_ksigaction_t *k) {
    return k->handler == (uint64_t)shield ? (mpy_ksigaction_t){0} : *k;
}

static long install(long sig, const mpy_ksigaction_t *want) {
    mpy_ksigaction_t k = *want;
    k.mask &= ~RESERVED;
    if (k.handler > 1) {
        k.handler = mpy_code_address(mpy_code_signal_entry);
        k.restorer = mpy_code_address(mpy_code_restorer);
        k.flags |= FLAG_RESTORER;
    } else if (shielded && sig == SIGTERM && k.handler == 0 && mpy_sys(SYS_getpid) == MPY_TRAP->real_pid) {
        const uint64_t flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK | FLAG_RESTORER;
        k = (mpy_ksigaction_t){(uint64_t)shield, flags, mpy_code_address(mpy_code_restorer), ~0ul};
    }
    return mpy_sys(SYS_rt_sigaction, sig, &k, 0, 8);
}

void mpy_signals_shield(void) {
    mpy_ksigaction_t now;
    shielded = 1;
    if (!mpy_sys(SYS_rt_sigaction, SIGTERM, 0, &now, 8) && now.handler == 0) install(SIGTERM, &now);
}

long mpy_trap_sigaction(mpy_trap_t *t) {
    long sig = t->a[0];
    const mpy_ksigaction_t *want = (const mpy_ksigaction_t *)t->a[1];
    mpy_ksigaction_t *out = (mpy_ksigaction_t *)t->a[2], old;
    if (sig < 1 || sig >= MPY_SIGNALS || t->a[3] != 8) return -22;
    mpy_ksigaction_t *mine = &MPY_TRAP->signals[sig];
    if (reserved(sig)) {
        old = *mine;
        if (want) *mine = *want;
    } else {
        long r = mpy_sys(SYS_rt_sigaction, sig, 0, &old, 8);
        if (r) return r;
        old = old.handler == mpy_code_address(mpy_code_signal_entry) ? *mine : shown(&old);
        if (want) {
            mpy_ksigaction_t next = *want; /* `want` and `out` may be the same object */
            mpy_ksigaction_t before = *mine;
            if (next.handler > 1) *mine = next; /* before the kernel has it, because the signal may arrive at once */
            r = install(sig, &next);
            if (r) { *mine = before; return r; }
        }
    }
    if (out) *out = old;
    return 0;
}

long mpy_trap_sigprocmask(mpy_trap_t *t) {
    long how = t->a[0];
    const uint64_t *set = (const uint64_t *)t->a[1];
    uint64_t *out = (uint64_t *)t->a[2];
    uint64_t *mask = (uint64_t *)&t->uc->uc_sigmask; /* what rt_sigreturn will install */
    uint64_t old = *mask, next = old;
    if (t->a[3] != 8) return -22;
    if (set) {
        /* Programs ask in this way whether an address can be read. The kernel looks at the set before it refuses -1. */
        if (mpy_sys(SYS_rt_sigprocmask, -1, set, 0, 8) == -14) return -14;
        uint64_t given = *set;
        if (how == SIG_BLOCK) next = old | given;
        else if (how == SIG_UNBLOCK) next = old & ~given;
        else if (how == SIG_SETMASK) next = given;
        else return -22;
        *mask = next & ~(RESERVED | BIT(SIGKILL) | BIT(SIGSTOP));
    }
    if (out) *out = old;
    return 0;
}

/* Calls that install a mask while they sleep, or that consume signals. Our signals are removed from the mask; otherwise
 * a sleeping thread couldn't be halted, and a handler that runs meanwhile couldn't trap. These calls must not sleep in
 * this handler, because all signals are blocked here. So the program makes them itself, at mpy_code_masked_*, when the
 * handler has returned. Nothing is written to the program's stack before (invariant 1 of trap.c). */
long mpy_trap_with_mask(mpy_trap_t *t) {
    greg_t *g = t->uc->uc_mcontext.gregs;
    const uint64_t *given;
    const char *entry;
    switch (t->nr) {
    case SYS_pselect6: { /* a pointer to {mask, size} */
        const uint64_t *pair = (const uint64_t *)t->a[5];
        given = pair ? (const uint64_t *)pair[0] : 0;
        if (given && pair[1] != 8) return -22;
        entry = mpy_code_masked_r9_pair;
        break;
    }
    case SYS_ppoll: given = (const uint64_t *)t->a[3], entry = mpy_code_masked_r10; break;
    case SYS_epoll_pwait:
    case SYS_epoll_pwait2: given = (const uint64_t *)t->a[4], entry = mpy_code_masked_r8; break;
    default: given = (const uint64_t *)t->a[0], entry = mpy_code_masked_rdi; break; /* sigsuspend, sigtimedwait */
    }
    g[REG_RCX] = g[REG_RIP];
    if (given) g[REG_R11] = (greg_t)(*given & ~RESERVED);
    g[REG_RIP] = (greg_t)mpy_code_address(given ? entry : mpy_code_masked_none);
    return t->nr; /* goes into rax, for the system call there */
}

/* The table contains a handler if the kernel has our entry; otherwise default or ignore, as in the kernel. */
void mpy_signals_collect(void) {
    for (long sig = 1; sig < MPY_SIGNALS; sig++) {
        mpy_ksigaction_t k;
        if (reserved(sig) || mpy_sys(SYS_rt_sigaction, sig, 0, &k, 8)) continue;
        if (k.handler != mpy_code_address(mpy_code_signal_entry)) MPY_TRAP->signals[sig] = shown(&k);
    }
}

void mpy_signals_reinstall(void) {
    for (long sig = 1; sig < MPY_SIGNALS; sig++)
        if (!reserved(sig) && sig != SIGKILL && sig != SIGSTOP) install(sig, &MPY_TRAP->signals[sig]);
}
