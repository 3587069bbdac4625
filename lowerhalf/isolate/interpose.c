/* interpose.c - functions of libc that the executable overrides, so that the real MPI and its transports call ours.
 *
 * Lower half only: the program above has a libc of its own and never sees these symbols. They are linked whole into
 * manapy-launch and manapy-restart (object library mpy_interpose), and exported, so that libraries opened later bind to
 * them.
 *
 * Invariants
 *  1. A returned descriptor satisfies invariant 1 of fdguard.h. Close-on-exec is forced: children of the program must
 *     not keep the job's connections open.
 *  2. The system calls are made directly: no recursion into a wrapper, and no dependence on the symbol version of libc.
 *  3. Descriptors that libc opens internally pass through here only in the functions listed below (fopen, opendir,
 *     shm_open, mkstemp). Those of popen and of the helper thread of timer_create, for example, do not.
 */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include "base/kernel.h"
#include "fdguard.h"
#include "trapstate.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
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

#define EXPORT __attribute__((visibility("default")))

/* Two descriptors that a call returns in fds. */
#define OPEN_PAIR(call, fds)                                                                                          \
    ({                                                                                                                \
        mpy_fds_move_begin();                                                                                         \
        long rc_ = (call);                                                                                            \
        for (int i_ = 0; rc_ == 0 && i_ < 2; i_++)                                                                    \
            (fds)[i_] = mpy_fd_lift((fds)[i_]);                                                                       \
        mpy_fds_move_end();                                                                                           \
        (int)rc_;                                                                                                     \
    })

/* ---- files ---- */

static int open_at(int dir, const char *path, int flags, mode_t mode) {
    return MPY_FD_OPEN(syscall(SYS_openat, dir, path, flags | O_CLOEXEC, mode));
}

#define MODE_ARGUMENT(flags, mode)                                              \
    mode_t mode = 0;                                                            \
    if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) {            \
        va_list list;                                                           \
        va_start(list, flags);                                                  \
        mode = va_arg(list, mode_t);                                            \
        va_end(list);                                                           \
    }

EXPORT int open(const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return open_at(AT_FDCWD, path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

EXPORT int openat(int dir, const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return open_at(dir, path, flags, mode);
}

EXPORT int openat64(int dir, const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return open_at(dir, path, flags | O_LARGEFILE, mode);
}

EXPORT int creat(const char *path, mode_t mode) {
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* A library built with _FORTIFY_SOURCE calls this instead of open() when it passes no mode. */
EXPORT int __open_2(const char *path, int flags);
EXPORT int __open_2(const char *path, int flags) {
    return open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int __open64_2(const char *path, int flags);
EXPORT int __open64_2(const char *path, int flags) {
    return open_at(AT_FDCWD, path, flags | O_LARGEFILE, 0);
}

EXPORT int __openat_2(int dir, const char *path, int flags);
EXPORT int __openat_2(int dir, const char *path, int flags) {
    return open_at(dir, path, flags, 0);
}

EXPORT int __openat64_2(int dir, const char *path, int flags);
EXPORT int __openat64_2(int dir, const char *path, int flags) {
    return open_at(dir, path, flags | O_LARGEFILE, 0);
}

EXPORT int memfd_create(const char *name, unsigned flags) {
    return MPY_FD_OPEN(syscall(SYS_memfd_create, name, flags));
}

EXPORT int dup(int fd) {
    return MPY_FD_OPEN(syscall(SYS_dup, fd));
}

EXPORT int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *); /* an int or a pointer: the kernel takes both in one register */
    va_end(list);
    if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
        return MPY_FD_OPEN(syscall(SYS_fcntl, fd, command, argument));
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

EXPORT int fcntl64(int fd, int command, ...) __attribute__((alias("fcntl")));

EXPORT int close(int fd) {
    mpy_fds_move_begin();
    mpy_fd_lower_remove(fd);
    int rc = (int)syscall(SYS_close, fd);
    mpy_fds_move_end();
    return rc;
}

/* ---- files that libc opens inside itself ---- */

/* The definition that our function hides. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fopen_flags(const char *mode) {
    int flags = mode[0] == 'r' ? 0 : mode[0] == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND;
    size_t length = strcspn(mode, ","); /* ",ccs=..." may follow */
    flags |= memchr(mode, '+', length) ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
    return flags | (memchr(mode, 'x', length) ? O_EXCL : 0);
}

EXPORT FILE *fopen(const char *path, const char *mode) {
    if (!strchr("rwa", mode[0]) || !mode[0])
        return errno = EINVAL, NULL;
    int fd = open_at(AT_FDCWD, path, fopen_flags(mode), 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, mode);
    if (fd >= 0 && !file)
        mpy_fd_close(fd);
    return file;
}

EXPORT FILE *fopen64(const char *path, const char *mode) {
    return fopen(path, mode);
}

EXPORT int fclose(FILE *file) {
    static __typeof__(&fclose) _Atomic next;
    if (!next)
        next = NEXT(fclose);
    mpy_fds_move_begin();
    mpy_fd_lower_remove(fileno(file));
    int rc = next(file);
    mpy_fds_move_end();
    return rc;
}

EXPORT DIR *opendir(const char *path) {
    int fd = open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !dir)
        mpy_fd_close(fd);
    return dir;
}

EXPORT int closedir(DIR *dir) {
    static __typeof__(&closedir) _Atomic next;
    if (!next)
        next = NEXT(closedir);
    mpy_fds_move_begin();
    mpy_fd_lower_remove(dirfd(dir));
    int rc = next(dir);
    mpy_fds_move_end();
    return rc;
}

EXPORT int shm_open(const char *name, int flags, mode_t mode) {
    return MPY_FD_OPEN(NEXT(shm_open)(name, flags, mode));
}

EXPORT int mkstemp(char *path) {
    return MPY_FD_OPEN(NEXT(mkstemp)(path));
}

EXPORT int mkstemp64(char *path) {
    return mkstemp(path);
}

EXPORT int mkostemp(char *path, int flags) {
    return MPY_FD_OPEN(NEXT(mkostemp)(path, flags));
}

EXPORT int mkostemp64(char *path, int flags) {
    return mkostemp(path, flags);
}

/* ---- sockets and pipes ---- */

EXPORT int socket(int domain, int type, int protocol) {
    return MPY_FD_OPEN(syscall(SYS_socket, domain, type, protocol));
}

EXPORT int socketpair(int domain, int type, int protocol, int fds[2]) {
    return OPEN_PAIR(syscall(SYS_socketpair, domain, type, protocol, fds), fds);
}

/* A call that waits must not be a move (fdguard.h, invariant 3). So this waits first, if the socket is one that waits.
 * The call may wait nevertheless, if another thread takes what has come; a restart waits for no move for long. */
static bool wait_for_input(int fd) {
    struct timeval limit = {0};
    socklen_t bytes = sizeof limit;
    struct pollfd input = {.fd = fd, .events = POLLIN};
    long status = syscall(SYS_fcntl, fd, F_GETFL);
    if (status < 0 || status & O_NONBLOCK)
        return true;
    getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &bytes);
    long ms = limit.tv_sec * 1000 + (limit.tv_usec + 999) / 1000;
    int ready = poll(&input, 1, ms == 0 || ms > INT_MAX ? -1 : (int)ms);
    if (ready == 0)
        errno = EAGAIN;
    return ready > 0;
}

EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) {
    return wait_for_input(fd) ? MPY_FD_OPEN(syscall(SYS_accept4, fd, address, bytes, flags)) : -1;
}

EXPORT int accept(int fd, struct sockaddr *address, socklen_t *bytes) {
    return accept4(fd, address, bytes, 0);
}

EXPORT int pipe2(int fds[2], int flags) {
    return OPEN_PAIR(syscall(SYS_pipe2, fds, flags), fds);
}

EXPORT int pipe(int fds[2]) {
    return pipe2(fds, 0);
}

/* Descriptors that another process has sent. */
EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    if (!message || !message->msg_controllen)
        return syscall(SYS_recvmsg, fd, message, flags);
    if (!(flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) && !wait_for_input(fd))
        return -1;
    mpy_fds_move_begin();
    ssize_t bytes = syscall(SYS_recvmsg, fd, message, flags);
    struct cmsghdr *part = bytes < 0 ? NULL : CMSG_FIRSTHDR(message);
    for (; part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
            unsigned char *place = (unsigned char *)part + at;
            int received;
            memcpy(&received, place, sizeof received);
            received = mpy_fd_lift(received);
            memcpy(place, &received, sizeof received);
        }
    }
    mpy_fds_move_end();
    return bytes;
}

/* ---- event descriptors ---- */

EXPORT int epoll_create1(int flags) {
    return MPY_FD_OPEN(syscall(SYS_epoll_create1, flags));
}

EXPORT int epoll_create(int size) {
    if (size <= 0) {
        errno = EINVAL;
        return -1;
    }
    return epoll_create1(0);
}

EXPORT int eventfd(unsigned count, int flags) {
    return MPY_FD_OPEN(syscall(SYS_eventfd2, count, flags));
}

EXPORT int timerfd_create(int clock, int flags) {
    return MPY_FD_OPEN(syscall(SYS_timerfd_create, clock, flags));
}

/* The alternate stack of a thread belongs to the program. A frame on an alternate stack of the lower half (UCX sets
 * one) would not be in an image. */
EXPORT int sigaltstack(const stack_t *stack, stack_t *old) {
    (void)stack;
    if (old)
        *old = (stack_t){.ss_flags = SS_DISABLE};
    return 0;
}

/* UCX and libibverbs keep registered memory out of forks. But the program's memory must be in the fork that writes its
 * image (image/background.c), or the image would have zeros in its place. Where a fork copies registered pages, it need
 * not be kept out; elsewhere no image is written by a fork. */
EXPORT int madvise(void *start, size_t bytes, int advice) {
    static _Atomic int copies = -1;
    if (mpy_in_upper((uint64_t)start) && (advice == MADV_DONTFORK || advice == MADV_DOFORK)) {
        if (copies < 0)
            copies = mpy_fork_copies_pinned_pages();
        if (copies)
            return 0;
    }
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

EXPORT int signalfd(int fd, const sigset_t *mask, int flags) {
    return MPY_FD_OPEN(syscall(SYS_signalfd4, fd, mask, 8, flags)); /* 8: size of the kernel's sigset */
}

EXPORT int inotify_init1(int flags) {
    return MPY_FD_OPEN(syscall(SYS_inotify_init1, flags));
}

EXPORT int inotify_init(void) {
    return inotify_init1(0);
}

/* ---- threads ---- */

typedef struct birth {
    void *(*start)(void *);
    void *argument;
} birth_t;

typedef int create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static void leave(void *argument) {
    (void)argument;
    mpy_thread_lower_remove((int)syscall(SYS_gettid));
}

static void *enter(void *argument) {
    birth_t birth = *(birth_t *)argument;
    free(argument);
    mpy_thread_lower_add((int)syscall(SYS_gettid));
    mpy_thread_lower_announce(-1);
    void *result;
    pthread_cleanup_push(leave, NULL); /* also runs if the thread ends by pthread_exit or cancellation */
    result = birth.start(birth.argument);
    pthread_cleanup_pop(1);
    return result;
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument) {
    static create_t *_Atomic next;
    if (!next)
        next = (create_t *)dlsym(RTLD_NEXT, "pthread_create");
    birth_t *birth = malloc(sizeof *birth);
    if (!next || !birth) {
        free(birth);
        return EAGAIN;
    }
    *birth = (birth_t){start, argument};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    mpy_thread_lower_announce(1);
    int rc = next(thread, attr, enter, birth);
    if (rc) {
        mpy_thread_lower_announce(-1);
        free(birth);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}
