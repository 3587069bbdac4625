"""The agent of a node: the ranks of a node that is not rank 0's share its connection to the coordinator.

The first rank of the node starts it (lowerhalf/join/node.c). Ranks speak to it as to the coordinator (control.h), over
a Unix socket. It makes the lines of its ranks alike (clock/fold.py) and joins equal lines (bundle.py). So the
coordinator has one connection per node, and reads each line once that many ranks send.

Invariants
 1. The lines of a rank reach the coordinator in their order, and the other way round.
 2. Lines go on to the coordinator as soon as every rank has sent one, and at the latest LINGER_SECONDS after the first.
 3. When the coordinator is lost, each rank is told so (UNLED) before its connection ends. A connection that ends
    without UNLED means that the agent is lost, and with it the node.
 4. The agent ends when its connection to the coordinator ends. Then it removes what the real MPI of killed ranks has
    left in /dev/shm.
 5. It never waits for a rank: what a rank doesn't take is kept for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import socket
import time
from pathlib import Path

from ...clock.fold import Fold
from ...core import handshake, processes
from ...core.connection import Connection, notice_loss
from ...core.errors import CoordinatorError
from ..bundle import Bundle, read
from ..collectors import Collectors
from ..protocol import LINE_MAX, join
from ..segments import Segments

log = logging.getLogger(__name__)

LINGER_SECONDS = 0.001
PAUSE_SECONDS = LINGER_SECONDS / 4  # after lines of some ranks: what others send meanwhile is read together
CONNECT_SECONDS = 330.0  # as long as ranks try (CONNECT_TRIES_MS of control.c)
HANDSHAKE_SECONDS = 30.0
CHUNK = 1 << 18  # bytes read at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that the launcher passes."""
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="listening socket")
    parser.add_argument("--host", required=True, help="the coordinator's address")
    parser.add_argument("--port", type=int, required=True)


def run(options: argparse.Namespace) -> int:
    """Serve until the job ends. Errors go to the log (stderr is node-HOST.log)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    processes.raise_limit()
    try:
        secret = (options.dir / "secret").read_bytes()
        with socket.socket(fileno=options.fd) as listener:
            Agent(listener, secret, connect(options.host, options.port, secret)).serve()
    except CoordinatorError as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("the agent failed")
        return 1
    return 0


def connect(host: str, port: int, secret: bytes) -> Peer:
    """A connection to the coordinator. Tries again for minutes. Raises CoordinatorError."""
    begin, pause = time.monotonic(), 0.05
    while True:
        try:
            connected = socket.create_connection((host, port), HANDSHAKE_SECONDS)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_loss(connected)
            opened = Connection(
                connected, secret, handshake.COORDINATOR, what="the agent of this node",
                lost="the coordinator has closed the connection", secret_path="the job's secret",
                timeout=HANDSHAKE_SECONDS, limit=LINE_MAX, role="node",
            )  # fmt: skip
            opened.send(join("NODE", socket.gethostname(), os.getpid()))
            return Peer(*opened.detach())
        except (OSError, CoordinatorError) as error:
            if time.monotonic() - begin > CONNECT_SECONDS:
                raise CoordinatorError(f"no connection to the coordinator at {host} port {port}: {error}") from error
            log.warning("%s port %d: %s", host, port, error)
            time.sleep(pause)
            pause = min(2 * pause, 10.0)


def encoded(line: str) -> bytes:
    """A line as it is sent without a seal."""
    return line.encode("utf-8", "surrogateescape") + b"\n"


class Peer:
    """One connection: lines in both directions, without waiting. They are sealed if there are ``seals``."""

    def __init__(self, connected: socket.socket, seals: handshake.Seals | None = None) -> None:
        self.socket, self.seals = connected, seals
        self.number = -1  # rank, after its HELLO
        self.nonce = ""  # that it must answer; empty afterwards
        self.written = bytearray()  # not taken by the kernel yet
        self.full = False  # the kernel takes nothing now
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
            complete = b"\n".join(map(self.seals.open, complete.split(b"\n")))
        return complete.decode("utf-8", "surrogateescape").split("\n")

    def send(self, line: str) -> None:
        """Keep a line until flush()."""
        data = encoded(line)
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


class Agent:
    """One node of one job."""

    def __init__(self, listener: socket.socket, secret: bytes, coordinator: Peer) -> None:
        self._listener, self._secret, self._coordinator = listener, secret, coordinator
        self._poll = select.epoll()
        self._peers: dict[int, Peer] = {}  # by descriptor, ranks that have not sent HELLO yet among them
        self._ranks: dict[int, Peer] = {}
        self._fold = Fold()
        self._up = Bundle()
        self._due = 0.0  # when the bundle must go up
        self._segments = Segments()
        self._collectors = Collectors(self._say)

    def serve(self) -> None:
        """Serve until the connection to the coordinator ends."""
        self._listener.setblocking(False)
        up = self._coordinator.socket.fileno()
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        self._poll.register(up, select.EPOLLIN)
        self._poll.register(self._collectors.fileno(), select.EPOLLIN)
        led = True
        while led:
            for fd, events in self._poll.poll(max(0.0, self._due - time.monotonic()) if self._up.ranks else None):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == up:
                    led = self._on_coordinator(events)
                elif fd == self._collectors.fileno():
                    self._collectors.ready()
                else:
                    self._on_peer(self._peers[fd], events)
            self._pass_up()
            if self._up.ranks:
                time.sleep(PAUSE_SECONDS)
        for peer in self._ranks.values():
            peer.send("UNLED")
            peer.flush()
        for peer in self._peers.values():
            peer.socket.close()
        self._collectors.close()
        self._segments.remove()
        log.info("the job has ended, or its coordinator is lost")

    # ---- towards the coordinator

    def _pass_up(self) -> None:
        waiting = self._up.ranks
        if waiting and (len(waiting) >= len(self._ranks) or time.monotonic() >= self._due):
            for message in self._up.take():
                self._coordinator.send(message)
            self._flush(self._coordinator)

    def _on_coordinator(self, events: int) -> bool:
        if events & select.EPOLLOUT:
            self._flush(self._coordinator)
        try:
            lines = self._coordinator.lines() if events & ~select.EPOLLOUT else []
        except handshake.AlteredError as error:
            log.error("the connection to the coordinator is given up: %s", error)
            lines = None
        if lines is None:
            return False
        lines = [message for message in lines if not self._collectors.take(message)]
        told: set[Peer] = set()
        for message in lines:
            for ranks, line in (order for part in read(message) for order in self._fold.down(*part)):
                data = encoded(line)
                for number in ranks:
                    if (peer := self._ranks.get(number)) is not None:
                        peer.written += data
                        told.add(peer)
        for peer in told:
            self._flush(peer)
        return True

    def _say(self, line: str) -> None:
        """A line of this node itself, for the coordinator."""
        self._coordinator.send(line)
        self._flush(self._coordinator)

    # ---- towards the ranks

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:  # none is left, or no descriptors: the rank tries again
                return
            peer = self._peers[connected.fileno()] = Peer(connected)
            self._poll.register(connected.fileno(), select.EPOLLIN)
            peer.nonce = handshake.nonce()
            peer.send(handshake.greeting(peer.nonce))
            self._flush(peer)

    def _on_peer(self, peer: Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(peer)
        if not events & ~select.EPOLLOUT:
            return
        lines = peer.lines()
        for line in lines or ():
            if peer.nonce:
                if not self._admit(peer, line):
                    lines = None
                    break
            else:
                self._on_line(peer, line)
        if lines is None:
            self._drop(peer)

    def _admit(self, peer: Peer, line: str) -> bool:
        admitted = handshake.admit(self._secret, peer.nonce, line)
        if admitted is None or admitted[0] != "rank":
            log.warning("a connection is denied: it is no rank, or does not know the secret")
            peer.send("DENIED")
            peer.flush()
            return False
        peer.send(admitted[1])
        self._flush(peer)
        peer.nonce = ""
        return True

    def _on_line(self, peer: Peer, line: str) -> None:
        kind = line.partition(" ")[0]
        if kind == "HELLO":
            peer.number = int(line.split(" ", 2)[1])
            if peer.number in self._ranks:  # it has exec'ed another program, and its old connection isn't read yet
                self._add(peer.number, "LOST")
            self._ranks[peer.number] = peer
        elif kind == "PROGRAM":
            self._segments.add(line.split(" ")[3])
        if peer.number < 0:
            log.error("a rank did not say HELLO but %s", kind)
            return
        for passed in self._fold.up(peer.number, line):
            self._add(peer.number, passed)

    def _add(self, rank: int, line: str) -> None:
        """A line for the coordinator (invariant 2)."""
        if not self._up.ranks:
            self._due = time.monotonic() + LINGER_SECONDS
        self._up.add(rank, line)

    def _drop(self, peer: Peer) -> None:
        del self._peers[peer.socket.fileno()]
        self._poll.unregister(peer.socket.fileno())
        peer.socket.close()
        if self._ranks.get(peer.number) is peer:
            del self._ranks[peer.number]
            self._add(peer.number, "LOST")

    def _flush(self, peer: Peer) -> None:
        """Send; what is left goes when the kernel takes it."""
        full = not peer.flush()
        if full != peer.full:
            peer.full = full
            self._poll.modify(peer.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if full else 0))
