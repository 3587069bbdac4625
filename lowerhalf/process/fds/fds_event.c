/* fds_event.c - eventfd, timerfd, signalfd and epoll: saves what fdinfo shows of them (proc_pid_fdinfo(5)) and creates
 * them again.
 *
 * Lower half; libc allowed. An epoll set is keyed by (description, number): it is filled when every number is in place.
 */
#define _GNU_SOURCE
#include "fds_table.h"
#include "base/proc/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef TFD_IOC_SET_TICKS
#define TFD_IOC_SET_TICKS _IOW('T', 0, uint64_t)
#endif

static int look(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n) {
    char *text = mpy_fdinfo_read(d->number);
    (void)t;
    if (!text)
        return mpy_reason(err, n, "descriptor %d (%s): its state can't be read from /proc/self/fdinfo: %s", d->number,
                          d->path, strerror(errno));
    free(text);
    return 0;
}

static int unreadable(const mpy_desc_t *d, char *err, size_t n) {
    return mpy_reason(err, n, "descriptor %d (%s): its state can't be read from /proc/self/fdinfo", d->number, d->path);
}

static int remake(const mpy_desc_t *d, const mpy_reader_t *r, const char *what, char *err, size_t n) {
    if (r->failed)
        return mpy_reason(err, n, "descriptor %d: damaged record", d->number);
    return mpy_reason(err, n, "cannot recreate the %s of descriptor %d: %s", what, d->number, strerror(errno));
}

/* ---- eventfd ---- */

/* Kernels before 6.8 don't show whether an eventfd is a semaphore. So read it: a semaphore gives 1 for each read, an
 * ordinary eventfd gives its whole count. Afterwards the count is put back. */
static int semaphore_by_trial(int fd, uint64_t count) {
    uint64_t add = count < 2 ? 2 - count : 0, got = 0, one;
    int flags = fcntl(fd, F_GETFL), ok = 1;
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    if (add)
        ok = write(fd, &add, sizeof add) == (ssize_t)sizeof add;
    ok = ok && read(fd, &got, sizeof got) == (ssize_t)sizeof got;
    uint64_t left = count + add - got, back = left < count ? count - left : 0;
    if (back)
        ok = ok && write(fd, &back, sizeof back) == (ssize_t)sizeof back;
    else if (left > count)
        ok = ok && read(fd, &one, sizeof one) == (ssize_t)sizeof one;
    fcntl(fd, F_SETFL, flags);
    return ok && got == 1;
}

static int event_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    char *text = mpy_fdinfo_read(d->number);
    uint64_t count = 0, semaphore = 0;
    (void)t;
    int known = text && mpy_text_number(text, "eventfd-count:", 16, &count);
    if (known && !mpy_text_number(text, "eventfd-semaphore:", 10, &semaphore))
        semaphore = (uint64_t)semaphore_by_trial(d->number, count);
    free(text);
    if (!known)
        return unreadable(d, err, n);
    mpy_blob_put_u64(b, count);
    mpy_blob_put_u32(b, (uint32_t)semaphore);
    return 0;
}

static int event_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    uint64_t count = mpy_reader_u64(r);
    int semaphore = (int)mpy_reader_u32(r);
    if (!r->failed)
        d->made = mpy_fdtable_temp(t, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | (semaphore ? EFD_SEMAPHORE : 0)));
    if (d->made < 0 || (count && write(d->made, &count, sizeof count) != (ssize_t)sizeof count))
        return remake(d, r, "eventfd", err, n);
    return 0;
}

/* ---- timerfd ---- */

static int timer_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    uint64_t clock = 0, ticks = 0, flags = 0;
    struct itimerspec left;
    (void)t;
    /* First, because it adds the expirations since the last look to the ticks that fdinfo shows. */
    const int bad = timerfd_gettime(d->number, &left);
    char *text = mpy_fdinfo_read(d->number);
    int known = text && mpy_text_number(text, "clockid:", 10, &clock) &&
                mpy_text_number(text, "ticks:", 10, &ticks) && mpy_text_number(text, "settime flags:", 8, &flags);
    free(text);
    if (!known || bad)
        return unreadable(d, err, n);
    struct timespec now = {0};
    if (clock == CLOCK_REALTIME && (flags & TFD_TIMER_ABSTIME) && (left.it_value.tv_sec || left.it_value.tv_nsec)) {
        clock_gettime(CLOCK_REALTIME, &now); /* set for a time of day: keep this time, however long the restart takes */
        left.it_value.tv_sec += now.tv_sec;
        if ((left.it_value.tv_nsec += now.tv_nsec) >= 1000000000) {
            left.it_value.tv_nsec -= 1000000000;
            left.it_value.tv_sec++;
        }
    } else {
        flags = 0;
    }
    mpy_blob_put_u32(b, (uint32_t)clock);
    mpy_blob_put_u32(b, (uint32_t)flags);
    mpy_blob_put_u64(b, ticks);
    mpy_blob_put_i64(b, left.it_value.tv_sec);
    mpy_blob_put_i64(b, left.it_value.tv_nsec);
    mpy_blob_put_i64(b, left.it_interval.tv_sec);
    mpy_blob_put_i64(b, left.it_interval.tv_nsec);
    return 0;
}

static int timer_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    int clock = (int)mpy_reader_u32(r), flags = (int)mpy_reader_u32(r);
    uint64_t ticks = mpy_reader_u64(r);
    struct itimerspec left = {.it_value.tv_sec = mpy_reader_i64(r)};
    left.it_value.tv_nsec = mpy_reader_i64(r);
    left.it_interval.tv_sec = mpy_reader_i64(r);
    left.it_interval.tv_nsec = mpy_reader_i64(r);
    if (!r->failed)
        d->made = mpy_fdtable_temp(t, timerfd_create(clock, TFD_CLOEXEC | TFD_NONBLOCK));
    if (d->made < 0 || timerfd_settime(d->made, flags, &left, NULL))
        return remake(d, r, "timerfd", err, n);
    if (ticks && ioctl(d->made, TFD_IOC_SET_TICKS, &ticks)) {
        /* This kernel has no checkpoint support: let the timer expire once, at once. */
        left.it_value = (struct timespec){.tv_nsec = 1};
        if (timerfd_settime(d->made, 0, &left, NULL))
            return remake(d, r, "timerfd", err, n);
    }
    return 0;
}

/* ---- signalfd ---- */

static int signal_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    char *text = mpy_fdinfo_read(d->number);
    uint64_t mask = 0;
    (void)t;
    int known = text && mpy_text_number(text, "sigmask:", 16, &mask);
    free(text);
    if (!known)
        return unreadable(d, err, n);
    mpy_blob_put_u64(b, mask);
    return 0;
}

static int signal_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    uint64_t mask = mpy_reader_u64(r);
    if (!r->failed)
        d->made = mpy_fdtable_temp(t, (int)syscall(SYS_signalfd4, -1, &mask, sizeof mask, O_CLOEXEC | O_NONBLOCK));
    if (d->made < 0)
        return remake(d, r, "signalfd", err, n);
    return 0;
}

/* ---- epoll ---- */

typedef struct watch {
    int number;
    uint32_t events;
    uint64_t data;
    ino_t ino;
    /* index among the entries with this number: the set contains a number several times if it was closed and reused */
    unsigned nth;
} watch_t;

static struct kcmp_epoll_slot entry(int epoll, const watch_t *w) {
    return (struct kcmp_epoll_slot){.efd = (uint32_t)epoll, .tfd = (uint32_t)w->number, .toff = w->nth};
}

/* Does entry w->nth of `w->number` in the set `epoll` refer to the description of `candidate`? */
static int watches(int epoll, const watch_t *w, const mpy_desc_t *candidate, int number) {
    const struct kcmp_epoll_slot slot = entry(epoll, w);
    int pid = getpid();
    long order = syscall(SYS_kcmp, pid, pid, KCMP_EPOLL_TFD, number, &slot);
    if (order >= 0)
        return order == 0;
    return number == w->number && candidate->st.st_ino == w->ino;
}

/* The number with which the entry can be added again. -1: the program no longer has its description. */
static int watched(const mpy_fdtable_t *t, int epoll, const watch_t *w) {
    int found = -1;
    for (int i = 0; i < t->nnumbers; i++) {
        const mpy_fdnumber_t *number = &t->numbers[i];
        if (t->descs[number->desc].st.st_ino != w->ino || !watches(epoll, w, &t->descs[number->desc], number->number))
            continue;
        if (number->number == w->number)
            return w->number;
        if (found < 0)
            found = number->number;
    }
    return found;
}

/* The entry that a line of fdinfo's `text` shows; 0: it shows none. */
static int read_watch(watch_t *w, const char *text, const char *line) {
    watch_t other;
    unsigned long ino, before;
    *w = (watch_t){0};
    if (sscanf(line, "tfd: %d events: %x data: %lx pos:%*d ino:%lx", &w->number, &w->events, &w->data, &ino) != 4)
        return 0;
    w->ino = ino;
    for (const char *p = text; p < line; p = strchr(p, '\n') + 1)
        w->nth += sscanf(p, "tfd: %d events: %*x data: %lx", &other.number, &before) == 2 && other.number == w->number;
    return 1;
}

/* An entry whose description the program no longer has reports nothing, unless another process of the tree has it. */
static int has_strange_entry(const mpy_desc_t *d, const watch_t *w, char *err, size_t n) {
    const struct kcmp_epoll_slot slot = entry(d->number, w);
    int pid = mpy_fd_relative_with_entry(&slot);
    if (pid)
        mpy_reason(err, n, "epoll set %d of process %d watches a descriptor that only process %d has; "
                   "let each process have an epoll set of its own", d->number, getpid(), pid);
    return pid != 0;
}

static int epoll_save(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n) {
    char *text = mpy_fdinfo_read(d->number);
    if (!text)
        return unreadable(d, err, n);
    size_t at = b->bytes;
    uint32_t count = 0;
    int strange = 0;
    mpy_blob_put_u32(b, 0);
    for (const char *line = text; line && !strange; line = strchr(line, '\n'), line += line != NULL) {
        watch_t w;
        if (!read_watch(&w, text, line))
            continue;
        int number = watched(t, d->number, &w);
        if (number < 0) {
            strange = has_strange_entry(d, &w, err, n);
            continue;
        }
        mpy_blob_put_u32(b, (uint32_t)number);
        mpy_blob_put_u32(b, w.events);
        mpy_blob_put_u64(b, w.data);
        count++;
    }
    free(text);
    mpy_blob_set_u32(b, at, count);
    return strange ? -1 : 0;
}

static int epoll_make(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    d->made = mpy_fdtable_temp(t, epoll_create1(EPOLL_CLOEXEC));
    return d->made < 0 ? remake(d, r, "epoll set", err, n) : 0;
}

static int epoll_finish(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n) {
    (void)t;
    for (uint32_t left = mpy_reader_count(r, 16); left; left--) {
        int number = (int)mpy_reader_u32(r);
        struct epoll_event event = {.events = mpy_reader_u32(r)};
        event.data.u64 = mpy_reader_u64(r);
        if (epoll_ctl(d->made, EPOLL_CTL_ADD, number, &event) && errno != EEXIST)
            return mpy_reason(err, n, "can't put descriptor %d into the epoll set %d again: %s", number, d->number,
                              strerror(errno));
    }
    return r->failed ? remake(d, r, "epoll set", err, n) : 0;
}

const mpy_fd_ops_t mpy_fd_event_ops = {look, event_save, event_make, NULL};
const mpy_fd_ops_t mpy_fd_timer_ops = {look, timer_save, timer_make, NULL};
const mpy_fd_ops_t mpy_fd_signal_ops = {look, signal_save, signal_make, NULL};
const mpy_fd_ops_t mpy_fd_epoll_ops = {look, epoll_save, epoll_make, epoll_finish};
