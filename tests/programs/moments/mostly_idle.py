"""mostly_idle.py MEGABYTES - ranks have much memory and change 1 % of it in each step. A step is done when the file
`go` has its number. They also change how memory is mapped, and their advice about it. At the end (a file `end`) each
rank checks all its memory.
"""

import ctypes
import mmap
import os
import sys
import time

import numpy
from mpi4py import MPI

PAGE = 4096
WORLD = MPI.COMM_WORLD
PAGES = int(sys.argv[1]) * (1 << 20) // PAGE
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
FREELY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAYMOVE = 1


def pages(count: int) -> tuple[int, numpy.ndarray]:
    """New memory, and a view of it: one row for each page."""
    address = libc.mmap(None, ctypes.c_size_t(count * PAGE), 3, FREELY, -1, ctypes.c_long(0))
    return address, view(address, count)


def view(address: int, count: int) -> numpy.ndarray:
    return numpy.ctypeslib.as_array((ctypes.c_uint32 * (count * PAGE // 4)).from_address(address)).reshape(count, -1)


def call(name: str, *arguments: int) -> int:
    result = getattr(libc, name)(*map(ctypes.c_size_t, arguments))
    assert result not in (-1, ctypes.c_size_t(-1).value), (name, os.strerror(ctypes.get_errno()))
    return result


data = pages(PAGES)[1]
expected = numpy.arange(1, PAGES + 1, dtype=numpy.uint32) + WORLD.rank * PAGES
data[:] = expected[:, None]

SPARE = 16  # pages of each of these
protected_at, protected = pages(SPARE)
moved_at, moved = pages(SPARE)
dropped_at, dropped = pages(SPARE)
zeroed = pages(SPARE)[1]
mapped_at, mapped = pages(SPARE)
advised_at = pages(SPARE)[0]
ADVICE = ["", "rr", "sr"]  # madvise(2): normal, random, sequential; how /proc/PID/smaps calls it
for memory in (protected, moved, dropped, zeroed, mapped):
    memory[:] = 7
state = {"protected": 7, "moved": 7, "dropped": 7, "zeroed": 7, "mapped": 7}


def change(step: int) -> None:
    """1 % of the data in the first place, and then what a page can undergo besides."""
    global moved_at, moved
    for page in range(step % 100, PAGES, 100):
        expected[page] += 1000
        data[page] = expected[page]
    call("mprotect", protected_at, SPARE * PAGE, 3)
    protected[:] = state["protected"] = step
    call("mprotect", protected_at, SPARE * PAGE, step % 2)  # unreadable, or only readable
    there = pages(SPARE)[0]
    moved_at = libc.mremap(
        ctypes.c_void_p(moved_at),
        ctypes.c_size_t(SPARE * PAGE),
        ctypes.c_size_t(SPARE * PAGE),
        3,
        ctypes.c_void_p(there),
    )
    assert moved_at == there
    moved = view(moved_at, SPARE)
    zeroed[:] = state["zeroed"] = 7 * (step % 2)
    call("madvise", dropped_at, SPARE * PAGE, mmap.MADV_DONTNEED)
    state["dropped"] = 0
    if step % 2:
        dropped[:] = state["dropped"] = step
    call("munmap", mapped_at, SPARE * PAGE)
    again = libc.mmap(ctypes.c_void_p(mapped_at), ctypes.c_size_t(SPARE * PAGE), 3, FREELY | 0x10, -1, ctypes.c_long(0))
    assert again == mapped_at
    state["mapped"] = 0
    if step % 3:
        mapped[:] = state["mapped"] = 7
    call("madvise", advised_at, SPARE * PAGE, step % len(ADVICE))
    call("mlock" if step % 2 else "munlock", advised_at, SPARE * PAGE)


def advice_at(address: int) -> list[str]:
    inside = False
    for line in open("/proc/self/smaps"):
        if line[0] in "0123456789abcdef":
            lo, hi = (int(end, 16) for end in line.split()[0].split("-"))
            inside = lo <= address < hi
        elif inside and line.startswith("VmFlags:"):
            return sorted({"lo", *ADVICE} & set(line.split()))
    raise LookupError(hex(address))


def asked() -> tuple[int, bool]:
    """The step that is wanted, and whether the program is to end."""
    try:
        wanted = int(open("go").read() or 0)
    except FileNotFoundError:
        wanted = 0
    return wanted, os.path.exists("end")


step = 0
if WORLD.rank == 0:
    print("begun", flush=True)
while True:
    wanted, end = WORLD.bcast(asked())
    while step < wanted:
        step += 1
        change(step)
        WORLD.Barrier()
        if WORLD.rank == 0:
            print(f"step {step}", flush=True)
    if end:
        break
    time.sleep(0.005)
call("mprotect", protected_at, SPARE * PAGE, 3)
wrong = [] if numpy.array_equal(data, numpy.broadcast_to(expected[:, None], data.shape)) else ["data"]
for name, memory in (
    ("protected", protected),
    ("moved", moved),
    ("dropped", dropped),
    ("zeroed", zeroed),
    ("mapped", mapped),
):
    if not (memory == state[name]).all():
        wrong.append(f"{name}: {memory.min()} to {memory.max()}, not {state[name]}")
advised = sorted({ADVICE[step % len(ADVICE)], "lo" if step % 2 else ""} - {""})
if advice_at(advised_at) != advised:
    wrong.append(f"advice: {advice_at(advised_at)}, not {advised}")
wrong = WORLD.gather(wrong)
if WORLD.rank == 0:
    print("ok" if not any(wrong) else f"wrong: {wrong}", flush=True)
