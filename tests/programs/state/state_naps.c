/* state_naps.c - sleeps end, and about in time, however often they are interrupted by checkpoints. */
#include "../checkpointed.h"

#include <poll.h>
#include <pthread.h>

#define SECONDS 3

static int by_usleep(void) { return usleep(SECONDS * 1000000); }
static int by_nanosleep(void) { return nanosleep(&(struct timespec){SECONDS}, NULL); }
static int by_nanosleep_with_rest(void) { return nanosleep(&(struct timespec){SECONDS}, &(struct timespec){0}); }
static int by_clock(void) { return clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){SECONDS}, NULL); }
static int by_poll(void) { return poll(NULL, 0, SECONDS * 1000); }

static int (*const naps[])(void) = {by_usleep, by_nanosleep, by_nanosleep_with_rest, by_clock, by_poll};
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
