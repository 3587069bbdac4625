"""Open files: offsets, flags, sharing, mappings, deleted ones."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator

from checkpointed import main


def state_offset() -> Iterator[None]:
    reading = open("offset.txt", "w+b", buffering=0)
    reading.write(b"0123456789" * 10)
    reading.seek(37)
    only = os.open("offset.txt", os.O_RDONLY | os.O_CLOEXEC)
    os.lseek(only, 12, os.SEEK_SET)
    number = only
    yield
    assert reading.read(3) == b"789"
    assert os.read(number, 3) == b"234"
    assert fcntl.fcntl(only, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert fcntl.fcntl(only, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert not os.get_inheritable(reading.fileno())


def state_buffered() -> Iterator[None]:
    """Data that Python has not written yet, or has read ahead."""
    with open("lines.txt", "w") as stream:
        stream.writelines(f"line {i}\n" for i in range(1000))
    reading = open("lines.txt")
    assert next(reading) == "line 0\n"
    writing = open("written.txt", "w")
    writing.write("before ")
    yield
    assert [next(reading) for _ in range(2)] == ["line 1\n", "line 2\n"]
    assert len(list(reading)) == 997
    writing.write("after")
    writing.close()
    assert open("written.txt").read() == "before after"


def state_append() -> Iterator[None]:
    log = os.open("append.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, b"one ")
    yield
    os.lseek(log, 0, os.SEEK_SET)
    os.write(log, b"two")
    assert open("append.log").read() == "one two"


def state_shared_offset() -> Iterator[None]:
    first = os.open("shared.txt", os.O_RDWR | os.O_CREAT)
    second = os.dup(first)
    third = os.dup2(first, 77)
    other = os.open("shared.txt", os.O_RDONLY)
    os.write(first, b"abcdef")
    yield
    assert os.lseek(second, 0, os.SEEK_CUR) == os.lseek(third, 0, os.SEEK_CUR) == 6
    os.write(third, b"ghi")
    assert os.lseek(first, 0, os.SEEK_CUR) == 9
    assert os.read(other, 100) == b"abcdefghi"


def state_deleted() -> Iterator[None]:
    anonymous = tempfile.TemporaryFile()
    anonymous.write(b"no name" * 1000)
    anonymous.flush()
    deleted = os.open("deleted.txt", os.O_RDWR | os.O_CREAT)
    os.write(deleted, b"still here")
    os.unlink("deleted.txt")
    yield
    anonymous.seek(0)
    assert anonymous.read() == b"no name" * 1000
    assert os.pread(deleted, 100, 0) == b"still here"
    os.write(deleted, b"!")
    assert os.pread(deleted, 100, 0) == b"still here!"
    assert os.fstat(deleted).st_nlink == 0


def state_renamed() -> Iterator[None]:
    """The same name now belongs to another file."""
    stream = open("old-name.txt", "w+")
    stream.write("content")
    stream.flush()
    os.rename("old-name.txt", "new-name.txt")
    yield
    stream.seek(0)
    assert stream.read() == "content"


def state_mapped() -> Iterator[None]:
    for name in ("private.bin", "shared.bin"):
        with open(name, "wb") as stream:
            stream.write(b"A" * 16384)
    with open("private.bin", "r+b") as stream:
        private = mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_PRIVATE)
    with open("shared.bin", "r+b") as stream:
        shared = mmap.mmap(stream.fileno(), 0)
    private[5000:5003] = b"xyz"
    shared[5000:5003] = b"xyz"
    anonymous = mmap.mmap(-1, 8192)
    anonymous[:3] = b"any"
    yield
    assert private[4999:5004] == b"AxyzA" and private[:4] == b"AAAA"
    assert open("private.bin", "rb").read() == b"A" * 16384
    shared[0:1] = b"B"
    shared.flush()
    content = open("shared.bin", "rb").read()
    assert content[:1] == b"B" and content[4999:5004] == b"AxyzA"
    assert anonymous[:3] == b"any"


def state_memory_file() -> Iterator[None]:
    memory = os.memfd_create("memory")
    os.write(memory, b"in memory")
    yield
    assert os.pread(memory, 9, 0) == b"in memory"
    assert os.write(memory, b"!") == 1
    assert os.pread(memory, 20, 0) == b"in memory!"


def _show_one_file(file: int, views: list[mmap.mmap]) -> None:
    """What is written at one place is seen at all others."""
    for number, view in enumerate(views):
        view[0] = number
        assert all(other[0] == number for other in views) and os.pread(file, 1, 0) == bytes([number])
    os.pwrite(file, b"end", 5)
    assert all(view[5:8] == b"end" for view in views)


def state_memory_file_mapped_twice() -> Iterator[None]:
    memory = os.memfd_create("memory", os.MFD_ALLOW_SEALING)
    os.truncate(memory, 3 * mmap.PAGESIZE)
    views = [mmap.mmap(memory, 2 * mmap.PAGESIZE), mmap.mmap(memory, mmap.PAGESIZE)]
    tail = mmap.mmap(memory, mmap.PAGESIZE, offset=2 * mmap.PAGESIZE)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    tail[-4:] = b"tail"
    yield
    _show_one_file(memory, views)
    assert os.pread(memory, 9, 3 * mmap.PAGESIZE - 4) == b"tail" == tail[-4:]
    assert fcntl.fcntl(memory, fcntl.F_GET_SEALS) == fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def state_mapped_and_deleted() -> Iterator[None]:
    """Its length is no multiple of the page's."""
    file = os.open("deleted.bin", os.O_RDWR | os.O_CREAT)
    os.write(file, b"x" * 5000)
    views = [mmap.mmap(file, 100), mmap.mmap(file, 5000)]
    os.unlink("deleted.bin")
    yield
    _show_one_file(file, views)
    assert os.fstat(file).st_size == 5000 and views[1][4999:] == b"x"


def state_large_and_mapped() -> Iterator[None]:
    """Too large for a copy: its pages are in the image."""
    memory = os.memfd_create("large")
    os.truncate(memory, 100 << 20)
    view = mmap.mmap(memory, 0)
    view[70 << 20] = 7
    yield
    _show_one_file(memory, [view])
    assert os.pread(memory, 1, 70 << 20) == b"\7" and os.fstat(memory).st_size == 100 << 20


def state_posix_memory() -> Iterator[None]:
    """The file has gone when the program is restarted, or has other content."""
    names = [f"/dev/shm/manapy-test-{os.getpid()}-{kind}" for kind in ("lost", "changed", "closed")]
    files = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600) for name in names]
    views = []
    for name, file in zip(names, files, strict=True):
        os.truncate(file, 3000)
        views.append(mmap.mmap(file, 3000))
        views[-1][:2000] = name.ljust(2000).encode()
    os.close(files.pop())
    yield
    for name, view in zip(names, views, strict=True):
        assert view[:2000] == name.ljust(2000).encode() and open(name, "rb").read() == view[:]
        os.unlink(name)
    for file, view in zip(files, views, strict=False):
        _show_one_file(file, [view])
        assert os.fstat(file).st_size == 3000


def state_directory() -> Iterator[None]:
    os.makedirs("some/where", exist_ok=True)
    open("some/where/file", "w").close()
    directory = os.open("some/where", os.O_RDONLY | os.O_DIRECTORY)
    path_only = os.open("some", os.O_PATH)
    scan = os.scandir("some")
    yield
    assert os.listdir(directory) == ["file"]
    assert os.stat("where", dir_fd=path_only)
    assert [entry.name for entry in scan] == ["where"]


def state_devices() -> Iterator[None]:
    null, zero, random = (
        open("/dev/null", "r+b", buffering=0),
        open("/dev/zero", "rb", buffering=0),
        open("/dev/urandom", "rb", buffering=0),
    )
    yield
    assert null.read(1) == b"" and null.write(b"x") == 1
    assert zero.read(3) == bytes(3)
    assert len(random.read(8)) == 8


def state_locks() -> Iterator[None]:
    whole = open("flock", "w")
    fcntl.flock(whole, fcntl.LOCK_EX)
    part = open("lockf", "w+b")
    part.write(bytes(100))
    part.flush()
    fcntl.lockf(part, fcntl.LOCK_EX, 10, 20)
    yield
    for name, attempt in (
        ("flock", lambda s: fcntl.flock(s, fcntl.LOCK_SH | fcntl.LOCK_NB)),
        ("lockf", lambda s: fcntl.lockf(s, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)),
    ):
        child = os.fork()
        if child == 0:
            try:
                attempt(open(name, "r+b"))
            except BlockingIOError:
                os._exit(5)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5, name


def state_proc_files() -> Iterator[None]:
    """These files are read again each time."""
    stat = open("/proc/self/stat", "rb", buffering=0)
    assert stat.read(10)
    yield
    stat.seek(0)
    assert stat.read(10)


def state_standard_streams() -> Iterator[None]:
    copy = os.dup(1)
    yield
    os.write(copy, b"through a copy\n")
    os.write(2, b"to standard error\n")
    assert os.read(0, 10) == b""


main(globals())
