/* Frame of the programs state_*.c: each state is a pair of functions, set up and check; see state/checkpointed.py. */
#ifndef CHECKPOINTED_H
#define CHECKPOINTED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        int saved_errno = errno;                                                                                       \
        if (!(condition))                                                                                              \
            printf("FAILED %s:%d: %s (errno %d)\n", __func__, __LINE__, #condition, saved_errno), failures++;          \
    } while (0)

typedef struct { const char *name; void (*set_up)(void); void (*check)(void); } state_t;
#define STATE(name) {#name, name##_set_up, name##_check}

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void pause_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
    while (nanosleep(&t, &t)) {}
}

/* Wait for the action of another thread. */
#define WAIT_UNTIL(condition)                                             \
    do {                                                                  \
        double until_ = now() + 30;                                       \
        while (!(condition) && now() < until_) pause_ms(5);               \
        CHECK(condition);                                                 \
    } while (0)

/* Set up the states that the arguments name (none: all), or check them. */
static inline void each_state(int argc, char **argv, const state_t *states, size_t n, int check) {
    for (size_t i = 0; i < n; i++) {
        int chosen = argc == 1;
        for (int a = 1; a < argc; a++) chosen |= strcmp(argv[a], states[i].name) == 0;
        if (chosen && check) states[i].check();
        else if (chosen) states[i].set_up();
    }
}

/* Everything is set up: the test may checkpoint. Returns when the states are to be checked. */
static inline void wait_for_go(void) {
    const char *go = getenv("STATE_GO");
    puts("ready");
    fflush(stdout);
    while (access(go, F_OK)) pause_ms(10);
}

static inline int say_result(int failed) {
    puts(failed ? "failed" : "ok");
    fflush(stdout);
    return failed != 0;
}

static inline int run_states(int argc, char **argv, const state_t *states, size_t n) {
    each_state(argc, argv, states, n, 0);
    wait_for_go();
    each_state(argc, argv, states, n, 1);
    return say_result(failures);
}

#define MAIN(...)                                                                         \
    int main(int argc, char **argv) {                                                     \
        static const state_t states[] = {__VA_ARGS__};                                    \
        return run_states(argc, argv, states, sizeof states / sizeof *states);            \
    }

#endif
