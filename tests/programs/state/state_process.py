"""State of the process: directory, masks, limits, identity, environment. And it can still do what processes do."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from checkpointed import main

LIBC = ctypes.CDLL(None, use_errno=True)


def state_directory() -> Iterator[None]:
    before = os.getcwd()
    os.makedirs("a directory/below", exist_ok=True)
    os.chdir("a directory/below")
    yield
    assert os.getcwd() == os.path.join(before, "a directory/below")
    os.chdir(before)


def state_masks_and_limits() -> Iterator[None]:
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_CORE, (12345, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    nice = os.nice(3)
    LIBC.prctl(15, b"renamed", 0, 0, 0)
    yield
    assert os.umask(0o022) == 0o027
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 12345
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 4000
    assert os.nice(0) == nice
    assert Path("/proc/self/comm").read_text() == "renamed\n"


def state_identity() -> Iterator[None]:
    facts = [
        os.getpid(),
        threading.get_native_id(),
        sys.executable,
        sys.argv,
        os.readlink("/proc/self/exe"),
        Path("/proc/self/cmdline").read_bytes(),
    ]
    parent = os.getppid()
    yield
    assert [
        os.getpid(),
        threading.get_native_id(),
        sys.executable,
        sys.argv,
        os.readlink("/proc/self/exe"),
        Path("/proc/self/cmdline").read_bytes(),
    ] == facts
    assert os.getppid() > 0 and parent > 0
    assert os.getpgid(0) > 0
    seen = []
    signal.signal(signal.SIGUSR1, lambda s, f: seen.append(s))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    assert len(seen) == 2
    assert os.sched_getaffinity(os.getpid())


def state_in_proc() -> Iterator[None]:
    """The program finds itself and its threads in /proc."""
    fifo = os.path.abspath("proc.fifo")
    os.mkfifo(fifo)
    opened: list[int] = []
    thread = threading.Thread(target=lambda: opened.append(os.open(fifo, os.O_RDONLY)))
    thread.start()
    pid = os.getpid()

    def check() -> None:
        assert "state_process.py" in Path(f"/proc/{pid}/cmdline").read_text()
        assert os.path.exists(f"/proc/{pid}/status") and os.access(f"/proc/{pid}", os.R_OK)
        assert os.readlink(f"/proc/{pid}/cwd") == os.getcwd() == os.path.realpath(f"/proc/{pid}/cwd")
        assert os.stat(f"/proc/{pid}/task/{thread.native_id}/comm").st_uid == os.getuid()
        assert Path(f"/proc/self/task/{thread.native_id}/comm").read_text().strip()
        assert not os.path.exists(f"/proc/{pid}/task/{pid}/nothing") and not os.path.exists("/proc/x" * 200)

    check()
    yield
    check()
    other = threading.Thread(target=lambda: opened.append(os.open(fifo, os.O_RDONLY)))
    other.start()
    time.sleep(0.01)
    writing = os.open(fifo, os.O_WRONLY)
    thread.join()
    other.join()
    for fd in (writing, *opened):
        os.close(fd)
    os.unlink(fifo)


def state_environment() -> Iterator[None]:
    os.environ["SET_BY_PROGRAM"] = "x y"
    os.environ.pop("HOME", None)
    yield
    assert os.environ["SET_BY_PROGRAM"] == "x y" and "HOME" not in os.environ
    done = subprocess.run(["/bin/sh", "-c", 'echo "$SET_BY_PROGRAM" ${HOME-unset}'], capture_output=True, text=True)
    assert done.stdout == "x y unset\n"


def state_children_before_and_after() -> Iterator[None]:
    code = [sys.executable, "-c", "import os, sys; print(sys.argv, os.getppid())", "a"]
    assert subprocess.run(code, capture_output=True, text=True).stdout == f"['-c', 'a'] {os.getpid()}\n"
    zombie = subprocess.Popen(["true"])
    yield
    done = subprocess.run(code, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("['-c', 'a']"), done
    assert zombie.wait() == 0 or True  # gone after a restart
    child = os.fork()
    if child == 0:
        os._exit(7)
    pid, status = os.waitpid(child, 0)
    assert (pid, os.waitstatus_to_exitcode(status)) == (child, 7)
    assert subprocess.run(["cat"], input=b"x" * 100_000, capture_output=True).stdout == b"x" * 100_000
    process = subprocess.Popen(["sleep", "100"])
    process.terminate()
    assert process.wait() == -signal.SIGTERM


def state_randomness() -> Iterator[None]:
    generator = random.Random(7)
    generator.random()
    state = generator.getstate()
    yield
    assert generator.getstate() == state
    assert generator.random() == (lambda g: (g.random(), g.random())[1])(random.Random(7))
    assert len({os.urandom(8) for _ in range(10)}) == 10


def state_loaded_libraries() -> Iterator[None]:
    import sqlite3
    import ssl
    import zlib

    libm = ctypes.CDLL("libm.so.6")
    libm.cos.restype, libm.cos.argtypes = ctypes.c_double, [ctypes.c_double]
    database = sqlite3.connect(":memory:")
    database.execute("create table t (x)")
    database.executemany("insert into t values (?)", [(i,) for i in range(100)])
    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))(
        lambda a, b: a[0] - b[0]
    )
    numbers = (ctypes.c_int * 5)(5, 3, 1, 4, 2)
    yield
    assert libm.cos(0.0) == 1.0
    assert database.execute("select sum(x) from t").fetchone() == (4950,)
    LIBC.qsort(numbers, 5, 4, callback)
    assert list(numbers) == [1, 2, 3, 4, 5]
    import bz2
    import lzma

    assert ctypes.CDLL("libcrypt.so.1") and bz2.decompress(bz2.compress(b"x")) == lzma.decompress(
        lzma.compress(b"x")
    ) == zlib.decompress(zlib.compress(b"x"))
    assert ssl.RAND_bytes(4)


def state_clocks() -> Iterator[None]:
    monotonic, boot, cpu = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
    yield
    assert time.monotonic() >= monotonic
    assert time.clock_gettime(time.CLOCK_BOOTTIME) >= boot
    assert time.time() >= cpu
    begin = time.thread_time()  # other processes may use the processors
    for _ in range(100_000):
        time.monotonic()
    assert (time.thread_time() - begin) / 100_000 < 2e-6, "clock reads have become system calls"


def state_large_memory() -> Iterator[None]:
    blocks = [bytearray(os.urandom(1 << 16) * 16) for _ in range(30)]
    sparse = bytearray(256 << 20)
    sparse[100 << 20] = 9
    copies = [bytes(block) for block in blocks[:3]]
    yield
    assert all(bytes(b) == c for b, c in zip(blocks, copies, strict=False))
    assert sparse[100 << 20] == 9 and sum(sparse[(100 << 20) - 10 : (100 << 20) + 10]) == 9
    more = [bytearray(1 << 20) for _ in range(100)]
    assert len(more) == 100


main(globals())
