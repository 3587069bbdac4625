"""Properties of a process that it can see itself. Each aspect is one function, whose result is compared with that of a
native run.

    python transparency.py ASPECT... (default: all)

Prints one JSON object per line, {"aspect": result}. An exception is a result, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import math
import mmap
import multiprocessing
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
ASPECTS: dict[str, Callable[[], Any]] = {}


def aspect(function: Callable[[], Any]) -> Callable[[], Any]:
    ASPECTS[function.__name__] = function
    return function


# ---- who am I ----


@aspect
def interpreter() -> Any:
    return {
        "executable": sys.executable,
        "prefix": [sys.prefix, sys.base_prefix, sys.exec_prefix],
        "path": sys.path,
        "argv": sys.orig_argv,
        "flags": str(sys.flags),
        "platform": [platform.platform(), platform.libc_ver(), sysconfig.get_config_var("LDLIBRARY")],
        "encoding": [sys.stdin.encoding, sys.stdout.encoding, sys.stdout.line_buffering, os.isatty(1)],
    }


@aspect
def proc_self() -> Any:
    me = f"/proc/{os.getpid()}"
    return {
        "exe": [
            os.readlink("/proc/self/exe"),
            os.readlink(f"{me}/exe"),
            str(Path("/proc/self/exe").resolve()),
            os.path.realpath("/proc/self/exe"),
        ],
        "cmdline": Path("/proc/self/cmdline").read_bytes().split(b"\0").__repr__(),
        "comm": [Path("/proc/self/comm").read_text(), Path(f"{me}/comm").read_text()],
        "environ_first": Path("/proc/self/environ").read_bytes().split(b"\0")[0].decode()[:4] != "",
        "cwd": os.getcwd(),
        "fds": sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) < 512)[:3],
    }


@aspect
def identity() -> Any:
    pid = os.getpid()
    return {
        "pid": pid == int(os.readlink("/proc/self")),
        "tid": threading.get_native_id() == pid,
        "pgid": os.getpgid(0) == os.getpgrp() == os.getpgid(pid),
        "sid": os.getsid(0) == os.getsid(pid),
        "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
        "umask": _umask(),
        "nice": os.nice(0),
        "affinity": sorted(os.sched_getaffinity(0)) == sorted(os.sched_getaffinity(pid)),
        "host": socket.gethostname(),
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@aspect
def limits() -> Any:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


@aspect
def signal_state() -> Any:
    lines = Path("/proc/self/status").read_text().splitlines()
    shown = {line.split(":")[0]: line.split(":")[1].strip() for line in lines if line[:3] in ("Sig", "Shd")}
    reserved = 1 << (signal.SIGSYS - 1) | 1 << (62 - 1) | 3 << (32 - 1)  # ours, and libc's own
    return {
        "blocked": [shown["SigBlk"], sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))],
        "ignored": shown["SigIgn"],
        "caught": int(shown["SigCgt"], 16) & ~reserved,
        "handlers": {
            int(s): str(signal.getsignal(s)) for s in signal.valid_signals() if s not in (signal.SIGSYS, 62)
        }.__repr__().split(" at 0x")[0],
    }


# ---- signals ----


@aspect
def signal_handlers() -> Any:
    seen: list[Any] = []
    old = signal.signal(signal.SIGUSR1, lambda s, f: seen.append(int(s)))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    seen.append(signal.signal(signal.SIGUSR1, old) is not None)
    signal.signal(signal.SIGALRM, lambda s, f: seen.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    signal.pause()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    seen.append(sorted(signal.sigpending()))
    seen.append(int(signal.sigwait([signal.SIGUSR2])))
    seen.append(sorted(signal.pthread_sigmask(signal.SIG_SETMASK, [])))
    seen.append(signal.sigtimedwait([signal.SIGUSR2], 0.01))
    reading, writing = os.pipe()
    timer = threading.Timer(0.05, os.write, (writing, b"x"))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    timer.start()
    seen.append(os.read(reading, 1).decode())  # PEP 475: EINTR is invisible
    timer.join()
    return seen


@aspect
def signal_numbers() -> Any:
    """Every signal that can be caught, twice, including those that manapy uses below."""
    seen = []
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGSYS, 62}):
        old = signal.signal(number, lambda s, f: seen.append(int(s)))
        for _ in range(2):
            os.kill(os.getpid(), number)
        if old is not None:
            signal.signal(number, old)
    return seen


@aspect
def alternate_stack() -> Any:
    """faulthandler uses sigaltstack; a stack overflow in a child is reported."""
    faulthandler.enable()
    with tempfile.TemporaryFile() as stream:
        faulthandler.dump_traceback(stream)
        stream.seek(0)
        lines = stream.read().decode().splitlines()
    code = "import faulthandler, sys; faulthandler.enable(); faulthandler._sigsegv()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    code = "import faulthandler; faulthandler.enable(); faulthandler._stack_overflow()"
    overflow = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return [
        len(lines) > 2,
        done.returncode,
        done.stderr.splitlines()[0],
        overflow.returncode,
        overflow.stderr.splitlines()[0],
    ]


# ---- memory ----


@aspect
def memory() -> Any:
    result: list[Any] = []
    block = bytearray(300 << 20)
    block[0] = block[-1] = 7
    result.append(block[-1])
    del block
    area = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area[:4] = b"abcd"
    area.resize(64 << 20)
    area[-1:] = b"z"
    area.resize(1 << 12)
    result.append(area[:4].decode())
    area.close()
    with tempfile.TemporaryFile() as stream:
        stream.write(b"x" * 8192)
        stream.flush()
        shared = mmap.mmap(stream.fileno(), 8192)
        shared[4096:4100] = b"1234"
        shared.flush()
        stream.seek(4096)
        result.append(stream.read(4).decode())
        shared.close()
    LIBC.sbrk.restype = ctypes.c_void_p
    LIBC.sbrk.argtypes = [ctypes.c_ssize_t]
    before = LIBC.sbrk(0)
    start = LIBC.sbrk(1 << 20)
    ctypes.memset(start, 1, 1 << 20)
    result.append((LIBC.sbrk(0) or 0) - (before or 0))
    LIBC.sbrk(-(1 << 20))
    result.append(LIBC.sbrk(0) == before)
    LIBC.malloc.restype = LIBC.realloc.restype = ctypes.c_void_p
    LIBC.malloc.argtypes, LIBC.realloc.argtypes, LIBC.free.argtypes = (
        [ctypes.c_size_t],
        [ctypes.c_void_p, ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    pointers = [LIBC.malloc(size) for size in (10, 1000, 100_000, 10_000_000, 100_000_000)]
    pointers = [LIBC.realloc(p, 20_000_000) for p in pointers]
    for pointer in pointers:
        ctypes.memset(pointer, 5, 20_000_000)
        LIBC.free(pointer)
    result.append(len(pointers))
    return result


@aspect
def no_memory() -> Any:
    try:
        bytearray(1 << 50)
    except MemoryError:
        return "MemoryError"
    return "?"


@aspect
def recursion() -> Any:
    def deep(n: int) -> int:
        return 0 if n == 0 else 1 + deep(n - 1)

    old = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)
    try:
        return deep(10000)
    finally:
        sys.setrecursionlimit(old)


# ---- processes ----


@aspect
def children() -> Any:
    result: list[Any] = []
    done = subprocess.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], capture_output=True, text=True)
    result.append([done.returncode, done.stdout, done.stderr])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.argv, sys.executable)", "a b", ""],
        capture_output=True,
        text=True,
        input="",
    )
    result.append([done.returncode, done.stdout])
    done = subprocess.run(["sh", "-c", "kill -9 $$"])
    result.append(done.returncode)
    result.append(os.system("exit 5") >> 8)
    with os.popen("cat /proc/self/comm") as stream:
        result.append(stream.read())
    done = subprocess.run(
        ["cat"], input="through a pipe" * 10000, capture_output=True, text=True, start_new_session=True, close_fds=True
    )
    result.append(len(done.stdout))
    try:
        subprocess.run(["/nonexistent/program"])
    except FileNotFoundError as error:
        result.append(str(error))
    try:
        subprocess.run(["sleep", "100"], timeout=0.2)
    except subprocess.TimeoutExpired:
        result.append("timeout")
    result.append(subprocess.run(["true"], preexec_fn=lambda: os.setpgid(0, 0)).returncode)
    return result


@aspect
def fork() -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        facts = (
            [os.getpid() != int(parent_pid), os.getppid() == int(parent_pid), threading.get_native_id() == os.getpid()]
            if (parent_pid := str(PID))
            else []
        )
        thread = threading.Thread(target=lambda: facts.append("thread"))
        thread.start()
        thread.join()
        signal.signal(signal.SIGUSR1, lambda s, f: facts.append("signal"))
        os.kill(os.getpid(), signal.SIGUSR1)
        os.write(writing, json.dumps(facts).encode())
        os._exit(7)
    os.close(writing)
    data = b""
    while piece := os.read(reading, 1000):
        data += piece
    pid, status = os.waitpid(child, 0)
    return [pid == child, os.waitstatus_to_exitcode(status), json.loads(data)]


PID = os.getpid()


@aspect
def exec_in_child() -> Any:
    child = os.fork()
    if child == 0:
        os.execv("/bin/sh", ["sh", "-c", "exit 9"])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _square(x: int) -> int:
    return x * x


@aspect
def pools() -> Any:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        forked = pool.map(_square, range(5))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_put, args=(queue,))
    process.start()
    got = queue.get()
    process.join()
    return [forked, got, process.exitcode]


def _put(queue: Any) -> None:
    queue.put("spawned")


# ---- threads ----


@aspect
def threads() -> Any:
    seen: list[Any] = []
    barrier = threading.Barrier(8)
    idents = set()

    def body(number: int) -> None:
        idents.add(threading.get_native_id())
        barrier.wait()
        time.sleep(0.001 * number)
        with lock:
            seen.append(number)

    lock = threading.RLock()
    workers = [threading.Thread(target=body, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _ in range(200):
        worker = threading.Thread(target=lambda: None)
        worker.start()
        worker.join()
    return [sorted(seen), len(idents), threading.active_count()]


@aspect
def numeric() -> Any:
    import numpy

    generator = numpy.random.default_rng(1)
    a = generator.random((300, 300))
    return [float(numpy.linalg.det(a / 10)), float((a @ a).sum()), float(numpy.fft.fft(a).real.sum())]


@aspect
def clocks() -> Any:
    a, b = time.monotonic(), time.clock_gettime(time.CLOCK_MONOTONIC)
    fastest = math.inf  # of short loops: other processes slow down a long one
    for _ in range(200):
        begin = time.perf_counter()
        for _ in range(100):
            time.perf_counter()
        fastest = min(fastest, time.perf_counter() - begin)
    return [
        abs(a - b) < 0.5,
        abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 0.5,
        fastest / 100 < 1e-6,
        time.get_clock_info("monotonic").resolution,
    ]


@aspect
def libraries() -> Any:
    """Loading at run time, symbols of the program itself, iconv modules, the resolver, locale."""
    libm = ctypes.CDLL("libm.so.6")
    libm.cos.restype, libm.cos.argtypes = ctypes.c_double, [ctypes.c_double]
    import sqlite3
    import ssl
    import zlib

    database = sqlite3.connect(":memory:")
    return [
        libm.cos(0.5),
        database.execute("select 6 * 7").fetchone(),
        ssl.OPENSSL_VERSION,
        zlib.crc32(b"abc"),
        socket.getaddrinfo("localhost", 80, socket.AF_INET)[0][4],
        "é".encode("latin-1").hex(),
    ]


# ---- descriptors ----


@aspect
def descriptors() -> Any:
    reading, writing = os.pipe()
    copy = os.dup(writing)
    os.dup2(reading, 40)
    stream = open("/dev/null", "rb")
    numbers = [stream.fileno() < 64, reading < 64, copy < 64]
    stream.close()
    os.closerange(45, 4096)
    os.close(copy)
    left, right = socket.socketpair()
    left.sendall(b"hello")
    result = [numbers, right.recv(5).decode()]
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    peer, _ = server.accept()
    peer.sendall(b"over tcp")
    result.append(client.recv(100).decode())
    for thing in (left, right, server, client, peer):
        thing.close()
    return result


@aspect
def event_loop() -> Any:
    import asyncio

    async def main() -> list[Any]:
        process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        await asyncio.sleep(0.01)
        return [out.decode(), process.returncode]

    return asyncio.run(main())


def results(names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names or list(ASPECTS):
        try:
            yield name, ASPECTS[name]()
        except Exception:
            yield name, traceback.format_exc()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        for key, value in results(sys.argv[1:]):
            print(json.dumps({key: value}), flush=True)
