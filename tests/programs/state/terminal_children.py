"""Children of a rank on pseudo-terminals: one that pty.fork has made, and a shell that subprocess has started.

Usage: terminal_children.py GO (wait for this file). Prints "ok" on rank 0 if every check has passed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from mpi4py import MPI

TIOCGSID = 0x5429


def read_until(fd: int, end: bytes) -> bytes:
    got = b""
    while not got.endswith(end):
        try:
            got += os.read(fd, 1000)
        except OSError:  # the child has ended
            raise AssertionError(got.decode()) from None
    return got


def job_of_terminal() -> tuple[int, int, str]:
    """Session and foreground group of the controlling terminal, and the name of standard input."""
    with open("/dev/tty", "rb", buffering=0) as terminal:
        session = struct.unpack("i", fcntl.ioctl(terminal, TIOCGSID, bytes(4)))[0]
        return session, os.tcgetpgrp(terminal.fileno()), os.ttyname(0)


def on_terminal() -> None:
    """The child of pty.fork, which leads the session. A grandchild is in the foreground."""
    signals: list[int] = []
    for number in (signal.SIGWINCH, signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, lambda number, frame: signals.append(number))
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    me = os.getpid()
    down = os.pipe()
    kept = os.open("/dev/tty", os.O_RDWR)
    group = os.fork()
    if group == 0:
        os.read(down[0], 1)  # its process group is made by the parent
        before, name = (me, os.getpid()), os.ttyname(0)
        assert job_of_terminal() == (*before, name)
        print("set up", flush=True)
        line = sys.stdin.readline()
        assert job_of_terminal() == (*before, name), (job_of_terminal(), before, name)
        by_name = os.open(name, os.O_RDWR)
        os.write(by_name, f"heard {line}".encode())
        os._exit(3)
    os.setpgid(group, group)
    os.tcsetpgrp(0, group)
    os.write(down[1], b"x")
    assert os.waitpid(group, 0) == (group, 3 << 8)
    assert os.tcgetpgrp(kept) == group and os.getsid(0) == me
    os.tcsetpgrp(kept, me)
    os.write(kept, f"signals: {signals}\n".encode())
    assert sys.stdin.readline() == "resized\n"
    os.write(kept, f"then: {[signal.Signals(s).name for s in signals]}\n".encode())
    os._exit(5)


def main() -> None:
    go = Path(sys.argv[1])
    rank = MPI.COMM_WORLD.rank
    child, master = pty.fork()
    if child == 0:
        on_terminal()
    read_until(master, b"set up\r\n")
    os.write(master, b"hel")  # typed in part
    shell, slave = pty.openpty()
    settings = termios.tcgetattr(slave)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    script = 'echo begins; while read -r line; do [ -t 0 ] && echo "$line on a terminal"; done'
    bash = subprocess.Popen(["bash", "-c", script], stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    read_until(shell, b"begins\r\n")
    print("ready", flush=True) if rank == 0 else None
    while not go.exists():
        time.sleep(0.01)
    MPI.COMM_WORLD.Barrier()

    os.write(master, b"lo\n")
    assert read_until(master, b"signals: []\r\n") == b"hello\r\nheard hello\r\nsignals: []\r\n"
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    os.write(master, b"resized\n")
    got = read_until(master, b"]\r\n")
    assert got == b"resized\r\nthen: ['SIGWINCH']\r\n", got
    assert os.waitpid(child, 0) == (child, 5 << 8)

    os.write(shell, b"typed\n")
    got = read_until(shell, b"\r\n")
    assert got == b"typed on a terminal\r\n", got
    os.write(shell, b"\x04")
    assert bash.wait() == 0
    if MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size and rank == 0:
        print("ok", flush=True)


if __name__ == "__main__":
    main()
