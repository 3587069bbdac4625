/* thread.h - threads of our own, and how they wait for each other. Header only; libc. */
#ifndef MANAPY_THREAD_H
#define MANAPY_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "reason.h"

#define MPY_NO_DEADLINE INT64_MAX

/* Starts a detached thread with all signals blocked (it inherits the mask). */
static inline bool mpy_thread_start(void *(*body)(void *), char *error, size_t n) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    int rc = pthread_create(&thread, &attributes, body, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0 || mpy_refuse(error, n, "cannot create a thread: %s", strerror(rc));
}

/* For mpy_cond_wait_until. Nobody may wait for it yet. (pthread_cond_clockwait needs glibc 2.30.) */
static inline void mpy_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits until the condition is signalled, or until mpy_now_ms() is the deadline: then it returns false. */
static inline bool mpy_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline) {
    if (deadline == MPY_NO_DEADLINE) return pthread_cond_wait(cond, lock) == 0;
    const struct timespec due = {.tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000};
    return pthread_cond_timedwait(cond, lock, &due) == 0;
}

#endif
