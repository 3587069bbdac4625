"""TCP connections between the ranks of a job, and within one: idle, with data in flight, full, half closed, watched by
epoll and asyncio, of IPv4 and IPv6. MPI carries the addresses. Run with two or more ranks; each state connects every
rank with the next one. By through_parent.py it runs in processes of the ranks that do not use MPI."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import tracebacks  # noqa: F401  in one piece
from checkpointed import main
from through_parent import COMM

RANK, SIZE = COMM.rank, COMM.size
SIOCGIFADDR = 0x8915  # linux/sockios.h


def own_address() -> str:
    """Of the first network interface that is not loopback, on which other hosts reach this one."""
    name = next(name for _, name in socket.if_nameindex() if name != "lo")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()))
    return socket.inet_ntoa(answer[20:24])


HOST = own_address() if os.environ.get("TCP_HOST") == "own" else "127.0.0.1"  # where ranks listen


def ring(family: socket.AddressFamily = socket.AF_INET, host: str = HOST) -> tuple[socket.socket, socket.socket]:
    """Connected sockets to the next and to the previous rank."""
    listening = socket.create_server((host, 0), family=family)
    addresses = COMM.allgather(listening.getsockname()[:2])
    after = socket.create_connection(addresses[(RANK + 1) % SIZE])
    before, _ = listening.accept()
    listening.close()
    return after, before


def exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = source.recv(min(count - len(data), 1 << 20))
        assert piece, f"{len(data)} of {count} bytes"
        data += piece
    return data


def echo(after: socket.socket, before: socket.socket, text: bytes = b"hello") -> None:
    after.sendall(text + bytes([RANK]))
    assert exactly(before, len(text) + 1) == text + bytes([(RANK - 1) % SIZE])
    before.sendall(b"back" + bytes([RANK]))
    assert exactly(after, 5) == b"back" + bytes([(RANK + 1) % SIZE])


def state_idle() -> Iterator[None]:
    after, before = ring()
    echo(after, before)
    yield
    echo(after, before)
    after.close()
    assert before.recv(1) == b""


def state_data_in_flight() -> Iterator[None]:
    """In both directions."""
    after, before = ring()
    after.sendall(b"forward" * 1000)
    before.sendall(b"backward" * 1000)
    COMM.Barrier()
    assert exactly(before, 7) == b"forward"
    yield
    assert exactly(before, 6993) == b"forward" * 999
    assert exactly(after, 8000) == b"backward" * 1000
    echo(after, before)


def numbered(count: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in range(count // 4))


def state_full() -> Iterator[None]:
    """Nobody receives: the sockets take no more."""
    after, before = ring()
    data, sent = numbered(16 << 20), 0
    after.setblocking(False)
    try:
        while sent < len(data):
            sent += after.send(data[sent : sent + 100_000])
    except BlockingIOError:
        pass
    assert sent > 100_000
    yield
    after.setblocking(True)
    rest = threading.Thread(target=lambda: after.sendall(data[sent:]))
    rest.start()
    assert hashlib.sha256(exactly(before, len(data))).digest() == hashlib.sha256(data).digest()
    rest.join()
    echo(after, before)


def state_blocked_threads() -> Iterator[None]:
    """One waits in recv, another one in sendall."""
    after, before = ring()
    data = os.urandom(1 << 20) * 12
    got: list[bytes] = []
    # after sends forward until its socket is full; what comes back to it is waited for
    sender = threading.Thread(target=after.sendall, args=(data,))
    receiver = threading.Thread(target=lambda: got.append(exactly(after, 5)))
    sender.start()
    receiver.start()
    yield
    digest = hashlib.sha256(exactly(before, len(data))).digest()
    assert digest == COMM.sendrecv(hashlib.sha256(data).digest(), dest=(RANK + 1) % SIZE, source=(RANK - 1) % SIZE)
    before.sendall(b"done!")
    sender.join()
    receiver.join()
    assert got == [b"done!"]


def state_half_closed() -> Iterator[None]:
    after, before = ring()
    after.sendall(b"last words")
    after.shutdown(socket.SHUT_WR)
    yield
    assert exactly(before, 10) == b"last words" and before.recv(1) == b""
    before.sendall(b"answer")
    before.close()
    assert exactly(after, 6) == b"answer" and after.recv(1) == b""


def state_watched() -> Iterator[None]:
    """By epoll, which reports the same connection after a restart."""
    after, before = ring()
    selector = selectors.EpollSelector()
    selector.register(before, selectors.EVENT_READ, "before")
    assert not selector.select(0)
    yield
    assert not selector.select(0)
    COMM.Barrier()
    after.sendall(b"x")
    assert [key.data for key, _ in selector.select(30)] == ["before"]


def state_asyncio_streams() -> Iterator[None]:
    """A server in each rank, whose handler waits; the client has sent half of a line."""
    loop = asyncio.new_event_loop()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def start() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        server = await asyncio.start_server(handle, HOST, 0)
        addresses = COMM.allgather(server.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(*addresses[(RANK + 1) % SIZE])
        writer.write(b"one\ntw")
        await writer.drain()
        return reader, writer

    reader, writer = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    COMM.Barrier()
    yield

    async def finish() -> list[bytes]:
        writer.write(b"o\n")
        lines = [await reader.readline() for _ in range(2)]
        writer.close()
        return lines

    assert asyncio.run_coroutine_threadsafe(finish(), loop).result(60) == [b"ONE\n", b"TWO\n"]
    COMM.Barrier()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def state_within_a_rank() -> Iterator[None]:
    listening = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listening.getsockname())
    other, _ = listening.accept()
    one.sendall(b"to myself")
    yield
    assert exactly(other, 9) == b"to myself"
    again = socket.create_connection(listening.getsockname())  # the listening socket is the same
    third, _ = listening.accept()
    again.sendall(b"new")
    assert exactly(third, 3) == b"new"


def state_ipv6() -> Iterator[None]:
    """Over IPv6, and from IPv4 to a socket for both."""
    if not socket.has_ipv6 or HOST != "127.0.0.1":
        yield
        return
    after, before = ring(socket.AF_INET6, "::1")
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    client = socket.create_connection(("127.0.0.1", both.getsockname()[1]))
    server, _ = both.accept()
    server.sendall(b"mixed")
    yield
    echo(after, before)
    assert exactly(client, 5) == b"mixed"
    assert (client.family, server.family) == (socket.AF_INET, socket.AF_INET6)


def state_options() -> Iterator[None]:
    after, before = ring()
    copy = after.dup()
    after.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    after.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    after.settimeout(60)
    yield
    assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert not before.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not os.get_blocking(copy.fileno()) and os.get_blocking(before.fileno())
    echo(after, before)


def state_ready_everywhere() -> Iterator[None]:
    """The last one: no rank says that it is ready before all are."""
    COMM.Barrier()
    yield
    COMM.Barrier()


if __name__ == "__main__":
    main(dict(globals()))
