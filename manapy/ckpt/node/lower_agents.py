"""The agents below another one: in a job of many nodes, an agent joins the lines of other agents with those of its own
ranks, and passes orders down to them (AgentTree of coordinator/agent_tree.py places them).

Invariants
 1. The lines of a rank keep their order in both directions, as in one agent.
 2. The loss of a lower agent affects no other agent. The coordinator is told (PARTED) after it has got all lines from
    the lost agent.
 3. Each agent below is told that the coordinator is lost (UNLED), as ranks are. A connection that ends without it means
    that this agent is lost.
 4. The socket is opened when the coordinator asks for it, on the one address that leads to the coordinator.
 5. Times that a lower agent reports are converted to this agent's clock (peer_time.py).
 6. A connection that has not sent JOIN after JOIN_SECONDS is closed when the next one comes, so that strangers do not
    take all descriptors.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from ...clock.messages import encode_ranks
from ...core.connection import notice_loss
from ..bundle import LISTS_MAX, Bundle, read
from ..peer_time import PeerTime
from ..protocol import join
from .listener import ListeningSocket
from .peer import AcceptedPeer, Poll

log = logging.getLogger(__name__)

JOIN_SECONDS = 30.0


class LowerAgentConnection(AcceptedPeer):
    """The connection with an agent. ``number``: by which the coordinator names it, after JOIN. ``ranks``: those that
    are behind it."""

    def __init__(self, connected: socket.socket, secret: bytes) -> None:
        super().__init__(connected, secret, "node")
        self.number = ""
        self.came = time.monotonic()
        self.ranks: set[int] = set()
        self.time = PeerTime()
        self.waiting = Bundle()


class LowerAgents:
    """The agents below one agent.

    ``say`` sends a line to the coordinator after all lines that have been passed on. ``pass_on(ranks, line)`` joins a
    line of these ranks with others.
    """

    def __init__(
        self,
        secret: bytes,
        poll: Poll,
        say: Callable[[str], None],
        pass_on: Callable[[Sequence[int], str], None],
    ) -> None:
        self._secret, self._poll, self._say, self._pass_on = secret, poll, say, pass_on
        self._listener: ListeningSocket | None = None
        self._guests: set[LowerAgentConnection] = set()
        self._named: dict[str, LowerAgentConnection] = {}
        self._of: dict[int, LowerAgentConnection] = {}  # by rank
        self._divided = lru_cache(LISTS_MAX)(self._divide)  # the same lists of ranks come again in each round

    @property
    def ranks(self) -> int:
        """The number of ranks behind these agents."""
        return len(self._of)

    def listen(self, upwards: socket.socket) -> None:
        """Open the socket, and report its port. ``upwards``: the connection to the coordinator (invariant 4)."""
        address = upwards.getsockname()[0]
        try:
            listener = socket.create_server((address, 0), family=upwards.family, backlog=socket.SOMAXCONN)
        except OSError as error:  # then the coordinator names this agent to nobody
            log.error("no agent can connect to this one: %s", error)
            return
        self._listener = ListeningSocket(listener)
        self._poll.add(listener.fileno(), self._accept)
        self._say(join("LISTENS", address, listener.getsockname()[1]))

    # ---- downwards

    def tell(self, number: str, line: str) -> None:
        """Send a line to an agent itself."""
        if (below := self._named.get(number)) is not None:  # not lost meanwhile
            below.send(line)
            self._poll.flush(below)

    def take(self, ranks: tuple[int, ...], line: str) -> Sequence[int]:
        """Keep a line for the ranks behind agents until flush(). Returns the other ranks."""
        if not self._of:
            return ranks
        behind, others = self._divided(ranks)
        for below, some in behind.items():
            below.waiting.add_all(some, line)
        return others

    def flush(self) -> None:
        """Send what take() has kept."""
        for below in self._named.values():
            if below.waiting.ranks:
                for message in below.waiting.take():
                    below.send(message)
                self._poll.flush(below)

    def close(self) -> None:
        """End all connections (invariant 3)."""
        for below in self._guests:
            below.send("UNLED")
            below.flush()
            below.socket.close()
        if self._listener is not None:
            self._listener.close()

    def _divide(self, ranks: tuple[int, ...]) -> tuple[dict[LowerAgentConnection, list[int]], Sequence[int]]:
        """The ranks behind each agent, and all others."""
        behind: dict[LowerAgentConnection, list[int]] = {}
        others: list[int] = []
        for rank in ranks:
            if (below := self._of.get(rank)) is None:
                others.append(rank)
            else:
                behind.setdefault(below, []).append(rank)
        return behind, others

    # ---- upwards

    def _accept(self, _: int) -> None:
        assert self._listener is not None
        if (connected := self._listener.accept()) is None:
            return
        for guest in [guest for guest in self._guests if not guest.number]:
            if time.monotonic() - guest.came > JOIN_SECONDS:
                self._drop(guest)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_loss(connected)
        below = LowerAgentConnection(connected, self._secret)
        self._guests.add(below)
        self._poll.add_peer(below, lambda lines: self._on_lines(below, lines))

    def _on_lines(self, below: LowerAgentConnection, lines: list[str] | None) -> None:
        for line in lines or ():
            kind, _, rest = line.partition(" ")
            if not below.number:
                if kind != "JOIN" or rest in self._named:
                    log.error("an agent did not say JOIN but %s", line[:200])
                    lines = None
                    break
                below.number = rest
                self._named[rest] = below
                self._say(f"JOINED {rest}")
            elif kind == "LINES":
                for ranks, passed in read(line):
                    self._on_line(below, ranks, below.time.translate(passed))
            elif kind == "TIME":
                below.time.note(int(rest))
            else:
                self._say(f"FROM {below.number} {line}")
        if lines is None:
            self._drop(below)

    def _on_line(self, below: LowerAgentConnection, ranks: tuple[int, ...], line: str) -> None:
        if line.startswith("HELLO "):
            below.ranks.update(ranks)
            self._of.update(dict.fromkeys(ranks, below))
            self._divided.cache_clear()
        self._pass_on(ranks, line)
        if line.startswith("LOST"):
            self._forget(below, ranks)

    def _forget(self, below: LowerAgentConnection, ranks: Sequence[int]) -> None:
        for rank in ranks:
            below.ranks.discard(rank)
            if self._of.get(rank) is below:
                del self._of[rank]
        self._divided.cache_clear()

    def _drop(self, below: LowerAgentConnection) -> None:
        self._poll.remove_peer(below)
        self._guests.discard(below)
        if self._named.get(below.number) is below:
            del self._named[below.number]
            self._say(f"PARTED {below.number} {self._poll.woke} {encode_ranks(sorted(below.ranks))}")
            self._forget(below, list(below.ranks))
