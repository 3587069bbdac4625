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
