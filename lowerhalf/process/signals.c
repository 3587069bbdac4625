/* signals.c - signals that are pending, for the process as a whole or for one thread.
 *
 * Lower half; libc allowed.
 *
 * Invariants
 *  1. Pending signals are taken out with their siginfo and put back at once: while saving, no thread can receive them.
 *  2. A thread puts its own signals back, and the process's first thread those of the process. The kernel lets no
 *     other thread queue a signal that looks like one of kill(2) or of the kernel, and the program must see who sent a
 *     signal, and which child has ended how.
 *  3. Ids of processes in a saved siginfo are those that the program knows.
 */
#define _GNU_SOURCE
#include "signals.h"
#include "base/proc/text.h"
#include "base/reason.h"

#include <errno.h>
#include <manapy/boundary.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Loaded state. Those of the process are started at the end; threads take theirs. */
static mpy_pending_t *signals;
static uint32_t nsignals;

uint64_t mpy_process_pending_for(int32_t tid) {
    char path[64] = "/proc/self/status";
    uint64_t mask = 0;
    if (tid)
        snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    mpy_proc_number(path, tid ? "SigPnd:" : "ShdPnd:", 16, &mask);
    const int never[] = {SIGKILL, SIGSTOP, SIGSYS, MPY_SIGNAL_RESERVED};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        mask &= ~(1ul << (never[i] - 1));
    return mask;
}

/* A thread takes its own signals first: the mask has only such ones. */
static bool take(int32_t tid, const mpy_halted_t *halted, uint64_t mask, siginfo_t *info) {
    const struct timespec now = {0};
    return (tid ? halted->call(tid, SYS_rt_sigtimedwait, (long)&mask, (long)info, (long)&now, 8)
                : syscall(SYS_rt_sigtimedwait, &mask, info, &now, 8)) > 0;
}

static int requeue(const mpy_pending_t *p, const mpy_halted_t *halted, char *err, size_t n) {
    const int pid = getpid(), signo = p->info.si_signo;
    const long info = (long)&p->info;
    long rc = !halted  ? syscall(SYS_rt_sigqueueinfo, pid, signo, info) ? -errno : 0
              : p->tid ? halted->call(p->tid, SYS_rt_tgsigqueueinfo, pid, p->tid, signo, info)
                       : halted->call(pid, SYS_rt_sigqueueinfo, pid, signo, info, 0);
    if (rc == 0)
        return 0;
    return mpy_reason(err, n, "signal %d cannot be made pending again: %s", signo, strerror((int)-rc));
}

static void translate(siginfo_t *info, mpy_tid_map_t *map) {
    const int code = info->si_code;
    if (map && (code == SI_USER || code == SI_QUEUE || code == SI_TKILL || (info->si_signo == SIGCHLD && code > 0)) &&
        info->si_pid > 0)
        info->si_pid = map(info->si_pid);
}

typedef struct list {
    mpy_pending_t *items;
    uint32_t count;
    bool failed;
} list_t;

/* A timer with an interval goes on when its signal is taken. Has a second one of it been taken? */
static bool is_again(const list_t *l, uint32_t first, const siginfo_t *info) {
    for (uint32_t i = first; i < l->count && info->si_code == SI_TIMER; i++)
        if (l->items[i].info.si_code == SI_TIMER && l->items[i].info.si_timerid == info->si_timerid)
            return true;
    return false;
}

static void take_all(list_t *l, int32_t tid, const mpy_halted_t *halted) {
    const uint32_t first = l->count;
    uint64_t left = ~0ul, mask;
    siginfo_t info;
    while ((mask = mpy_process_pending_for(tid) & left)) {
        mpy_pending_t *more = realloc(l->items, (l->count + 1) * sizeof *more);
        if (!more) {
            l->failed = true;
            return;
        }
        l->items = more;
        if (!take(tid, halted, mask, &info))
            return;
        if (is_again(l, first, &info))
            left &= ~(1ul << (info.si_signo - 1));
        l->items[l->count++] = (mpy_pending_t){tid, info};
    }
}

int mpy_signals_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, const mpy_halted_t *halted, char *err, size_t n) {
    list_t l = {0};
    int rc = 0;
    take_all(&l, 0, halted);
    for (size_t i = 0; halted && i < halted->count; i++)
        take_all(&l, halted->tids[i], halted);
    mpy_blob_put_u32(b, l.count);
    for (uint32_t i = 0; i < l.count; i++) {
        mpy_pending_t *p = &l.items[i];
        if (requeue(p, halted, err, n))
            rc = -1;
        translate(&p->info, virtual_tid);
        mpy_blob_put_u32(b, (uint32_t)(p->tid && virtual_tid ? virtual_tid(p->tid) : p->tid));
        mpy_blob_put_bytes(b, &p->info, sizeof p->info);
    }
    free(l.items);
    b->failed |= l.failed;
    return rc;
}

int mpy_signals_load(mpy_reader_t *r, char *err, size_t n) {
    nsignals = mpy_reader_count(r, 12 + sizeof signals->info);
    signals = calloc(nsignals + 1, sizeof *signals);
    for (uint32_t i = 0; signals && i < nsignals; i++) {
        size_t bytes;
        signals[i].tid = (int32_t)mpy_reader_u32(r);
        const void *info = mpy_reader_bytes(r, &bytes);
        if (bytes == sizeof signals->info)
            memcpy(&signals[i].info, info, bytes);
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
    for (uint32_t i = 0; !rc && i < nsignals; i++)
        if (signals[i].tid == 0) {
            translate(&signals[i].info, real_tid);
            rc = requeue(&signals[i], NULL, err, n);
        }
    return rc;
}

const mpy_pending_t *mpy_process_pending(mpy_tid_map_t *real_tid, uint32_t *count) {
    for (uint32_t i = 0; i < nsignals; i++)
        if (signals[i].tid)
            translate(&signals[i].info, real_tid);
    *count = nsignals;
    return signals;
}
