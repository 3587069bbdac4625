"""The agent of a node: the ranks of a node that is not rank 0's share its connection to the coordinator.

The first rank of the node starts it (lowerhalf/join/node.c). Ranks speak to it as to the coordinator (control.h), over
a Unix socket. It makes the lines of its ranks equal (clock/line_merging.py) and joins equal lines (bundle.py). So the
coordinator has one connection per node, and reads a line that many ranks send only once. In a job of many nodes it has
fewer connections: agents are connected to other agents (leader.py, lower_agents.py), which join their lines in the same
way.

Invariants
 1. The lines of a rank keep their order, in both directions.
 2. Lines go on as soon as every rank has sent one, and at the latest LINGER_SECONDS after the first.
 3. When the coordinator is lost, each rank and each agent below is told so (UNLED) before its connection ends. A
    connection of a rank that ends without UNLED means that the agent is lost, and with it the node. An agent whose
    connection to another one ends without UNLED ends its ranks (KILL): the coordinator cannot.
 4. The agent ends when its connection upwards ends. Then it removes what the real MPI of killed ranks has left in
    /dev/shm. If ranks of the node use RDMA, it serves them until they end, before it ends itself (shift.py).
 5. It never waits for a rank or an agent: what they don't take is kept for them.
 6. The agent reports the loss of a rank, and an end with an error, together with the time at which it noticed them. So
    that this time can be compared with those of other hosts (peer_time.py), the agent regularly sends its own time.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from ...clock.line_merging import LineMerger
from ...core import processes
from ...core.errors import CoordinatorError
from ..bundle import Bundle, read
from ..collectors import Collectors
from ..host_storage import LocalStorage
from ..peer_time import now
from ..protocol import join
from ..segments import Segments
from .leader import Leader, connect
from .listener import ListeningSocket
from .lower_agents import LowerAgents
from .peer import AcceptedPeer, Poll, encoded
from .shift import Shift

log = logging.getLogger(__name__)

LINGER_SECONDS = 0.001
# Its ranks end this much after the loss of the agent above: first the coordinator must hear of that (AGENT_LOST_MS of
# control.c).
LOST_SECONDS = 0.5
TIME_FIRST, TIME_SECONDS = 0.1, 10.0  # between two TIMEs: at first, and then twice as long each time, up to this
PAUSE_SECONDS = LINGER_SECONDS / 4  # after lines of some ranks: what others send meanwhile is read together


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
            NodeAgent(listener, secret, connect(options.host, options.port, secret)).serve()
    except CoordinatorError as error:
        log.error("%s", error)
        return 1
    except Exception:
        log.exception("the agent failed")
        return 1
    return 0


class Rank(AcceptedPeer):
    """The connection of a rank. ``number``: after its HELLO; ``pid``: of the process that has opened it; ``done``: it
    has sent DONE."""

    def __init__(self, connected: socket.socket, secret: bytes) -> None:
        super().__init__(connected, secret, "rank")
        self.number = -1
        self.done = False
        self.pid = processes.peer(connected)[0]


class NodeAgent:
    """One node of one job."""

    def __init__(self, listener: socket.socket, secret: bytes, leader: Leader) -> None:
        self._listener, self._secret, self._leader = ListeningSocket(listener), secret, leader
        self._poll = Poll()
        self._guests: set[Rank] = set()  # also those that have not sent HELLO yet
        self._ranks: dict[int, Rank] = {}
        self._merger = LineMerger()
        self._up = Bundle()
        self._due = 0.0  # when the bundle must go up
        self._time_due, self._time_pause = 0.0, TIME_FIRST  # of TIME
        self._tree = LowerAgents(secret, self._poll, self._say, self._add_all)
        self._segments = Segments()
        self._collectors = Collectors(self._say)
        self._shift = Shift(self._say)
        self._storage = LocalStorage(self._say, secret, lambda: str(leader.socket.getsockname()[0]))
        self._last = ""  # what ranks are told at the end

    def serve(self) -> None:
        """Serve until the connection upwards ends."""
        self._poll.add(self._listener.fileno(), self._accept)
        self._poll.add_peer(self._leader, self._on_orders)
        self._poll.add(self._collectors.fileno(), lambda _: self._collectors.ready())
        self._poll.add(self._shift.fileno(), lambda _: self._shift.ready())
        self._poll.add(self._storage.fileno(), lambda _: self._storage.ready())
        self._on_orders(self._leader.early)
        while not self._last:
            self._say_time()
            due = min(self._due, self._time_due) if self._up.ranks else self._time_due
            self._poll.wait(max(0.0, due - time.monotonic()))
            if waiting := len(self._up.ranks):
                if waiting >= len(self._ranks) + self._tree.ranks or time.monotonic() >= self._due:
                    self._pass_up()
                else:
                    time.sleep(PAUSE_SECONDS)
        self._end()

    # ---- upwards

    def _add(self, rank: int, line: str) -> None:
        """A line for the coordinator (invariant 2)."""
        if not self._up.ranks:
            self._due = time.monotonic() + LINGER_SECONDS
        self._up.add(rank, line)

    def _add_all(self, ranks: Sequence[int], line: str) -> None:
        """The same line of each of these ranks, from an agent below."""
        if not self._up.ranks:
            self._due = time.monotonic() + LINGER_SECONDS
        self._up.add_all(ranks, line)

    def _pass_up(self) -> None:
        for message in self._up.take():
            self._leader.send(message)
        self._poll.flush(self._leader)

    def _say(self, line: str) -> None:
        """A line of this node itself, after those of its ranks."""
        self._pass_up()
        self._leader.send(line)
        self._poll.flush(self._leader)

    def _say_time(self) -> None:
        """Invariant 6."""
        if time.monotonic() < self._time_due:
            return
        self._leader.send(f"TIME {now()}")
        self._poll.flush(self._leader)
        self._time_due = time.monotonic() + self._time_pause
        self._time_pause = min(2 * self._time_pause, TIME_SECONDS)

    # ---- downwards

    def _on_orders(self, lines: list[str] | None) -> None:
        told: set[Rank] = set()
        for line in lines or ():
            kind, _, rest = line.partition(" ")
            if kind == "LINES":
                for part in read(line):
                    self._pass_down(*part, told)
            elif kind == "LISTEN":
                self._tree.listen(self._leader.socket)
            elif kind == "FOR":
                number, _, order = rest.partition(" ")
                self._tree.tell(number, order)
            elif kind == "UNLED":
                self._last = kind
            elif not self._collectors.take(line) and not self._storage.take(line):
                self._shift.take(line)
        for peer in told:
            self._poll.flush(peer)
        self._tree.flush()
        if lines is None and not self._last:
            self._last = self._farewell()

    def _farewell(self) -> str:
        """Return the message to ranks after a loss: of the coordinator, or of the agent above (invariant 3)."""
        if not self._leader.host:
            return "UNLED"
        why = f"the agent of host {self._leader.host} is lost, and this host was connected through it: the job ends"
        log.error("%s", why)
        time.sleep(LOST_SECONDS)
        return join("KILL", 1, why)

    def _pass_down(self, ranks: tuple[int, ...], line: str, told: set[Rank]) -> None:
        for some, order in self._merger.down(self._tree.take(ranks, line), line):
            data = encoded(order)
            for number in some:
                if (peer := self._ranks.get(number)) is not None:
                    peer.send_encoded(data)
                    told.add(peer)

    def _end(self) -> None:
        last = self._last
        for peer in self._ranks.values():
            peer.send(last)
            peer.flush()
            if last.startswith("KILL"):
                last = join("KILL", 1, "")  # the first rank has printed the reason
        for peer in self._guests:
            peer.socket.close()
        self._tree.close()
        self._listener.close()
        self._collectors.close()
        self._segments.remove()
        log.info("the job has ended, or its coordinator is lost")
        self._shift.close()

    # ---- towards the ranks

    def _accept(self, _: int) -> None:
        while (connected := self._listener.accept()) is not None:
            self._welcome(Rank(connected, self._secret))

    def _welcome(self, peer: Rank) -> None:
        self._guests.add(peer)
        self._poll.add_peer(peer, lambda lines: self._on_rank(peer, lines))

    def _on_rank(self, peer: Rank, lines: list[str] | None) -> None:
        for line in lines or ():
            self._on_line(peer, line)
        if lines is None:
            self._drop(peer)

    def _on_line(self, peer: Rank, line: str) -> None:
        kind = line.partition(" ")[0]
        if kind == "HELLO":
            peer.number = int(line.split(" ", 2)[1])
            if peer.number in self._ranks:  # it has exec'ed another program, and its old connection isn't read yet
                self._add_lost(self._ranks[peer.number])
            self._ranks[peer.number] = peer
        elif kind == "PROGRAM":
            self._segments.add(line.split(" ")[3])
        elif kind == "DONE":
            peer.done = True
            if line != "DONE 0":
                line = f"{line} {self._poll.woke}"
        if peer.number < 0:
            log.error("a rank did not say HELLO but %s", kind)
            return
        for passed in self._merger.up(peer.number, line):
            self._add(peer.number, passed)

    def _drop(self, peer: Rank) -> None:
        self._poll.remove_peer(peer)
        self._guests.discard(peer)
        if self._ranks.get(peer.number) is peer:
            del self._ranks[peer.number]
            self._add_lost(peer)
            self._watch(peer)

    def _add_lost(self, peer: Rank) -> None:
        """The end of a connection. It is no failure if the rank is done: then it needs no time, and equal lines of many
        ranks remain equal."""
        self._add(peer.number, "LOST" if peer.done else f"LOST {self._poll.woke}")

    def _watch(self, lost: Rank) -> None:
        """Say so when the process of a rank that has lost its connection has ended. If it has exec'ed another program,
        it comes back."""

        def ended(process: int) -> None:
            if process >= 0:
                self._poll.remove(process)
                os.close(process)
            if lost.number not in self._ranks:  # nor does another process speak for it
                self._add(lost.number, "GONE")

        try:
            process = os.pidfd_open(lost.pid)
        except ProcessLookupError:
            ended(-1)
        except OSError as error:
            log.warning("the end of rank %d is not seen: %s", lost.number, error)
        else:
            self._poll.add(process, lambda _: ended(process))
