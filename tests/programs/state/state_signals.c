/* state_signals.c - handlers, masks, pending signals, alternate stacks, timers. */
#include "../checkpointed.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static pthread_t thread(void *(*body)(void *), void *argument) {
    pthread_t t;
    if (pthread_create(&t, NULL, body, argument)) abort();
    return t;
}

/* ---- inside a handler when the checkpoint comes, on an alternate stack ---- */

static volatile int inside, leave_handler, left_handler;
static char alternate[65536];

static void on_usr1(int sig, siginfo_t *info, void *context) {
    sigset_t mask;
    stack_t stack;
    char here;
    int number = info->si_value.sival_int;
    (void)context;
    inside = 1;
    while (!leave_handler) for (volatile int i = 0; i < 1000; i++) {}
    CHECK(sig == SIGUSR1 && number == 77);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK(sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGHUP));
    sigaltstack(NULL, &stack);
    CHECK(stack.ss_flags & SS_ONSTACK);
    CHECK(&here >= alternate && &here < alternate + sizeof alternate);
    left_handler = 1;
}

static void *signalled(void *a) {
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate}, before;
    sigaltstack(&stack, NULL);
    pthread_sigqueue(pthread_self(), SIGUSR1, (union sigval){.sival_int = 77});
    while (!left_handler) pause_ms(2);
    sigaltstack(NULL, &before);
    CHECK(before.ss_sp == alternate && before.ss_size == sizeof alternate && before.ss_flags == 0);
    return a;
}

static pthread_t in_handler_thread;
static void in_handler_set_up(void) {
    struct sigaction a = {.sa_sigaction = on_usr1, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigaddset(&a.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &a, NULL);
    in_handler_thread = thread(signalled, NULL);
    while (!inside) pause_ms(1);
}

static void in_handler_check(void) {
    struct sigaction a;
    leave_handler = 1;
    pthread_join(in_handler_thread, NULL);
    CHECK(left_handler);
    sigaction(SIGUSR1, NULL, &a);
    CHECK(a.sa_sigaction == on_usr1 && a.sa_flags & SA_ONSTACK && sigismember(&a.sa_mask, SIGUSR2));
}

/* ---- inside a handler that has interrupted the kernel's clock, whose state no restart can restore ---- */

static volatile int above, above_go, above_left;
static pthread_t above_thread;
static jmp_buf above_out;
static timer_t of_call; /* of timers, below: it expires while a checkpoint has halted its thread */
static volatile int has_call, expired;

static pthread_t arriving[3]; /* in calls which signals interrupt that arrive while the threads are halted */
static volatile int has_arriving, arrived[3];

/* A thread that runs again and again is halted: a checkpoint waits for the handler. */
static volatile int thread_fired;
static void wait_until_halted(void) {
    double until = now() + 20, since = now();
    for (int before = thread_fired; now() < until && now() < since + 0.5;)
        if (thread_fired != before) before = thread_fired, since = now();
}

static void on_prof(int sig, siginfo_t *info, void *context) {
    static int jumps;
    uint64_t rip = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)sig; (void)info;
    if (above || (rip >= 0x200000000000 && rip < 0x210000000000)) return;
    if (jumps++ < 3) siglongjmp(above_out, 1); /* the thread can still be halted later */
    above = 1;
    if (has_call) {
        wait_until_halted();
        expired = timer_settime(of_call, 0, &(struct itimerspec){{0}, {0, 1}}, NULL) == 0;
        for (int i = 0; i < 2 && has_arriving; i++) pthread_kill(arriving[i], SIGRTMIN + 11);
        if (has_arriving) kill(getpid(), SIGRTMIN + 12);
    }
    for (double until = now() + 0.3; now() < until;) {}
    above_left = 1;
}

static void *reads_clock(void *a) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    sigsetjmp(above_out, 1);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (!above_go) now();
    return a;
}

static void above_set_up(void) {
    struct sigaction a = {.sa_sigaction = on_prof, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPROF);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGPROF, &a, NULL);
    above_thread = thread(reads_clock, NULL);
    while (!above) pthread_kill(above_thread, SIGPROF), pause_ms(1);
}

static void above_check(void) {
    above_go = 1;
    pthread_join(above_thread, NULL);
    CHECK(above_left);
}

static void arrives(int sig) { (void)sig; }

static void *waits_for_arrival(void *a) {
    const long i = (long)a;
    int empty[2];
    char c;
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, i == 2 ? SIGRTMIN + 12 : SIGRTMIN + 11);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    if (pipe(empty)) abort();
    long rc = i == 0 ? pause() : read(empty[0], &c, 1);
    arrived[i] = rc == -1 ? errno : -1;
    return NULL;
}

static void arriving_set_up(void) {
    struct sigaction a = {.sa_handler = arrives};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 12);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before other threads exist that could take it */
    sigaction(SIGRTMIN + 11, &a, NULL);
    sigaction(SIGRTMIN + 12, &a, NULL);
    for (long i = 0; i < 3; i++) arriving[i] = thread(waits_for_arrival, (void *)i);
    pause_ms(20);
    has_arriving = 1;
}

static void arriving_check(void) {
    if (!expired) return;
    WAIT_UNTIL(arrived[0] && arrived[1] && arrived[2]);
    for (int i = 0; i < 3; i++) {
        CHECK(arrived[i] == EINTR);
        pthread_join(arriving[i], NULL);
    }
}

/* ---- actions and masks ---- */

static volatile int reset_count;
static void count(int sig) { (void)sig; reset_count++; }

static char spare[65536]; /* registered, but not in use at the checkpoint */
static volatile int on_spare;
static void look(int sig) {
    char here;
    (void)sig;
    on_spare = &here >= spare && &here < spare + sizeof spare;
}

static void actions_set_up(void) {
    struct sigaction a = {.sa_handler = count, .sa_flags = SA_RESETHAND};
    sigaction(SIGHUP, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGWINCH, SIG_DFL);
    a.sa_flags = SA_NODEFER;
    sigaction(SIGRTMIN + 3, &a, NULL);
    sigaltstack(&(stack_t){.ss_sp = spare, .ss_size = sizeof spare}, NULL);
    a = (struct sigaction){.sa_handler = look, .sa_flags = SA_ONSTACK};
    sigaction(SIGRTMIN + 4, &a, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTTOU);
    sigaddset(&set, SIGRTMAX - 1);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void actions_check(void) {
    struct sigaction a;
    sigset_t set;
    raise(SIGHUP);
    CHECK(reset_count == 1);
    sigaction(SIGHUP, NULL, &a);
    CHECK(a.sa_handler == SIG_DFL);
    sigaction(SIGPIPE, NULL, &a);
    CHECK(a.sa_handler == SIG_IGN);
    sigaction(SIGRTMIN + 3, NULL, &a);
    CHECK(a.sa_handler == count && a.sa_flags & SA_NODEFER);
    raise(SIGRTMIN + 3);
    CHECK(reset_count == 2);
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0);
    CHECK(stack.ss_sp == spare && stack.ss_size == sizeof spare && stack.ss_flags == 0);
    raise(SIGRTMIN + 4);
    CHECK(on_spare);
    sigprocmask(SIG_BLOCK, NULL, &set);
    CHECK(sigismember(&set, SIGTTOU) == 1 && sigismember(&set, SIGRTMAX - 1) == 1 && sigismember(&set, SIGHUP) == 0);
}

/* ---- pending signals, of the process and of a thread, with their values and in order ---- */

static volatile int pending_go;
static pthread_t pending_thread;
static volatile int thread_pending;
static pid_t sender;

static void *with_pending(void *a) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 6);
    sigaddset(&set, SIGXCPU);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_kill(pthread_self(), SIGXCPU);
    for (int i = 1; i <= 3; i++) pthread_sigqueue(pthread_self(), SIGRTMIN + 6, (union sigval){.sival_int = i});
    thread_pending = 1;
    while (!pending_go) pause_ms(2);
    siginfo_t info;
    CHECK(sigtimedwait(&set, &info, &(struct timespec){5}) == SIGXCPU);
    for (int i = 1; i <= 3; i++) {
        CHECK(sigtimedwait(&set, &info, &(struct timespec){5}) == SIGRTMIN + 6);
        CHECK(info.si_code == SI_QUEUE && info.si_value.sival_int == i);
    }
    CHECK(sigtimedwait(&set, &info, &(struct timespec){0}) == -1 && errno == EAGAIN);
    return a;
}

static void pending_set_up(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 5);
    sigaddset(&set, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before other threads exist that could take them */
    for (int i = 1; i <= 3; i++) sigqueue(getpid(), SIGRTMIN + 5, (union sigval){.sival_int = i * 10});
    sender = fork();
    if (sender == 0) {
        kill(getppid(), SIGXFSZ);
        _exit(0);
    }
    waitpid(sender, NULL, 0);
    pending_thread = thread(with_pending, NULL);
    while (!thread_pending) pause_ms(1);
}

static void pending_check(void) {
    sigset_t set, now_pending;
    siginfo_t info;
    sigpending(&now_pending);
    CHECK(sigismember(&now_pending, SIGXFSZ) == 1 && sigismember(&now_pending, SIGRTMIN + 5) == 1);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 5);
    for (int i = 1; i <= 3; i++) {
        CHECK(sigtimedwait(&set, &info, &(struct timespec){1}) == SIGRTMIN + 5);
        CHECK(info.si_value.sival_int == i * 10);
    }
    CHECK(sigtimedwait(&set, &info, &(struct timespec){0}) == -1 && errno == EAGAIN);
    sigaddset(&set, SIGXFSZ);
    CHECK(sigtimedwait(&set, &info, &(struct timespec){1}) == SIGXFSZ);
    CHECK(info.si_code == SI_USER && info.si_pid == sender);
    pending_go = 1;
    pthread_join(pending_thread, NULL);
}

/* ---- threads that wait for signals ---- */

static pthread_t waiting[3];
static volatile int waited[3], suspended;
static void nothing(int sig) { (void)sig; suspended++; }

static void *in_sigwait(void *a) {
    sigset_t set;
    int sig = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGURG);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    CHECK(sigwait(&set, &sig) == 0);
    waited[0] = sig;
    return a;
}

static void *in_sigsuspend(void *a) {
    sigset_t set;
    sigfillset(&set); /* timers of other states interrupt too */
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    sigdelset(&set, SIGIO);
    sigsuspend(&set);
    waited[1] = suspended;
    return a;
}

static void *in_ppoll(void *a) {
    sigset_t set;
    sigfillset(&set);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    int rc = ppoll(NULL, 0, &(struct timespec){2}, &set);
    waited[2] = rc == 0 ? 1 : -errno;
    return a;
}

static void waiting_set_up(void) {
    signal(SIGIO, nothing);
    waiting[0] = thread(in_sigwait, NULL);
    waiting[1] = thread(in_sigsuspend, NULL);
    waiting[2] = thread(in_ppoll, NULL);
    pause_ms(20);
}

static void waiting_check(void) {
    CHECK(!waited[0] && !waited[1]);
    pthread_kill(waiting[0], SIGURG);
    pthread_kill(waiting[1], SIGIO);
    for (int i = 0; i < 3; i++) pthread_join(waiting[i], NULL);
    CHECK(waited[0] == SIGURG);
    CHECK(waited[1] == 1);
    CHECK(waited[2] == 1);
}

/* ---- timers ---- */

static volatile int alarms, virtuals, posix_fired, posix_value, wrong_thread;
static timer_t posix, once, of_thread;
static volatile int calls, new_fired;
static void on_call(union sigval v) { (void)v; calls++; }
static void on_new(int sig) { (void)sig; new_fired++; }
static volatile pid_t timer_thread;
static void on_alarm(int sig) { (void)sig; alarms++; }
static void on_virtual(int sig) { (void)sig; virtuals++; }
static void on_posix(int sig, siginfo_t *info, void *c) {
    (void)sig;
    (void)c;
    posix_fired++;
    posix_value = info->si_value.sival_int;
}
static void on_thread(int sig) { (void)sig; thread_fired++; if (gettid() != timer_thread) wrong_thread++; }

static volatile int timers_done;
static pthread_t timed;
static void *has_timer(void *a) {
    timer_thread = gettid();
    while (!timers_done) pause_ms(2);
    return a;
}

static void timers_set_up(void) {
    struct sigaction a = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &a, NULL);
    a.sa_handler = on_virtual;
    sigaction(SIGVTALRM, &a, NULL);
    a.sa_handler = on_thread;
    sigaction(SIGRTMIN + 8, &a, NULL);
    a = (struct sigaction){.sa_sigaction = on_posix, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigaction(SIGRTMIN + 7, &a, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){{0, 10000}, {0, 10000}}, NULL);
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 7, .sigev_value.sival_int = 4711};
    timer_create(CLOCK_MONOTONIC, &e, &posix);
    timer_settime(posix, 0, &(struct itimerspec){{0, 15000000}, {0, 15000000}}, NULL);
    e.sigev_notify = SIGEV_NONE;
    timer_create(CLOCK_REALTIME, &e, &once);
    timer_settime(once, 0, &(struct itimerspec){{0}, {500}}, NULL);
    timed = thread(has_timer, NULL);
    while (!timer_thread) pause_ms(1);
    e = (struct sigevent){.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 8};
    e.sigev_notify_thread_id = timer_thread;
    CHECK(timer_create(CLOCK_MONOTONIC, &e, &of_thread) == 0);
    timer_settime(of_thread, 0, &(struct itimerspec){{0, 15000000}, {0, 15000000}}, NULL);
    e = (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_call};
    CHECK(timer_create(CLOCK_MONOTONIC, &e, &of_call) == 0); /* now there is the C library's thread for such timers */
    has_call = 1;
}

/* Timers that are made after the checkpoint, and clocks that contain an id. */
static void new_timers_check(void) {
    struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_call};
    timer_t by_thread, by_signal, by_clock;
    clockid_t of_process, of_main;
    struct timespec t;
    const struct itimerspec soon = {{0}, {0, 1000000}};
    int c = calls;
    CHECK(timer_create(CLOCK_MONOTONIC, &e, &by_thread) == 0 && timer_settime(by_thread, 0, &soon, NULL) == 0);
    WAIT_UNTIL(calls == c + 1);
    signal(SIGRTMIN + 10, on_new);
    e = (struct sigevent){.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 10};
    e.sigev_notify_thread_id = gettid();
    CHECK(timer_create(CLOCK_MONOTONIC, &e, &by_signal) == 0 && timer_settime(by_signal, 0, &soon, NULL) == 0);
    WAIT_UNTIL(new_fired == 1);
    CHECK(clock_getcpuclockid(getpid(), &of_process) == 0 && clock_gettime(of_process, &t) == 0);
    CHECK(pthread_getcpuclockid(pthread_self(), &of_main) == 0 && clock_gettime(of_main, &t) == 0);
    CHECK(timer_create(of_main, NULL, &by_clock) == 0);
    CHECK(timer_delete(by_thread) == 0 && timer_delete(by_signal) == 0 && timer_delete(by_clock) == 0);
    errno = 0;
    CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, (void *)16, &by_clock) == -1 && errno == EFAULT);
    CHECK(getpriority(PRIO_USER, getuid()) >= -20);
    char text[] = "text", copy[sizeof text];
    CHECK(process_vm_readv(getpid(), &(struct iovec){copy, sizeof copy}, 1, &(struct iovec){text, sizeof text}, 1, 0) ==
          sizeof text && strcmp(text, copy) == 0);
    CHECK(sched_rr_get_interval(gettid(), &t) == 0);
}

static void timers_check(void) {
    if (expired) WAIT_UNTIL(calls == 1);
    int a = alarms, v = virtuals, p = posix_fired, t = thread_fired;
    WAIT_UNTIL(alarms > a + 2);
    WAIT_UNTIL(posix_fired > p + 2);
    WAIT_UNTIL(thread_fired > t + 2);
    double until = now() + 20;
    while (virtuals <= v + 2 && now() < until) {}
    CHECK(virtuals > v + 2);
    CHECK(posix_value == 4711);
    CHECK(wrong_thread == 0);
    struct itimerspec left;
    CHECK(timer_gettime(once, &left) == 0);
    CHECK(left.it_value.tv_sec > 400 && left.it_value.tv_sec <= 500);
    CHECK(timer_delete(posix) == 0 && timer_delete(once) == 0 && timer_delete(of_thread) == 0);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){0}, NULL);
    timers_done = 1;
    pthread_join(timed, NULL);
    new_timers_check();
}

/* ---- descriptors of signals and timers ---- */

static int signal_fd, periodic, single;
static void descriptors_set_up(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 9);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    periodic = timerfd_create(CLOCK_MONOTONIC, 0);
    timerfd_settime(periodic, 0, &(struct itimerspec){{0, 20000000}, {0, 20000000}}, NULL);
    single = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    timerfd_settime(single, 0, &(struct itimerspec){{0}, {600}}, NULL);
}

static void descriptors_check(void) {
    struct signalfd_siginfo info;
    CHECK(read(signal_fd, &info, sizeof info) == -1 && errno == EAGAIN);
    sigqueue(getpid(), SIGRTMIN + 9, (union sigval){.sival_int = 5});
    struct pollfd p = {signal_fd, POLLIN, 0};
    CHECK(poll(&p, 1, 5000) == 1);
    CHECK(read(signal_fd, &info, sizeof info) == sizeof info && info.ssi_int == 5);
    uint64_t ticks = 0;
    CHECK(read(periodic, &ticks, 8) == 8 && ticks > 0);
    CHECK(read(periodic, &ticks, 8) == 8 && ticks > 0);
    CHECK(read(single, &ticks, 8) == -1 && errno == EAGAIN);
    struct itimerspec left;
    timerfd_gettime(single, &left);
    CHECK(left.it_value.tv_sec > 500 && left.it_value.tv_sec <= 600);
}

MAIN(STATE(descriptors), STATE(arriving), STATE(pending), STATE(actions), STATE(in_handler), STATE(waiting),
     STATE(timers), STATE(above))
