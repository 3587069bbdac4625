/* fdguard.c - see fdguard.h. */
#define _GNU_SOURCE
#include "fdguard.h"
#include "base/proc/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDS_MAX (1 << 20) /* the kernel's default nr_open */
#define PROGRAMS_SHARE 512
#define SPARE 256 /* numbers that stay free for the program, in addition to those it uses */
#define WORD_BITS 64
#define LOWER_THREADS_MAX 4096
#define HOLD_WAIT_US 100

static _Atomic uint64_t lower[FDS_MAX / WORD_BITS];
static _Atomic int lower_end;
static _Atomic int reserved;
static uint64_t occupied[FDS_MAX / WORD_BITS]; /* numbers held by occupy_low */
static int occupied_end;
static uint64_t *before; /* numbers open at scan_begin */
static _Atomic int threads[LOWER_THREADS_MAX];
static _Atomic int threads_starting;
static _Atomic int moves; /* in progress */
static _Atomic int holder; /* the thread that called mpy_fds_hold; 0: none */

int mpy_fd_base(void) {
    struct rlimit rlimit;
    int limit = getrlimit(RLIMIT_NOFILE, &rlimit) || rlimit.rlim_cur > FDS_MAX ? FDS_MAX : (int)rlimit.rlim_cur;
    int base = limit >= 2 * PROGRAMS_SHARE ? PROGRAMS_SHARE : limit * 3 / 4, end = atomic_load(&reserved);
    int above = limit > end + 2 * SPARE ? end + SPARE : (limit + end) / 2;
    return end < limit && above > base ? above : base;
}

void mpy_fd_reserve(int end) {
    atomic_store(&reserved, end);
}

int mpy_fd_lower_end(void) {
    return atomic_load(&lower_end);
}

void mpy_fd_lower_add(int fd) {
    if (fd < 0 || fd >= FDS_MAX)
        return;
    atomic_fetch_or(&lower[fd / WORD_BITS], 1ul << fd % WORD_BITS);
    for (int end = atomic_load(&lower_end); end <= fd && !atomic_compare_exchange_weak(&lower_end, &end, fd + 1);)
        continue;
}

void mpy_fd_lower_remove(int fd) {
    if (fd >= 0 && fd < FDS_MAX)
        atomic_fetch_and(&lower[fd / WORD_BITS], ~(1ul << fd % WORD_BITS));
}

int mpy_fd_is_lower(int fd) {
    return fd >= 0 && fd < FDS_MAX && (atomic_load(&lower[fd / WORD_BITS]) >> fd % WORD_BITS & 1);
}

static bool another_holds(void) {
    int tid = atomic_load(&holder);
    return tid && tid != (int)syscall(SYS_gettid);
}

void mpy_fds_move_begin(void) {
    while (atomic_fetch_add(&moves, 1), another_holds()) {
        atomic_fetch_sub(&moves, 1);
        sched_yield();
    }
}

void mpy_fds_move_end(void) {
    atomic_fetch_sub(&moves, 1);
}

void mpy_fds_hold(int ms) {
    atomic_store(&holder, (int)syscall(SYS_gettid));
    for (int us = 0; atomic_load(&moves) && us < ms * 1000; us += HOLD_WAIT_US)
        usleep(HOLD_WAIT_US);
}

void mpy_fds_release(void) {
    atomic_store(&holder, 0);
}

static void close_lower(int fd) {
    int saved = errno;
    mpy_fd_lower_remove(fd);
    syscall(SYS_close, fd);
    errno = saved;
}

void mpy_fd_close(int fd) {
    mpy_fds_move_begin();
    close_lower(fd);
    mpy_fds_move_end();
}

int mpy_fd_high(int fd) {
    return MPY_FD_OPEN(fd);
}

int mpy_fd_lift(int fd) {
    if (fd < 0)
        return fd;
    int saved = errno, base = mpy_fd_base(), high = -1;
    if (fd < base)
        high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, base); /* fcntl() is interposed */
    if (high < 0 && fd < base && errno == EBADF) /* the program has closed all numbers that it does not know */
        return -1;
    if (high < 0) { /* it is high already, or no high number is free */
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        mpy_fd_lower_add(fd);
        errno = saved;
        return fd;
    }
    mpy_fd_lower_add(high);
    close_lower(fd);
    errno = saved;
    return high;
}

void mpy_fds_occupy_low(void) {
    /* Raw calls, because the interposed open() would move every descriptor up. */
    int base = mpy_fd_base();
    for (;;) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0);
        if (fd < 0)
            return;
        if (fd >= base) {
            syscall(SYS_close, fd);
            return;
        }
        occupied[fd / WORD_BITS] |= 1ul << fd % WORD_BITS;
        occupied_end = fd + 1;
        mpy_fd_lower_add(fd);
    }
}

void mpy_fds_release_low(void) {
    for (int fd = 0; fd < occupied_end; fd++) {
        uint64_t bit = 1ul << fd % WORD_BITS;
        if (occupied[fd / WORD_BITS] & bit)
            mpy_fd_close(fd);
        occupied[fd / WORD_BITS] &= ~bit;
    }
    occupied_end = 0;
}

static pthread_mutex_t low = PTHREAD_MUTEX_INITIALIZER;
void mpy_fds_low_lock(void) {
    pthread_mutex_lock(&low);
}
void mpy_fds_low_unlock(void) {
    pthread_mutex_unlock(&low);
}

/* Sets the bit of every open descriptor. */
static void scan(uint64_t *set) {
    mpy_fd_list_t list = mpy_fd_list_open(0);
    for (int fd; (fd = mpy_fd_list_next(&list)) >= 0;)
        if (fd < FDS_MAX)
            set[fd / WORD_BITS] |= 1ul << fd % WORD_BITS;
    mpy_fd_list_close(&list);
}

void mpy_fds_scan_begin(void) {
    if (!before)
        before = malloc(FDS_MAX / 8);
    if (before) {
        memset(before, 0, FDS_MAX / 8);
        scan(before);
    }
}

void mpy_fds_scan_end(void) {
    uint64_t *after = before ? calloc(1, FDS_MAX / 8) : NULL;
    if (!after)
        return;
    scan(after);
    for (int i = 0; i < FDS_MAX / WORD_BITS; i++)
        for (uint64_t new = after[i] & ~before[i]; new; new &= new - 1)
            mpy_fd_lower_add(i * WORD_BITS + __builtin_ctzl(new));
    free(after);
    free(before);
    before = NULL;
}

void mpy_guard_forked(void) {
    for (int i = 0; i < LOWER_THREADS_MAX; i++)
        if (atomic_load(&threads[i]))
            atomic_store(&threads[i], 0);
    atomic_store(&threads_starting, 0);
    atomic_store(&moves, 0);
    pthread_mutex_init(&low, NULL);
}

void mpy_thread_lower_announce(int change) {
    atomic_fetch_add(&threads_starting, change);
}

void mpy_thread_lower_add(int tid) {
    for (int i = 0; i < LOWER_THREADS_MAX; i++) {
        int expected = 0;
        if (atomic_load(&threads[i]) == tid || atomic_compare_exchange_strong(&threads[i], &expected, tid))
            return;
    }
}

void mpy_thread_lower_remove(int tid) {
    for (int i = 0; i < LOWER_THREADS_MAX; i++) {
        int expected = tid;
        if (atomic_compare_exchange_strong(&threads[i], &expected, 0))
            return;
    }
}

int mpy_thread_is_lower(int tid) {
    while (atomic_load(&threads_starting) > 0)
        sched_yield();
    for (int i = 0; i < LOWER_THREADS_MAX; i++)
        if (atomic_load(&threads[i]) == tid)
            return 1;
    return 0;
}
