/* state_clock.c - monotonic clocks never go backwards, however they are read; sleeps until an absolute time end at
 * it. */
#include "../checkpointed.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#define SECONDS 4

static const clockid_t clocks[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME};
enum { CLOCKS = sizeof clocks / sizeof *clocks };

static double seconds(struct timespec t) { return (double)t.tv_sec + (double)t.tv_nsec / 1e9; }

static double read_clock(int i, int raw) {
    struct timespec t = {-1, 0};
    if (raw) syscall(SYS_clock_gettime, clocks[i], &t);
    else clock_gettime(clocks[i], &t);
    return seconds(t);
}

static pthread_t reader;
static volatile int done;
static double longest; /* from one read of a clock to the next */

static void *read_all(void *a) {
    double last[CLOCKS] = {0};
    for (long round = 0; !done; round++) {
        for (int i = 0; i < CLOCKS; i++) {
            double t = read_clock(i, (int)(round & 1));
            if (t < last[i]) printf("FAILED clock %d went back from %.9f to %.9f\n", clocks[i], last[i], t), failures++;
            if (round && t - last[i] > longest) longest = t - last[i];
            last[i] = t;
        }
        pause_ms(1);
    }
    return a;
}

static void reading_set_up(void) { pthread_create(&reader, NULL, read_all, NULL); }

static void reading_check(void) {
    done = 1;
    pthread_join(reader, NULL);
    CHECK(longest < 100); /* the time between checkpoint and restart, without the difference to another machine's
                           * clock */
}

/* ---- sleeps until a time ---- */

static struct timespec in(double s) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)s;
    t.tv_nsec += (long)((s - (double)(time_t)s) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static int by_nanosleep(struct timespec until) { return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL); }
static int by_boottime(struct timespec until) {
    (void)until;
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    t.tv_sec += SECONDS;
    return clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, NULL);
}
static int by_futex(struct timespec until) {
    static uint32_t word;
    long r = syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &until, NULL, -1);
    return r == -1 && errno == ETIMEDOUT ? 0 : -2;
}
static int by_condition(struct timespec until) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t condition;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&condition, &attr);
    pthread_mutex_lock(&mutex);
    int r;
    do r = pthread_cond_timedwait(&condition, &mutex, &until);
    while (r == 0);
    pthread_mutex_unlock(&mutex);
    return r == ETIMEDOUT ? 0 : r;
}
static int by_timer(struct timespec until) {
    uint64_t ticks;
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    timerfd_settime(fd, TFD_TIMER_ABSTIME, &(struct itimerspec){.it_value = until}, NULL);
    int r = read(fd, &ticks, sizeof ticks) == sizeof ticks && ticks == 1 ? 0 : -2;
    close(fd);
    return r;
}

static int (*const sleeps[])(struct timespec) = {by_nanosleep, by_boottime, by_futex, by_condition, by_timer};
enum { SLEEPS = sizeof sleeps / sizeof *sleeps };
static pthread_t sleeper[SLEEPS];

/* One sleep after the other. Some begin before a checkpoint and end after a restart, others begin in restarted
 * processes. */
static void *sleep_until(void *a) {
    long i = (long)a;
    for (int round = 0; round < 2; round++) {
        struct timespec until = in(SECONDS);
        int r = sleeps[i](until);
        double over = now() - seconds(until);
        if (r || over < -0.01 || over > 60)
            printf("FAILED sleep %ld, round %d: %d, %.3f s after its time\n", i, round, r, over), failures++;
    }
    return a;
}

static void sleeping_set_up(void) {
    for (long i = 0; i < SLEEPS; i++) pthread_create(&sleeper[i], NULL, sleep_until, (void *)i);
    pause_ms(50);
}

static void sleeping_check(void) {
    for (int i = 0; i < SLEEPS; i++) pthread_join(sleeper[i], NULL);
}

MAIN(STATE(reading), STATE(sleeping))
