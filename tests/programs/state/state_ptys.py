"""Pseudo-terminals whose ends are both in the program. checkpointed.py has the frame."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import tty
from collections.abc import Iterator

import checkpointed

TIOCGPTPEER = 0x5441
TIOCGPKT = 0x80045438
SIZE = struct.pack("HHHH", 33, 111, 5, 7)


def size_of(fd: int) -> bytes:
    return fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8))


def waits(fd: int, event: int = select.POLLIN) -> bool:
    """Is there something to read (or another event)? The kernel may need a moment."""
    poll = select.poll()
    poll.register(fd, event)
    return any(seen & event for _, seen in poll.poll(0))


def state_raw() -> Iterator[None]:
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    tty.setraw(slave)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, SIZE)
    settings = termios.tcgetattr(slave)
    everything = bytes(range(256)) * 12
    os.write(slave, everything)
    os.write(master, everything[::-1])
    copy = os.dup(slave)
    yield
    assert os.ttyname(slave) == name
    assert termios.tcgetattr(slave) == settings and size_of(master) == size_of(slave) == SIZE
    for fd, expected in ((master, everything), (slave, everything[::-1])):
        got = b""
        while len(got) < len(expected):
            got += os.read(fd, 4096)
        assert got == expected and not waits(fd)
    by_name = os.open(name, os.O_RDWR | os.O_NOCTTY)
    os.write(by_name, b"by its name")
    assert os.read(master, 100) == b"by its name"
    os.set_blocking(slave, False)
    assert not os.get_blocking(copy) and os.get_blocking(by_name)


def state_lines() -> Iterator[None]:
    """Whole lines, one that VEOF has ended, an end of file, and a line without its end; and the echo of all of them."""
    master, slave = pty.openpty()
    settings = termios.tcgetattr(slave)
    os.write(master, b"first line\nsecond\xfflinex\x7f\nended\x04\x04last \x16\x04 part")
    checkpointed.wait_until(lambda: waits(slave))
    echo = b"first line\r\nsecond\xfflinex\b \b\r\nendedlast ^\b^D part"
    yield
    assert termios.tcgetattr(slave) == settings
    assert [os.read(slave, 100) for _ in range(4)] == [b"first line\n", b"second\xffline\n", b"ended", b""]
    assert not waits(slave)
    os.write(master, b"y\x7f is over\n")
    assert os.read(slave, 100) == b"last \x04 part is over\n"
    got = b""
    while not got.endswith(b"is over\r\n"):
        got += os.read(master, 1000)
    assert got == echo + b"y\b \b is over\r\n", got


def state_stopped() -> Iterator[None]:
    """Output that ^S has stopped, and output that a call has stopped."""
    ends = [pty.openpty() for _ in range(2)]
    os.write(ends[0][1], b"before")
    os.write(ends[0][0], b"\x13")
    os.write(ends[1][1], b"before")
    termios.tcflow(ends[1][1], termios.TCOOFF)
    for _, slave in ends:
        checkpointed.wait_until(lambda slave=slave: not waits(slave, select.POLLOUT))
    yield
    for master, slave in ends:
        assert os.read(master, 100) == b"before" and not waits(slave, select.POLLOUT)
    termios.tcflow(ends[0][1], termios.TCOON)
    os.write(ends[1][0], b"\x11")
    assert not waits(ends[0][1], select.POLLOUT)
    os.write(ends[0][0], b"\x11")
    termios.tcflow(ends[1][1], termios.TCOON)
    for master, slave in ends:
        checkpointed.wait_until(lambda slave=slave: waits(slave, select.POLLOUT))
        os.write(slave, b"after")
        assert os.read(master, 100) == b"after"


def state_packets() -> Iterator[None]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
    os.write(slave, b"data")
    yield
    assert struct.unpack("i", fcntl.ioctl(master, TIOCGPKT, bytes(4))) == (1,)
    assert os.read(master, 100) == b"\0data"
    termios.tcflush(slave, termios.TCIFLUSH)
    assert os.read(master, 100) == bytes([termios.TIOCPKT_FLUSHREAD])


def state_closed() -> Iterator[None]:
    """Nobody has the slave any more: what it has written is read, then there is an error, until it is opened again."""
    master, slave = pty.openpty()
    os.write(slave, b"farewell\n")
    os.close(slave)
    yield
    assert os.read(master, 100) == b"farewell\r\n"
    try:
        raise AssertionError(os.read(master, 100))
    except OSError as error:
        assert error.errno == errno.EIO
    again = fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY)
    os.write(again, b"again")
    assert os.read(master, 100) == b"again"


def state_exclusive() -> Iterator[None]:
    """No window change and no hang-up is reported to a program that has not asked for them."""
    signals: list[int] = []
    for number in (signal.SIGWINCH, signal.SIGHUP):
        signal.signal(number, lambda number, frame: signals.append(number))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCEXCL)
    fcntl.ioctl(master, 0x40045431, struct.pack("i", 1))  # TIOCSPTLCK
    os.fchmod(slave, 0o622)
    yield
    assert struct.unpack("i", fcntl.ioctl(slave, 0x80045440, bytes(4))) == (1,)  # TIOCGEXCL
    assert struct.unpack("i", fcntl.ioctl(master, 0x80045439, bytes(4))) == (1,)  # TIOCGPTLCK
    assert os.fstat(slave).st_mode & 0o777 == 0o622
    assert not signals


if __name__ == "__main__":
    checkpointed.main(globals())
