"""Connections of a node's agent: lines in both directions, without waiting.

Invariants
 1. Nothing here waits for another process: what it doesn't take is kept for it.
 2. The lines of a peer that connects to us are read only after it has proved that it knows the secret, for the one role
    that is allowed.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable

from ...core import handshake
from ..peer_time import now

log = logging.getLogger(__name__)

CHUNK = 1 << 18  # bytes read at once
STRANGER_MAX = 1 << 10  # bytes of the line that a guest must open with


class Peer:
    """One connection. Its lines are sealed if there are ``seals``."""

    def __init__(self, connected: socket.socket, seals: handshake.Seals | None = None) -> None:
        self.socket, self.seals = connected, seals
        self.written = bytearray()  # not taken by the kernel yet
        self._read = b""
        connected.setblocking(False)

    def lines(self) -> list[str] | None:
        """The complete lines that have arrived; None at the end of the connection."""
        try:
            data = self.socket.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        complete, newline, self._read = (self._read + data).rpartition(b"\n")
        if not newline:
            return []
        if self.seals is not None:
            try:
                complete = b"\n".join(map(self.seals.open, complete.split(b"\n")))
            except handshake.AlteredError as error:
                log.error("a connection is given up: %s", error)
                return None
        return complete.decode("utf-8", "surrogateescape").split("\n")

    def send(self, line: str) -> None:
        """Keep a line until flush()."""
        self.send_encoded(encoded(line))

    def send_encoded(self, data: bytes) -> None:
        """The same for a line from encoded()."""
        self.written += data if self.seals is None else self.seals.seal(data[:-1]) + b"\n"

    def flush(self) -> bool:
        """Send what the kernel takes now. False: something is left."""
        while self.written:
            try:
                del self.written[: self.socket.send(self.written)]
            except BlockingIOError:
                return False
            except OSError:
                self.written.clear()  # the end of the connection is found when it is read
        return True


class AcceptedPeer(Peer):
    """A connection that another process has opened, and must open by the handshake. Its lines get seals afterwards
    if they come over a network."""

    def __init__(self, connected: socket.socket, secret: bytes, role: str) -> None:
        super().__init__(connected)
        self._secret, self._role = secret, role
        self._nonce = handshake.nonce()  # that it must answer; empty afterwards
        self.send(handshake.greeting(self._nonce))
        self.flush()

    def lines(self) -> list[str] | None:
        lines = super().lines()
        if not self._nonce or lines is None:
            return lines
        if not lines:
            return lines if len(self._read) < STRANGER_MAX else None
        admitted = handshake.admit(self._secret, self._nonce, lines[0])
        if admitted is None or admitted[0] != self._role or len(lines) > 1:
            log.warning("a connection is denied: it is no %s, or does not know the secret", self._role)
            self.send("DENIED")
            self.flush()
            return None
        self.send(admitted[1])
        self.flush()
        if self.socket.family != socket.AF_UNIX:
            self.seals = handshake.seals(self._secret, handshake.greeting(self._nonce), lines[0], client=False)
        self._nonce = ""
        return []


def encoded(line: str) -> bytes:
    """A line as it is sent without a seal."""
    return line.encode("utf-8", "surrogateescape") + b"\n"


class Poll:
    """What an agent waits for: descriptors, each with a function that is called when it is ready.

    ``woke``: when wait() last knew which are ready. Events that these report count as noticed at that time, so that
    lines of several ranks about them remain equal.
    """

    def __init__(self) -> None:
        self.woke = now()
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[int], None]] = {}
        self._full: set[Peer] = set()  # the kernel takes nothing for them now

    def add(self, fd: int, call: Callable[[int], None]) -> None:
        """Call it with epoll's events when the descriptor can be read."""
        self._calls[fd] = call
        self._epoll.register(fd, select.EPOLLIN)

    def add_peer(self, peer: Peer, on_lines: Callable[[list[str] | None], None]) -> None:
        """Call it with the lines of a peer; None at the end of its connection, which must be removed then."""

        def ready(events: int) -> None:
            if events & select.EPOLLOUT:
                self.flush(peer)
            if events & ~select.EPOLLOUT:
                on_lines(peer.lines())

        self.add(peer.socket.fileno(), ready)

    def remove(self, fd: int) -> None:
        """Wait for it no more."""
        self._epoll.unregister(fd)
        del self._calls[fd]

    def remove_peer(self, peer: Peer) -> None:
        """Close its connection."""
        self._full.discard(peer)
        self.remove(peer.socket.fileno())
        peer.socket.close()

    def flush(self, peer: Peer) -> None:
        """Send; what is left goes when the kernel takes it."""
        full = not peer.flush()
        if full != (peer in self._full):
            (self._full.add if full else self._full.discard)(peer)
            self._epoll.modify(peer.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if full else 0))

    def wait(self, seconds: float | None) -> None:
        """Wait until a descriptor is ready, or for that long, and call the functions of those that are ready."""
        ready = self._epoll.poll(seconds)
        self.woke = now()
        for fd, events in ready:
            if (call := self._calls.get(fd)) is not None:  # not removed meanwhile
                call(events)
