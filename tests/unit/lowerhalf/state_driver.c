/* state_driver.c - plays a program whose state lowerhalf/state saves in one process and restores in another.
 *
 *   state_driver save CASE FILE      set the case up, check, save to FILE, then verify: saving must have changed nothing
 *   state_driver restore CASE FILE   restore from FILE, then verify
 *   state_driver refuse CASE         set the case up; prints the reason for which check refuses it
 *   state_driver corrupt CASE FILE   restore damaged versions of FILE, each in a child process: none may crash
 *
 * Exit status 0, 1 (a line on stderr says why) or, for restore, 3 with the reason on stdout. MPY_NO_KCMP=1 in the environment
 * denies kcmp(2), as some container runtimes do.
 */
#define _GNU_SOURCE
#include "check.h"
#include "state/children.h"
#include "state/cpu.h"
#include "state/fdguard.h"
#include "state/fds.h"
#include "state/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int restored;         /* verify runs after a restart */
static volatile sig_atomic_t caught[65];
static volatile int caught_value;

static void at(int number, int fd)
{
    CHECK(fd >= 0);
    CHECK(dup2(fd, number) == number);
    close(fd);
}

static void expect_read(int fd, const char *text)
{
    char buffer[256] = "";
    ssize_t got = read(fd, buffer, sizeof buffer - 1);
    if (got != (ssize_t)strlen(text) || strcmp(buffer, text))
        fprintf(stderr, "read \"%s\" (%zd), expected \"%s\"\n", buffer, got, text);
    CHECK(got == (ssize_t)strlen(text) && !strcmp(buffer, text));
}

static int closed(int fd)
{
    return fcntl(fd, F_GETFD) < 0 && errno == EBADF;
}

static int status(int fd)
{
    return fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC);
}

static int probed_size(const char *path)
{
    struct stat st;
    return stat(path, &st) ? -1 : (int)st.st_size;
}

/* ---- files ---- */

static void files_setup(void)
{
    at(20, open("in.txt", O_RDWR | O_CREAT, 0644));
    CHECK(write(20, "hello world", 11) == 11);
    at(10, open("in.txt", O_RDONLY));
    CHECK(lseek(10, 6, SEEK_SET) == 6);
    CHECK(dup2(10, 11) == 11); /* shares the offset */
    at(12, open("in.txt", O_RDONLY | O_CLOEXEC)); /* doesn't */
    fcntl(12, F_SETFD, FD_CLOEXEC);
    at(13, open("log.txt", O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK, 0600));
    CHECK(write(13, "one\n", 4) == 4);
    at(14, open("sync.txt", O_WRONLY | O_CREAT | O_DSYNC, 0600));
    at(15, open(".", O_RDONLY | O_DIRECTORY));
    at(16, open("/proc/self/status", O_RDONLY));
    at(17, open("in.txt", O_PATH));
    at(600, open("in.txt", O_RDONLY)); /* above the lower half's base */
    at(18, open("blank name\nx (deleted)", O_RDWR | O_CREAT, 0644));
    close(20);
}

static void files_verify(void)
{
    char name[16];
    struct stat st;
    CHECK(closed(20));
    expect_read(10, "world");
    CHECK(lseek(11, 0, SEEK_CUR) == 11 && lseek(12, 0, SEEK_CUR) == 0);
    CHECK(fcntl(10, F_GETFD) == 0 && fcntl(12, F_GETFD) == FD_CLOEXEC);
    CHECK(status(13) == (O_WRONLY | O_APPEND | O_NONBLOCK) && status(14) == (O_WRONLY | O_DSYNC));
    CHECK(write(13, "two\n", 4) == 4 && probed_size("log.txt") == 8);
    CHECK(fstatat(15, "in.txt", &st, 0) == 0);
    CHECK(read(16, name, 5) == 5 && !memcmp(name, "Name:", 5));
    CHECK(fcntl(17, F_GETFL) & O_PATH);
    expect_read(600, "hello world");
    CHECK(fstat(18, &st) == 0 && st.st_nlink == 1);
    if (restored)
        CHECK(truncate("log.txt", 4) == 0);
}

/* The file grows after the checkpoint, and is cut at the restart. */
static void grown_setup(void)
{
    at(10, open("out.txt", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    CHECK(write(10, "step 1\n", 7) == 7);
}

static void grown_verify(void)
{
    CHECK(write(10, restored ? "STEP 2\n" : "step 2 and more\n", restored ? 7 : 16) > 0);
    CHECK(probed_size("out.txt") == (restored ? 14 : 23));
}

static void deleted_setup(void)
{
    at(10, open("gone", O_RDWR | O_CREAT, 0600));
    CHECK(write(10, "contents", 8) == 8);
    at(11, open("gone", O_RDONLY));
    at(12, open("gone", O_WRONLY | O_APPEND));
    CHECK(unlink("gone") == 0);
    at(13, open(".", O_TMPFILE | O_RDWR, 0400));
    CHECK(write(13, "tmp", 3) == 3);
    at(14, memfd_create("mem", MFD_ALLOW_SEALING));
    CHECK(write(14, "memory", 6) == 6 && lseek(14, 2, SEEK_SET) == 2);
    CHECK(fcntl(14, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    at(15, open("only", O_WRONLY | O_CREAT, 0600)); /* nobody can read it but through /proc */
    CHECK(write(15, "secret", 6) == 6 && unlink("only") == 0);
}

static void deleted_verify(void)
{
    struct stat a, b;
    char buffer[16] = "";
    CHECK(fstat(10, &a) == 0 && fstat(11, &b) == 0 && a.st_nlink == 0 && a.st_ino == b.st_ino);
    CHECK(lseek(10, 0, SEEK_CUR) == 8 && lseek(11, 0, SEEK_CUR) == 0);
    expect_read(11, "contents");
    CHECK(write(12, "+", 1) == 1);
    expect_read(11, "+");
    CHECK(pread(13, buffer, 9, 0) == 3 && !strcmp(buffer, "tmp") && lseek(13, 0, SEEK_CUR) == 3);
    CHECK(fstat(13, &a) == 0 && (a.st_mode & 0777) == 0400);
    expect_read(14, "mory");
    CHECK(fcntl(14, F_GET_SEALS) == F_SEAL_SHRINK);
    CHECK(fstat(15, &a) == 0 && a.st_size == 6 && lseek(15, 0, SEEK_CUR) == 6);
}

static void locks_setup(void)
{
    at(10, open("a.lock", O_RDWR | O_CREAT, 0600));
    CHECK(flock(10, LOCK_EX) == 0);
    at(11, open("b.lock", O_RDWR | O_CREAT, 0600)); /* all opened first: at() closes, and closing drops fcntl locks */
    at(12, open("b.lock", O_RDWR));
    struct flock range = {.l_type = F_WRLCK, .l_start = 10, .l_len = 5};
    CHECK(fcntl(11, F_SETLK, &range) == 0);
    range = (struct flock){.l_type = F_RDLCK, .l_start = 100};
    CHECK(fcntl(12, F_OFD_SETLK, &range) == 0);
}

static void locks_verify(void)
{
    int fd = open("a.lock", O_RDWR);
    CHECK(flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK);
    pid_t child = fork();
    if (child == 0) { /* fcntl locks are seen from another process */
        struct flock range = {.l_type = F_WRLCK, .l_start = 0, .l_len = 50};
        int other = open("b.lock", O_RDWR);
        if (fcntl(other, F_GETLK, &range) || range.l_type != F_WRLCK || range.l_start != 10 || range.l_len != 5)
            _exit(1);
        range = (struct flock){.l_type = F_WRLCK, .l_start = 200, .l_len = 1};
        if (fcntl(other, F_GETLK, &range) || range.l_type != F_RDLCK || range.l_start != 100 || range.l_len != 0)
            _exit(2);
        _exit(0);
    }
    int result;
    CHECK(waitpid(child, &result, 0) == child && result == 0);
}

static void devices_setup(void)
{
    at(10, open("/dev/null", O_WRONLY));
    at(11, open("/dev/urandom", O_RDONLY));
    at(12, open("/dev/zero", O_RDWR | O_CLOEXEC));
    at(13, open("/dev/full", O_RDWR));
}

static void devices_verify(void)
{
    char byte = 1;
    CHECK(write(10, "x", 1) == 1 && read(11, &byte, 1) == 1);
    CHECK(read(12, &byte, 1) == 1 && byte == 0);
    CHECK(write(13, "x", 1) < 0 && errno == ENOSPC);
}

/* ---- stdio: 10 is a dup of standard output, 2 a file of the program's; standard input is closed ---- */

static void stdio_setup(void)
{
    CHECK(dup2(1, 10) == 10);
    at(11, open("err.txt", O_WRONLY | O_CREAT, 0600));
    fflush(stderr);
    CHECK(dup2(11, 2) == 2);
    close(0);
}

static void stdio_verify(void)
{
    CHECK(closed(0));
    CHECK(write(10, "through ten\n", 12) == 12);
    CHECK(write(2, "E", 1) == 1);
    CHECK(lseek(11, 0, SEEK_CUR) == lseek(2, 0, SEEK_CUR));
}

/* Descriptor 8 is left open by whoever starts us: a pipe to elsewhere. */
static void inherited_setup(void)
{
    CHECK(fcntl(8, F_GETFD) >= 0);
}

static void inherited_verify(void)
{
    CHECK(fcntl(8, F_GETFD) >= 0);
    CHECK(closed(9));
}

/* ---- pipes ---- */

static void pipes_setup(void)
{
    int p[2];
    CHECK(pipe(p) == 0);
    at(10, p[0]), at(11, p[1]);
    CHECK(write(11, "buffered", 8) == 8);
    fcntl(10, F_SETFL, O_NONBLOCK);
    CHECK(dup2(11, 16) == 16);
    CHECK(pipe2(p, O_DIRECT) == 0); /* packets */
    at(12, p[0]), at(13, p[1]);
    CHECK(write(13, "aa", 2) == 2 && write(13, "bbb", 3) == 3);
    CHECK(pipe(p) == 0); /* writer gone */
    at(14, p[0]);
    CHECK(write(p[1], "last", 4) == 4);
    close(p[1]);
    CHECK(pipe(p) == 0); /* reader gone */
    at(15, p[1]);
    close(p[0]);
    CHECK(pipe(p) == 0); /* large and full */
    at(17, p[0]), at(18, p[1]);
    CHECK(fcntl(18, F_SETPIPE_SZ, 256 << 10) == 256 << 10);
    static char big[256 << 10];
    memset(big, 'x', sizeof big);
    CHECK(write(18, big, sizeof big) == (ssize_t)sizeof big);
}

static void pipes_verify(void)
{
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
    CHECK(read(10, big, 1) == 0); /* no end is held by anybody else */
}

static void fifo_setup(void)
{
    unlink("fifo");
    CHECK(mkfifo("fifo", 0600) == 0);
    at(10, open("fifo", O_RDONLY | O_NONBLOCK));
    at(11, open("fifo", O_WRONLY));
    CHECK(write(11, "waiting", 7) == 7);
}

static void fifo_verify(void)
{
    expect_read(10, "waiting");
    CHECK(write(11, "x", 1) == 1);
    expect_read(10, "x");
    CHECK(status(10) == O_NONBLOCK && status(11) == O_WRONLY);
}

/* ---- Unix sockets ---- */

static void pairs_setup(void)
{
    int p[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0); /* asyncio's */
    at(10, p[0]), at(11, p[1]);
    fcntl(10, F_SETFL, O_NONBLOCK);
    CHECK(write(11, "wake", 4) == 4 && write(11, "up", 2) == 2 && write(10, "back", 4) == 4);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, p) == 0);
    at(12, p[0]), at(13, p[1]);
    static char large[60000];
    memset(large, 'd', sizeof large);
    CHECK(write(12, "a", 1) == 1 && write(12, "", 0) == 0 && write(12, large, sizeof large) == (ssize_t)sizeof large && write(12, "z", 1) == 1);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, p) == 0);
    at(14, p[0]), at(15, p[1]);
    CHECK(write(15, "pkt", 3) == 3);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0); /* partner gone */
    at(16, p[0]);
    CHECK(write(p[1], "bye", 3) == 3);
    close(p[1]);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0); /* half shut */
    at(17, p[0]), at(18, p[1]);
    CHECK(write(17, "end", 3) == 3 && shutdown(17, SHUT_WR) == 0);
    int size = 300000;
    setsockopt(17, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    at(19, socket(AF_UNIX, SOCK_STREAM, 0));
}

static int option(int fd, int name)
{
    int value = -1;
    socklen_t bytes = sizeof value;
    getsockopt(fd, SOL_SOCKET, name, &value, &bytes);
    return value;
}

static void pairs_verify(void)
{
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

static void sockets_setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    at(10, socket(AF_INET, SOCK_STREAM, 0));
    CHECK(setsockopt(10, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0); /* as servers do */
    CHECK(bind(10, (struct sockaddr *)&address, sizeof address) == 0 && listen(10, 7) == 0);
    at(11, socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    at(12, socket(AF_INET6, SOCK_STREAM, 0));
}

static void sockets_verify(void)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    CHECK(getsockname(10, (struct sockaddr *)&address, &bytes) == 0 && address.sin_port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    int peer = accept(10, NULL, NULL);
    CHECK(peer >= 0 && write(fd, "tcp", 3) == 3);
    expect_read(peer, "tcp");
    CHECK(option(11, SO_TYPE) == SOCK_DGRAM && (status(11) & O_NONBLOCK) && option(12, SO_DOMAIN) == AF_INET6);
    close(peer); /* first: leaves the port in TIME_WAIT */
    close(fd);
}

/* ---- events ---- */

static void events_setup(void)
{
    int p[2];
    at(10, eventfd(5, EFD_NONBLOCK));
    at(11, eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK));
    at(12, eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK));
    at(13, timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    timerfd_settime(13, 0, &(struct itimerspec){{7, 0}, {3600, 0}}, NULL);
    at(14, timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK));
    timerfd_settime(14, TFD_TIMER_ABSTIME, &(struct itimerspec){{0, 0}, {1000, 0}}, NULL); /* long past: expired */
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
    CHECK(dup2(12, 21) == 21); /* in the set under a number that is closed now */
    CHECK(epoll_ctl(19, EPOLL_CTL_ADD, 21, &event) == 0);
    close(21);
}

static void events_verify(void)
{
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

/* ---- the process ---- */

static void handler(int number, siginfo_t *info, void *context)
{
    (void)context;
    caught[number]++;
    caught_value = info->si_value.sival_int;
}

static void handle(int number)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void process_setup(void)
{
    CHECK(mkdir("deeper", 0755) == 0 || errno == EEXIST);
    CHECK(chdir("deeper") == 0);
    umask(037);
    prctl(PR_SET_NAME, "my program");
    setpriority(PRIO_PROCESS, 0, 3);
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

static void process_verify(void)
{
    char cwd[512], name[32];
    struct rlimit limit;
    CHECK(getcwd(cwd, sizeof cwd) && !strcmp(strrchr(cwd, '/'), "/deeper"));
    CHECK(umask(0) == 037);
    prctl(PR_GET_NAME, name);
    CHECK(!strcmp(name, "my program"));
    errno = 0;
    CHECK(getpriority(PRIO_PROCESS, 0) == 3 && errno == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 900);
    CHECK(getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0 && limit.rlim_max == 0);
    struct itimerval interval;
    CHECK(getitimer(ITIMER_REAL, &interval) == 0 && interval.it_value.tv_sec > 900 && interval.it_interval.tv_sec == 50);
    CHECK(getitimer(ITIMER_PROF, &interval) == 0 && interval.it_value.tv_sec > 1900);
    struct itimerspec left;
    CHECK(syscall(SYS_timer_gettime, 1, &left) == 0 && left.it_value.tv_sec > 400 && left.it_interval.tv_sec == 5);
    CHECK(syscall(SYS_timer_gettime, 0, &left) < 0 && syscall(SYS_timer_gettime, 3, &left) < 0);
    handle(SIGALRM), handle(SIGRTMIN + 1), handle(SIGUSR1); /* handlers come back with memory and threads */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    CHECK(caught[SIGRTMIN + 1] == 2 && caught_value == 8);
    for (int i = 0; i < 200 && !caught[SIGUSR1]; i++)
        poll(NULL, 0, 20);
    CHECK(caught[SIGUSR1] == 1 && caught_value == 42);
}

/* ---- refused ---- */

static void tcp_setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(server, (struct sockaddr *)&address, sizeof address) == 0 && listen(server, 1) == 0);
    CHECK(getsockname(server, (struct sockaddr *)&address, &bytes) == 0);
    at(10, socket(AF_INET, SOCK_STREAM, 0));
    CHECK(connect(10, (struct sockaddr *)&address, sizeof address) == 0);
    at(30, accept(server, NULL, NULL));
}

static void udp_setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(9)};
    at(10, socket(AF_INET, SOCK_DGRAM, 0));
    CHECK(connect(10, (struct sockaddr *)&address, sizeof address) == 0);
}

static void inotify_setup(void)
{
    at(10, inotify_init1(0));
}

static void pidfd_setup(void)
{
    at(10, (int)syscall(SYS_pidfd_open, getpid(), 0));
}

static void netlink_setup(void)
{
    at(10, socket(AF_NETLINK, SOCK_RAW, 0));
}

static void named_setup(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "sock"};
    unlink("sock");
    at(10, socket(AF_UNIX, SOCK_STREAM, 0));
    CHECK(bind(10, (struct sockaddr *)&address, sizeof address) == 0);
}

static void large_setup(void)
{
    at(10, open("large", O_RDWR | O_CREAT, 0600));
    CHECK(ftruncate(10, (64 << 20) + 1) == 0 && unlink("large") == 0);
}

static void ptmx_setup(void)
{
    at(10, open("/dev/ptmx", O_RDWR | O_NOCTTY));
}

/* The other end is in a child process. */
static void outside(int p[2])
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    at(10, p[0]);
    close(p[1]);
}

static void pipe_outside_setup(void)
{
    int p[2];
    CHECK(pipe(p) == 0);
    outside(p);
}

static void pair_outside_setup(void)
{
    int p[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    outside(p);
}

static void lease_setup(void)
{
    at(10, open("leased", O_RDWR | O_CREAT, 0600));
    CHECK(fcntl(10, F_SETLEASE, F_WRLCK) == 0);
}

static void thread_clock_setup(void)
{
    int id;
    CHECK(syscall(SYS_timer_create, CLOCK_THREAD_CPUTIME_ID, NULL, &id) == 0);
}

static void async_setup(void)
{
    at(10, socket(AF_INET, SOCK_STREAM, 0));
    CHECK(fcntl(10, F_SETFL, O_ASYNC) == 0);
}

static void child_setup(void)
{
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

/* Ends by itself within the grace time: not refused. */
static void short_child_setup(void)
{
    if (fork() == 0) {
        usleep(200 * 1000);
        _exit(0);
    }
}

typedef struct test_case {
    const char *name;
    void (*setup)(void);
    void (*verify)(void);
} test_case_t;

static const test_case_t cases[] = {
    {"files", files_setup, files_verify},       {"grown", grown_setup, grown_verify},       {"deleted", deleted_setup, deleted_verify},
    {"locks", locks_setup, locks_verify},       {"devices", devices_setup, devices_verify}, {"stdio", stdio_setup, stdio_verify},
    {"inherited", inherited_setup, inherited_verify}, {"pipes", pipes_setup, pipes_verify}, {"fifo", fifo_setup, fifo_verify},
    {"pairs", pairs_setup, pairs_verify},       {"sockets", sockets_setup, sockets_verify}, {"events", events_setup, events_verify},
    {"process", process_setup, process_verify}, {"tcp", tcp_setup, NULL},                   {"udp", udp_setup, NULL},
    {"inotify", inotify_setup, NULL},           {"pidfd", pidfd_setup, NULL},               {"netlink", netlink_setup, NULL},
    {"named", named_setup, NULL},               {"large", large_setup, NULL},               {"ptmx", ptmx_setup, NULL},
    {"pipe_outside", pipe_outside_setup, NULL}, {"pair_outside", pair_outside_setup, NULL}, {"lease", lease_setup, NULL},
    {"thread_clock", thread_clock_setup, NULL}, {"async", async_setup, NULL},               {"child", child_setup, NULL},
    {"short_child", short_child_setup, NULL},
};

/* ---- modes ---- */

static void deny_kcmp(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static int allowed(char *err, size_t n)
{
    return mpy_children_wait(1500, err, n) || mpy_fds_check(err, n) || mpy_process_check(err, n) ? -1 : 0;
}

static void write_file(const char *path, const mpy_blob_t *b)
{
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(b->data, 1, b->bytes, file) == b->bytes && fclose(file) == 0);
}

static mpy_blob_t read_file(const char *path)
{
    mpy_blob_t b;
    FILE *file = fopen(path, "r");
    CHECK(file);
    mpy_blob_init(&b);
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;)
        memcpy(mpy_blob_extend(&b, got), buffer, got);
    fclose(file);
    return b;
}

static int plus_thousand(int tid)
{
    return tid + 1000;
}

static int minus_thousand(int tid)
{
    return tid - 1000;
}

static int save(const test_case_t *c, const char *path)
{
    char err[512] = "", fds_path[600];
    char *full = realpath(".", NULL);
    snprintf(fds_path, sizeof fds_path, "%s/%s", full, path);
    c->setup();
    if (allowed(err, sizeof err)) {
        printf("%s\n", err);
        return 1;
    }
    mpy_blob_t b, process;
    mpy_blob_init(&b);
    mpy_blob_init(&process);
    if (mpy_process_save(&process, plus_thousand, err, sizeof err) || mpy_fds_save(&b, err, sizeof err)) {
        printf("%s\n", err);
        return 1;
    }
    CHECK(!err[0]);
    write_file(fds_path, &b);
    strcat(fds_path, ".process");
    write_file(fds_path, &process);
    c->verify();
    printf("saved\n");
    return 0;
}

static int restore(const test_case_t *c, const char *path)
{
    char err[512] = "", process_path[600];
    snprintf(process_path, sizeof process_path, "%s.process", path);
    mpy_blob_t b = read_file(path), process = read_file(process_path);
    mpy_reader_t r, rp;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    mpy_reader_init(&r, b.data, b.bytes);
    mpy_reader_init(&rp, process.data, process.bytes);
    restored = 1;
    if (mpy_process_restore(&rp, err, sizeof err) || mpy_fds_restore(&r, err, sizeof err)) {
        printf("%s\n", err);
        return 3;
    }
    CHECK(r.at == r.bytes && rp.at == rp.bytes);
    for (int fd = 0; fd < 2048; fd++) /* nothing of ours is left behind */
        CHECK(!mpy_fd_is_lower(fd) || !closed(fd));
    if (mpy_fds_commit(err, sizeof err) || mpy_process_start_timers(minus_thousand, err, sizeof err)) {
        printf("%s\n", err);
        return 3;
    }
    CHECK(!err[0]);
    c->verify();
    printf("restored\n");
    return 0;
}

static void damaged(mpy_reader_t r, int process)
{
    pid_t child = fork();
    if (child == 0) {
        char err[512] = "";
        int rc = process ? mpy_process_restore(&r, err, sizeof err) : mpy_fds_restore(&r, err, sizeof err);
        _exit(rc == 0 || err[0] ? 0 : 1);
    }
    int result;
    CHECK(waitpid(child, &result, 0) == child);
    CHECK(result == 0);
}

static int corrupt(const char *path)
{
    char process_path[600];
    snprintf(process_path, sizeof process_path, "%s.process", path);
    int tested = 0;
    for (int process = 0; process < 2; process++) {
        mpy_blob_t b = read_file(process ? process_path : path);
        mpy_reader_t r;
        size_t step = b.bytes > 400 ? b.bytes / 200 : 1;
        for (size_t i = 0; i < b.bytes; i += step, tested++) {
            mpy_reader_init(&r, b.data, i);
            damaged(r, process);
            uint8_t kept = b.data[i];
            b.data[i] ^= 0xff;
            mpy_reader_init(&r, b.data, b.bytes);
            damaged(r, process);
            b.data[i] = kept;
        }
    }
    printf("%d\n", tested);
    return 0;
}

/* The CPU's own record, and one with a feature more. */
static int cpu(void)
{
    uint64_t saved[8], none[8] = {0};
    char err[512] = "";
    mpy_cpu_features(saved);
    CHECK(mpy_cpu_check(saved, mpy_cpu_xsave_bytes(), err, sizeof err) == 0);
    CHECK(mpy_cpu_check(saved, mpy_cpu_xsave_bytes() + 64, err, sizeof err) == -1 && strstr(err, "XSAVE"));
    CHECK(mpy_cpu_check(none, 0, err, sizeof err) == 0);
    saved[0] |= 1ul << 31 | 1ul << 21; /* hypervisor, x2APIC: nothing a program depends on */
    CHECK(mpy_cpu_check(saved, mpy_cpu_xsave_bytes(), err, sizeof err) == 0);
    uint64_t here[8];
    memcpy(here, saved, sizeof here);
    saved[1] |= 1ul << 16;
    here[1] &= ~(1ul << 16);
    CHECK(mpy_cpu_compare(saved, 0, here, 0, err, sizeof err) == -1 && !strcmp(err, "this CPU lacks avx512f, which the checkpoint's host has"));
    printf("ok\n");
    return 0;
}

int main(int argc, char **argv)
{
    mpy_fds_note_stdio();
    if (getenv("MPY_NO_KCMP"))
        deny_kcmp();
    if (argc == 2 && !strcmp(argv[1], "cpu"))
        return cpu();
    const test_case_t *c = NULL;
    for (size_t i = 0; argc > 2 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[2]))
            c = &cases[i];
    if (!c)
        return 2;
    if (!strcmp(argv[1], "save") && argc == 4)
        return save(c, argv[3]);
    if (!strcmp(argv[1], "restore") && argc == 4)
        return restore(c, argv[3]);
    if (!strcmp(argv[1], "corrupt") && argc == 4)
        return corrupt(argv[3]);
    if (!strcmp(argv[1], "refuse")) {
        char err[512] = "";
        c->setup();
        int outside = strstr(c->name, "_outside") != NULL; /* there the child is the means, not the point */
        int rc = outside ? mpy_fds_check(err, sizeof err) : allowed(err, sizeof err);
        printf("%s\n", rc ? err : "allowed");
        return 0;
    }
    return 2;
}
