"""lowerhalf/join/command.c: commands beside a rank."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compiling import LOWER, build_core

REFUSED_FORK = r"""
#include "join/command.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int left;
pid_t fork(void) { /* only `left` of them succeed, one within the other */
    if (left-- > 0) return (pid_t)syscall(SYS_fork);
    errno = EAGAIN;
    return -1;
}
int main(int argc, char **argv) {
    char error[256] = "";
    if (argc < 2) return 2;
    left = atoi(argv[1]);
    bool done = mpy_command_detach((char *[]){"/bin/true", "_coordinator", NULL}, "log", NULL, 0, error, sizeof error);
    printf("%d %s\n", done, error);
}
"""

UNNOTICED = r"""
#include "join/command.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int signals, found, over;
static void count(int s) { (void)s; signals++; }
static void *look(void *unused) {
    while (!over) {
        found += waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD;
        usleep(1000);
    }
    return unused;
}
int main(void) {
    char answer[64], error[256] = "";
    pthread_t looker;
    int ends[2];
    if (pipe(ends)) return 1;
    signal(SIGCHLD, count);
    pthread_create(&looker, NULL, look, NULL);
    char *argv[] = {"/bin/sh", "-c", "sleep 0.3; ls /proc/self/fd | wc -l", NULL};
    int done = mpy_command_ask(argv, answer, sizeof answer, error, sizeof error);
    over = 1;
    pthread_join(looker, NULL);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    printf("%d %s%s, %d signals, %d children, %d blocked\n", done, answer, error, signals, found,
           sigismember(&mask, SIGTERM));
}
"""


def made(where: Path, text: str) -> Path:
    source = where / "driver.c"
    source.write_text(text)
    return build_core(where / "driver", [source, LOWER / "join/command.c"], "-pthread")


def test_a_refused_fork(tmp_path: Path) -> None:
    """A limit of processes may allow the first fork and not the second."""
    driver = made(tmp_path, REFUSED_FORK)
    for forks, said in ((0, "0"), (1, "0"), (2, "1")):
        done = subprocess.run([driver, str(forks)], cwd=tmp_path, capture_output=True, text=True, check=True)
        why = "cannot start `manapy _coordinator`: fork: Resource temporarily unavailable" if said == "0" else ""
        assert done.stdout == f"{said} {why}\n"


def test_a_running_program_does_not_notice(tmp_path: Path) -> None:
    """A member of a tree asks a command when the program calls MPI_Init. The program has a handler of SIGCHLD, and a
    thread that waits for any child."""
    done = subprocess.run([made(tmp_path, UNNOTICED)], capture_output=True, text=True, check=True)
    assert done.stdout == "1 4, 0 signals, 0 children, 0 blocked\n"
    assert done.stderr == ""
