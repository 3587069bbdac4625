/* state_cases_refused.c - state that can't be saved, and a child that ends in time. */
#define _GNU_SOURCE
#include "state_cases.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

static void tcp_setup(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(server, (struct sockaddr *)&address, sizeof address) == 0 && listen(server, 1) == 0);
    CHECK(getsockname(server, (struct sockaddr *)&address, &bytes) == 0);
    at(10, socket(AF_INET, SOCK_STREAM, 0));
    CHECK(connect(10, (struct sockaddr *)&address, sizeof address) == 0);
    at(30, accept(server, NULL, NULL));
}

static void udp_setup(void) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9)};
    at(10, socket(AF_INET, SOCK_DGRAM, 0));
    CHECK(connect(10, (struct sockaddr *)&address, sizeof address) == 0);
}

static void inotify_setup(void) {
    at(10, inotify_init1(0));
}

static void pidfd_setup(void) {
    at(10, (int)syscall(SYS_pidfd_open, getpid(), 0));
}

static void netlink_setup(void) {
    at(10, socket(AF_NETLINK, SOCK_RAW, 0));
}

static void named_setup(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "sock"};
    unlink("sock");
    at(10, socket(AF_UNIX, SOCK_STREAM, 0));
    CHECK(bind(10, (struct sockaddr *)&address, sizeof address) == 0);
}

static void large_setup(void) {
    at(10, open("large", O_RDWR | O_CREAT, 0600));
    CHECK(ftruncate(10, (64 << 20) + 1) == 0 && unlink("large") == 0);
}

static void ptmx_setup(void) {
    at(10, open("/dev/ptmx", O_RDWR | O_NOCTTY));
}

/* The other end is in a child process. */
static void outside(int p[2]) {
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* otherwise the parent has ended before, and no signal would end this process */
        if (getppid() == parent) pause();
        _exit(0);
    }
    at(10, p[0]);
    close(p[1]);
}

static void pipe_outside_setup(void) {
    int p[2];
    CHECK(pipe(p) == 0);
    outside(p);
}

static void pair_outside_setup(void) {
    int p[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    outside(p);
}

static void lease_setup(void) {
    at(10, open("leased", O_RDWR | O_CREAT, 0600));
    CHECK(fcntl(10, F_SETLEASE, F_WRLCK) == 0);
}

static void thread_file_setup(void) { at(10, open("/proc/thread-self/stat", O_RDONLY)); }

static void parents_file_setup(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", getppid());
    at(10, open(path, O_RDONLY));
}

static void thread_clock_setup(void) {
    int id;
    CHECK(syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, NULL, &id) == 0);
}

static void async_setup(void) {
    at(10, socket(AF_INET, SOCK_STREAM, 0));
    CHECK(fcntl(10, F_SETFL, O_ASYNC) == 0);
}

static void child_setup(void) {
    int ready[2];
    CHECK(pipe2(ready, O_CLOEXEC) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("sleep", "sleep", "300", NULL);
        _exit(1);
    }
    char byte;
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 0); /* exec has closed the other end */
    close(ready[0]);
}

/* A process that shows its work by its name overwrites its command, which lies before the environment. */
static void nameless_child_setup(void) {
    int ready[2];
    CHECK(pipe2(ready, O_CLOEXEC) == 0);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "worker");
        memset(program_invocation_name, 0, (size_t)(environ[0] - program_invocation_name));
        close(ready[0]);
        close(ready[1]);
        for (;;) pause();
    }
    char byte;
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 0); /* the child has closed the other end */
    close(ready[0]);
}

/* Ends by itself within the grace time, so it isn't refused. */
static void short_child_setup(void) {
    if (fork() == 0) {
        usleep(200 * 1000);
        _exit(0);
    }
}

const test_case_t refused_cases[] = {
    {"tcp", tcp_setup, NULL},
    {"udp", udp_setup, NULL},
    {"inotify", inotify_setup, NULL},
    {"pidfd", pidfd_setup, NULL},
    {"netlink", netlink_setup, NULL},
    {"named", named_setup, NULL},
    {"large", large_setup, NULL},
    {"ptmx", ptmx_setup, NULL},
    {"pipe_outside", pipe_outside_setup, NULL},
    {"pair_outside", pair_outside_setup, NULL},
    {"lease", lease_setup, NULL},
    {"thread_file", thread_file_setup, NULL},
    {"parents_file", parents_file_setup, NULL},
    {"thread_clock", thread_clock_setup, NULL},
    {"async", async_setup, NULL},
    {"child", child_setup, NULL},
    {"nameless_child", nameless_child_setup, NULL},
    {"short_child", short_child_setup, NULL},
    {NULL, NULL, NULL},
};
