/* cross.c - finding the lower half, registering threads, stopping at the border.
 *
 * Upper half, upper TLS. The constructor and mpy_self_slow may use libc: they run on behalf of one thread, never in a
 * hook.
 *
 * Invariants
 *  1. mpy_above is true only under three conditions. The two blocks are mapped and have this build's version and table.
 *     This is the first copy of the library that the process loads (a further copy offers no hooks: it forwards calls
 *     to the first, second_copy.c, or ends the job with one line when it is called). The process is the rank itself,
 *     not a child that it has forked.
 *  2. A slot belongs to one live thread (used = 1); slot 0 to the thread that called MPI_Init. The thread-local
 *     pointer, the slot and pthread's destructor agree.
 *  3. A thread that waits for a phase has in_lower = 0, and reads phase again after every wake.
 *  4. Threads that make their first calls at the same time are bound one after the other. The first one loads the real
 *     library, and the others see it only when it is complete and its table is closed. (So those also get a ring of the
 *     trace, which begins with this load in a member of a tree.)
 */
#include "clock/clock.h"
#include "environment/info.h"
#include "environment/outside.h"
#include "front/front.h"
#include "objects.h"
#include "lifetime/hooks.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <manapy/proc_exe.h>
#include <manapy/proc_stat.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread mpy_thread_t *mpy_self_tls;
bool mpy_above;
static bool second; /* this is a second copy and can't forward calls */
static pthread_key_t thread_key;

/* Symbols of the linker: this library's first byte, and the end of its code. */
extern const char __ehdr_start[] MPY_HIDDEN, etext[] MPY_HIDDEN;

static void thread_end(void *unused);
static void forked(void);

__attribute__((constructor)) static void find_boundary(void) {
    if (getauxval(MPY_AT_BOUNDARY) != MPY_LOWER_ADDR) return;
    const mpy_lower_t *lower = MPY_LOWER;
    if (lower->magic != MPY_BOUNDARY_MAGIC) return;
    if (lower->version != MPY_BOUNDARY_VERSION || lower->table_hash != MPY_TABLE_HASH)
        lower->svc->die("libmpi.so.12 and manapy-launch are of different versions of manapy: reinstall", 1);
    if (MPY_UPPER->code_begin != 0) {
        second = !mpy_hand_on(__ehdr_start, (const void *)MPY_UPPER->code_begin);
        return;
    }
    MPY_UPPER->version = MPY_BOUNDARY_VERSION;
    MPY_UPPER->hooks = mpy_hooks;
    MPY_UPPER->code_begin = (uint64_t)__ehdr_start;
    MPY_UPPER->code_end = (uint64_t)etext;
    MPY_UPPER->magic = MPY_BOUNDARY_MAGIC;
    pthread_key_create(&thread_key, thread_end);
    pthread_atfork(NULL, NULL, forked);
    mpy_above = true;
}

static void fatal(const char *line) {
    ssize_t unused = write(2, line, mpy_text_length(line));
    (void)unused;
    exit(1); /* exit, so that output of the program is flushed */
}

static void refuse_second(void) {
    Dl_info of = {.dli_fname = "?"};
    char line[512];
    dladdr(__ehdr_start, &of);
    mpy_text_format(line, sizeof line,
                    "the program has loaded the MPI library twice (the second time %s) and calls the second one; "
                    "it should load libmpi.so.12 by that name, with dlopen",
                    of.dli_fname);
    MPY_LOWER->svc->die(line, 1);
}

/* Reads the stat line of a process. Returns whether it is a rank. */
static bool look_at(pid_t pid, mpy_proc_stat_t *found) {
    return mpy_proc_stat(pid, found) == 0 && mpy_proc_is_split(pid);
}

/* Runs in a child process of a rank that has called MPI. The rank may be only a wrapper around the child, so it is
 * informed. */
static void misled(void) {
    char line[PATH_MAX + 512], exe[PATH_MAX];
    mpy_proc_stat_t us, parent, found;
    look_at(getpid(), &us);
    look_at(us.parent, &parent);
    for (pid_t at = getppid(); at > 1; at = found.parent)
        if (look_at(at, &found)) {
            sigqueue(at, MPY_SIGNAL_RESERVED, (union sigval){.sival_int = MPY_VALUE_MISLED});
            break;
        }
    mpy_proc_exe(0, exe);
    snprintf(line, sizeof line,
             "manapy: '%s' calls MPI, but it is a child process of '%s', and only the program that manapy-launch runs "
             "itself is a rank. Start it without '%s' (manapy-launch %s ...), put manapy-launch inside "
             "(%s ... manapy-launch %s ...), or let a script start it by exec\n",
             us.name, parent.name, parent.name, exe, parent.name, us.name);
    fatal(line);
}

void mpy_require_boundary(void) {
    if (second) refuse_second();
    if (!mpy_above) misled();
}

void mpy_die(const char *format, const char *argument) {
    char line[512];
    mpy_text_format(line, sizeof line, format, argument);
    if (mpy_above) MPY_LOWER->svc->die(line, 1);
    fatal("manapy: MPI is not available in this process\n");
    __builtin_unreachable();
}

void mpy_unsupported(const char *function) {
    mpy_require_boundary();
    mpy_die("%s is not supported by this version of manapy", function);
}

void mpy_core_unsupported(const char *function) { mpy_unsupported(function); }
void mpy_core_end(const char *line) { mpy_die("%s", line); }
int mpy_core_above(void) { return mpy_above; }

/* ---- threads ---- */

static mpy_thread_t *take_slot(void) {
    for (uint32_t i = 1; i < MPY_THREADS_MAX; i++) { /* slot 0 is for MPI_Init */
        mpy_thread_t *t = &MPY_UPPER->threads[i];
        uint32_t free = 0;
        if (__atomic_load_n(&t->used, __ATOMIC_RELAXED) == 0 &&
            __atomic_compare_exchange_n(&t->used, &free, 2, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            t->in_lower = 0;
            t->state = MPY_STATE_RUNNING;
            t->lower_fs = 0;
            t->trace = t->ring = NULL;
            t->upper_fs = mpy_fs_get();
            t->tid = (int32_t)syscall(SYS_gettid);
            __atomic_store_n(&t->used, 1, __ATOMIC_RELEASE);
            return t;
        }
    }
    mpy_die("too many threads call MPI at once (%s)", "1023");
}

static void set_self(mpy_thread_t *t) {
    mpy_self_tls = t;
    pthread_setspecific(thread_key, t);
}

/* With in_lower set: makes sure that the thread has a TLS of this lower half and that the real library is loaded. Both
 * are missing after a restart of a program that had not initialized MPI. So are its infos, which it may have at any
 * time. */
void mpy_bind(mpy_thread_t *t) {
    static uint32_t binding; /* invariant 4 */
    extern char **environ;
    char **env = environ;
    mpy_lock(&binding);
    if (t->lower_fs == 0) MPY_LOWER->svc->thread_bind(t);
    if (MPY_LOWER->mpi[0] == NULL) {
        mpy_hook_in(t);
        MPY_LOWER->svc->mpi_load(env);
        if (MPY_LOWER->generation > 0 && mpy_info_make_again() != 0)
            MPY_LOWER->svc->die("cannot rebuild an info object", 1);
        mpy_hook_out(t);
        mpy_table_close();
    }
    mpy_unlock(&binding);
}

mpy_thread_t *mpy_self_slow(void) {
    mpy_require_boundary();
    mpy_thread_t *t = mpy_self_tls;
    if (t == NULL) set_self(t = take_slot());
    if (t->used == MPY_MARKER) return mpy_callback_self(t);
    mpy_guard_in(t);
    mpy_bind(t);
    mpy_guard_out(t);
    return t;
}

mpy_thread_t *mpy_self_main(void) {
    mpy_thread_t *t = mpy_self(), *first = &MPY_UPPER->threads[0];
    if (t == first) return t;
    first->tid = t->tid;
    first->upper_fs = t->upper_fs;
    first->lower_fs = t->lower_fs;
    first->trace = t->trace;
    first->ring = t->ring;
    first->state = MPY_STATE_RUNNING;
    __atomic_store_n(&first->used, 1, __ATOMIC_RELEASE);
    set_self(first);
    t->lower_fs = 0;
    t->trace = t->ring = NULL;
    __atomic_store_n(&t->used, 0, __ATOMIC_RELEASE);
    return first;
}

/* Runs in a child that the program has forked. Other threads may have held any of our locks. The rings, and the memory
 * that the real library shares with other ranks, belong to the parent. So the child is a process without MPI, like any
 * other child. Queries that need no thread (MPI_Comm_rank) still work. */
static void forked(void) {
    mpy_above = false;
    mpy_self_tls = NULL;
    pthread_setspecific(thread_key, NULL);
    /* manapy.trace.mark finds a ring here; only reading an entry costs no page */
    for (uint32_t i = 0; i < MPY_THREADS_MAX; i++)
        if (MPY_UPPER->threads[i].used) MPY_UPPER->threads[i].used = 0;
}

static void thread_end(void *slot) {
    mpy_thread_t *t = slot;
    mpy_self_tls = NULL;
    if (t == &MPY_UPPER->threads[0]) { /* hooks need this slot; its thread ended by pthread_exit in main() */
        t->tid = 0;
        return;
    }
    if (t->lower_fs != 0) MPY_LOWER->svc->thread_unbind(t);
    t->lower_fs = 0;
    __atomic_store_n(&t->used, 0, __ATOMIC_RELEASE);
}

/* ---- the border ---- */

void mpy_cross_stop(mpy_thread_t *t) {
    if (t->used == MPY_SHADOW) return; /* invariant 2 of callback.c */
    while (MPY_LOWER->phase == MPY_PHASE_FROZEN) {
        t->in_lower = 0;
        __asm__ volatile("" ::: "memory");
        /* read before phase, because a change of phase is followed by a bump of wake */
        uint32_t seen = MPY_UPPER->clock.wake;
        mpy_offer_moment();
        if (MPY_LOWER->phase == MPY_PHASE_FROZEN) mpy_clock_sleep(t, seen);
        t->in_lower = 1;
        __asm__ volatile("" ::: "memory");
    }
    mpy_bind(t);
}
