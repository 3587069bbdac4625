/* trap.c - which system calls of the upper half are intercepted, and how.
 *
 * Half: lower. The SIGSYS handler runs on the upper TLS, on the program's stack or alternate stack: no libc, no
 * stack protector, raw system calls, little stack.
 *
 * A seccomp filter returns TRAP for the calls of the table below, if the instruction pointer is in the arena or at a
 * call of a program linked without -pie (invariant 4). It tests architecture and number before the instruction pointer,
 * so the kernel caches all other calls as "always allow". The handler makes the call again in a form that keeps the
 * halves apart. It puts the result into the interrupted context.
 *
 * Invariants
 *  1. Code of the program never runs with SIGSYS blocked (trap_signal.c). The handler itself runs with all signals
 *     blocked, so it is never interrupted, and no code that it calls may trap. Of the interrupted context it writes
 *     only general registers and the signal mask. The frame around them ends just below the program's red zone and
 *     belongs to the kernel: extended state that is damaged there is lost, or kills the process.
 *  2. Children inherit the filter. It does nothing to them unless they map code into the arena's address range, or
 *     make a system call at an address that invariant 4 names.
 *  3. Calls that take or return identities, calls that make new threads, and clocks are trapped only after a restart,
 *     if the kernel's values differ from the program's. A fork is always trapped (trap_clone.c), but not vfork or
 *     posix_spawn.
 *  4. Programs linked without -pie lie at the same addresses as other such programs, which children may exec. So below
 *     4 GiB only the program's own system call instructions are trapped. If it has more than MPY_LOW_CALLS_MAX of them,
 *     all of its code is trapped. A program that uses shared libraries usually has none.
 *  5. clone3(2) fails with ENOSYS, as in many containers, so libraries call clone(2). The posix_spawn of glibc 2.38 and
 *     later would ask clone3 to reset the child's handlers (CLONE_CLEAR_SIGHAND), that of SIGSYS among them: the
 *     child's next trapped call would kill it. A filter cannot see such flags, nor whether the child is a fork.
 */
#include "trap.h"
#include "base/page.h"
#include "base/sys.h"
#include "clock.h"
#include "isolate/fdguard.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

int (*mpy_trap_on_exit)(int code);
volatile uint32_t mpy_memory_calls;

_Static_assert(offsetof(mpy_lower_t, tls_upper_fs) == 0x30, "trampoline.S knows this offset");
_Static_assert(offsetof(mpy_lower_t, signal_above) == 0x38, "trampoline.S knows this offset");
_Static_assert(offsetof(mpy_trapstate_t, signals) == 0 && sizeof(mpy_ksigaction_t) == 32,
               "trampoline.S knows this layout");
_Static_assert(offsetof(mpy_trapstate_t, pid) == 0x820 && offsetof(mpy_trapstate_t, real_pid) == 0x824,
               "trampoline.S knows these offsets");
_Static_assert(offsetof(mpy_trapstate_t, nids) == 0x1884 && offsetof(mpy_trapstate_t, ids) == 0x1888 &&
                   offsetof(mpy_idpair_t, real) == 4,
               "trampoline.S knows these offsets");

void mpy_code_install(void) {
    void *page = (void *)MPY_CODE_ADDR;
    mpy_sys(SYS_mmap, page, MPY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memcpy(page, mpy_code_begin, (size_t)(mpy_code_end - mpy_code_begin));
    mpy_sys(SYS_mprotect, page, MPY_PAGE, PROT_READ | PROT_EXEC);
}

/* ---- identities ---- */

static long id_get(mpy_trap_t *t) { return mpy_id_shown((int32_t)mpy_sys(t->nr)); }
static long real_or_group(long id) { return id < 0 ? -(long)mpy_id_real((int32_t)-id) : mpy_id_real((int32_t)id); }
static long id_first(mpy_trap_t *t) { /* the first argument is an identity (negative: a group) */
    return mpy_sys6(t->nr, real_or_group(t->a[0]), t->a[1], t->a[2], t->a[3], t->a[4], t->a[5]);
}
static long id_first_result(mpy_trap_t *t) { /* ... and so is the result */
    long r = id_first(t);
    return r > 0 ? mpy_id_shown((int32_t)r) : r;
}
static long id_first_two(mpy_trap_t *t) {
    return mpy_sys6(t->nr, mpy_id_real((int32_t)t->a[0]), mpy_id_real((int32_t)t->a[1]), t->a[2], t->a[3], t->a[4],
                    t->a[5]);
}
static long second_real(mpy_trap_t *t) {
    return mpy_sys6(t->nr, t->a[0], mpy_id_real((int32_t)t->a[1]), t->a[2], t->a[3], t->a[4], t->a[5]);
}
static long same(mpy_trap_t *t) { return mpy_sys6(t->nr, t->a[0], t->a[1], t->a[2], t->a[3], t->a[4], t->a[5]); }
enum { PRIORITY_OF_USER = 2, IO_PRIORITY_OF_USER = 3, PERF_OF_CGROUP = 4 /* the id is a descriptor */ };
static long id_priority(mpy_trap_t *t) { return (int)t->a[0] == PRIORITY_OF_USER ? same(t) : second_real(t); }
static long id_io_priority(mpy_trap_t *t) { return (int)t->a[0] == IO_PRIORITY_OF_USER ? same(t) : second_real(t); }
static long id_perf(mpy_trap_t *t) { return t->a[4] & PERF_OF_CGROUP ? same(t) : second_real(t); }
static long id_clock(mpy_trap_t *t) { return mpy_sys(t->nr, mpy_clock_real(t->a[0]), t->a[1]); }
static long id_set_tid_address(mpy_trap_t *t) { return mpy_id_shown((int32_t)mpy_sys(t->nr, t->a[0])); }

/* ---- the rest ---- */

/* ENOSYS, as from an older kernel. rseq: its area would become stale at a restart. clone3: invariant 5. */
static long refuse(mpy_trap_t *t) { (void)t; return -38; }

/* A debugger starts its program by vfork and PTRACE_TRACEME. Then the next trap stops the child for the debugger, which
 * waits for its exec: for ever. And later each trap would stop the program. */
static long refuse_debugger(mpy_trap_t *t) {
    (void)t;
    MPY_LOWER->svc->say("a debugger cannot start a program inside manapy-launch; put it in front (gdb -ex 'handle "
                        "SIGSYS nostop noprint pass' --args manapy-launch PROGRAM), or attach it to the program "
                        "(gdb -p PID)");
    return -1; /* EPERM */
}

static long protect_close(mpy_trap_t *t) {
    return mpy_fd_is_lower((int)t->a[0]) ? -9 /* EBADF */ : mpy_sys(SYS_close, t->a[0]);
}

static long protect_close_range(mpy_trap_t *t) { /* closefrom() must not close the lower half's descriptors */
    uint64_t fd = (unsigned)t->a[0], last = (unsigned)t->a[1], beyond = (uint64_t)mpy_fd_lower_end();
    while (fd <= last) {
        uint64_t end = fd;
        while (end < beyond && end <= last && !mpy_fd_is_lower((int)end)) end++;
        if (end >= beyond) end = last + 1;
        if (end > fd) {
            long r = mpy_sys(SYS_close_range, fd, end - 1, t->a[2]);
            if (r) return r;
        }
        fd = end + 1;
    }
    return 0;
}

static long exit_group(mpy_trap_t *t) {
    int code = (int)t->a[0];
    if (mpy_trap_on_exit && mpy_sys(SYS_getpid) == mpy_id_real(MPY_TRAP->pid)) code = mpy_trap_on_exit(code);
    return mpy_sys(SYS_exit_group, code);
}

/* Conditions for a trap. HIGH_FD: the first argument may be a descriptor of the lower half. ABSOLUTE: the second
 * argument has TIMER_ABSTIME (TFD_TIMER_ABSTIME has the same value). FUTEX_UNTIL: FUTEX_WAIT_BITSET with the monotonic
 * clock. LASTING_ADVICE: not MADV_DONTNEED to MADV_REMOVE, which allocators give often, and which change no mapping.
 * OWN_MEMORY: clone as fork(2) calls it, for a child with a memory of its own. TRACE_ME: PTRACE_TRACEME. TERMINAL_ID:
 * ioctls of terminals. */
typedef enum { ANY, HIGH_FD, ABSOLUTE, FUTEX_UNTIL, LASTING_ADVICE, OWN_MEMORY, TRACE_ME, TERMINAL_ID } condition_t;
enum { FUTEX_COMMAND_AND_CLOCK = 0x17f, FUTEX_WAIT_BITSET_MONOTONIC = 9 };
typedef struct { int nr; long (*handle)(mpy_trap_t *); mpy_trap_when_t when; condition_t only; } row_t;

static const row_t table[] = {
    {SYS_mmap, mpy_trap_mmap, MPY_TRAP_ALWAYS, ANY},
    {SYS_munmap, mpy_trap_munmap, MPY_TRAP_ALWAYS, ANY},
    {SYS_mremap, mpy_trap_mremap, MPY_TRAP_ALWAYS, ANY},
    {SYS_brk, mpy_trap_brk, MPY_TRAP_ALWAYS, ANY},
    {SYS_shmat, mpy_trap_shmat, MPY_TRAP_ALWAYS, ANY},
    {SYS_mlockall, mpy_trap_mlockall, MPY_TRAP_ALWAYS, ANY},
    {SYS_munlockall, mpy_trap_mlockall, MPY_TRAP_ALWAYS, ANY},
    {SYS_mlock, mpy_trap_mlock, MPY_TRAP_ALWAYS, ANY},
    {SYS_mlock2, mpy_trap_mlock, MPY_TRAP_ALWAYS, ANY},
    {SYS_munlock, mpy_trap_mlock, MPY_TRAP_ALWAYS, ANY},
    {SYS_madvise, mpy_trap_madvise, MPY_TRAP_ALWAYS, LASTING_ADVICE}, /* the last of MEMORY_ROWS */
    {SYS_rt_sigaction, mpy_trap_sigaction, MPY_TRAP_ALWAYS, ANY},
    {SYS_rt_sigprocmask, mpy_trap_sigprocmask, MPY_TRAP_ALWAYS, ANY},
    {SYS_rt_sigsuspend, mpy_trap_with_mask, MPY_TRAP_ALWAYS, ANY},
    {SYS_rt_sigtimedwait, mpy_trap_with_mask, MPY_TRAP_ALWAYS, ANY},
    {SYS_ppoll, mpy_trap_with_mask, MPY_TRAP_ALWAYS, ANY},
    {SYS_pselect6, mpy_trap_with_mask, MPY_TRAP_ALWAYS, ANY},
    {SYS_epoll_pwait, mpy_trap_with_mask, MPY_TRAP_ALWAYS, ANY},
    {SYS_epoll_pwait2, mpy_trap_with_mask, MPY_TRAP_ALWAYS, ANY},
    {SYS_execve, mpy_trap_execve, MPY_TRAP_ALWAYS, ANY},
    {SYS_execveat, mpy_trap_execveat, MPY_TRAP_ALWAYS, ANY},
    {SYS_readlink, mpy_trap_readlink, MPY_TRAP_ALWAYS, ANY},
    {SYS_readlinkat, mpy_trap_readlink, MPY_TRAP_ALWAYS, ANY},
    {SYS_rseq, refuse, MPY_TRAP_ALWAYS, ANY},
    {SYS_pkey_alloc, refuse, MPY_TRAP_ALWAYS, ANY}, /* older threads could not read what the image must have */
    {SYS_clone3, refuse, MPY_TRAP_ALWAYS, ANY},
    {SYS_ptrace, refuse_debugger, MPY_TRAP_ALWAYS, TRACE_ME},
    {SYS_close, protect_close, MPY_TRAP_ALWAYS, HIGH_FD},
    {SYS_close_range, protect_close_range, MPY_TRAP_ALWAYS, ANY},
    {SYS_exit_group, exit_group, MPY_TRAP_ALWAYS, ANY},
    {SYS_fork, mpy_trap_clone, MPY_TRAP_ALWAYS, ANY},
    {SYS_clone, mpy_trap_clone, MPY_TRAP_ALWAYS, OWN_MEMORY},
    {SYS_clone, mpy_trap_clone, MPY_TRAP_IDS, ANY},
    {SYS_vfork, mpy_trap_clone, MPY_TRAP_IDS, ANY},
    {SYS_getpid, id_get, MPY_TRAP_IDS, ANY},
    {SYS_gettid, id_get, MPY_TRAP_IDS, ANY},
    {SYS_getppid, id_get, MPY_TRAP_IDS, ANY},
    {SYS_set_tid_address, id_set_tid_address, MPY_TRAP_IDS, ANY},
    {SYS_kill, id_first, MPY_TRAP_IDS, ANY},
    {SYS_tkill, id_first, MPY_TRAP_IDS, ANY},
    {SYS_tgkill, id_first_two, MPY_TRAP_IDS, ANY},
    {SYS_rt_sigqueueinfo, id_first, MPY_TRAP_IDS, ANY},
    {SYS_rt_tgsigqueueinfo, id_first_two, MPY_TRAP_IDS, ANY},
    {SYS_sched_setaffinity, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_getaffinity, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_setparam, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_getparam, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_setscheduler, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_getscheduler, id_first, MPY_TRAP_IDS, ANY},
    {SYS_prlimit64, id_first, MPY_TRAP_IDS, ANY},
    {SYS_getpgid, id_first_result, MPY_TRAP_IDS, ANY},
    {SYS_getsid, id_first_result, MPY_TRAP_IDS, ANY},
    {SYS_pidfd_open, id_first, MPY_TRAP_IDS, ANY},
    {SYS_setpgid, id_first_two, MPY_TRAP_IDS, ANY},
    {SYS_getpgrp, id_get, MPY_TRAP_IDS, ANY},
    {SYS_wait4, mpy_trap_wait, MPY_TRAP_IDS, ANY},
    {SYS_waitid, mpy_trap_wait, MPY_TRAP_IDS, ANY},
    {SYS_getpriority, id_priority, MPY_TRAP_IDS, ANY},
    {SYS_setpriority, id_priority, MPY_TRAP_IDS, ANY},
    {SYS_ioprio_get, id_io_priority, MPY_TRAP_IDS, ANY},
    {SYS_ioprio_set, id_io_priority, MPY_TRAP_IDS, ANY},
    {SYS_perf_event_open, id_perf, MPY_TRAP_IDS, ANY},
    {SYS_sched_setattr, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_getattr, id_first, MPY_TRAP_IDS, ANY},
    {SYS_sched_rr_get_interval, id_first, MPY_TRAP_IDS, ANY},
    {SYS_process_vm_readv, id_first, MPY_TRAP_IDS, ANY},
    {SYS_process_vm_writev, id_first, MPY_TRAP_IDS, ANY},
    {SYS_move_pages, id_first, MPY_TRAP_IDS, ANY},
    {SYS_migrate_pages, id_first, MPY_TRAP_IDS, ANY},
    {SYS_get_robust_list, id_first, MPY_TRAP_IDS, ANY},
    {SYS_kcmp, id_first_two, MPY_TRAP_IDS, ANY},
    {SYS_timer_create, mpy_trap_timer_create, MPY_TRAP_IDS, ANY},
    {SYS_clock_getres, id_clock, MPY_TRAP_IDS, ANY},
    {SYS_clock_gettime, mpy_trap_clock_gettime, MPY_TRAP_IDS, ANY},
    {SYS_ioctl, mpy_trap_terminal, MPY_TRAP_IDS, TERMINAL_ID},
    {SYS_open, mpy_trap_path, MPY_TRAP_IDS, ANY},
    {SYS_stat, mpy_trap_path, MPY_TRAP_IDS, ANY},
    {SYS_lstat, mpy_trap_path, MPY_TRAP_IDS, ANY},
    {SYS_access, mpy_trap_path, MPY_TRAP_IDS, ANY},
    {SYS_openat, mpy_trap_path_at, MPY_TRAP_IDS, ANY},
    {SYS_newfstatat, mpy_trap_path_at, MPY_TRAP_IDS, ANY},
    {SYS_statx, mpy_trap_path_at, MPY_TRAP_IDS, ANY},
    {SYS_faccessat, mpy_trap_path_at, MPY_TRAP_IDS, ANY},
    {SYS_faccessat2, mpy_trap_path_at, MPY_TRAP_IDS, ANY},
    {SYS_clock_nanosleep, mpy_trap_sleep_until, MPY_TRAP_CLOCKS, ABSOLUTE},
    {SYS_futex, mpy_trap_sleep_until, MPY_TRAP_CLOCKS, FUTEX_UNTIL},
    {SYS_timerfd_settime, mpy_trap_timer_until, MPY_TRAP_CLOCKS, ABSOLUTE},
    {SYS_timer_settime, mpy_trap_timer_until, MPY_TRAP_CLOCKS, ABSOLUTE},
};
enum { ROWS = sizeof table / sizeof table[0], MEMORY_ROWS = 11 };

static void on_sigsys(int sig, siginfo_t *info, void *context) {
    ucontext_t *uc = context;
    greg_t *g = uc->uc_mcontext.gregs;
    (void)sig;
    /* a SIGSYS that was sent: the program can't catch it (LIMITATIONS.md) */
    if (info->si_code != 1 /* SYS_SECCOMP */) return;
    mpy_trap_t t = {info->si_syscall, {g[REG_RDI], g[REG_RSI], g[REG_RDX], g[REG_R10], g[REG_R8], g[REG_R9]}, uc};
    for (int i = 0; i < ROWS; i++)
        if (table[i].nr == t.nr) {
            g[REG_RAX] = table[i].handle(&t);
            if (i < MEMORY_ROWS) __atomic_add_fetch(&mpy_memory_calls, 1, __ATOMIC_SEQ_CST);
            return;
        }
    g[REG_RAX] = -38; /* ENOSYS: cannot happen, because filter and dispatch share the table */
}

void mpy_trap_install(void) {
    const uint64_t flags = SA_SIGINFO | SA_ONSTACK | 0x04000000ul /* SA_RESTORER */;
    mpy_ksigaction_t k = {(uint64_t)on_sigsys, flags, mpy_code_address(mpy_code_restorer), ~0ul};
    mpy_sys(SYS_rt_sigaction, SIGSYS, &k, 0, 8);
}

/* Invariant 4, for code below 4 GiB. Calls that aren't trapped fall through. */
static unsigned trap_low(struct sock_filter *f, const mpy_low_calls_t *low) {
    unsigned n = 0;
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer));
    if (low->n > MPY_LOW_CALLS_MAX) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, low->lo, 0, 2);
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, low->hi, 1, 0);
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
        return n;
    }
    for (uint32_t i = 0; i < low->n; i++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low->after[i], 0, 1);
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    }
    return n;
}

int mpy_trap_filter(const mpy_low_calls_t *low, mpy_trap_when_t when) {
    static const struct { unsigned argument; uint16_t change; unsigned by; uint16_t compare; unsigned value;
    } conditions[] = {
        [HIGH_FD] = {0, BPF_AND, ~0u, BPF_JGE, 0},
        [ABSOLUTE] = {1, BPF_AND, 1, BPF_JEQ, 1},
        [FUTEX_UNTIL] = {1, BPF_AND, FUTEX_COMMAND_AND_CLOCK, BPF_JEQ, FUTEX_WAIT_BITSET_MONOTONIC},
        [OWN_MEMORY] = {0, BPF_AND, CLONE_VM, BPF_JEQ, 0},
        [TRACE_ME] = {0, BPF_AND, ~0u, BPF_JEQ, PTRACE_TRACEME},
        [LASTING_ADVICE] = {2, BPF_SUB, MADV_DONTNEED, BPF_JGE, MADV_REMOVE + 1 - MADV_DONTNEED}, /* others wrap */
    };
    static const unsigned terminal[] = {TIOCGPTN, TIOCGPGRP, TIOCSPGRP, TIOCGSID};
    enum { TERMINAL = sizeof terminal / sizeof *terminal };
    struct sock_filter f[5 * ROWS + TERMINAL + 24 + 2 * MPY_LOW_CALLS_MAX];
    unsigned n = 0;
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    unsigned jumps[ROWS + TERMINAL], njumps = 0;
    for (int i = 0; i < ROWS; i++) {
        if (table[i].when != when) continue; /* after a restart several filters are installed, one each */
        condition_t only = table[i].only;
        if (only == TERMINAL_ID) {
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)table[i].nr, 0, TERMINAL + 2);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]));
            for (unsigned k = 0; k < TERMINAL; k++) {
                jumps[njumps++] = n;
                f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, terminal[k], 0, 0);
            }
            f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        } else if (only != ANY) {
            unsigned value = only == HIGH_FD ? (unsigned)mpy_fd_base() : conditions[only].value;
            uint32_t argument = (uint32_t)(offsetof(struct seccomp_data, args) + 8 * conditions[only].argument);
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)table[i].nr, 0, 4);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | conditions[only].change | BPF_K, conditions[only].by);
            jumps[njumps++] = n;
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | conditions[only].compare | BPF_K, value, 0, 0);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        } else {
            jumps[njumps++] = n;
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)table[i].nr, 0, 0);
        }
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    for (unsigned i = 0; i < njumps; i++) f[jumps[i]].jt = (unsigned char)(n - jumps[i] - 1);
    uint64_t exempt = mpy_code_address(mpy_code_masked_done); /* the pointer is after the instruction */
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer));
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)exempt, 0, 3);
    f[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4);
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(exempt >> 32), 0, 1);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    f[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4);
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 0); /* below 4 GiB */
    f[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff00u);
    f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(MPY_ARENA_LO >> 32), 0, 1);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    n += trap_low(f + n, low);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {(unsigned short)n, f};
    long r = mpy_sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog);
    if (r == -13 || r == -1) { /* EACCES: unprivileged users need no_new_privs */
        mpy_sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        r = mpy_sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog);
    }
    return (int)r;
}
