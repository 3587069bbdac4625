/* state_sleeps.c - system calls that sleep while the checkpoint is taken: none returns EINTR, and time-outs are about
 * right. */
#include "../checkpointed.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define SECONDS 3

static int empty[2];

static int by_nanosleep(void) { return nanosleep(&(struct timespec){SECONDS}, &(struct timespec){0}); }
static int by_nanosleep_without_rest(void) { return nanosleep(&(struct timespec){SECONDS}, NULL); }
static int by_clock_relative(void) { return clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){SECONDS}, NULL); }
static int by_clock_absolute(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += SECONDS;
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}
static int by_usleep(void) { return usleep(SECONDS * 1000000); }
static int by_sleep(void) { return (int)sleep(SECONDS); }
static int by_poll(void) { return poll(&(struct pollfd){empty[0], POLLIN, 0}, 1, SECONDS * 1000); }
static int by_ppoll(void) { return ppoll(&(struct pollfd){empty[0], POLLIN, 0}, 1, &(struct timespec){SECONDS}, NULL); }
static int by_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(empty[0], &set);
    return select(empty[0] + 1, &set, NULL, NULL, &(struct timeval){SECONDS, 0});
}
static int by_pselect(void) { return pselect(0, NULL, NULL, NULL, &(struct timespec){SECONDS}, NULL); }
static int by_epoll(void) {
    int e = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(e, EPOLL_CTL_ADD, empty[0], &event);
    return epoll_wait(e, &event, 1, SECONDS * 1000);
}
static int by_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 12);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int rc = sigtimedwait(&set, NULL, &(struct timespec){SECONDS});
    return rc == -1 && errno == EAGAIN ? 0 : -2;
}
static int by_futex(void) {
    static uint32_t word;
    long rc = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &(struct timespec){SECONDS}, NULL, 0);
    return rc == -1 && errno == ETIMEDOUT ? 0 : -2;
}
static int by_receive_timeout(void) {
    int pair[2];
    char c;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){SECONDS, 0}, sizeof(struct timeval));
    ssize_t n = recv(pair[0], &c, 1, 0);
    return n == -1 && errno == EAGAIN ? 0 : -2;
}

static int by_receive_many(void) {
    int pair[2];
    char c;
    struct iovec v = {&c, 1};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    socketpair(AF_UNIX, SOCK_DGRAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){SECONDS, 0}, sizeof(struct timeval));
    int n = recvmmsg(pair[0], &m, 1, 0, NULL);
    return n == -1 && errno == EAGAIN ? 0 : -2;
}

static const struct { const char *name; int (*call)(void);
} calls[] = {
#define CALL(name) {#name, by_##name}
    CALL(nanosleep),      CALL(nanosleep_without_rest),
    CALL(clock_relative), CALL(clock_absolute),
    CALL(usleep),         CALL(sleep),
    CALL(poll),           CALL(ppoll),
    CALL(select),         CALL(pselect),
    CALL(epoll),          CALL(sigtimedwait),
    CALL(futex),          CALL(receive_timeout),
    CALL(receive_many),
};
enum { CALLS = sizeof calls / sizeof *calls };
static struct { pthread_t thread; int rc, error; double took; } done[CALLS];

static void *one(void *a) {
    long i = (long)a;
    double start = now();
    errno = 0;
    done[i].rc = calls[i].call();
    done[i].error = errno;
    done[i].took = now() - start;
    return NULL;
}

static void timed_set_up(void) {
    if (pipe(empty)) abort();
    for (long i = 0; i < CALLS; i++) pthread_create(&done[i].thread, NULL, one, (void *)i);
    pause_ms(50);
}

static void timed_check(void) {
    for (int i = 0; i < CALLS; i++) {
        pthread_join(done[i].thread, NULL);
        if (done[i].rc != 0 || done[i].took < SECONDS - 0.01)
            printf("FAILED %s: returned %d (errno %d) after %.3f s\n", calls[i].name, done[i].rc, done[i].error,
                   done[i].took),
                failures++;
    }
}

/* ---- without a time-out ---- */

static int data[2], lock_file, listener[2];
static pthread_t blocked[5];
static volatile int result[5];

static void *in_read(void *a) { char c = 0; result[0] = read(data[0], &c, 1) == 1 && c == 'x' ? 1 : -errno; return a; }
static void *in_flock(void *a) {
    int other = open("sleeps.lock", O_RDWR);
    result[1] = flock(other, LOCK_EX) == 0 ? 1 : -errno;
    return a;
}
static void *in_pause(void *a) { int rc = pause(); result[2] = rc == -1 && errno == EINTR ? 1 : -1; return a; }
static void *in_recvmsg(void *a) {
    char c;
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    result[3] = recvmsg(listener[0], &m, 0) == 1 ? 1 : -errno;
    return a;
}
static void *in_poll(void *a) {
    result[4] = poll(&(struct pollfd){listener[0], POLLIN, 0}, 1, -1) == 1 ? 1 : -errno;
    return a;
}
static void wake(int sig) { (void)sig; }

static void endless_set_up(void) {
    signal(SIGRTMIN + 2, wake);
    if (pipe(data) || socketpair(AF_UNIX, SOCK_STREAM, 0, listener)) abort();
    lock_file = open("sleeps.lock", O_RDWR | O_CREAT, 0600);
    flock(lock_file, LOCK_EX);
    void *(*body[5])(void *) = {in_read, in_flock, in_pause, in_recvmsg, in_poll};
    for (int i = 0; i < 5; i++) pthread_create(&blocked[i], NULL, body[i], NULL);
    pause_ms(50);
}

static void endless_check(void) {
    for (int i = 0; i < 5; i++)
        if (result[i]) printf("FAILED endless: call %d has returned %d\n", i, result[i]), failures++;
    CHECK(write(data[1], "x", 1) == 1);
    flock(lock_file, LOCK_UN);
    CHECK(write(listener[1], "xy", 2) == 2);
    WAIT_UNTIL(result[0] && result[1] && result[3] && result[4]);
    pthread_kill(blocked[2], SIGRTMIN + 2);
    for (int i = 0; i < 5; i++) pthread_join(blocked[i], NULL);
    for (int i = 0; i < 5; i++)
        if (result[i] != 1) printf("FAILED endless: call %d returned %d\n", i, result[i]), failures++;
}

/* ---- many short sleeps ---- */

enum { SHORT = 4 };
static pthread_t short_threads[SHORT];
static volatile int short_end, interrupted[SHORT];

static void *in_short(void *a) {
    long i = (long)a;
    const struct timespec ms = {0, 1000000};
    while (!short_end) {
        int rc = i % 2 ? poll(NULL, 0, 1) : (int)syscall(SYS_nanosleep, &ms, NULL);
        interrupted[i] += rc != 0;
    }
    return a;
}

static void short_set_up(void) {
    for (long i = 0; i < SHORT; i++) pthread_create(&short_threads[i], NULL, in_short, (void *)i);
}

static void short_check(void) {
    short_end = 1;
    for (int i = 0; i < SHORT; i++) {
        pthread_join(short_threads[i], NULL);
        if (interrupted[i]) printf("FAILED short: %d calls of thread %d\n", interrupted[i], i), failures++;
    }
}

MAIN(STATE(timed), STATE(endless), STATE(short))
