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
