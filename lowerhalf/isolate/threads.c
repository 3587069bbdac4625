/* threads.c - lends a lower TLS to every upper thread that calls MPI.
 *
 * Half: lower. mpy_thread_bind runs on the upper TLS (no libc); the donor threads are ordinary lower-half pthreads.
 *
 * A thread in the lower half needs a TLS block of the lower half's libc. The process's first thread has one of its own.
 * For every other upper thread a lower-half pthread is created that only lends its TLS: it parks for ever.
 *
 * Invariants
 *  1. A donor's TLS is lent to one upper thread at a time.
 *  2. The word at mpy_thread_tls_offset() from a lower FS base contains the borrower's upper FS base (trampoline.S
 *     reads it).
 *  3. A thread of the program may use a lower TLS for a moment, with all signals blocked, if the lower half's libc is
 *     in a consistent state: this process was not forked, or was forked by that libc. It uses its own lower TLS, if it
 *     is not in the lower half. Before MPI is used in this process, it uses the first thread's, which nothing else uses
 *     then.
 */
#include "threads.h"
#include "arena.h"
#include "base/rank.h"
#include "base/sys.h"
#include "jump.h"
#include "trace/recorder.h"
#include <errno.h>
#include <manapy/lock.h>
#include <pthread.h>
#include <signal.h>

enum { SAMPLES_S = 30 }; /* longest interval between two samples of the clock */

static __thread volatile uint64_t borrower_fs; /* invariant 2 */
static uint64_t main_fs;
static volatile uint32_t request_word, request_lock;
static mpy_thread_t *volatile request;
static struct { volatile uint64_t fs; volatile uint32_t lent; } donors[MPY_THREADS_MAX];
static int ndonors;
static volatile uint32_t mpi_used; /* invariant 3 */

int64_t mpy_thread_tls_offset(void) { return (int64_t)((uint64_t)&borrower_fs - mpy_fs_get()); }

static void lend(mpy_thread_t *t, uint64_t fs) {
    *(uint64_t *)(fs + (uint64_t)MPY_LOWER->tls_upper_fs) = t->upper_fs;
    __atomic_store_n(&t->lower_fs, fs, __ATOMIC_RELEASE);
}

static void *donor_main(void *slot) { /* never returns */
    donors[(size_t)slot].fs = mpy_fs_get();
    mpy_futex_wake((volatile uint32_t *)&donors[(size_t)slot].fs);
    for (;;) mpy_sys(SYS_pause);
    return NULL;
}

/* Waits for a request. Meanwhile it samples the trace's clock, at growing intervals. */
static void rest(uint32_t seen) {
    static long seconds = 1;
    const long time[2] = {seconds, 0};
    if (mpy_sys(SYS_futex, &request_word, FUTEX_WAIT, seen, time) != -ETIMEDOUT) return;
    mpy_recorder_sample();
    if (seconds < SAMPLES_S) seconds *= 2;
}

static void *maker_main(void *unused) {
    (void)unused;
    for (;;) {
        uint32_t seen = request_word;
        mpy_thread_t *t = request;
        if (!t) { rest(seen); continue; }
        int i = 0;
        while (i < ndonors && donors[i].lent) i++;
        if (i == ndonors && i < MPY_THREADS_MAX) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, donor_main, (void *)(size_t)i))
                mpy_fail(1, "cannot create a thread for MPI calls (check `ulimit -u`)");
            while (!donors[i].fs) mpy_futex_wait((volatile uint32_t *)&donors[i].fs, 0);
            ndonors++;
        }
        donors[i].lent = 1;
        lend(t, donors[i].fs);
        request = NULL;
        request_word++;
        mpy_futex_wake(&request_word);
    }
}

void mpy_threads_init(void) {
    pthread_t maker;
    sigset_t all, old;
    main_fs = mpy_fs_get();
    mpi_used = MPY_UPPER->mpi_initialized; /* a restart */
    mpy_wiped_words[MPY_WIPED_SOUND] = (uint32_t)mpy_sys(SYS_getpid);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* lower-half threads receive none of the program's signals */
    int failed = pthread_create(&maker, NULL, maker_main, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) mpy_fail(1, "cannot create a thread (check `ulimit -u`)");
}

/* Invariant 3 */
static void end_loans(void) {
    if (mpi_used) return;
    mpy_lock_acquire(&mpy_wiped_words[MPY_WIPED_LOAN]);
    mpi_used = 1;
    mpy_lock_release(&mpy_wiped_words[MPY_WIPED_LOAN]);
}

/* The lower TLS that the calling thread may use; 0: none. */
static uint64_t usable(uint64_t upper_fs) {
    const mpy_thread_t *own = 0;
    if (!mpi_used) return main_fs;
    for (uint32_t i = 0; i < MPY_THREADS_MAX && !own; i++)
        if (MPY_UPPER->threads[i].used && MPY_UPPER->threads[i].upper_fs == upper_fs) own = &MPY_UPPER->threads[i];
    if (own && own->in_lower) return 0;
    return mpy_sys(SYS_gettid) == mpy_sys(SYS_getpid) ? main_fs : own ? own->lower_fs : 0;
}

int mpy_thread_borrow(int (*fn)(void *), void *arg, int *result) {
    if (mpy_wiped_words[MPY_WIPED_SOUND] != (uint32_t)mpy_sys(SYS_getpid)) return 0;
    mpy_lock_acquire(&mpy_wiped_words[MPY_WIPED_LOAN]);
    uint64_t own = mpy_fs_get(), lower = usable(own);
    if (lower) {
        mpy_fs_set(lower);
        *result = mpy_on_stack(fn, arg, MPY_SERVICE_STACK_ADDR + MPY_SERVICE_STACK_SIZE);
        mpy_fs_set(own);
    }
    mpy_lock_release(&mpy_wiped_words[MPY_WIPED_LOAN]);
    return lower != 0;
}

void mpy_thread_forked(void) {
    main_fs = mpy_fs_get();
    mpi_used = 0;
    mpy_wiped_words[MPY_WIPED_SOUND] = (uint32_t)mpy_sys(SYS_getpid);
}

void mpy_thread_bind(mpy_thread_t *t) {
    end_loans();
    mpy_recorder_bind(t);
    if (mpy_sys(SYS_gettid) == mpy_sys(SYS_getpid)) {
        *(uint64_t *)(main_fs + (uint64_t)MPY_LOWER->tls_upper_fs) = t->upper_fs;
        t->lower_fs = main_fs;
        return;
    }
    mpy_lock_acquire(&request_lock);
    request = t;
    uint32_t seen = ++request_word;
    mpy_futex_wake(&request_word);
    while (request) {
        mpy_futex_wait(&request_word, seen);
        seen = request_word;
    }
    mpy_lock_release(&request_lock);
}

void mpy_thread_unbind(mpy_thread_t *t) {
    mpy_recorder_unbind(t);
    for (int i = 0; i < ndonors; i++)
        if (donors[i].fs == t->lower_fs) donors[i].lent = 0;
    t->lower_fs = 0;
}
