/* guard_driver.c - linked with interpose.c as manapy-launch is. It opens the library given as argument. The library
 * opens descriptors and starts a thread, as a transport of the real MPI would. The driver checks which numbers the
 * descriptors got. Prints "ok". */
#define _GNU_SOURCE
#include "check.h"
#include "isolate/fdguard.h"
#include "process/fds/fds.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The functions of the library. */
typedef int open_all_t(int fds[64]);
typedef void close_all_t(const int *fds, int count);
typedef int thread_t(int *blocked, int (*in_thread)(int tid), void (*leave)(void));

static int in_thread(int tid) {
    return mpy_thread_is_lower(tid);
}

static void leave(void) {
    pthread_exit(NULL);
}

static int raw_null(void) {
    return (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0);
}

static void descriptors(void *library) {
    open_all_t *open_all = (open_all_t *)dlsym(library, "open_all");
    close_all_t *close_all = (close_all_t *)dlsym(library, "close_all");
    CHECK(open_all && close_all);
    int fds[64], first = raw_null();
    int count = open_all(fds);
    CHECK(count >= 20);
    for (int i = 0; i < count; i++) {
        if (fds[i] < mpy_fd_base() || !mpy_fd_is_lower(fds[i]) || fcntl(fds[i], F_GETFD) != FD_CLOEXEC)
            fprintf(stderr, "the library's descriptor number %d: %d\n", i, fds[i]);
        CHECK(fds[i] >= mpy_fd_base() && mpy_fd_is_lower(fds[i]) && fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
    }
    CHECK(raw_null() == first + 1); /* no low number was used up */
    CHECK(!mpy_fd_is_lower(first) && !mpy_fd_is_lower(first + 1));
    close_all(fds, count);
    for (int i = 0; i < count; i++)
        CHECK(!mpy_fd_is_lower(fds[i]));
    CHECK(open("/nonexistent", O_RDONLY) == -1 && errno == ENOENT);
}

static void streams(void *library) {
    int (*through_stream)(int (*)(int)) = (int (*)(int (*)(int)))dlsym(library, "through_stream");
    CHECK(through_stream && through_stream(mpy_fd_is_lower) >= mpy_fd_base());
}

static void occupying(void) {
    int free_number = raw_null();
    syscall(SYS_close, free_number);
    mpy_fds_occupy_low();
    mpy_fds_scan_begin();
    int hidden = raw_null();
    mpy_fds_scan_end();
    mpy_fds_release_low();
    CHECK(hidden >= mpy_fd_base() && mpy_fd_is_lower(hidden));
    CHECK(raw_null() == free_number && !mpy_fd_is_lower(free_number));
}

static void threads(void *library) {
    thread_t *run = (thread_t *)dlsym(library, "run_thread");
    int blocked = 0;
    CHECK(run);
    int tid = run(&blocked, in_thread, NULL);
    CHECK(tid > 0 && blocked && !mpy_thread_is_lower(tid));
    tid = run(&blocked, in_thread, leave); /* ends by pthread_exit */
    CHECK(tid > 0 && !mpy_thread_is_lower(tid) && !mpy_thread_is_lower((int)syscall(SYS_gettid)));
}

/* Opens and closes until *argument is true. */
static void *opens(void *argument) {
    _Atomic bool *enough = argument;
    while (!*enough) {
        int fd = open("/dev/null", O_RDONLY), copy = fcntl(fd, F_DUPFD, 0), ends[2];
        FILE *file = fopen("/dev/null", "r");
        DIR *dir = opendir("/");
        CHECK(fd >= 0 && copy >= 0 && file && dir && pipe(ends) == 0);
        close(fd);
        mpy_fd_close(copy);
        close(ends[0]);
        close(ends[1]);
        fclose(file);
        closedir(dir);
    }
    return NULL;
}

/* The number of descriptors that nobody has registered. */
static int strangers(void) {
    int count = 0;
    for (int fd = 0; fd < mpy_fd_base() + 64; fd++)
        count += syscall(SYS_fcntl, fd, F_GETFD) >= 0 && !mpy_fd_is_lower(fd);
    return count;
}

/* A child has no descriptor that was just being opened or closed. */
static void forks(void) {
    _Atomic bool enough = false;
    pthread_t thread;
    int before = strangers();
    CHECK(pthread_create(&thread, NULL, opens, (void *)&enough) == 0);
    for (int i = 0; i < 500; i++) {
        int status;
        mpy_fds_hold(100);
        pid_t child = fork();
        mpy_fds_release();
        if (child == 0)
            _exit(strangers() != before);
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    enough = true;
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    mpy_fds_note_inherited();
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    descriptors(library);
    streams(library);
    occupying();
    threads(library);
    forks();
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){256, 256}) == 0);
    CHECK(mpy_fd_base() == 192);
    descriptors(library);
    mpy_fd_reserve(190); /* half of the rest is for the program */
    CHECK(mpy_fd_base() == 223);
    mpy_fd_reserve(300); /* more than exist */
    CHECK(mpy_fd_base() == 192);
    char err[256] = "";
    CHECK(mpy_fds_check(err, sizeof err) == 0);
    printf("ok\n");
    return 0;
}
