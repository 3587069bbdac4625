"""Pipes, socket pairs, event descriptors, and functions that wait on them."""

from __future__ import annotations

import array
import asyncio
import os
import select
import selectors
import socket
import threading
from collections.abc import Iterator

from checkpointed import main, wait_until


def state_pipe_with_data() -> Iterator[None]:
    reading, writing = os.pipe()
    os.write(writing, b"in flight" * 100)
    yield
    assert os.read(reading, 9) == b"in flight"
    os.write(writing, b"!")
    os.close(writing)
    data = b""
    while piece := os.read(reading, 4096):
        data += piece
    assert data == b"in flight" * 99 + b"!"


def state_full_pipe() -> Iterator[None]:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    total = 0
    try:
        while True:
            total += os.write(writing, b"x" * 4096)
    except BlockingIOError:
        pass
    yield
    try:
        os.write(writing, b"x" * 4096)
        raise AssertionError("the pipe has become larger")
    except BlockingIOError:
        pass
    got = 0
    while got < total:
        got += len(os.read(reading, 65536))
    assert got == total


def state_blocked_on_pipes() -> Iterator[None]:
    """A reader of an empty pipe and a writer to a full one."""
    empty, full = os.pipe(), os.pipe()
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.append(os.read(empty[0], 100)))
    sent: list[int] = []

    def write() -> None:
        data, at = b"y" * 200_000, 0
        while at < len(data):
            at += os.write(full[1], data[at:])
        sent.append(at)

    writer = threading.Thread(target=write)
    reader.start()
    writer.start()
    yield
    assert not got and not sent
    os.write(empty[1], b"at last")
    left = 200_000
    while left:
        left -= len(os.read(full[0], 65536))
    reader.join(10)
    writer.join(10)
    assert got == [b"at last"] and sent == [200_000]


def state_socket_pair() -> Iterator[None]:
    left, right = socket.socketpair()
    left.sendall(b"to the right")
    right.sendall(b"to the left")
    datagrams = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for text in (b"one", b"", b"three"):
        datagrams[0].send(text)
    sequence = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sequence[0].send(b"packet")
    half, other = socket.socketpair()
    half.sendall(b"last words")
    half.shutdown(socket.SHUT_WR)
    yield
    assert right.recv(100) == b"to the right" and left.recv(100) == b"to the left"
    assert [datagrams[1].recv(10) for _ in range(3)] == [b"one", b"", b"three"]
    assert sequence[1].recv(100) == b"packet"
    assert other.recv(100) == b"last words" and other.recv(100) == b""
    other.sendall(b"back")
    assert half.recv(10) == b"back"
    left.sendall(b"more")
    assert right.recv(10) == b"more"


def state_blocked_recv() -> Iterator[None]:
    left, right = socket.socketpair()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(right.recv(100)))
    thread.start()
    timed, _keep = socket.socketpair()
    timed.settimeout(2)

    def wait() -> None:
        try:
            timed.recv(1)
        except TimeoutError:
            got.append(b"timeout")

    second = threading.Thread(target=wait)
    second.start()
    yield
    second.join(20)
    left.sendall(b"hello")
    thread.join(10)
    assert sorted(got) == [b"hello", b"timeout"]


def state_listening() -> Iterator[None]:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    yield
    assert server.getsockname()[1] == port
    client = socket.create_connection(("127.0.0.1", port))
    peer, _ = server.accept()
    client.sendall(b"x")
    assert peer.recv(1) == b"x"


def state_listening_with_a_name() -> Iterator[None]:
    """The name is a file in a temporary directory, or in no file system; or the file has been removed."""
    names = ["/tmp/manapy-test-{}/listener", "\0manapy-test-{}", "/tmp/manapy-test-{}/removed"]
    names = [name.format(os.getpid()) for name in names]
    os.makedirs(os.path.dirname(names[0]))
    servers = [socket.socket(socket.AF_UNIX) for _ in names]
    for server, name in zip(servers, names, strict=True):
        server.bind(name)
        server.listen(3)
    os.chmod(names[0], 0o640)
    client = socket.socket(socket.AF_UNIX)
    client.connect(names[0])
    peer, _ = servers[0].accept()
    peer.sendall(b"before")
    os.unlink(names[2])
    yield
    assert client.recv(10) == b"before"
    assert os.stat(names[0]).st_mode & 0o777 == 0o640 and not os.path.exists(names[2])
    for server, name in zip(servers[:2], names, strict=False):
        assert server.getsockname() in (name, name.encode())
        client = socket.socket(socket.AF_UNIX)
        client.connect(name)
        peer, _ = server.accept()
        client.sendall(b"after")
        assert peer.recv(10) == b"after"
    os.unlink(names[0])
    os.rmdir(os.path.dirname(names[0]))


def state_event() -> Iterator[None]:
    event = os.eventfd(3)
    counting = os.eventfd(2, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
    got: list[int] = []
    empty = os.eventfd(0)
    thread = threading.Thread(target=lambda: got.append(os.eventfd_read(empty)))
    thread.start()
    yield
    os.eventfd_write(event, 4)
    assert os.eventfd_read(event) == 7
    assert [os.eventfd_read(counting) for _ in range(2)] == [1, 1]
    try:
        os.eventfd_read(counting)
        raise AssertionError("one too many")
    except BlockingIOError:
        pass
    os.eventfd_write(empty, 9)
    thread.join(10)
    assert got == [9]


def state_epoll() -> Iterator[None]:
    reading, writing = os.pipe()
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN)
    edge, edge_writing = os.pipe()
    poll.register(edge, select.EPOLLIN | select.EPOLLONESHOT)
    got: list[object] = []
    second = select.epoll()
    quiet, quiet_writing = os.pipe()
    second.register(quiet, select.EPOLLIN)
    thread = threading.Thread(target=lambda: got.append(second.poll(60)))
    thread.start()
    yield
    assert poll.poll(0) == []
    os.write(writing, b"x")
    assert poll.poll(5) == [(reading, select.EPOLLIN)]
    os.write(edge_writing, b"x")
    os.read(reading, 1)
    assert poll.poll(5) == [(edge, select.EPOLLIN)]
    assert poll.poll(0) == []
    os.write(quiet_writing, b"x")
    thread.join(10)
    assert got == [[(quiet, select.EPOLLIN)]]


def state_select_and_poll() -> Iterator[None]:
    reading, writing = os.pipe()
    got: list[object] = []
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    threads = [
        threading.Thread(target=lambda: got.append(select.select([reading], [], [], 60)[0])),
        threading.Thread(target=lambda: got.append(poll.poll(60_000))),
        threading.Thread(target=lambda: got.append(select.select([], [], [], 2)[0])),
    ]
    for thread in threads:
        thread.start()
    yield
    threads[2].join(10)
    os.write(writing, b"x")
    for thread in threads:
        thread.join(10)
    assert len(got) == 3 and [] in got and [reading] in got and [(reading, select.POLLIN)] in got, got


def state_event_loop() -> Iterator[None]:
    """asyncio in a thread: epoll, socket pair, timers."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ticks = [0]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks[0] += 1

    task = asyncio.run_coroutine_threadsafe(tick(), loop)
    slow = asyncio.run_coroutine_threadsafe(asyncio.sleep(2, "slept"), loop)
    wait_until(lambda: ticks[0] > 2)
    yield
    before = ticks[0]
    wait_until(lambda: ticks[0] > before + 5)
    assert slow.result(20) == "slept"
    task.cancel()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def state_passed_descriptor() -> Iterator[None]:
    """A selector, and a descriptor that was received over a socket."""
    left, right = socket.socketpair()
    with open("passed.txt", "w") as stream:
        stream.write("passed")
    number = os.open("passed.txt", os.O_RDONLY)
    left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [number]))])
    _, ancillary, _, _ = right.recvmsg(1, socket.CMSG_LEN(4))
    received = array.array("i", ancillary[0][2])[0]
    selector = selectors.DefaultSelector()
    selector.register(right, selectors.EVENT_READ, "data")
    yield
    assert os.pread(received, 6, 0) == b"passed"
    left.sendall(b"y")
    assert [key.data for key, _ in selector.select(5)] == ["data"]


main(globals())
