/* state_cases_channels.c - pipes, sockets, and descriptors of events. */
#define _GNU_SOURCE
#include "state_cases.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

/* ---- pipes ---- */

static void pipes_setup(void) {
    int p[2];
    CHECK(pipe(p) == 0);
    at(10, p[0]), at(11, p[1]);
    CHECK(write(11, "buffered", 8) == 8);
    fcntl(10, F_SETFL, O_NONBLOCK);
    CHECK(dup2(11, 16) == 16);
    CHECK(pipe2(p, O_DIRECT) == 0); /* packets */
    at(12, p[0]), at(13, p[1]);
    CHECK(write(13, "aa", 2) == 2 && write(13, "bbb", 3) == 3);
    CHECK(pipe(p) == 0); /* the writer has closed */
    at(14, p[0]);
    CHECK(write(p[1], "last", 4) == 4);
    close(p[1]);
    CHECK(pipe(p) == 0); /* the reader has closed */
    at(15, p[1]);
    close(p[0]);
    CHECK(pipe(p) == 0); /* large and full */
    at(17, p[0]), at(18, p[1]);
    CHECK(fcntl(18, F_SETPIPE_SZ, 256 << 10) == 256 << 10);
    static char big[256 << 10];
    memset(big, 'x', sizeof big);
    CHECK(write(18, big, sizeof big) == (ssize_t)sizeof big);
}

static void pipes_verify(void) {
    static char big[512 << 10];
    int bytes;
    CHECK(status(10) == O_NONBLOCK && status(11) == O_WRONLY);
    expect_read(10, "buffered");
    CHECK(read(10, big, 1) < 0 && errno == EAGAIN);
    CHECK(write(16, "more", 4) == 4);
    expect_read(10, "more");
    expect_read(12, "aa");
    expect_read(12, "bbb");
    expect_read(14, "last");
    CHECK(read(14, big, 1) == 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK(write(15, "x", 1) < 0 && errno == EPIPE);
    CHECK(fcntl(17, F_GETPIPE_SZ) == 256 << 10 && ioctl(17, FIONREAD, &bytes) == 0 && bytes == 256 << 10);
    close(11), close(16);
    CHECK(read(10, big, 1) == 0); /* no other process holds an end */
}

static void fifo_setup(void) {
    unlink("fifo");
    CHECK(mkfifo("fifo", 0600) == 0);
    at(10, open("fifo", O_RDONLY | O_NONBLOCK));
    at(11, open("fifo", O_WRONLY));
    CHECK(write(11, "waiting", 7) == 7);
}

static void fifo_verify(void) {
    expect_read(10, "waiting");
    CHECK(write(11, "x", 1) == 1);
    expect_read(10, "x");
    CHECK(status(10) == O_NONBLOCK && status(11) == O_WRONLY);
}

/* ---- Unix sockets ---- */

static void pairs_setup(void) {
    int p[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0); /* as asyncio makes it */
    at(10, p[0]), at(11, p[1]);
    fcntl(10, F_SETFL, O_NONBLOCK);
    CHECK(write(11, "wake", 4) == 4 && write(11, "up", 2) == 2 && write(10, "back", 4) == 4);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, p) == 0);
    at(12, p[0]), at(13, p[1]);
    static char large[60000];
    memset(large, 'd', sizeof large);
    CHECK(write(12, "a", 1) == 1 && write(12, "", 0) == 0 && write(12, large, sizeof large) == (ssize_t)sizeof large &&
          write(12, "z", 1) == 1);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p) == 0);
    at(14, p[0]), at(15, p[1]);
    CHECK(write(15, "pkt", 3) == 3);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0); /* the partner has closed */
    at(16, p[0]);
    CHECK(write(p[1], "bye", 3) == 3);
    close(p[1]);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0); /* half shut down */
    at(17, p[0]), at(18, p[1]);
    CHECK(write(17, "end", 3) == 3 && shutdown(17, SHUT_WR) == 0);
    int size = 300000;
    setsockopt(17, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    at(19, socket(AF_UNIX, SOCK_STREAM, 0));
}

static int option(int fd, int name) {
    int value = -1;
    socklen_t bytes = sizeof value;
    getsockopt(fd, SOL_SOCKET, name, &value, &bytes);
    return value;
}

static void pairs_verify(void) {
    static char buffer[70000];
    CHECK(status(10) == (O_RDWR | O_NONBLOCK) && status(11) == O_RDWR);
    expect_read(10, "wakeup");
    CHECK(read(10, buffer, 1) < 0 && errno == EAGAIN);
    expect_read(11, "back");
    CHECK(write(11, "new", 3) == 3);
    expect_read(10, "new");
    expect_read(13, "a");
    expect_read(13, "");
    CHECK(read(13, buffer, sizeof buffer) == 60000 && buffer[59999] == 'd');
    expect_read(13, "z");
    CHECK(write(13, "r", 1) == 1);
    expect_read(12, "r");
    expect_read(14, "pkt");
    expect_read(16, "bye");
    CHECK(read(16, buffer, 1) == 0);
    expect_read(18, "end");
    CHECK(read(18, buffer, 1) == 0 && write(18, "still", 5) == 5);
    expect_read(17, "still");
    CHECK(send(17, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    CHECK(option(17, SO_RCVBUF) > 212992 || option(17, SO_RCVBUF) == 212992 * 2);
    CHECK(option(14, SO_TYPE) == SOCK_SEQPACKET && option(19, SO_DOMAIN) == AF_UNIX);
}

static void sockets_setup(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    at(10, socket(AF_INET, SOCK_STREAM, 0));
    CHECK(setsockopt(10, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0); /* as servers do */
    CHECK(bind(10, (struct sockaddr *)&address, sizeof address) == 0 && listen(10, 7) == 0);
    at(11, socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    at(12, socket(AF_INET6, SOCK_STREAM, 0));
}

static void sockets_verify(void) {
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    CHECK(getsockname(10, (struct sockaddr *)&address, &bytes) == 0 && address.sin_port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    int peer = accept(10, NULL, NULL);
    CHECK(peer >= 0 && write(fd, "tcp", 3) == 3);
    expect_read(peer, "tcp");
    CHECK(option(11, SO_TYPE) == SOCK_DGRAM && (status(11) & O_NONBLOCK) && option(12, SO_DOMAIN) == AF_INET6);
    close(peer); /* first, so that it leaves the port in TIME_WAIT */
    close(fd);
}

/* ---- events ---- */

static void events_setup(void) {
    int p[2];
    at(10, eventfd(5, EFD_NONBLOCK));
    at(11, eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK));
    at(12, eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK));
    at(13, timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    timerfd_settime(13, 0, &(struct itimerspec){{7, 0}, {3600, 0}}, NULL);
    at(14, timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK));
    timerfd_settime(14, TFD_TIMER_ABSTIME, &(struct itimerspec){{0, 0}, {1000, 0}}, NULL); /* in the past: expired */
    usleep(1000);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    at(15, signalfd(-1, &set, SFD_NONBLOCK));
    CHECK(pipe(p) == 0);
    at(16, p[0]), at(17, p[1]);
    at(18, epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef0};
    CHECK(epoll_ctl(18, EPOLL_CTL_ADD, 16, &event) == 0);
    event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT | EPOLLET, .data.u64 = 2};
    CHECK(epoll_ctl(18, EPOLL_CTL_ADD, 12, &event) == 0);
    at(19, epoll_create1(0)); /* nested */
    event = (struct epoll_event){.events = EPOLLIN, .data.u64 = 3};
    CHECK(epoll_ctl(19, EPOLL_CTL_ADD, 18, &event) == 0);
    CHECK(dup2(12, 21) == 21); /* it is in the set under a number that is closed now */
    CHECK(epoll_ctl(19, EPOLL_CTL_ADD, 21, &event) == 0);
    close(21);
}

static void events_verify(void) {
    uint64_t value;
    struct epoll_event ready[4];
    CHECK(read(10, &value, 8) == 8 && value == 5 && read(10, &value, 8) < 0 && errno == EAGAIN);
    for (int i = 0; i < 3; i++)
        CHECK(read(11, &value, 8) == 8 && value == 1);
    CHECK(read(11, &value, 8) < 0 && read(12, &value, 8) < 0 && errno == EAGAIN);
    struct itimerspec left;
    CHECK(timerfd_gettime(13, &left) == 0 && left.it_interval.tv_sec == 7 && left.it_value.tv_sec > 3500);
    CHECK(read(14, &value, 8) == 8 && value == 1);
    struct signalfd_siginfo info;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL); /* masks are restored with the threads */
    kill(getpid(), SIGUSR2);
    CHECK(read(15, &info, sizeof info) == (ssize_t)sizeof info && info.ssi_signo == SIGUSR2);
    CHECK(epoll_wait(18, ready, 4, 0) == 0);
    CHECK(write(17, "x", 1) == 1);
    CHECK(epoll_wait(18, ready, 4, 0) == 1 && ready[0].data.u64 == 0x123456789abcdef0 && ready[0].events == EPOLLIN);
    CHECK(epoll_wait(19, ready, 4, 0) == 1 && ready[0].data.u64 == 3);
    value = 1;
    CHECK(write(12, &value, 8) == 8);
    CHECK(epoll_wait(18, ready, 4, 0) == 2);
    CHECK(epoll_wait(18, ready, 4, 0) == 1); /* one shot */
    CHECK(closed(21));
}

const test_case_t channel_cases[] = {
    {"pipes", pipes_setup, pipes_verify},
    {"fifo", fifo_setup, fifo_verify},
    {"pairs", pairs_setup, pairs_verify},
    {"sockets", sockets_setup, sockets_verify},
    {"events", events_setup, events_verify},
    {NULL, NULL, NULL},
};
