"""lowerhalf/image/dirty: memory that the kernel watches, in both of its ways. After any sequence of what a program does
with its memory, and of checkpoints, the base has the pages that an image leaves out, and only changed pages are
written."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manapy.ckpt.store import image
from rounds import rounds
from test_dirty import Pointer, library  # noqa: F401 (a fixture)

PAGES = 24
BASE = 0x180000000  # the kernel maps nothing there by itself
READ, WRITE = 1, 2
ANYWHERE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
FIXED, MAYMOVE, MOVE_FIXED = 0x10, 1, 2
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p


def call(name: str, *arguments: int) -> None:
    result = getattr(libc, name)(*map(ctypes.c_size_t, arguments))
    assert result not in (-1, ctypes.c_size_t(-1).value), (name, os.strerror(ctypes.get_errno()))


def at(page: int) -> int:
    return BASE + page * image.PAGE


class Program:
    """Does things with its memory, and knows what is in it: the first number of each mapped page."""

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.touched: set[int] = set()  # pages that may have changed since the last checkpoint
        self.pipe = os.pipe()

    def close(self) -> None:
        call("munmap", BASE, PAGES * image.PAGE)
        for end in self.pipe:
            os.close(end)

    def map(self, page: int, _: int) -> None:
        call("mmap", at(page), image.PAGE, READ | WRITE, ANYWHERE | FIXED, -1, 0)
        self.memory[page] = 0
        self.touched.add(page)

    def unmap(self, page: int, _: int) -> None:
        call("munmap", at(page), image.PAGE)
        self.memory.pop(page, None)
        self.touched.add(page)

    def write(self, page: int, value: int) -> None:
        if page in self.memory:
            ctypes.c_uint64.from_address(at(page)).value = self.memory[page] = value
            self.touched.add(page)

    def receive(self, page: int, value: int) -> None:
        """A system call writes it."""
        if page in self.memory:
            os.write(self.pipe[1], value.to_bytes(8, "little"))
            call("read", self.pipe[0], at(page), 8)
            self.memory[page] = value
            self.touched.add(page)

    def look(self, page: int, _: int) -> None:
        if page in self.memory:
            assert ctypes.c_uint64.from_address(at(page)).value == self.memory[page]

    def empty(self, page: int, _: int) -> None:
        if page in self.memory:
            call("madvise", at(page), image.PAGE, mmap.MADV_DONTNEED)
            self.memory[page] = 0
            self.touched.add(page)

    def protect(self, page: int, _: int) -> None:
        """For a moment."""
        if page in self.memory:
            call("mprotect", at(page), image.PAGE, READ)
            call("mprotect", at(page), image.PAGE, READ | WRITE)

    def move(self, page: int, to: int) -> None:
        if page in self.memory and page != to:
            call("mremap", at(page), image.PAGE, image.PAGE, MAYMOVE | MOVE_FIXED, at(to))
            self.memory[to] = self.memory.pop(page)
            self.touched |= {page, to}

    def mappings(self) -> list[tuple[int, int]]:
        lines = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        found = [(int(lo, 16), int(hi, 16)) for lo, hi in lines]
        return [(lo, hi) for lo, hi in found if BASE <= lo < BASE + PAGES * image.PAGE]


class Writer:
    """Writes images as snapshot.c and pages.c do."""

    def __init__(self, found: ctypes.CDLL, way: bytes) -> None:
        self.library, self.way = found, way
        self.header = image.HeaderStruct()
        found.mpy_dirty_watch.argtypes = [Pointer, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
        found.mpy_dirty_hold.argtypes = [Pointer, ctypes.c_uint64, ctypes.c_uint64]
        found.mpy_dirty_is_unwritten.argtypes = [ctypes.c_uint64] * 2 + [ctypes.POINTER(ctypes.c_uint64)]

    def begin(self, epoch: int, base: int, program: Program, count: int = PAGES) -> tuple[Pointer, bool, set[int]]:
        """What is remembered of the new image, whether it has the base, and the pages that it leaves out."""
        new, end, kept = Pointer(), ctypes.c_uint64(), set()
        found = bool(self.library.mpy_dirty_begin(epoch, base, count, ctypes.byref(new)))
        for lo, hi in program.mappings():
            assert self.library.mpy_dirty_watch(new, self.way, lo, hi)
        self.library.mpy_dirty_watched(self.way)
        for lo, hi in program.mappings():
            address = lo
            while address < hi:
                unwritten = self.library.mpy_dirty_is_unwritten(address, hi, ctypes.byref(end))
                pages = range((address - BASE) // image.PAGE, (end.value - BASE) // image.PAGE)
                kept |= {page for page in pages if unwritten}
                for page in pages:
                    if unwritten or program.memory[page]:
                        self.library.mpy_dirty_hold(new, at(page), at(page + 1))
                address = end.value
        return new, found, kept

    def finish(self, new: Pointer, epoch: int) -> None:
        self.header.header_crc = epoch
        self.library.mpy_dirty_finish(new, ctypes.byref(self.header))


pages = st.integers(0, PAGES - 1)
actions = st.tuples(
    st.sampled_from(["map", "unmap", "write", "write", "receive", "look", "empty", "protect", "move"]),
    pages,
    pages,
)
checkpoints = st.tuples(
    st.lists(actions, max_size=8),
    st.sampled_from(["published", "published", "failed", "unfinished"]),
    st.booleans(),  # the coordinator offers a base, if there is one
)


@pytest.fixture(params=[b"pagemap", b"soft-dirty"])
def writer(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Writer:  # noqa: F811
    """One that uses a way of the kernel."""
    library.mpy_dirty_way.restype = ctypes.c_char_p
    if not library.mpy_dirty_way(request.param):
        pytest.skip("this kernel cannot do it")
    return Writer(library, request.param)


@given(st.lists(checkpoints, max_size=8))
@settings(max_examples=rounds(50, 300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence(writer: Writer, taken: list[tuple[list[tuple[str, int, int]], str, bool]]) -> None:
    base = 0
    known: dict[int, dict[int, int]] = {}
    touched: dict[int, set[int]] = {}  # since the capture of an image
    # Memory that comes beside a mapping may make the kernel forget it, or mark all of it.
    exact = writer.way == b"pagemap"
    with contextlib.closing(Program()) as program:
        for page in range(0, PAGES, 2):
            program.map(page, 0)
            program.write(page, 1)
        for epoch, (done, outcome, offered) in enumerate(taken, 1):
            program.touched = set()
            exact &= all(name != "move" for name, _, _ in done)
            for name, page, value in done:
                getattr(program, name)(page, value)
            for pages_ in touched.values():
                pages_ |= program.touched
            new, found, kept = writer.begin(epoch, base if offered else 0, program)
            assert found or not kept
            if found:
                unchanged = {page for page, value in program.memory.items() if value and page not in touched[base]}
                assert unchanged <= kept or not exact
                assert {page: program.memory[page] for page in kept} == {page: known[base][page] for page in kept}
                assert all(program.memory[page] for page in kept)
            if not offered:
                base = 0  # forgotten
            if outcome != "unfinished":
                writer.finish(new, epoch)
                known[epoch], touched[epoch] = dict(program.memory), set()
            if outcome == "published":
                base = epoch


def test_what_a_child_writes(writer: Writer) -> None:
    """It writes to its copies. The pages of the program are the same as before, and can still be watched."""
    with contextlib.closing(Program()) as program:
        for page in range(PAGES):
            program.map(page, 0)
            program.write(page, 1)
        writer.finish(writer.begin(1, 0, program)[0], 1)
        if (child := os.fork()) == 0:
            for page in range(PAGES):
                program.write(page, 2)
            os._exit(0)
        os.waitpid(child, 0)
        program.write(3, 3)
        assert writer.begin(2, 1, program)[2] == set(range(PAGES)) - {3}


def test_emptied_memory(writer: Writer) -> None:
    """It has no page, or the kernel's page of zeros once somebody has looked at it."""
    with contextlib.closing(Program()) as program:
        for page in range(PAGES):
            program.map(page, 0)
            program.write(page, 1)
        writer.finish(writer.begin(1, 0, program)[0], 1)
        for page in (3, 4):
            program.empty(page, 0)
        program.look(3, 0)
        assert writer.begin(2, 1, program)[2] == set(range(PAGES)) - {3, 4}


def test_huge_pages(writer: Writer) -> None:
    """A write to one counts as a write to a small page."""
    huge = 2 << 20
    count = huge // image.PAGE
    with contextlib.closing(Program()) as program:
        call("mmap", BASE, huge, READ | WRITE, ANYWHERE | FIXED, -1, 0)
        call("madvise", BASE, huge, mmap.MADV_HUGEPAGE)
        program.memory = dict.fromkeys(range(count), 0)
        for page in range(count):
            program.write(page, 1)
        writer.finish(writer.begin(1, 0, program, count)[0], 1)
        program.write(3, 2)
        kept = writer.begin(2, 1, program, count)[2]
        call("munmap", BASE, huge)
    assert kept == set(range(count)) - {3}


def test_devices(library: ctypes.CDLL) -> None:  # noqa: F811
    """Such as an RNIC, which writes to memory unseen."""
    assert not library.mpy_dirty_has_device()
    try:
        device = os.open("/dev/fuse", os.O_RDONLY)
    except OSError:
        pytest.skip("needs /dev/fuse")
    assert library.mpy_dirty_has_device()
    os.close(device)
    assert not library.mpy_dirty_has_device()
