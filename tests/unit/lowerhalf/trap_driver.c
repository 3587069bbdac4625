/* trap_driver.c - traps system calls as manapy-launch does, and looks at the signal frame around each of them.
 *
 * Below the red zone of the interrupted code the kernel saves the extended state, and below that the ucontext. The
 * handler may change general registers and the signal mask in it, and nothing else. So the rest of the frame is
 * compared byte by byte afterwards.
 */
#include "isolate/arena.h"
#include "isolate/fdguard.h"
#include "base/sys.h"
#include "isolate/trap/trap.h"

#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

/* asm/sigcontext.h, which can't be included beside signal.h: the software-reserved bytes of the legacy state. */
enum { FRAME_MAX = 1 << 16, LEGACY_BYTES = 512, RESERVED_AT = 464 };
#define MAGIC1 0x46505853u
#define MAGIC2 0x46505845u /* the last four bytes of the extended state */
typedef struct reserved { uint32_t magic1, extended_bytes; } reserved_t;

extern const char stub_begin[], stub_end[];
__asm__(".pushsection .text\nstub_begin:\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\n"
        "mov %r8, %r10\nmov %r9, %r8\nmov 8(%rsp), %r9\nsyscall\nret\n"
        "stub_end:\n.popsection\n");
static long (*program_call)(long nr, ...); /* a program's system call instruction, in the arena */

static int failures, frames;
static const char *what;
static void (*real_handler)(int, siginfo_t *, void *);

static void fail(const char *why, long value) {
    printf("FAILED %s: %s (%ld)\n", what, why, value);
    failures++;
}

/* Copies everything from the ucontext to the end of the extended state. What the handler may change is cleared. */
static size_t copy_frame(const ucontext_t *uc, char *to) {
    const char *begin = (const char *)uc, *state = (const char *)uc->uc_mcontext.fpregs;
    const reserved_t *sw = (const void *)(state + RESERVED_AT);
    int extended = sw->magic1 == MAGIC1;
    size_t bytes = (size_t)(state - begin) + (extended ? sw->extended_bytes : LEGACY_BYTES);
    if (bytes > FRAME_MAX) abort();
    memcpy(to, begin, bytes);
    memset(to + offsetof(ucontext_t, uc_mcontext.gregs), 0, sizeof uc->uc_mcontext.gregs);
    memset(to + offsetof(ucontext_t, uc_sigmask), 0, 8);
    if (extended) {
        uint32_t end;
        memcpy(&end, state + sw->extended_bytes - sizeof end, sizeof end);
        if (end != MAGIC2) fail("the end of the extended state is overwritten", (long)end);
    }
    return bytes;
}

static void on_sigsys(int sig, siginfo_t *info, void *context) {
    static char before[FRAME_MAX], after[FRAME_MAX];
    size_t bytes = copy_frame(context, before);
    real_handler(sig, info, context);
    if (copy_frame(context, after) != bytes || memcmp(before, after, bytes)) fail("the frame is changed", (long)bytes);
    frames++;
}

static void expect(long result, long wanted) {
    if (result != wanted) fail("result", result);
}

/* The extended state and the red zone, as the program sees them, around a call of poll's family. */
__attribute__((target("avx"))) static long with_registers(long nr, long a, long b, long c, long d, long e, long f) {
    const char *instruction = (const char *)program_call + (stub_end - stub_begin) - 3; /* syscall; ret */
    static const double pattern[4] = {1, 2, 3, 4};
    double now[4];
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    uint64_t zone = 0;
    /* The stub again. It is entered by a hand-written jump, so that the compiler adds nothing between load and
     * store. */
    __asm__ volatile("vmovupd %[p], %%ymm15\n\tmovq $0x1234, -120(%%rsp)\n\t"
                     "leaq 1f(%%rip), %%rcx\n\tmovq %%rcx, -8(%%rsp)\n\tleaq -8(%%rsp), %%rsp\n\tjmp *%[at]\n1:\n\t"
                     "vmovupd %%ymm15, %[n]\n\tmovq -120(%%rsp), %[z]"
                     : "=a"(result), [n] "=m"(now), [z] "=r"(zone)
                     : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9),
                       [p] "m"(pattern), [at] "b"(instruction)
                     : "rcx", "r11", "memory", "xmm15");
    if (memcmp(pattern, now, sizeof now)) fail("vector registers", nr);
    if (zone != 0x1234) fail("red zone", (long)zone);
    return result;
}

static volatile sig_atomic_t caught;
static void on_signal(int sig) { caught = sig; }
static int never_above(const void *context, uint64_t mark) { return (void)context, (void)mark, 0; }

#define CALL(nr, ...) (what = #nr, with_registers(SYS_##nr, __VA_ARGS__))
#define L(x) ((long)(x))

static void calls(void) {
    const struct timespec now = {0};
    uint64_t none = 0, usr1 = 1ul << (SIGUSR1 - 1), old = 0;
    char text[64];

    long at = CALL(mmap, 0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if ((uint64_t)at < MPY_HEAP_LO || (uint64_t)at >= MPY_ARENA_HI) fail("outside the arena", at);
    long moved = CALL(mremap, at, 8192, 1 << 20, MREMAP_MAYMOVE, 0, 0);
    expect(CALL(munmap, moved, 1 << 20, 0, 0, 0, 0), 0);
    expect(CALL(brk, 0, 0, 0, 0, 0, 0), L(MPY_TRAP->brk_now));
    int id = shmget(IPC_PRIVATE, 4096, 0600);
    at = CALL(shmat, id, 0, 0, 0, 0, 0);
    shmdt((void *)at);
    expect(L(MPY_TRAP->foreign), 0);
    const long outside = 0x300000000000;
    expect(CALL(shmat, id, outside, 0, 0, 0, 0), outside);
    shmdt((void *)outside);
    expect(L(MPY_TRAP->foreign), outside);
    MPY_TRAP->foreign = 0;
    at = CALL(mmap, 0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(CALL(mremap, at, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, outside, 0), outside);
    expect(L(MPY_TRAP->foreign), outside);
    expect(CALL(munmap, outside, 4096, 0, 0, 0, 0), 0);
    MPY_TRAP->foreign = 0;
    shmctl(id, IPC_RMID, NULL);

    mpy_ksigaction_t action = {(uint64_t)on_signal, 0, 0, 0};
    expect(CALL(rt_sigaction, SIGUSR1, L(&action), 0, 8, 0, 0), 0);
    expect(CALL(rt_sigprocmask, SIG_BLOCK, L(&usr1), L(&old), 8, 0, 0), 0);
    expect(L(old & usr1), 0);
    raise(SIGUSR1);
    expect(CALL(rt_sigsuspend, L(&none), 8, 0, 0, 0, 0), -4 /* EINTR */);
    expect(caught, SIGUSR1);
    raise(SIGUSR1);
    expect(CALL(rt_sigtimedwait, L(&usr1), 0, L(&now), 8, 0, 0), SIGUSR1);
    expect(CALL(ppoll, 0, 0, L(&now), L(&none), 8, 0), 0);
    expect(CALL(ppoll, 0, 0, L(&now), 0, 8, 0), 0);
    const struct { const uint64_t *mask; size_t bytes; } pair = {&none, 8}, empty = {NULL, 0};
    expect(CALL(pselect6, 0, 0, 0, 0, L(&now), L(&pair)), 0);
    expect(CALL(pselect6, 0, 0, 0, 0, L(&now), L(&empty)), 0);
    expect(CALL(pselect6, 0, 0, 0, 0, L(&now), 0), 0);
    int poll = epoll_create1(0);
    struct epoll_event event;
    expect(CALL(epoll_pwait, poll, L(&event), 1, 0, L(&none), 8), 0);
    expect(CALL(epoll_pwait2, poll, L(&event), 1, L(&now), L(&none), 8), 0);
    close(poll);
    expect(CALL(rt_sigprocmask, SIG_UNBLOCK, L(&usr1), 0, 8, 0, 0), 0);
    long closed = CALL(mmap, 0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(CALL(rt_sigprocmask, -1, closed, 0, 8, 0, 0), -14 /* EFAULT: so programs ask what they can read */);
    expect(CALL(rt_sigprocmask, -1, L(&usr1), 0, 8, 0, 0), -22 /* EINVAL */);

    char *argv[] = {"none", NULL};
    expect(CALL(execve, L("/nonexistent/program"), L(argv), L(argv + 1), 0, 0, 0), -2 /* ENOENT */);
    expect(CALL(readlink, L("/proc/self/exe"), L(text), sizeof text, 0, 0, 0), 4);
    expect(CALL(readlinkat, -100, L("/proc/self/exe"), L(text), sizeof text, 0, 0), 4);
    expect(CALL(rseq, 0, 0, 0, 0, 0, 0), -38);
    expect(CALL(clone3, 0, 0, 0, 0, 0, 0), -38);
    expect(CALL(pkey_alloc, 0, 0, 0, 0, 0, 0), -38);
    expect(CALL(close, 600, 0, 0, 0, 0, 0), -9);
    expect(CALL(close_range, 600, 601, 0, 0, 0, 0), 0);

    expect(CALL(getpid, 0, 0, 0, 0, 0, 0), MPY_TRAP->pid);
    expect(CALL(gettid, 0, 0, 0, 0, 0, 0), MPY_TRAP->pid);
    expect(CALL(kill, MPY_TRAP->pid, 0, 0, 0, 0, 0), 0);
    expect(CALL(tgkill, MPY_TRAP->pid, MPY_TRAP->pid, 0, 0, 0, 0), 0);
    expect(CALL(getpgid, MPY_TRAP->pid, 0, 0, 0, 0, 0), getpgrp());
    cpu_set_t cpus;
    if (CALL(sched_getaffinity, MPY_TRAP->pid, sizeof cpus, L(&cpus), 0, 0, 0) <= 0) fail("no processors", 0);
}

/* The frame begins at a multiple of 64 bytes below the red zone. The test runs once for each distance. */
static void at_every_alignment(void) {
    for (int i = 0; i < 8; i++) {
        volatile char *room = alloca((size_t)(16 + 8 * i));
        room[0] = 0;
        calls();
    }
}

static void set_up(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    mmap((void *)MPY_LOWER_ADDR, MPY_CODE_ADDR - MPY_LOWER_ADDR, PROT_READ | PROT_WRITE, flags, -1, 0);
    mpy_code_install();
    if (mpy_arena_attach()) abort();
    mpy_arena_init();
    MPY_LOWER->signal_above = never_above;
    MPY_TRAP->real_pid = getpid();
    MPY_TRAP->pid = MPY_TRAP->real_pid + 1000000;
    MPY_TRAP->ids[MPY_TRAP->nids++] = (mpy_idpair_t){MPY_TRAP->pid, MPY_TRAP->real_pid};
    strcpy(MPY_TRAP->exe, "/exe");
    program_call = (void *)mpy_arena_take(4096);
    mmap((void *)program_call, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0);
    memcpy((void *)program_call, stub_begin, (size_t)(stub_end - stub_begin));

    mpy_trap_install();
    mpy_ksigaction_t k;
    mpy_sys(SYS_rt_sigaction, SIGSYS, 0, &k, 8);
    real_handler = (void (*)(int, siginfo_t *, void *))k.handler;
    k.handler = (uint64_t)on_sigsys;
    mpy_sys(SYS_rt_sigaction, SIGSYS, &k, 0, 8);
    static const mpy_low_calls_t none;
    if (mpy_trap_filter(&none, 0) || mpy_trap_filter(&none, 1)) abort();
}

/* ---- ids of new threads and children ---- */

enum { TAKEN = 24, MADE = 16, STACK = 1 << 16 };
static volatile int32_t thread_ids[MADE];

/* Runs on its own stack, without a thread of libc. */
static void thread_body(long i) {
    __atomic_store_n(&thread_ids[i], (int32_t)mpy_sys(SYS_gettid), __ATOMIC_RELEASE);
    mpy_sys(SYS_exit, 0);
}

static int is_taken(long id) {
    for (uint32_t i = 0; i < MPY_TRAP->nids; i++)
        if (MPY_TRAP->ids[i].shown == id && id != 0) return 1;
    return 0;
}

static int lower_threads(long from, long to) {
    int n = 0;
    for (long id = from; id < to; id++) n += mpy_thread_is_lower((int)id);
    return n;
}

/* The next numbers that the kernel assigns are ids of a living thread (ours). */
static long take_the_next(void) {
    pid_t last = fork();
    if (last == 0) _exit(0);
    waitpid(last, NULL, 0);
    MPY_TRAP->nids = 1;
    for (int i = 1; i <= TAKEN; i++) MPY_TRAP->ids[MPY_TRAP->nids++] = (mpy_idpair_t){last + i, MPY_TRAP->real_pid};
    return last;
}

static long make_thread(long i) {
    static const uint64_t flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *top = (uint64_t *)(stack + STACK) - 4; /* what the stub's return and thread_start find there */
    extern const char thread_start[];
    top[0] = (uint64_t)thread_start;
    top[1] = (uint64_t)i;
    return program_call(SYS_clone, (long)flags, L(top), 0l, 0l, 0l);
}
__asm__(".pushsection .text\nthread_start:\npop %rdi\nand $-16, %rsp\ncall thread_entry\n.popsection\n");
__attribute__((used)) void thread_entry(long i) { thread_body(i); }

static void new_threads(void) {
    what = "thread";
    long last = take_the_next();
    memset((void *)thread_ids, 0, sizeof thread_ids);
    for (long i = 0; i < MADE; i++) {
        long id = make_thread(i);
        if (id <= 0 || is_taken(id)) fail("id", id);
        while (!__atomic_load_n(&thread_ids[i], __ATOMIC_ACQUIRE)) sched_yield();
        if (thread_ids[i] != id) fail("another id", thread_ids[i]);
    }
    if (lower_threads(last, last + TAKEN + 1) == 0) fail("no id was taken: the test has not tested anything", last);
}

/* Natively the child of vfork runs on the caller's stack. Here it does nothing that would show there. */
static void new_children(long nr, const char *name) {
    what = name;
    take_the_next();
    for (int i = 0; i < MADE; i++) {
        int status = -1;
        long id = nr == SYS_clone ? program_call(nr, (long)SIGCHLD, 0l, 0l, 0l, 0l) : program_call(nr);
        if (id == 0) mpy_sys(SYS_exit_group, 7);
        if (id <= 0 || is_taken(id)) fail("id", id);
        if (waitpid((pid_t)id, &status, 0) != id || status != 7 << 8) fail("status", status);
    }
    if (waitpid(-1, NULL, WNOHANG) != -1) fail("a child is left over", 0);
}

/* An earlier owner of the kernel's id of a new thread or child is forgotten. */
static void forgotten(void) {
    what = "reused id";
    long last = take_the_next();
    MPY_TRAP->nids = 1;
    for (int i = 1; i <= TAKEN; i++) MPY_TRAP->ids[MPY_TRAP->nids++] = (mpy_idpair_t){5000000 + i, (int32_t)last + i};
    long id = program_call(SYS_fork);
    if (id == 0) mpy_sys(SYS_exit_group, mpy_id_shown((int32_t)mpy_sys(SYS_gettid)) > 5000000);
    int status = -1;
    waitpid((pid_t)id, &status, 0);
    if (status != 0 || mpy_id_shown((int32_t)id) != id) fail("still another's", id);
}

int main(void) {
    static char aside[1 << 17];
    if (!__builtin_cpu_supports("avx")) return puts("no AVX"), 77;
    set_up();
    at_every_alignment();
    int on_stack = frames;
    stack_t alternate = {.ss_sp = aside, .ss_size = sizeof aside};
    sigaltstack(&alternate, NULL);
    at_every_alignment();
    printf("%d and %d frames\n", on_stack, frames - on_stack);
    new_threads();
    new_children(SYS_fork, "fork");
    new_children(SYS_vfork, "vfork");
    new_children(SYS_clone, "child by clone");
    forgotten();
    printf("%d failures\n", failures);
    return failures != 0;
}
