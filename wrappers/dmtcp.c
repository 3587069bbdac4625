/* dmtcp.c - libdmtcp.so: DMTCP's application API (dmtcp.h of DMTCP 3 to 5) on manapy's engine, so that programs written
 * for it run unmodified.
 *
 * Upper half, upper TLS; saved with the program. A library of its own, without MPI: dmtcp.h declares weak symbols,
 * which bind at the program's start, and Python programs look them up in the main program (ctypes.CDLL(None)) before
 * they import mpi4py. So manapy-launch preloads it, as dmtcp_launch does with the original. Once loaded, LD_PRELOAD is
 * removed from the environment again. So the program sees the original value, and its children, which have no lower
 * half, don't load this.
 *
 * manapy/dmtcp.py explains each function, and its differences from the original.
 *
 * Invariants
 *  1. In a process that manapy-launch did not start, and in a forked child of a rank, all functions only return "not
 *     present".
 *  2. upper->disabled counts the threads with nesting > 0, and for a moment threads that try (invariant 5 of
 *     boundary.h). A rank isn't frozen while it is above 0, so no thread is saved, or stopped, between
 *     dmtcp_disable_ckpt and dmtcp_enable_ckpt.
 *  3. A thread that disables checkpoints never waits for a checkpoint that has not frozen its rank yet, because another
 *     rank may need this thread to get there. Until the thread enables them, its rank counts as needed (invariant 5 of
 *     manapy/clock/controller.py), so that no stopped thread can block it.
 */
#define _GNU_SOURCE
#include "callbacks.h"

#include <manapy/boundary.h>
#include <manapy/fnv.h>
#include <manapy/image_path.h>
#include <manapy/lock.h>

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { FAILED = 0, DONE = 1, AFTER_CHECKPOINT = 1, AFTER_RESTART = 2, NOT_PRESENT = 3, IS_PRESENT = 4 }; /* dmtcp.h */

static int process; /* id of the process that manapy-launch started; 0: none */
static char unique_pid[64];
static __thread unsigned nesting;
static uint32_t naming; /* lock for threads that name a directory */

static void hide_preload(void) {
    static const char name[] = "LD_PRELOAD=", own[] = "libdmtcp.so";
    for (char **e = environ; *e; e++) {
        if (strncmp(*e, name, sizeof name - 1)) continue;
        char *first = *e + sizeof name - 1;
        size_t n = strcspn(first, ": ");
        if (n < sizeof own - 1 || strncmp(first + n - (sizeof own - 1), own, sizeof own - 1)) return;
        if (first[n]) memmove(first, first + n + 1, strlen(first + n + 1) + 1);
        else do { e[0] = e[1]; } while (*e++);
        return;
    }
}

/* The same form and lifetime as in the original: host, process id, start time. */
static void name_process(void) {
    struct utsname host = {0};
    struct timespec now;
    uname(&host);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(unique_pid, sizeof unique_pid, "%lx-%d-%lx", mpy_fnv1a(host.nodename, strlen(host.nodename)), process,
             now.tv_sec * 1000000000l + now.tv_nsec);
}

__attribute__((constructor)) static void begin(void) {
    if (getauxval(MPY_AT_BOUNDARY) != MPY_LOWER_ADDR || MPY_LOWER->magic != MPY_BOUNDARY_MAGIC ||
        MPY_LOWER->version != MPY_BOUNDARY_VERSION)
        return;
    process = getpid();
    name_process();
    hide_preload();
}

static int present(void) { return process != 0 && process == getpid(); }

API int dmtcp_is_enabled(void) { return present(); }

/* ---- checkpoints ---- */

API int dmtcp_checkpoint(void) {
    if (!present()) return NOT_PRESENT;
    if (nesting) return FAILED;
    uint32_t generation = MPY_LOWER->generation;
    int64_t ticket = MPY_LOWER->svc->request_checkpoint();
    if (ticket < 0) return FAILED;
    for (;;) {
        int64_t done = MPY_LOWER->svc->checkpoint_done();
        /* ticket numbers start again after a restart */
        if (*(volatile uint32_t *)&MPY_LOWER->generation != generation) return AFTER_RESTART;
        if (done >= ticket) return AFTER_CHECKPOINT;
        if (-done >= ticket) return FAILED;
        manapy_run_callbacks();
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void forbid(void) {
    for (;;) {
        __atomic_add_fetch(&MPY_UPPER->disabled, 1, __ATOMIC_SEQ_CST);
        uint32_t phase = MPY_LOWER->phase;
        if (phase != MPY_PHASE_FROZEN) {
            if (phase != MPY_PHASE_NONE) MPY_LOWER->svc->notify();
            return;
        }
        __atomic_sub_fetch(&MPY_UPPER->disabled, 1, __ATOMIC_SEQ_CST);
        /* read before phase, because a change of phase is followed by a bump of wake */
        uint32_t seen = MPY_UPPER->clock.wake;
        __asm__ volatile("" ::: "memory");
        manapy_run_callbacks();
        if (MPY_LOWER->phase == MPY_PHASE_FROZEN) mpy_lock_futex(&MPY_UPPER->clock.wake, FUTEX_WAIT_PRIVATE, seen);
    }
}

static void allow(void) {
    __atomic_sub_fetch(&MPY_UPPER->disabled, 1, __ATOMIC_SEQ_CST);
    if (MPY_LOWER->allow_awaited || MPY_LOWER->phase != MPY_PHASE_NONE) MPY_LOWER->svc->notify();
}

API int dmtcp_disable_ckpt(void) {
    if (!process) return NOT_PRESENT;
    if (nesting == 0) forbid();
    nesting++;
    return DONE;
}

API int dmtcp_enable_ckpt(void) {
    if (!process) return NOT_PRESENT;
    if (nesting == 0) return FAILED;
    if (--nesting == 0) allow();
    return DONE;
}

/* ---- queries ---- */

API int dmtcp_get_coordinator_status(int *peers, int *running) {
    if (!present()) return NOT_PRESENT;
    if (peers) *peers = MPY_LOWER->size;
    if (running) *running = MPY_LOWER->phase == MPY_PHASE_NONE && !MPY_LOWER->abandoned;
    return IS_PRESENT;
}

API int dmtcp_get_local_status(int *checkpoints, int *restarts) {
    if (!present()) return NOT_PRESENT;
    if (checkpoints) *checkpoints = (int)MPY_UPPER->checkpoints;
    if (restarts) *restarts = (int)MPY_LOWER->generation;
    return IS_PRESENT;
}

API uint32_t dmtcp_get_generation(void) { return present() ? MPY_UPPER->checkpoints + MPY_LOWER->generation : 0; }

API const char *dmtcp_get_uniquepid_str(void) { return present() ? unique_pid : NULL; }

static int same(const char *directory, const char *job) {
    char one[PATH_MAX], other[PATH_MAX];
    return !strcmp(directory, job) || (realpath(directory, one) && realpath(job, other) && !strcmp(one, other));
}

API const char *dmtcp_get_ckpt_filename(void) {
    static char path[sizeof MPY_LOWER->checkpoint_dir + 64 + MPY_IMAGE_PATH_MORE];
    char latest[sizeof MPY_LOWER->checkpoint_dir + 64], within[32] = ""; /* as in manapy/ckpt/store/publish.py */
    if (!present()) return NULL;
    const char *directory = MPY_LOWER->checkpoint_dir, *job = MPY_LOWER->job_dir;
    if (!same(directory, job)) snprintf(within, sizeof within, "/manapy-%016" PRIx64, mpy_fnv1a(job, strlen(job)));
    snprintf(latest, sizeof latest, "%s%s/latest", directory, within);
    mpy_image_path(path, sizeof path, latest, MPY_LOWER->rank);
    return path;
}

API const char *dmtcp_get_ckpt_dir(void) { return present() ? MPY_LOWER->checkpoint_dir : ""; }

API int dmtcp_set_ckpt_dir(const char *directory) {
    char path[2 * PATH_MAX] = "";
    if (!present()) return NOT_PRESENT;
    if (!directory) return IS_PRESENT;
    if (directory[0] != '/' && directory[0] && getcwd(path, PATH_MAX)) strcat(path, "/");
    strncat(path, directory, PATH_MAX);
    mpy_lock_acquire(&naming);
    MPY_LOWER->svc->set_checkpoint_dir(directory, path);
    mpy_lock_release(&naming);
    return IS_PRESENT;
}
