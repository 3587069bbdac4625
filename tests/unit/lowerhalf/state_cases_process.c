/* state_cases_process.c - directory, name, limits, timers and signals of the process itself. */
#define _GNU_SOURCE
#include "state_cases.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

enum { NICEST = 19 }; /* the value that each process may set, whatever it was started with */

static volatile sig_atomic_t caught[65];
static volatile int caught_value[65]; /* the last */

static void handler(int number, siginfo_t *info, void *context) {
    (void)context;
    caught[number]++;
    caught_value[number] = info->si_value.sival_int;
}

static void handle(int number) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void process_setup(void) {
    CHECK(mkdir("deeper", 0755) == 0 || errno == EEXIST);
    CHECK(chdir("deeper") == 0);
    umask(037);
    prctl(PR_SET_NAME, "my program");
    CHECK(setpriority(PRIO_PROCESS, 0, NICEST) == 0);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 900;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max = 0;
    CHECK(setrlimit(RLIMIT_CORE, &limit) == 0);
    handle(SIGALRM), handle(SIGRTMIN + 1), handle(SIGUSR1);
    CHECK(setitimer(ITIMER_REAL, &(struct itimerval){{50, 0}, {1000, 0}}, NULL) == 0);
    CHECK(setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {2000, 0}}, NULL) == 0);
    int id;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 42};
    for (int i = 0; i < 5; i++) /* ids 1 and 4 stay */
        CHECK(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id) == 0 && id == i);
    CHECK(syscall(SYS_timer_delete, 0) == 0 && syscall(SYS_timer_delete, 2) == 0 && syscall(SYS_timer_delete, 3) == 0);
    CHECK(syscall(SYS_timer_settime, 1, 0, &(struct itimerspec){{5, 0}, {500, 0}}, NULL) == 0);
    CHECK(syscall(SYS_timer_settime, 4, 0, &(struct itimerspec){{0, 0}, {0, 300000000}}, NULL) == 0);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL); /* as the control thread does */
    for (int i = 7; i < 9; i++)
        CHECK(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i}) == 0);
}

static void process_verify(void) {
    char cwd[512], name[32];
    struct rlimit limit;
    CHECK(getcwd(cwd, sizeof cwd) && !strcmp(strrchr(cwd, '/'), "/deeper"));
    CHECK(umask(0) == 037);
    prctl(PR_GET_NAME, name);
    CHECK(!strcmp(name, "my program"));
    errno = 0;
    CHECK(getpriority(PRIO_PROCESS, 0) == NICEST && errno == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 900);
    CHECK(getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0 && limit.rlim_max == 0);
    struct itimerval interval;
    CHECK(getitimer(ITIMER_REAL, &interval) == 0 && interval.it_value.tv_sec > 900 &&
          interval.it_interval.tv_sec == 50);
    CHECK(getitimer(ITIMER_PROF, &interval) == 0 && interval.it_value.tv_sec > 1900);
    struct itimerspec left;
    CHECK(syscall(SYS_timer_gettime, 1, &left) == 0 && left.it_value.tv_sec > 400 && left.it_interval.tv_sec == 5);
    CHECK(syscall(SYS_timer_gettime, 0, &left) < 0 && syscall(SYS_timer_gettime, 3, &left) < 0);
    handle(SIGALRM), handle(SIGRTMIN + 1), handle(SIGUSR1); /* handlers come back with memory and threads */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    CHECK(caught[SIGRTMIN + 1] == 2 && caught_value[SIGRTMIN + 1] == 8);
    for (int i = 0; i < 200 && !caught[SIGUSR1]; i++)
        poll(NULL, 0, 20);
    CHECK(caught[SIGUSR1] == 1 && caught_value[SIGUSR1] == 42);
}

const test_case_t process_cases[] = {
    {"process", process_setup, process_verify},
    {NULL, NULL, NULL},
};
