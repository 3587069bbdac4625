/* state_naps.c - waits of a certain length end, and about in time, however often checkpoints interrupt them. */
#include "../checkpointed.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

#define SECONDS 3

static const struct timespec length = {SECONDS};

static int by_usleep(void) { return usleep(SECONDS * 1000000); }
static int by_nanosleep(void) { return nanosleep(&length, NULL); }
static int by_nanosleep_with_rest(void) { return nanosleep(&length, &(struct timespec){0}); }
static int by_clock(void) { return clock_nanosleep(CLOCK_MONOTONIC, 0, &length, NULL); }
static int by_poll(void) { return poll(NULL, 0, SECONDS * 1000); }
static int by_ppoll(void) { return ppoll(NULL, 0, &length, NULL); }
static int by_select(void) { return select(0, NULL, NULL, NULL, &(struct timeval){SECONDS}); }
static int by_epoll(void) { return epoll_wait(epoll_create1(0), &(struct epoll_event){0}, 1, SECONDS * 1000); }
static int by_signal(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 12);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return sigtimedwait(&set, NULL, &length) == -1 && errno == EAGAIN ? 0 : -2;
}
static int by_futex(void) {
    static uint32_t word;
    long r = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &length, NULL, 0);
    return r == -1 && errno == ETIMEDOUT ? 0 : -2;
}

static int (*const naps[])(void) = {by_usleep, by_nanosleep, by_nanosleep_with_rest, by_clock, by_poll, by_ppoll,
                                    by_select, by_epoll,     by_signal,              by_futex};
enum { NAPS = sizeof naps / sizeof *naps };
static pthread_t napper[NAPS];

static void *nap(void *a) {
    long i = (long)a;
    double start = now();
    int r = naps[i]();
    double took = now() - start;
    if (r || took < SECONDS - 0.01) printf("FAILED nap %ld: %d after %.3f s\n", i, r, took), failures++;
    return a;
}

static void napping_set_up(void) {
    for (long i = 0; i < NAPS; i++) pthread_create(&napper[i], NULL, nap, (void *)i);
    pause_ms(50);
}

static void napping_check(void) {
    for (int i = 0; i < NAPS; i++) pthread_join(napper[i], NULL);
}

MAIN(STATE(napping))
