/* wait.h - waits for a child process. Header only; libc. */
#ifndef MANAPY_PROC_WAIT_H
#define MANAPY_PROC_WAIT_H

#include <errno.h>
#include <sys/wait.h>

/* Returns its status, as waitpid(2) gives it. It may be one without an exit signal. */
static inline int mpy_proc_wait(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, __WALL) < 0 && errno == EINTR) {}
    return status;
}

#endif
