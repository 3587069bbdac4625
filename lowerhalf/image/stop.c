/* stop.c - halting the upper half's threads where they are, and running hooks on the main one.
 *
 * Half: lower. on_stop and mpy_stop_signal_above run in upper threads on the upper TLS (no libc); the rest runs on the
 * control plane's worker thread.
 *
 * Every upper thread gets MPY_SIGNAL_STOP. Its handler records the context and sleeps on a futex. A restart continues
 * from the signal frame on the thread's stack. The handler's own frame is not used again then.
 *
 * Invariants
 *  1. A thread is halted only if all code and memory to which it will return still exist after a restart. Four
 *     conditions: it was interrupted in haltable code; none of its callers is in the lower half (in_lower); no handler
 *     of the program, still active on its stack, interrupted code that is not haltable (marks); and its signal frame
 *     lies in memory that is saved. Otherwise it answers BUSY and is asked again.
 *  2. The handler's mask has all signals except SIGSYS, because hooks may map memory. It runs on the alternate stack if
 *     there is one: the stacks of some languages' coroutines have no room for a signal frame.
 *  3. Threads that appear while we halt others are found by listing /proc/self/task again until nothing changes. While
 *     threads end, a listing may leave out others. So one with fewer threads than the kernel counts is not the last,
 *     and a record stays until its thread has ended.
 */
#include "stop.h"
#include "base/now.h"
#include "base/reason.h"
#include "base/sys.h"
#include "control/control.h"
#include "isolate/fdguard.h"
#include "isolate/jump.h"
#include "isolate/trap/clock.h"
#include "isolate/trap/trap.h"
#include "process/process.h"
#include <dirent.h>
#include <errno.h>
#include <manapy/proc_stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FREE, REQUESTED, BUSY, STOPPED };
enum { WAIT, HOOK, CALL, GO };
enum { SYSCALL_BYTES = 2 };
/* Will a halted thread make its call again? With a handler that has SA_RESTART, or with any handler? */
enum { NOT_AGAIN, AGAIN_IF_RESTART, AGAIN_ALWAYS };
/* STOP_SECONDS: for all threads to return from the kernel. Meanwhile the others stay halted. */
enum { STOP_SECONDS = 30, TAKE_BACK_MS = 1000 };

typedef struct record {
    int32_t tid; /* the kernel's; 0: unused */
    volatile uint32_t state;
    volatile uint32_t command;
    uint32_t mpi_slot;
    uint64_t ucontext, fs, gs, clear_tid, robust_list, robust_bytes;
    char name[16];
    int seen; /* in the latest listing */
    volatile int was_busy; /* it has answered BUSY */
    int looks; /* how often it was seen running before the stop was sent */
    int syscall_nr; /* the system call in which it slept when the stop was sent, or -1 */
    uint64_t syscall_args[3], syscall_pc;
    int again;
    uint64_t again_rip; /* if it has changed, the call has been made (reap.c) */
    long call[5], called; /* CALL: number and arguments of a system call; its result */
} record_t;

static record_t records[MPY_THREADS_MAX];
static int nrecords;
static volatile uint32_t progress; /* futex: bumped when a record's state changes */
static int (*hook_function)(char *, uint64_t);
static char hook_error[512];
static volatile int hook_result;
volatile int mpy_stop_misled;
void (*mpy_stop_on_invitation)(void);

/* Runs on the service stack, so the kernel no longer sees that we are on the alternate stack (invariant 2): the frame
 * of a trapped call would overwrite ours there. */
static int run_hook(void *unused) {
    (void)unused;
    stack_t alternate;
    const stack_t none = {.ss_flags = SS_DISABLE};
    mpy_sys(SYS_sigaltstack, 0, &alternate);
    mpy_sys(SYS_sigaltstack, &none, 0);
    int rc = hook_function(hook_error, sizeof hook_error);
    mpy_sys(SYS_sigaltstack, &alternate, 0);
    return rc;
}

static void announce_progress(void) {
    __atomic_fetch_add(&progress, 1, __ATOMIC_RELEASE);
    mpy_futex_wake(&progress);
}

/* False if the request has been taken back (mpy_stop_release). */
static int answer(record_t *r, uint32_t state) {
    uint32_t asked = REQUESTED;
    if (!__atomic_compare_exchange_n(&r->state, &asked, state, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return 0;
    announce_progress();
    return 1;
}

static int is_syscall(const uint8_t *at) { return at[0] == 0x0f && at[1] == 0x05; }

/* The thread is in the wrappers' own code, but not in one of their system calls. (In a system call: the call has just
 * returned or is about to be made again.) */
static int in_wrappers(uint64_t rip) {
    const uint8_t *at = (const uint8_t *)rip;
    return rip >= MPY_UPPER->code_begin + 2 && rip < MPY_UPPER->code_end && !is_syscall(at) && !is_syscall(at - 2);
}

/* True for code to which a thread may return after a restart. False for the lower half with its services and for the
 * kernel's vDSO, because both lie elsewhere then. False for the wrappers, which may hold a value that a restart
 * replaces (invariant 6 of boundary.h). False for the entry and exit of handlers. */
static int haltable(uint64_t rip) {
    return mpy_in_upper(rip) && !in_wrappers(rip) &&
           !(rip >= MPY_CODE_ADDR && rip < mpy_code_address(mpy_code_haltable));
}

/* ---- handlers of the program that run above code that isn't haltable ---- */

enum { MARKS = 4 * MPY_THREADS_MAX };
typedef struct mark {
    volatile int32_t tid; /* 0: free */
    uint64_t at;          /* on the handler's stack: the word that holds this mark's address */
} mark_t;
static mark_t marks[MARKS];
static volatile int any_marks; /* has there ever been one? */

/* Tests whether an address can be read. With an invalid `how` the kernel copies the set and then fails. */
static int readable(uint64_t address) { return mpy_sys(SYS_rt_sigprocmask, -1, address, 0, 8) != -EFAULT; }

static int on_stack(const stack_t *s, uint64_t address) {
    return !(s->ss_flags & SS_DISABLE) && address - (uint64_t)s->ss_sp < s->ss_size;
}

/* If a handler ends by longjmp, its mark remains. The mark is obsolete if the thread's stack no longer reaches down to
 * it, or if its place on the stack holds another value. */
static int still_below(const mark_t *m, const ucontext_t *uc) {
    uint64_t sp = (uint64_t)uc->uc_mcontext.gregs[REG_RSP];
    int mark_aside = on_stack(&uc->uc_stack, m->at), aside = on_stack(&uc->uc_stack, sp);
    if (mark_aside == aside ? sp > m->at : mark_aside) return 0;
    return readable(m->at) && *(const uint64_t *)m->at == (uint64_t)m;
}

static int marked(int32_t tid, const ucontext_t *uc) {
    for (int i = 0; i < MARKS; i++)
        if (marks[i].tid == tid && still_below(&marks[i], uc)) return 1;
    return 0;
}

/* Returns a free mark, or an obsolete one of this thread. It stores -tid first, because another handler may interrupt
 * us before the mark is complete. */
static mark_t *take_mark(int32_t tid, const ucontext_t *uc) {
    for (int i = 0; i < MARKS; i++) {
        int32_t was = marks[i].tid;
        if (was != 0 && !(was == tid && !still_below(&marks[i], uc))) continue;
        if (__atomic_compare_exchange_n(&marks[i].tid, &was, -tid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return &marks[i];
    }
    return NULL; /* there are four times as many marks as threads */
}

int mpy_stop_signal_above(const void *context, uint64_t at) {
    const ucontext_t *uc = context;
    if (haltable((uint64_t)uc->uc_mcontext.gregs[REG_RIP])) return 0;
    int32_t tid = (int32_t)mpy_sys(SYS_gettid);
    mark_t *m = take_mark(tid, uc);
    if (!m) return 0;
    m->at = at;
    *(uint64_t *)at = (uint64_t)m;
    any_marks = 1;
    __atomic_store_n(&m->tid, tid, __ATOMIC_RELEASE);
    return 1;
}

void mpy_stop_forked(int32_t parent) {
    int32_t tid = (int32_t)mpy_sys(SYS_gettid);
    for (int i = 0; any_marks && i < MARKS; i++)
        if (marks[i].tid) marks[i].tid = marks[i].tid == parent ? tid : 0;
    nrecords = 0; /* a stop was under way */
    mpy_stop_misled = 0;
}

/* ---- halting ---- */

/* Waits with a length, and the register that has it, in milliseconds or as the address of a timespec. ppoll, select and
 * pselect6 are not here: the kernel itself stores what is left, where the program has the length. */
static const struct wait { int nr, reg, ms; const char *again; } waits[] = {
    {SYS_nanosleep, REG_RDI, 0, mpy_code_left_rdi},       {SYS_clock_nanosleep, REG_RDX, 0, mpy_code_left_rdx},
    {SYS_rt_sigtimedwait, REG_RDX, 0, mpy_code_left_rdx}, {SYS_futex, REG_R10, 0, mpy_code_left_r10},
    {SYS_semtimedop, REG_R10, 0, mpy_code_left_r10},      {SYS_epoll_pwait2, REG_R10, 0, mpy_code_left_r10},
    {SYS_poll, REG_RDX, 1, mpy_code_left_ms_rdx},         {SYS_epoll_wait, REG_R10, 1, mpy_code_left_ms_r10},
    {SYS_epoll_pwait, REG_R10, 1, mpy_code_left_ms_r10}};

enum { FUTEX_WAIT_ = 0, FUTEX_WAIT_BITSET_ = 9, FUTEX_COMMAND = 127, NS_PER_MS = 1000000, NS = 1000000000 };
enum { FOR_EVER = NS }; /* seconds: 31 years */

/* Does it have a length that CLOCK_MONOTONIC measures? (Not an absolute time, nor processor time.) */
static int has_length(const greg_t *g, const struct wait *w) {
    if (w->nr == SYS_clock_nanosleep && (g[REG_RSI] & TIMER_ABSTIME || g[REG_RDI] == CLOCK_PROCESS_CPUTIME_ID ||
                                         g[REG_RDI] == CLOCK_THREAD_CPUTIME_ID || (int)g[REG_RDI] < 0))
        return 0;
    if (w->nr == SYS_futex && (g[REG_RSI] & FUTEX_COMMAND) != FUTEX_WAIT_) return 0;
    return w->ms ? (int)g[w->reg] > 0 : g[w->reg] != 0;
}

/* Prepares an interrupted wait to go on with what is left of it. How much was over at the first interruption is not
 * known, so it begins again then, in trampoline.S, which has the time of its end on the stack: otherwise a wait that is
 * longer than the time between two checkpoints would never end. Returns whether the thread makes the call there. */
static int begins_again(greg_t *g, const struct wait *w) {
    uint64_t *stack = (uint64_t *)g[REG_RSP];
    if ((uint64_t)g[REG_RIP] == mpy_code_address(mpy_code_masked_done) &&
        stack[0] >= mpy_code_address(mpy_code_left_rdi) && stack[0] < mpy_code_address(mpy_code_left_end)) {
        int64_t left = (int64_t)stack[w->ms ? 1 : 3] - mpy_clock_now_ns();
        if (left < 0) left = 0;
        if (w->ms) g[w->reg] = (left + NS_PER_MS - 1) / NS_PER_MS;
        else stack[1] = (uint64_t)(left / NS), stack[2] = (uint64_t)(left % NS);
        return 0;
    }
    if (!has_length(g, w)) return 0;
    const struct timespec *t = (const struct timespec *)g[w->reg];
    if (!w->ms && t->tv_sec >= FOR_EVER) return 0;
    g[REG_R11] = mpy_clock_now_ns() + (w->ms ? (int64_t)(int)g[w->reg] * NS_PER_MS : t->tv_sec * NS + t->tv_nsec);
    g[REG_RCX] = g[REG_RIP];
    g[REG_RIP] = (greg_t)mpy_code_address(w->again);
    return 1;
}

/* The number of the system call that has just returned, or -1: unknown. It is that in which the thread slept when the
 * stop was sent. If the thread ran then, we look for `mov $nr, %eax` before the call. */
static int interrupted(const record_t *r, const greg_t *g) {
    enum { MOV_EAX = 0xb8, MOV_BYTES = 5 };
    if (r->syscall_nr >= 0 && (uint64_t)g[REG_RIP] == r->syscall_pc && (uint64_t)g[REG_RDI] == r->syscall_args[0] &&
        (uint64_t)g[REG_RSI] == r->syscall_args[1] && (uint64_t)g[REG_RDX] == r->syscall_args[2])
        return r->syscall_nr;
    const uint64_t at = (uint64_t)g[REG_RIP] - SYSCALL_BYTES - MOV_BYTES;
    if (!readable(at)) return -1;
    const uint8_t *code = (const uint8_t *)at;
    if (code[0] != MOV_EAX || !is_syscall(code + MOV_BYTES)) return -1;
    int32_t nr;
    memcpy(&nr, code + 1, sizeof nr);
    return nr;
}

/* Will the kernel make the call again, because our handler has SA_RESTART? */
static int rewound(const record_t *r, const greg_t *g) {
    const int futex = (int)g[REG_RSI] & FUTEX_COMMAND;
    return r->syscall_nr >= 0 && g[REG_RAX] == r->syscall_nr && (uint64_t)g[REG_RIP] + SYSCALL_BYTES == r->syscall_pc &&
           (uint64_t)g[REG_RDI] == r->syscall_args[0] && (uint64_t)g[REG_RSI] == r->syscall_args[1] &&
           (r->syscall_nr != SYS_futex || futex == FUTEX_WAIT_ || futex == FUTEX_WAIT_BITSET_);
}

/* These system calls return EINTR whenever a handler ran, with SA_RESTART or without (signal(7)). The program sees no
 * signal, so it must not see EINTR either: we make it issue the call again. Returns `again` of the record. */
static int reissue(const record_t *r, ucontext_t *uc) {
    static const short again[] = {
        SYS_poll,         SYS_ppoll,      SYS_select,        SYS_pselect6,        SYS_epoll_wait, SYS_epoll_pwait,
        SYS_epoll_pwait2, SYS_pause,      SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_nanosleep,  SYS_clock_nanosleep,
        SYS_semop,        SYS_semtimedop, SYS_msgsnd,        SYS_msgrcv,          SYS_futex,      SYS_read,
        SYS_readv,        SYS_write,      SYS_writev,        SYS_recvfrom,        SYS_recvmsg,    SYS_sendto,
        SYS_sendmsg,      SYS_recvmmsg,   SYS_sendmmsg,      SYS_connect,         SYS_accept,
        SYS_accept4 /* from SYS_read on: EINTR if SO_RCVTIMEO or SO_SNDTIMEO is set */};
    greg_t *g = uc->uc_mcontext.gregs;
    if (g[REG_RAX] != -EINTR) return rewound(r, g) ? AGAIN_IF_RESTART : NOT_AGAIN;
    const int nr = interrupted(r, g);
    int known = 0;
    for (unsigned i = 0; i < sizeof again / sizeof *again; i++) known |= nr == again[i];
    int futex = (int)g[REG_RSI] & FUTEX_COMMAND;
    if (!known || (nr == SYS_futex && futex != FUTEX_WAIT_ && futex != FUTEX_WAIT_BITSET_)) return NOT_AGAIN;
    g[REG_RAX] = nr;
    for (unsigned i = 0; i < sizeof waits / sizeof *waits; i++)
        if (waits[i].nr == nr && begins_again(g, &waits[i])) return AGAIN_ALWAYS;
    g[REG_RIP] -= SYSCALL_BYTES;
    return AGAIN_ALWAYS;
}

static void on_stop(int sig, siginfo_t *info, void *context) {
    (void)sig;
    if (info->si_code == SI_QUEUE && info->si_value.sival_int == MPY_VALUE_MISLED) { mpy_stop_misled = 1; return; }
    if (info->si_code == SI_QUEUE && info->si_value.sival_int == MPY_VALUE_JOIN) { mpy_stop_on_invitation(); return; }
    ucontext_t *uc = context;
    int32_t tid = (int32_t)mpy_sys(SYS_gettid);
    record_t *r = NULL;
    for (int i = 0; i < nrecords && !r; i++)
        if (records[i].tid == tid && records[i].state == REQUESTED) r = &records[i];
    if (!r) return; /* signal 62 from another process: the program must not catch it */
    mpy_thread_t *slot = NULL;
    int32_t shown = mpy_id_shown(tid);
    r->mpi_slot = 0xffffffffu;
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++)
        if (MPY_UPPER->threads[i].used && MPY_UPPER->threads[i].tid == shown) {
            slot = &MPY_UPPER->threads[i];
            r->mpi_slot = i;
            break;
        }
    uint64_t rip = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
    if ((slot && slot->in_lower) || !haltable(rip) || !mpy_in_upper((uint64_t)uc) || marked(tid, uc)) {
        if (mpy_in_upper(rip)) reissue(r, uc); /* it goes on, and is asked again */
        r->was_busy = 1;
        answer(r, BUSY);
        return;
    }

    r->again = reissue(r, uc);
    r->again_rip = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
    r->ucontext = (uint64_t)uc;
    r->fs = mpy_fs_get();
    __asm__ volatile("rdgsbase %0" : "=r"(r->gs));
    mpy_sys(SYS_prctl, PR_GET_TID_ADDRESS, &r->clear_tid, 0, 0, 0);
    mpy_sys(SYS_get_robust_list, 0, &r->robust_list, &r->robust_bytes);
    mpy_sys(SYS_prctl, PR_GET_NAME, r->name, 0, 0, 0);
    r->command = WAIT;
    if (!answer(r, STOPPED)) return;
    for (;;) {
        uint32_t c = __atomic_load_n(&r->command, __ATOMIC_ACQUIRE);
        if (c == GO) break;
        if (c == HOOK) {
            hook_result = mpy_on_stack(run_hook, NULL, MPY_SERVICE_STACK_ADDR + MPY_SERVICE_STACK_SIZE);
            r->command = WAIT;
            announce_progress();
            continue;
        }
        if (c == CALL) {
            r->called = mpy_sys4(r->call[0], r->call[1], r->call[2], r->call[3], r->call[4]);
            r->command = WAIT;
            announce_progress();
            continue;
        }
        mpy_futex_wait(&r->command, c);
    }
    __atomic_store_n(&r->state, FREE, __ATOMIC_RELEASE);
    announce_progress();
}

void mpy_stop_install(void) {
    const uint64_t flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK | 0x04000000ul /* SA_RESTORER */;
    mpy_ksigaction_t k = {(uint64_t)on_stop, flags, mpy_code_address(mpy_code_restorer), ~(1ul << (SIGSYS - 1))};
    mpy_sys(SYS_rt_sigaction, MPY_SIGNAL_STOP, &k, 0, 8);
}

/* Records never move: halted threads hold pointers to theirs. */
static record_t *record_of(int32_t tid) {
    int at = nrecords;
    for (int i = 0; i < nrecords; i++) {
        if (records[i].tid == tid) return &records[i];
        if (records[i].tid == 0) at = i;
    }
    if (at == MPY_THREADS_MAX) return NULL;
    records[at] = (record_t){.tid = tid, .syscall_nr = -1};
    if (at == nrecords) __atomic_store_n(&nrecords, nrecords + 1, __ATOMIC_RELEASE);
    return &records[at];
}

typedef struct sleep { /* /proc/PID/task/TID/syscall */
    int nr; /* -1: running */
    unsigned long args[6], sp, pc;
} sleep_t;

static sleep_t sleep_of(int32_t tid) {
    char path[64], line[256];
    sleep_t s = {.nr = -1};
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    FILE *f = fopen(path, "re");
    if (!f) return s;
    unsigned long *a = s.args;
    int n = fgets(line, sizeof line, f) == NULL ? 0
                                                : sscanf(line, "%d %lx %lx %lx %lx %lx %lx %lx %lx", &s.nr, &a[0],
                                                         &a[1], &a[2], &a[3], &a[4], &a[5], &s.sp, &s.pc);
    fclose(f);
    return n == 9 ? s : (sleep_t){.nr = -1};
}

static void note_syscall(record_t *r, const sleep_t *s) {
    r->syscall_nr = s->nr;
    for (int i = 0; i < 3; i++) r->syscall_args[i] = s->args[i];
    r->syscall_pc = s->pc;
}

/* Threads that the lower half's libc creates itself (aio_read) do not go through interpose.c, and they block every
 * signal. They are recognised by their stack: it lies outside the program's memory, while a thread of the program keeps
 * its own stack even in the lower half. The process's first thread is none of them. But it has such a stack until a
 * restart has ended, and a checkpoint may begin before: it takes the signal when the program runs again. */
static int sleeps_on_lower_stack(const sleep_t *s) {
    return s->nr >= 0 && !mpy_in_upper(s->sp) && s->sp >= MPY_LOW_END;
}

/* The first thread may end before the others (pthread_exit in main). It stays in the lists, but no signal reaches it,
 * and a restart would make it the first thread again. */
int mpy_stop_check(char *error, size_t n) {
    mpy_proc_stat_t stat;
    if (mpy_proc_stat(getpid(), &stat) || stat.state != 'Z') return 0;
    return mpy_reason(error, n, "the program's first thread has ended (pthread_exit in main); such a program can't be "
                      "saved");
}

/* A thread that runs may be about to sleep. If the stop interrupts that sleep, not all code shows which system call it
 * was (`interrupted`). So threads get some time to fall asleep first. */
static int may_fall_asleep(record_t *r) {
    enum { LOOKS = 5 }; /* a fifth of a millisecond apart */
    return r->syscall_nr < 0 && r->looks++ < LOOKS;
}

/* One pass over the threads. Returns the number of threads that are not halted yet, or -1 on failure. */
static int pass(char *error, size_t n) {
    int running = 0;
    DIR *d = opendir("/proc/self/task");
    if (!d) return mpy_reason(error, n, "cannot list threads: %s", strerror(errno));
    for (int i = 0; i < nrecords; i++) records[i].seen = 0;
    uint64_t listed = 0;
    for (struct dirent *e; (e = readdir(d));) {
        int32_t tid = atoi(e->d_name);
        listed += tid > 0;
        if (tid <= 0 || mpy_thread_is_lower(tid)) continue;
        record_t *r = record_of(tid);
        if (!r) { closedir(d); return mpy_reason(error, n, "more than %d threads", MPY_THREADS_MAX); }
        if (r->state != STOPPED) {
            sleep_t s = sleep_of(tid);
            if (tid != getpid() && sleeps_on_lower_stack(&s)) {
                *r = (record_t){0};
                continue;
            }
            if (r->state == FREE || r->state == BUSY) note_syscall(r, &s);
        }
        r->seen = 1;
        if ((r->state == FREE || r->state == BUSY) && !may_fall_asleep(r)) {
            r->state = REQUESTED;
            mpy_sys(SYS_tgkill, getpid(), tid, MPY_SIGNAL_STOP);
        }
        running += r->state != STOPPED;
    }
    struct stat st;
    running += fstat(dirfd(d), &st) == 0 && st.st_nlink > listed + 2; /* invariant 3 */
    closedir(d);
    for (int i = 0; i < nrecords; i++) {
        if (records[i].seen || !records[i].tid) continue;
        if (mpy_sys(SYS_tgkill, getpid(), records[i].tid, 0) == -3) records[i] = (record_t){0}; /* it has ended */
        else running++;
    }
    return running;
}

static int still_running(char *error, size_t n) {
    mpy_reason(error, n, "threads start and end all the time (looked for %d s)", STOP_SECONDS);
    for (int i = 0; i < nrecords; i++)
        if (records[i].seen && records[i].state != STOPPED) {
            int sleeping = records[i].syscall_nr;
            char where[96] = "it is running";
            if (records[i].was_busy)
                strcpy(where, "it stays in a signal handler, or in MPI, where a restart could not continue it");
            else if (sleeping >= 0) snprintf(where, sizeof where, "it is in system call %d", sleeping);
            mpy_reason(error, n, "thread %d can't be stopped: %s (waited for %d s)", mpy_id_shown(records[i].tid),
                       where, STOP_SECONDS);
        }
    return -1;
}

int mpy_stop_all(char *error, size_t n) {
    int64_t until = mpy_now_ms() + 1000 * STOP_SECONDS;
    nrecords = 0;
    for (;;) {
        uint32_t seen = progress;
        int before = nrecords, running = pass(error, n);
        if (running < 0) return -1;
        if (running == 0 && nrecords == before) return 0;
        if (mpy_stop_check(error, n)) return -1;
        if (mpy_now_ms() > until) return still_running(error, n);
        if (mpy_control_cancelled()) return mpy_reason(error, n, "the checkpoint was cancelled");
        struct timespec nap = {0, 200000}; /* BUSY threads are asked again soon; the futex reports the others */
        mpy_sys(SYS_futex, &progress, FUTEX_WAIT, seen, &nap);
    }
}

/* After an incomplete stop: a signal that arrives later finds no request, and neither does a thread that stays in the
 * kernel. */
static void take_back(void) {
    for (int waited = 0; waited < TAKE_BACK_MS; waited++) {
        int open = 0;
        for (int i = 0; i < nrecords; i++) open += records[i].state == REQUESTED;
        if (open == 0) return;
        uint32_t seen = progress;
        struct timespec nap = {0, 1000000};
        mpy_sys(SYS_futex, &progress, FUTEX_WAIT, seen, &nap);
    }
    for (int i = 0; i < nrecords; i++) {
        uint32_t asked = REQUESTED;
        __atomic_compare_exchange_n(&records[i].state, &asked, FREE, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
}

/* ---- signals that arrive while threads are halted ---- */

static uint64_t blocked_in(const record_t *r) { return *(const uint64_t *)&((ucontext_t *)r->ucontext)->uc_sigmask; }

/* Would this signal interrupt the call of the halted thread? */
static int interrupts(const record_t *r, int sig) {
    mpy_ksigaction_t k;
    return !(blocked_in(r) >> (sig - 1) & 1) && mpy_sys(SYS_rt_sigaction, sig, 0, &k, 8) == 0 &&
           k.handler == mpy_code_address(mpy_code_signal_entry) &&
           (r->again == AGAIN_ALWAYS || !(k.flags & SA_RESTART));
}

/* The thread to which the kernel would give a signal of the process: the first one, or another, that does not block
 * it. */
static record_t *receiver(int sig) {
    record_t *found = NULL;
    for (int i = 0; i < nrecords; i++) {
        record_t *r = &records[i];
        if (r->state != STOPPED || blocked_in(r) >> (sig - 1) & 1) continue;
        if (r->tid == getpid()) return r;
        if (!found) found = r;
    }
    return found;
}

/* A signal of the process goes to the thread whose call it interrupts. */
static void hand_over(int sig) {
    const uint64_t mask = 1ul << (sig - 1);
    record_t *r = receiver(sig);
    siginfo_t info;
    if (!r || r->again == NOT_AGAIN || !interrupts(r, sig) || mpy_process_pending_for(r->tid) & mask) return;
    if (mpy_sys(SYS_rt_sigtimedwait, &mask, &info, &(struct timespec){0}, 8) == sig)
        mpy_stop_call(r->tid, SYS_rt_tgsigqueueinfo, getpid(), r->tid, sig, (long)&info);
}

void mpy_stop_interrupt(void) {
    const uint64_t shared = mpy_process_pending_for(0);
    for (int sig = 1; sig < MPY_SIGNALS; sig++)
        if (shared >> (sig - 1) & 1) hand_over(sig);
    for (int i = 0; i < nrecords; i++) {
        record_t *r = &records[i];
        if (r->state != STOPPED || r->again == NOT_AGAIN) continue;
        greg_t *g = ((ucontext_t *)r->ucontext)->uc_mcontext.gregs;
        const uint64_t rip = (uint64_t)g[REG_RIP], pending = mpy_process_pending_for(r->tid);
        int does = 0;
        for (int sig = 1; sig < MPY_SIGNALS && rip == r->again_rip; sig++)
            does |= pending >> (sig - 1) & 1 && interrupts(r, sig);
        if (!does) continue;
        const int in_left = rip >= mpy_code_address(mpy_code_left_rdi) && rip < mpy_code_address(mpy_code_left_end);
        g[REG_RIP] = in_left ? g[REG_RCX] : (greg_t)rip + SYSCALL_BYTES;
        g[REG_RAX] = -EINTR;
        r->again = NOT_AGAIN;
    }
}

void mpy_stop_release(void) {
    take_back();
    mpy_stop_interrupt();
    for (int i = 0; i < nrecords; i++) {
        if (records[i].state != STOPPED) continue;
        __atomic_store_n(&records[i].command, GO, __ATOMIC_RELEASE);
        mpy_futex_wake(&records[i].command);
    }
    for (int i = 0; i < nrecords; i++)
        for (;;) {
            uint32_t seen = __atomic_load_n(&progress, __ATOMIC_ACQUIRE);
            if (records[i].state != STOPPED) break;
            mpy_futex_wait(&progress, seen);
        }
    nrecords = 0;
}

int mpy_stop_count(void) {
    int n = 0;
    for (int i = 0; i < nrecords; i++) n += records[i].tid != 0;
    return n;
}

/* Describes the i-th halted thread. The process's first thread comes first. */
void mpy_stop_describe(int i, mpy_image_thread_t *out) {
    const record_t *r = NULL;
    int32_t pid = getpid();
    for (int k = 0; k < nrecords; k++)
        if (records[k].tid == pid) r = &records[k];
    if (r != NULL) i--;
    if (i >= 0 || r == NULL)
        for (int k = 0; k < nrecords; k++)
            if (records[k].tid != 0 && records[k].tid != pid && i-- == 0) r = &records[k];
    *out = (mpy_image_thread_t){
        r->ucontext,          r->fs,       r->gs, r->clear_tid, r->robust_list, r->robust_bytes,
        mpy_id_shown(r->tid), r->mpi_slot, ""};
    memcpy(out->name, r->name, sizeof out->name);
}

/* Returns when the halted thread has carried out the command. */
static void give(record_t *r, uint32_t command) {
    __atomic_store_n(&r->command, command, __ATOMIC_RELEASE);
    mpy_futex_wake(&r->command);
    for (;;) {
        uint32_t seen = progress;
        if (r->command == WAIT) break;
        mpy_futex_wait(&progress, seen);
    }
}

long mpy_stop_call(int32_t tid, long nr, long a, long b, long c, long d) {
    record_t *r = NULL;
    for (int i = 0; i < nrecords; i++)
        if (records[i].tid == tid && records[i].state == STOPPED) r = &records[i];
    if (!r) return -ESRCH;
    const long call[] = {nr, a, b, c, d};
    memcpy(r->call, call, sizeof call);
    give(r, CALL);
    return r->called;
}

static record_t *of_hooks(char *error, size_t n) {
    for (int i = 0; i < nrecords; i++)
        if (records[i].state == STOPPED && records[i].mpi_slot == 0) return &records[i];
    mpy_reason(error, n, "the thread that called MPI_Init has ended");
    return NULL;
}

int mpy_stop_check_hooks(char *error, size_t n) { return of_hooks(error, n) ? 0 : -1; }

int mpy_stop_run_hook(int (*hook)(char *, uint64_t), char *error, size_t n) {
    record_t *r = of_hooks(error, n);
    if (!r) return -1;
    hook_function = hook;
    hook_error[0] = 0;
    give(r, HOOK);
    if (hook_result) mpy_reason(error, n, "%s", hook_error);
    return hook_result;
}
