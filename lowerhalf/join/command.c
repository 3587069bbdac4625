/* command.c - runs the command `manapy` as a process beside a rank: the coordinator, `manapy _node`, `manapy _step`,
 * `manapy _shift`. Lower half; libc. Still one thread, except for mpy_command_ask: in a tree the program runs already.
 *
 * Invariants
 *  1. A helper gets only the descriptors of the rank that are passed to it, and the process manager doesn't take it for
 *     a rank.
 *  2. The program does not notice mpy_command_ask. There is another process between the command and the rank. That
 *     process has no exit signal, so wait(2) does not find it (except with __WALL or __WCLONE), and there is no
 *     SIGCHLD. The command itself could not be such a child, because an exec gives it an exit signal. Neither process
 *     takes a lock of libc's fork(3): another thread may have held it. All signals are blocked, so no handler of the
 *     program runs there.
 */
#define _GNU_SOURCE
#include "command.h"
#include "base/io/whole.h"
#include "base/proc/wait.h"
#include "base/reason.h"
#include "base/warnings.h"

#include <errno.h>
#include <fcntl.h>
#include <manapy/proc_exe.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 8, ABOVE = 16 /* ABOVE: higher than the numbers that dup2 overwrites */ };

bool mpy_command_path(char out[PATH_MAX], char *error, size_t n) {
    const char *given = getenv("MANAPY_COMMAND"); /* to run from a build tree */
    if (given != NULL) {
        snprintf(out, PATH_MAX, "%s", given);
    } else {
        if (!mpy_proc_exe(0, out)) return mpy_refuse(error, n, "/proc/self/exe: %s", strerror(errno));
        char *name = strrchr(out, '/') + 1;
        snprintf(name, PATH_MAX - (size_t)(name - out), "manapy");
    }
    if (access(out, X_OK) == 0) return true;
    return mpy_refuse(error, n, "cannot start the coordinator %s: %s (is manapy installed completely?)",
                      out, strerror(errno));
}

void mpy_command_become(char *const argv[], const int *descriptors, int count) {
    int moved[DESCRIPTORS_MAX];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; i < count; i++) moved[i] = fcntl(descriptors[i], F_DUPFD_CLOEXEC, ABOVE);
    for (int i = 0; i < count; i++) syscall(SYS_dup2, moved[i], i); /* not interposed; libc's dup2 would work, too */
    syscall(SYS_close_range, (unsigned)count, ~0u, 0); /* libc has it from glibc 2.34 on */
    unsetenv("PMI_FD");
    unsetenv("PMIX_NAMESPACE");
    execv(argv[0], argv);
    dprintf(2, "cannot execute %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* The process between the rank and a command has no other way to say why it could not fork. */
static _Noreturn void end_between(pid_t command) { _exit(command < 0 ? errno : 0); }

/* Waits for it. Why there is no command; NULL: there is one. between: -1 if even the first fork has failed, with
 * `cause`. */
static const char *why_not(pid_t between, int cause) {
    if (between < 0) return strerror(cause);
    int status = mpy_proc_wait(between);
    if (WIFSIGNALED(status)) return strsignal(WTERMSIG(status));
    return WEXITSTATUS(status) != 0 ? strerror(WEXITSTATUS(status)) : NULL;
}

bool mpy_command_detach(char *const argv[], const char *log_path, const int *descriptors, int count, char *error,
                       size_t n) {
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (log < 0) return mpy_refuse(error, n, "%s: %s", log_path, strerror(errno));
    pid_t between = fork();
    if (between == 0) {
        setsid();
        pid_t command = fork();
        if (command == 0) {
            int all[DESCRIPTORS_MAX] = {open("/dev/null", O_RDONLY | O_CLOEXEC), log, log};
            memcpy(all + 3, descriptors, (size_t)count * sizeof *all);
            mpy_ignore_warnings();
            mpy_command_become(argv, all, 3 + count);
        }
        end_between(command);
    }
    int cause = errno;
    close(log);
    const char *why = why_not(between, cause);
    return why == NULL || mpy_refuse(error, n, "cannot start `manapy %s`: fork: %s", argv[1], why);
}

/* Invariant 2. */
static _Noreturn void stand_between(char *const argv[], int output) {
    pid_t command = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (command == 0) mpy_command_become(argv, (int[]){open("/dev/null", O_RDONLY | O_CLOEXEC), output, 2}, 3);
    int cause = errno;
    syscall(SYS_close_range, 0, ~0u, 0); /* the ends of the program's pipes, and ours */
    errno = cause;
    if (command > 0) mpy_proc_wait(command);
    end_between(command);
}

static pid_t start_between(char *const argv[], int output) {
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    pid_t between = (pid_t)syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (between == 0) stand_between(argv, output);
    int cause = errno;
    sigprocmask(SIG_SETMASK, &old, NULL);
    errno = cause;
    return between;
}

bool mpy_command_ask(char *const argv[], char *answer, size_t size, char *error, size_t n) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return mpy_refuse(error, n, "pipe: %s", strerror(errno));
    pid_t between = start_between(argv, ends[1]);
    int cause = errno;
    close(ends[1]);
    ssize_t got = between > 0 ? mpy_read_whole(ends[0], answer, size - 1, MPY_AT_POSITION) : 0;
    answer[got > 0 ? got : 0] = '\0';
    close(ends[0]);
    const char *why = why_not(between, cause);
    if (why != NULL) return mpy_refuse(error, n, "cannot start %s: fork: %s", argv[0], why);
    char *end = strchr(answer, '\n');
    if (end == NULL) return mpy_refuse(error, n, "`manapy %s` did not answer", argv[1]);
    *end = '\0';
    return true;
}
