"""Kinds of memory and of descriptors that are saved in a way of their own, or refused."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import compiling
import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy
from phases import BESIDE
from waiting import until

WAITING = """
import ctypes, mmap, os, sys, time
def wait(say="ready", suffix=""):
    print(say, flush=True)
    while not os.path.exists(os.environ["STATE_GO"] + suffix): time.sleep(0.005)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
"""


def begin(job: Job, *command: str | Path, options: tuple[str, ...] = ()) -> Path:
    """Start a job, and wait until it says "ready". It goes on when the returned file exists."""
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    job.start(*command, options=options)
    job.wait_for("ready")
    return go


def through_restart(job: Job, text: str, options: tuple[str, ...] = ()) -> str:
    """The output of a Python program that is checkpointed and killed where it waits, and restarted."""
    go = begin(job, sys.executable, "-c", WAITING + text, options=options)
    job.checkpoint()
    job.kill()
    job.restart()
    go.touch()
    return job.finish()


# ---- descriptors ----


@pytest.mark.parametrize("made", ["linked", "unlinked"])
def test_file_that_has_only_another_name_is_refused(make_job: Callable[..., Job], made: str) -> None:
    """A restart would open another file, and what the program writes would not reach this one."""
    how = {
        "linked": "fd = os.open('.', os.O_TMPFILE | os.O_RDWR); "
        "assert libc.linkat(-100, f'/proc/self/fd/{fd}'.encode(), -100, b'b', 0x400) == 0",
        "unlinked": "fd = os.open('a', os.O_RDWR | os.O_CREAT); os.link('a', 'b'); os.unlink('a')",
    }[made]
    job = make_job(1)
    go = begin(job, sys.executable, "-c", WAITING + how + "; wait(suffix='1'); os.close(fd); wait('closed')")
    done = manapy("checkpoint", job.dir)
    assert (done.returncode, "another name" in done.stderr) == (1, True), done
    Path(f"{go}1").touch()
    job.wait_for("closed")
    job.checkpoint()
    go.touch()
    job.finish()


def test_expirations_of_a_timer_that_nobody_has_read(make_job: Callable[..., Job]) -> None:
    """The kernel counts those of the past only when somebody asks."""
    output = through_restart(
        make_job(1),
        """
class Timer(ctypes.Structure): _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "first", "ns")]
fd = libc.timerfd_create(1, 0)
assert libc.timerfd_settime(fd, 0, ctypes.byref(Timer(0, 1000000, 0, 1000000)), None) == 0
time.sleep(1)
wait()
print("expired", int.from_bytes(os.read(fd, 8), "little"))
""",
    )
    assert int(output.split("expired ")[1]) >= 900


def test_locks_of_a_file_that_is_also_mapped(make_job: Callable[..., Job]) -> None:
    """Whoever closes any descriptor of a file drops all of the process's locks on it (fcntl(2))."""
    job = make_job(1)
    begin(
        job,
        sys.executable,
        "-c",
        WAITING
        + """
import fcntl
fd = os.open("locked", os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(range(256)) * 64)
fcntl.lockf(fd, fcntl.LOCK_EX)
at = libc.mmap(None, 16384, 3, mmap.MAP_PRIVATE, fd, 0)
wait()
""",
        options=("--background", "off"),
    )
    locked = "import fcntl; fcntl.lockf(open('locked', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def others_are_kept_out() -> bool:
        done = subprocess.run([sys.executable, "-c", locked], cwd=job.where, capture_output=True, check=False)
        return b"BlockingIOError" in done.stderr

    assert others_are_kept_out()
    job.checkpoint()
    assert others_are_kept_out()


# ---- memory ----


def test_sealed_memory_file_that_is_mapped_stays_sealed(make_job: Callable[..., Job]) -> None:
    output = through_restart(
        make_job(1),
        """
import fcntl
fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.write(fd, b"s" * 4096)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)
reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
at = libc.mmap(None, 4096, 1, mmap.MAP_SHARED, reading, 0)
wait()
assert ctypes.string_at(at, 4096) == b"s" * 4096
seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
print("ok" if seals == fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK else f"seals {seals}")
""",
    )
    assert "ok" in output.splitlines(), output


def test_mapped_events_without_a_descriptor_are_refused(make_job: Callable[..., Job]) -> None:
    """perf_event_open(2): the descriptor is closed, the ring is still mapped."""
    job = make_job(1)
    begin(
        job,
        sys.executable,
        "-c",
        WAITING
        + """
attributes = (ctypes.c_uint32 * 32)(1, 128)  # PERF_TYPE_SOFTWARE
attributes[2] = 0  # PERF_COUNT_SW_CPU_CLOCK
fd = libc.syscall(298, ctypes.byref(attributes), 0, -1, -1, 0)
at = libc.mmap(None, 8192, 3, mmap.MAP_SHARED, fd, 0) if fd >= 0 else 0
if fd >= 0: os.close(fd)
wait(f"ready {fd}")
""",
    )
    if "ready -1" in job.output():
        pytest.skip("perf_event_open(2) is not allowed here")
    done = manapy("checkpoint", job.dir)
    assert (done.returncode, "[perf_event]" in done.stderr) == (1, True), done


def test_what_is_mapped_after_the_check_is_found(make_job: Callable[..., Job]) -> None:
    """Rank 0 is ahead in the collectives. Rank 1 runs on until its next one, after the check."""
    job = make_job(2)
    go = job.where / "go"
    job.env["STATE_GO"] = str(go)
    text = (
        WAITING
        + """
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 0:
    print("ready", flush=True)
else:
    wait("other")
    context = ctypes.c_ulong()
    assert libc.syscall(206, 1, ctypes.byref(context)) == 0
comm.Barrier()
wait("after", "2")
"""
    )
    job.start(sys.executable, "-c", text)
    job.wait_for(lambda said: "ready" in said and "other" in said)
    asked = subprocess.Popen([BIN / "manapy", "checkpoint", job.dir], stderr=subprocess.PIPE, text=True)
    until(lambda: job.status()["phase"] not in ("idle", "checking"), job.report)
    go.touch()
    _, errors = asked.communicate(timeout=PATIENCE)
    assert (asked.returncode, "asynchronous I/O" in errors) == (1, True), errors
    Path(f"{go}2").touch()


PLACED = """
#include "../checkpointed.h"
#include <sys/mman.h>
enum { SMALL = 64 << 10, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };
static char *low;
static void low_set_up(void) {
    low = mmap(NULL, SMALL, RW, ANON | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED && (unsigned long)low + SMALL <= 1ul << 31);
    strcpy(low, "low");
    void *other = mmap(NULL, SMALL, RW, ANON | MAP_32BIT, -1, 0);
    CHECK(other != MAP_FAILED && other != low && munmap(other, SMALL) == 0);
}
static void low_check(void) { CHECK(strcmp(low, "low") == 0 && munmap(low, SMALL) == 0); }
static char *pages;
static void huge_set_up(void) {
    pages = mmap(NULL, SMALL, RW, ANON | MAP_HUGETLB, -1, 0);
    CHECK(pages != MAP_FAILED && ((unsigned long)pages & 0x1fffff) == 0);
    if (pages != MAP_FAILED) pages[(2 << 20) - 1] = 'h';
    void *giant = mmap(NULL, SMALL, RW, ANON | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT, -1, 0);
    CHECK(giant != MAP_FAILED || errno == ENOMEM); /* there may be no free page of 1 GiB */
    if (giant != MAP_FAILED) CHECK(munmap(giant, 1 << 30) == 0);
}
static void huge_check(void) { CHECK(pages[(2 << 20) - 1] == 'h' && pages[0] == 0 && munmap(pages, 2 << 20) == 0); }
MAIN(STATE(low), STATE(huge))
"""

POOL = Path("/proc/sys/vm/nr_hugepages")


@pytest.fixture
def pool() -> Iterator[Callable[[int], None]]:
    """Sets how many more huge pages the host has than are in use."""
    try:
        before = POOL.read_text()
        POOL.write_text(before)
    except OSError as error:
        pytest.skip(f"needs to set the number of huge pages: {error}")

    def give(count: int) -> None:
        POOL.write_text(str(int(before) + count))
        if int(POOL.read_text()) < int(before) + count:
            pytest.skip("the host has no room for huge pages")

    try:
        yield give
    finally:
        POOL.write_text(before)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MAP_32BIT")
@pytest.mark.parametrize("what", ["low", "huge"])
def test_where_mmap_must_place_memory(
    make_job: Callable[..., Job], tmp_path: Path, request: pytest.FixtureRequest, what: str
) -> None:
    if what == "huge":
        request.getfixturevalue("pool")(2)
    source = tmp_path / "placed.c"
    source.write_text(PLACED.replace("../checkpointed.h", str(PROGRAMS / "checkpointed.h")))
    program = compiling.build(tmp_path / "placed", source, "-O1")
    job = make_job(1)
    go = job.where / "now"
    go.touch()
    natively = subprocess.run([program, what], env={"STATE_GO": str(go)}, capture_output=True, text=True, check=False)
    assert "ok" in natively.stdout.splitlines(), natively
    go = begin(job, program, what)
    job.checkpoint()
    job.kill()
    job.restart()
    go.touch()
    job.finish()
    assert "FAILED" not in job.output(0) + job.output()


HUGE_PRIVATE = """
size = 2 << 20
ballast = bytearray(os.urandom(400 << 20))  # before it in the image
at = libc.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000, -1, 0)
assert at is not None and at != ctypes.c_void_p(-1).value
ctypes.memset(at, ord("a"), size)
wait("ready")
while True:
    ctypes.memset(at, ord("b"), 1)
    ctypes.memset(at, ord("a"), 1)
    if os.path.exists(os.environ["STATE_GO"] + "2"): break
print("ok" if ctypes.string_at(at, size) == b"a" * size else "wrong")
"""


def test_private_huge_pages_while_the_pool_is_empty(make_job: Callable[..., Job], pool: Callable[[int], None]) -> None:
    """When the program writes and the pool has no page for a copy, the kernel takes the page from the writer."""
    pool(1)
    job = make_job(1)
    go = begin(job, sys.executable, "-c", WAITING + HUGE_PRIVATE, options=tuple(BESIDE))
    go.touch()
    job.checkpoint()
    job.kill()
    job.restart()
    Path(f"{go}2").touch()
    assert "ok" in job.finish().splitlines()


STACK = """
#include <stdio.h>
#include <sys/resource.h>
#define MIB (1ul << 20)
static unsigned long down(unsigned long left) {
    volatile char frame[MIB];
    frame[0] = (char)left; /* one page of it */
    return left ? down(left - 1) + (frame[0] == (char)left) : 1;
}
int main(void) { printf("%lu MiB\\n", down(2048)); return 0; }
"""


def test_an_unlimited_stack_has_more_than_a_gigabyte(make_job: Callable[..., Job], tmp_path: Path) -> None:
    program = compiling.build(tmp_path / "deep", STACK, "-O0")
    job = make_job(1)
    job.mpirun = ["bash", "-c", 'ulimit -s unlimited && exec "$@"', "-", *job.mpirun]
    job.start(program)
    assert "2049 MiB" in job.finish()


@pytest.mark.parametrize("how", ["fexecve", "relative"])
def test_exec_of_an_open_file(make_job: Callable[..., Job], how: str) -> None:
    """execveat(2). What it starts is under manapy, too."""
    job = make_job(1)
    text = (
        WAITING
        + f"""
argv = (ctypes.c_char_p * 4)(b"python3", b"-c", {(WAITING + "wait(); print('ok')").encode()!r}, None)
where, name, flags = os.path.split(sys.executable) + (0,) if {how == "relative"} else (sys.executable, "", 0x1000)
fd = os.open(where, os.O_PATH | os.O_CLOEXEC)
environ = (ctypes.c_char_p * (len(os.environ) + 1))(*[f"{{k}}={{v}}".encode() for k, v in os.environ.items()], None)
libc.syscall(322, fd, name.encode(), argv, environ, flags)
print("failed", ctypes.get_errno())
"""
    )
    go = begin(job, sys.executable, "-c", text)
    job.checkpoint()
    job.kill()
    job.restart()
    go.touch()
    assert "ok" in job.finish().splitlines()
