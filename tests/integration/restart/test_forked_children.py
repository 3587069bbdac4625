"""Children that a process of a rank's tree has forked, without exec, are saved and come back, too."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import build
from jobs import BIN, PROGRAMS, Job, oks
from restarts import refused, restart, restart_twice
from waiting import until

SUBSHELLS = """
word=outer
(word=inner; read -r line < fifo.$PMI_RANK; echo "subshell: $word $line"; exit 5) &
subshell=$!
counter() { for i in 1 2 3; do read -r line; echo "$i $line"; done < steps.$PMI_RANK; }
counter | (sed -u 's/^/counted: /'; echo "filter ends") &
$SOLVER go
echo late > fifo.$PMI_RANK
for i in 1 2 3; do echo step; done > steps.$PMI_RANK
wait $subshell; echo "subshell ended with $?"
wait; echo "all ended"
"""
PYTHON = """
import os, signal, subprocess, sys, threading, time
down, up = os.pipe(), os.pipe()
parent = os.getpid()
child = os.fork()
if child == 0:
    mine, threads = os.getpid(), []
    grandchild = os.fork()
    if grandchild == 0:
        os.read(down[0], 1)
        os._exit(7)
    lock = threading.Lock(); lock.acquire()
    thread = threading.Thread(target=lambda: (lock.acquire(), os.write(up[1], b"thread ")))
    thread.start()
    assert os.waitpid(grandchild, 0) == (grandchild, 7 << 8)
    lock.release(); thread.join()
    assert (os.getpid(), os.getppid()) == (mine, parent)
    os.write(up[1], subprocess.check_output(["sh", "-c", "echo exec"]))
    signal.pause()
assert subprocess.call(sys.argv[1:]) == 0
os.write(down[1], b"x")
text = b""
while not text.endswith(b"exec\\n"):
    text += os.read(up[0], 100)
print(text.decode().strip(), flush=True)
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0) == (child, signal.SIGTERM)
newborn = os.fork()
if newborn == 0:
    os._exit(3)
assert os.waitpid(newborn, 0) == (newborn, 3 << 8)
print("python: saw the ends of its children", flush=True)
"""

SETS = """
import ctypes, os, select, signal, subprocess, sys
both = select.epoll()
ends = os.pipe()
both.register(ends[0], select.EPOLLIN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signals = ctypes.CDLL(None).signalfd(-1, ctypes.byref((ctypes.c_uint64 * 16)(1 << signal.SIGUSR1 - 1)), 0)
child = os.fork()
if child == 0:
    if "OWN" in os.environ:
        own = os.pipe()
        both.register(own[0], select.EPOLLIN)
    ready = both.poll()
    text = os.read(ends[0], 10)
    number = int.from_bytes(os.read(signals, 128)[:4], "little")
    os._exit(5 if (ready, text, number) == ([(ends[0], select.EPOLLIN)], b"x", signal.SIGUSR1) else 1)
assert subprocess.call(sys.argv[1:]) == 0
os.write(ends[1], b"x")
os.kill(child, signal.SIGUSR1)
assert os.waitpid(child, 0) == (child, 5 << 8)
assert both.poll(0) == []
os.write(ends[1], b"y")
assert both.poll() == [(ends[0], select.EPOLLIN)]
print("python: goes on", flush=True)
"""


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


def test_subshells(job: Job, wide: str) -> None:
    for rank in range(job.ranks):
        os.mkfifo(job.where / f"fifo.{rank}")
        os.mkfifo(job.where / f"steps.{rank}")
    job.env["SOLVER"] = wide
    job.start("bash", "-c", SUBSHELLS)
    restart_twice(job)
    output = job.finish()
    assert oks(output) == 1, output
    for line in ("subshell: inner late", "subshell ended with 5", "counted: 3 step", "filter ends", "all ended"):
        assert output.count(line) == 2, output


@pytest.mark.parametrize("ways", ["", "--background auto --dirty auto --compress on"], ids=["plain", "all ways"])
def test_forks_of_python(job: Job, wide: str, ways: str) -> None:
    job.start(sys.executable, "-c", PYTHON, wide, "go", options=ways.split())
    restart_twice(job)
    output = job.finish()
    assert output.count("thread exec") == 2 and oks(output) == 1, output
    assert output.count("python: saw the ends of its children") == 2, output


def test_an_epoll_set_and_a_signalfd_of_two_processes(job: Job, wide: str) -> None:
    job.start(sys.executable, "-c", SETS, wide, "go")
    restart_twice(job)
    output = job.finish()
    assert output.count("python: goes on") == 2 and oks(output) == 1, output


def test_an_epoll_set_that_watches_what_only_the_child_has(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    job.env["OWN"] = "1"
    job.start(sys.executable, "-c", SETS, wide, "go")
    refused(job, "epoll set .* watches a descriptor that only process .* has; let each process")


def test_a_program_that_forks_all_the_time(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    job.start("bash", "-c", f"while ! [ -e go ]; do : $(echo x >> beats); (true) & wait $!; done & {wide} go; wait")
    job.wait_for("ready")
    beats = job.where / "beats"
    for _ in range(3):
        job.checkpoint()
        seen = beats.stat().st_size
        until(lambda seen=seen: beats.stat().st_size > seen, "the next fork")
    restart(job)
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


@pytest.mark.parametrize("ways", ["", "--background auto --dirty auto --compress on"], ids=["plain", "all ways"])
@pytest.mark.parametrize("program", ["forked_workers.py", "worker_pool.py"])
def test_children_of_the_mpi_process(job: Job, program: str, ways: str) -> None:
    job.start(sys.executable, PROGRAMS / "state" / program, "go", options=ways.split())
    restart_twice(job)
    assert oks(job.finish()) == 1


def test_manapy_is_upgraded_meanwhile(job: Job) -> None:
    """Then the file that the processes run is another one."""
    prefix = job.where / "prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib").symlink_to(BIN.parent / "lib")
    for name in ("manapy", "manapy-launch", "manapy-restart"):
        shutil.copy(BIN / name, prefix / "bin")
    launcher = prefix / "bin/manapy-launch"
    program = (sys.executable, PROGRAMS / "state/forked_workers.py", "go")
    job.spawn([*job.mpirun, "-n", str(job.ranks), launcher, "--dir", job.dir, *program])
    job.wait_for("ready")
    launcher.unlink()
    shutil.copy(BIN / "manapy-launch", launcher)
    restart_twice(job)
    assert oks(job.finish()) == 1


def test_an_mpi_program_that_forks_all_the_time(job: Job) -> None:
    job.start(sys.executable, PROGRAMS / "moments/many_forks.py", "go")
    job.wait_for("ready")
    for again in (False, True, False, False):
        job.checkpoint()
        if again:
            restart(job)
        beat = job.where / "beat.0"
        beat.unlink(missing_ok=True)
        until(beat.exists, "the next forks")
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def test_a_child_with_a_connection_gets_the_grace_time(make_job: Callable[..., Job], wide: str) -> None:
    """It may end meanwhile. It always has a child that started a moment ago, which does not shorten the time."""
    job = make_job(1)
    sleeps = "#include <unistd.h>\nint main(void) { return usleep(50000); }\n"
    sleeper = build(job.where / "sleeper", sleeps, "-static")
    talk = f"exec 7<>/dev/tcp/127.0.0.1/$PORT; echo > connected; until [ -e end ]; do {sleeper}; done"
    with socket.create_server(("127.0.0.1", 0)) as server:
        job.env["PORT"] = str(server.getsockname()[1])
        job.start("bash", "-c", f"({talk}) & {wide} go; wait", options=["--child-grace", "3"])
        job.wait_for("ready")
        until((job.where / "connected").exists, "the connection")
        timer = threading.Timer(1, (job.where / "end").touch)
        timer.start()
        job.checkpoint()
        timer.join()
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def test_a_connection_that_stays_is_named(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        talk = f"exec 7<>/dev/tcp/127.0.0.1/{port}; echo > connected; until [ -e go ]; do sleep 0.01; done"
        job.start("bash", "-c", f"({talk}) & {wide} go; wait; echo goes on", options=["--child-grace", "0.2"])
        until((job.where / "connected").exists, "the connection")
        refused(job, "fd 7.*socket|descriptor 7")


def test_the_orphan_of_a_member_is_refused(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    orphan = "(until [ -e go ]; do sleep 0.01; done) & echo $BASHPID > gone"
    member = f"(until [ -e end ]; do sleep 0.01; done; {orphan})"
    job.start("bash", "-c", f"{member} & {wide} go; wait; echo goes on", options=["--child-grace", "0.2"])
    job.wait_for("ready")
    job.checkpoint()
    (job.where / "end").touch()
    gone = job.where / "gone"
    until(lambda: gone.exists() and gone.read_text().strip(), "the fork of the member")
    until(lambda: not Path("/proc", gone.read_text().strip()).exists(), "the end of the member")
    refused(job, "has lost its parent")
