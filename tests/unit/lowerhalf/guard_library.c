/* guard_library.c - see guard_driver.c: plays a transport library that knows nothing of manapy. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

int open_all(int fds[64]);
void close_all(const int *fds, int count);
int run_thread(int *blocked, int (*in_thread)(int tid), void (*leave)(void));

/* Streams. Returns the descriptor's number while it is open, 0 if the content is wrong. */
int through_stream(int (*is_lower)(int fd));
int through_stream(int (*is_lower)(int fd)) {
    char path[] = "/tmp/manapy-guard-XXXXXX", line[64] = "";
    close(mkstemp(path));
    FILE *file = fopen(path, "w");
    fputs("one\n", file);
    int fd = fileno(file), lower = is_lower(fd);
    fclose(file);
    file = fopen(path, "ae");
    fputs("two\n", file);
    fclose(file);
    file = fopen(path, "r+");
    size_t got = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    unlink(path);
    DIR *dir = opendir("/proc/self");
    int entries = 0;
    while (readdir(dir))
        entries++;
    lower = lower && is_lower(dirfd(dir));
    int directory = dirfd(dir);
    closedir(dir);
    lower = lower && !is_lower(fd) && !is_lower(directory);
    return got == 8 && !strcmp(line, "one\ntwo\n") && entries > 10 && lower && !fopen("/nonexistent", "r") &&
                   !opendir("/nonexistent")
               ? fd
               : 0;
}

/* Sends standard input and error over a pair of sockets, and receives them as other numbers. */
static int receive(int pair[2], int fds[2]) {
    union { char space[CMSG_SPACE(2 * sizeof(int))]; struct cmsghdr aligned; } control = {0};
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    control.aligned = (struct cmsghdr){CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.aligned), (int[]){0, 2}, 2 * sizeof(int));
    if (sendmsg(pair[0], &message, 0) != 1 || recvmsg(pair[1], &message, 0) != 1)
        return 0;
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), 2 * sizeof(int));
    return 2;
}

int open_all(int fds[64]) {
    int n = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    sigset_t set;
    sigemptyset(&set);
    int server = fds[n++] = socket(AF_INET, SOCK_STREAM, 0);
    bind(server, (struct sockaddr *)&address, sizeof address);
    listen(server, 2);
    getsockname(server, (struct sockaddr *)&address, &bytes);
    for (int i = 0; i < 2; i++) {
        int client = fds[n++] = socket(AF_INET, SOCK_STREAM, 0);
        connect(client, (struct sockaddr *)&address, sizeof address);
        fds[n++] = i ? accept(server, NULL, NULL) : accept4(server, NULL, NULL, SOCK_CLOEXEC);
    }
    n += socketpair(AF_UNIX, SOCK_STREAM, 0, fds + n) ? 0 : 2;
    n += receive(fds + n - 2, fds + n);
    n += pipe(fds + n) ? 0 : 2;
    n += pipe2(fds + n, O_NONBLOCK) ? 0 : 2;
    fds[n++] = open("/dev/null", O_RDWR);
    fds[n++] = open64("/dev/null", O_RDWR);
    fds[n++] = openat(AT_FDCWD, "/dev/null", O_RDWR);
    fds[n++] = openat64(AT_FDCWD, "/dev/null", O_RDWR);
    fds[n++] = epoll_create(1);
    fds[n++] = epoll_create1(0);
    fds[n++] = eventfd(0, 0);
    fds[n++] = timerfd_create(CLOCK_MONOTONIC, 0);
    fds[n++] = signalfd(-1, &set, 0);
    fds[n++] = memfd_create("x", 0);
    fds[n++] = dup(0);
    fds[n++] = fcntl(0, F_DUPFD, 0);
    fds[n++] = fcntl(0, F_DUPFD_CLOEXEC, server + 20); /* it chooses a high number itself */
    char path[] = "/tmp/manapy-guard-XXXXXX";
    fds[n++] = mkstemp(path);
    unlink(path);
    fds[n++] = shm_open("/manapy-guard", O_CREAT | O_RDWR, 0600);
    shm_unlink("/manapy-guard");
    fds[n++] = inotify_init();
    fds[n++] = inotify_init1(0);
    return n;
}

void close_all(const int *fds, int count) {
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

typedef struct task {
    int (*in_thread)(int tid);
    void (*leave)(void);
    int tid, lower, blocked;
} task_t;

static void *body(void *argument) {
    task_t *task = argument;
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    task->tid = (int)syscall(SYS_gettid);
    task->lower = task->in_thread(task->tid);
    task->blocked = sigismember(&set, SIGUSR1) && sigismember(&set, SIGINT) && sigismember(&set, SIGALRM);
    if (task->leave)
        task->leave();
    return NULL;
}

int run_thread(int *blocked, int (*in_thread)(int tid), void (*leave)(void)) {
    task_t task = {.in_thread = in_thread, .leave = leave};
    pthread_t thread;
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    if (pthread_create(&thread, NULL, body, &task))
        return -1;
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    *blocked = task.blocked;
    return task.lower && sigismember(&before, SIGUSR1) == sigismember(&after, SIGUSR1) ? task.tid : -1;
}
