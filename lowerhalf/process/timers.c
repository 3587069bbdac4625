/* timers.c - setitimer(2) and timer_create(2) timers.
 *
 * Lower half; libc allowed. But POSIX timers are handled by raw system calls, because their ids belong to the program's
 * libc.
 *
 * A POSIX timer must be restored with its kernel id. Kernels since 6.16 accept a requested id
 * (PR_TIMER_CREATE_RESTORE_IDS). Older kernels count up, so timers are created and deleted until the id comes up.
 *
 * Invariants
 *  1. Timers that notify a thread of the lower half belong to the lower half and are not touched.
 */
#define _GNU_SOURCE
#include "timers.h"
#include "base/proc/text.h"
#include "base/reason.h"
#include "isolate/fdguard.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#endif

#define ID_MAX_BY_COUNTING 1000000
#define ID_PROBES 256 /* number of ids to test if the kernel doesn't list timers */

enum { NOTIFY_SIGNAL = 0, NOTIFY_NONE = 1, NOTIFY_TID = 4 };

typedef struct ptimer {
    int id, signal, notify, tid, clock;
    uint64_t value;
    struct itimerspec left;
} ptimer_t;

/* Loaded state; started at the end. */
static struct itimerval intervals[3];
static ptimer_t *timers;
static uint32_t ntimers;

/* ---- POSIX timers ---- */

static int by_id(const void *a, const void *b) {
    return ((const ptimer_t *)a)->id - ((const ptimer_t *)b)->id;
}

/* Without /proc/PID/timers (CONFIG_CHECKPOINT_RESTORE) we can only find out whether there are timers. */
static int probe(char *err, size_t n) {
    struct itimerspec left;
    for (int id = 0; id < ID_PROBES; id++)
        if (syscall(SYS_timer_gettime, id, &left) == 0)
            return mpy_reason(err, n,
                              "the program has a POSIX timer and this kernel does not list them (/proc/PID/timers); "
                              "delete it before the checkpoint");
    return 0;
}

/* *list is allocated here and ascending by id. */
static int list_timers(ptimer_t **list, uint32_t *count, char *err, size_t n) {
    char path[64], line[256], kind[16];
    ptimer_t timer = {0};
    unsigned long value;
    *list = NULL;
    *count = 0;
    snprintf(path, sizeof path, "/proc/%d/timers", getpid());
    FILE *file = fopen(path, "re");
    if (!file)
        return probe(err, n);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "ID: %d", &timer.id) == 1)
            continue;
        if (sscanf(line, "signal: %d/%lx", &timer.signal, &value) == 2) {
            timer.value = value;
        } else if (sscanf(line, "notify: %15[^/]/%*3[^.].%d", kind, &timer.tid) == 2) {
            timer.notify = !strcmp(kind, "none") ? NOTIFY_NONE : strstr(line, "/tid.") ? NOTIFY_TID : NOTIFY_SIGNAL;
        } else if (sscanf(line, "ClockID: %d", &timer.clock) == 1) {
            if (timer.notify == NOTIFY_TID && mpy_thread_is_lower(timer.tid))
                continue;
            ptimer_t *more = realloc(*list, (*count + 1) * sizeof *more);
            if (!more)
                break;
            *list = more;
            (*list)[(*count)++] = timer;
        }
    }
    fclose(file);
    if (*count)
        qsort(*list, *count, sizeof **list, by_id);
    return 0;
}

static int timer_check(const ptimer_t *timer, char *err, size_t n) {
    /* clock_getcpuclockid(3): a negative id names a process or thread by its pid; -6 is the calling process. */
    if (timer->clock == CLOCK_THREAD_CPUTIME_ID || (timer->clock < 0 && timer->clock != -6))
        return mpy_reason(
            err, n,
            "POSIX timer %d runs on the CPU clock of a thread, which can't be saved; delete it before the checkpoint",
            timer->id);
    return 0;
}

int mpy_timers_check(char *err, size_t n) {
    ptimer_t *list;
    uint32_t count;
    int rc = list_timers(&list, &count, err, n);
    for (uint32_t i = 0; !rc && i < count; i++)
        rc = timer_check(&list[i], err, n);
    free(list);
    return rc;
}

static void timespec_put(mpy_blob_t *b, struct timespec t) {
    mpy_blob_put_i64(b, t.tv_sec);
    mpy_blob_put_i64(b, t.tv_nsec);
}

static struct timespec timespec_of(mpy_reader_t *r) {
    struct timespec t = {.tv_sec = mpy_reader_i64(r)};
    t.tv_nsec = mpy_reader_i64(r);
    return t;
}

static int posix_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, char *err, size_t n) {
    ptimer_t *list;
    uint32_t count;
    int rc = list_timers(&list, &count, err, n);
    mpy_blob_put_u32(b, count);
    for (uint32_t i = 0; !rc && i < count; i++) {
        ptimer_t *timer = &list[i];
        rc = timer_check(timer, err, n);
        syscall(SYS_timer_gettime, timer->id, &timer->left);
        int tid = timer->notify == NOTIFY_TID && virtual_tid ? virtual_tid(timer->tid) : timer->tid;
        if (!rc && tid == 0)
            rc = mpy_reason(err, n, "POSIX timer %d notifies thread %d, which is not a thread of the program",
                            timer->id, timer->tid);
        mpy_blob_put_u32(b, (uint32_t)timer->id);
        mpy_blob_put_u32(b, (uint32_t)timer->signal);
        mpy_blob_put_u32(b, (uint32_t)timer->notify);
        mpy_blob_put_u32(b, (uint32_t)tid);
        mpy_blob_put_u32(b, (uint32_t)timer->clock);
        mpy_blob_put_u64(b, timer->value);
        timespec_put(b, timer->left.it_value);
        timespec_put(b, timer->left.it_interval);
    }
    free(list);
    return rc;
}

static int create_with_id(const ptimer_t *timer, int tid) {
    struct sigevent event = {
        .sigev_notify = timer->notify, .sigev_signo = timer->signal, .sigev_value.sival_ptr = (void *)timer->value};
    event._sigev_un._tid = tid;
    int id = timer->id;
    if (prctl(PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0) == 0) {
        long rc = syscall(SYS_timer_create, timer->clock, &event, &id);
        int saved = errno;
        prctl(PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
        errno = saved;
        return rc ? -1 : 0;
    }
    for (int tries = 0; tries <= ID_MAX_BY_COUNTING; tries++) {
        if (syscall(SYS_timer_create, timer->clock, &event, &id))
            return -1;
        if (id == timer->id)
            return 0;
        syscall(SYS_timer_delete, id);
        if (id > timer->id)
            break;
    }
    errno = EBUSY;
    return -1;
}

static int posix_start(const ptimer_t *timer, mpy_tid_map_t *real_tid, char *err, size_t n) {
    int tid = timer->notify == NOTIFY_TID && real_tid ? real_tid(timer->tid) : timer->tid;
    if (create_with_id(timer, tid) || syscall(SYS_timer_settime, timer->id, 0, &timer->left, NULL))
        return mpy_reason(err, n, "POSIX timer %d cannot be recreated: %s", timer->id, strerror(errno));
    return 0;
}

/* ---- all timers ---- */

int mpy_timers_save(mpy_blob_t *b, mpy_tid_map_t *virtual_tid, char *err, size_t n) {
    for (int i = 0; i < 3; i++) {
        struct itimerval value = {0};
        getitimer(i, &value);
        /* 0 also if the signal is pending: the kernel starts the next interval when the signal is taken */
        if (!value.it_value.tv_sec && !value.it_value.tv_usec)
            value.it_value = value.it_interval;
        mpy_blob_put_i64(b, value.it_value.tv_sec);
        mpy_blob_put_i64(b, value.it_value.tv_usec);
        mpy_blob_put_i64(b, value.it_interval.tv_sec);
        mpy_blob_put_i64(b, value.it_interval.tv_usec);
    }
    return posix_save(b, virtual_tid, err, n);
}

int mpy_timers_load(mpy_reader_t *r, char *err, size_t n) {
    for (int i = 0; i < 3; i++) {
        intervals[i].it_value.tv_sec = mpy_reader_i64(r);
        intervals[i].it_value.tv_usec = mpy_reader_i64(r);
        intervals[i].it_interval.tv_sec = mpy_reader_i64(r);
        intervals[i].it_interval.tv_usec = mpy_reader_i64(r);
    }
    ntimers = mpy_reader_count(r, 60);
    timers = calloc(ntimers + 1, sizeof *timers);
    for (uint32_t i = 0; timers && i < ntimers; i++) {
        timers[i].id = (int)mpy_reader_u32(r);
        timers[i].signal = (int)mpy_reader_u32(r);
        timers[i].notify = (int)mpy_reader_u32(r);
        timers[i].tid = (int)mpy_reader_u32(r);
        timers[i].clock = (int)mpy_reader_u32(r);
        timers[i].value = mpy_reader_u64(r);
        timers[i].left.it_value = timespec_of(r);
        timers[i].left.it_interval = timespec_of(r);
    }
    if (!timers || r->failed) {
        ntimers = 0;
        return mpy_reason(err, n, "the image's record of timers is damaged");
    }
    return 0;
}

int mpy_timers_start(mpy_tid_map_t *real_tid, char *err, size_t n) {
    int rc = 0;
    for (uint32_t i = 0; !rc && i < ntimers; i++)
        rc = posix_start(&timers[i], real_tid, err, n);
    for (int i = 0; !rc && i < 3; i++)
        if (intervals[i].it_value.tv_sec || intervals[i].it_value.tv_usec)
            setitimer(i, &intervals[i], NULL);
    free(timers);
    timers = NULL;
    ntimers = 0;
    return rc;
}
