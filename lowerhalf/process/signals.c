/* signals.c - signals that are pending for the process as a whole.
 *
 * Lower half; libc allowed.
 *
 * Invariants
 *  1. Pending signals are taken out with their siginfo and put back at once: while saving, no thread can receive them.
 *  2. The process's first thread puts them back. The kernel lets no other thread queue a signal that looks like one of
 *     kill(2) or of the kernel, and the program must see who sent a signal, and which child has ended how.
 *  3. Ids of processes in a saved siginfo are those that the program knows.
 */
#define _GNU_SOURCE
#include "signals.h"
#include "base/proc/text.h"
#include "base/reason.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Loaded state; started at the end. */
static siginfo_t *signals;
static uint32_t nsignals;

static uint64_t pending(void) {
    uint64_t mask = 0;
    mpy_proc_number("/proc/self/status", "ShdPnd:", 16, &mask);
    const int never[] = {SIGKILL, SIGSTOP, SIGSYS};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        mask &= ~(1ul << (never[i] - 1));
    return mask;
}

static int requeue(const siginfo_t *info, const mpy_halted_t *halted, char *err, size_t n) {
    const int pid = getpid();
    long rc = halted ? halted->call(pid, SYS_rt_sigqueueinfo, pid, info->si_signo, (long)info, 0)
                     : syscall(SYS_rt_sigqueueinfo, pid, info->si_signo, info) ? -errno : 0;
    if (rc == 0)
        return 0;
    return mpy_reason(err, n, "signal %d cannot be made pending again: %s", info->si_signo, strerror((int)-rc));
}

static void translate(siginfo_t *info, mpy_tid_map_t *map) {
    const int code = info->si_code;
    if (map && (code == SI_USER || code == SI_QUEUE || code == SI_TKILL || (info->si_signo == SIGCHLD && code > 0)) &&
        info->si_pid > 0)
        info->si_pid = map(info->si_pid);
}

static void put(mpy_blob_t *b, siginfo_t info, mpy_tid_map_t *virtual_tid) {
    translate(&info, virtual_tid);
    mpy_blob_put_bytes(b, &info, sizeof info);
}

int mpy_signals_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, const mpy_halted_t *halted, char *err, size_t n) {
    uint64_t mask = pending();
    size_t at = b->bytes;
    uint32_t count = 0;
    siginfo_t *taken = NULL, info;
    int rc = 0;
    mpy_blob_put_u32(b, 0);
    while (mask && syscall(SYS_rt_sigtimedwait, &mask, &info, &(struct timespec){0}, 8) > 0) {
        siginfo_t *more = realloc(taken, (count + 1) * sizeof *more);
        if (!more) {
            requeue(&info, halted, err, n);
            b->failed = 1;
            break;
        }
        taken = more;
        taken[count++] = info;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (requeue(&taken[i], halted, err, n))
            rc = -1;
        put(b, taken[i], virtual_tid);
    }
    free(taken);
    mpy_blob_set_u32(b, at, count);
    return rc;
}

int mpy_signals_load(mpy_reader_t *r, char *err, size_t n) {
    nsignals = mpy_reader_count(r, 8 + sizeof *signals);
    signals = calloc(nsignals + 1, sizeof *signals);
    for (uint32_t i = 0; signals && i < nsignals; i++) {
        size_t bytes;
        const void *info = mpy_reader_bytes(r, &bytes);
        if (bytes == sizeof *signals)
            memcpy(&signals[i], info, bytes);
        else
            r->failed = 1;
    }
    if (signals && !r->failed)
        return 0;
    nsignals = 0;
    return mpy_reason(err, n, "the image's record of pending signals is damaged");
}

int mpy_signals_start(mpy_tid_map_t *real_tid, char *err, size_t n) {
    int rc = 0;
    for (uint32_t i = 0; !rc && i < nsignals; i++) {
        translate(&signals[i], real_tid);
        rc = requeue(&signals[i], NULL, err, n);
    }
    free(signals);
    signals = NULL;
    nsignals = 0;
    return rc;
}
