"""Connections to the coordinator: it admits ranks, agents of nodes and commands, and receives their lines.

Invariants
 1. A line of a rank is accepted only on its own connection, or on that of the agent to which the rank is connected.
 2. Connections that have not authenticated do not block others: if descriptors are scarce, each new connection closes
    the oldest unauthenticated one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from ...clock.messages import decode_ranks
from ...core import handshake, processes
from ...core.connection import notice_loss
from .. import bundle, protocol
from ..peer_time import now
from .agent_tree import AgentTree, LowerAgent
from .channel import Channel
from .flow import Flow, name_ranks
from .levels.storage import Storage
from .nodes import Node, NodeChannel
from .ranks import Rank, Ranks
from .recordings import HostAgent, Recordings
from .shift import Shift

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0


class Connections:
    """All connections of one job.

    ``on_admitted()`` is called after a rank has come, ``on_rank_line(rank, kind, fields, line)`` for each line that is
    not for a checkpoint, ``serve_command(channel)`` for a command. ``busy``: why the last rank was refused, or empty.
    ``recordings``: the streams between commands and agents. ``shift``: the RDMA agents. ``storage``: the local
    storage of all hosts.
    """

    def __init__(
        self,
        directory: Path,
        secret: bytes,
        ranks: Ranks,
        flow: Flow,
        on_admitted: Callable[[], None],
        on_rank_line: Callable[[Rank, str, list[str], str], None],
        serve_command: Callable[[Channel], Awaitable[None]],
        storage: Storage,
    ) -> None:
        self.busy = ""
        self._secret, self._ranks, self._flow = secret, ranks, flow
        self._on_admitted, self._on_rank_line, self._serve_command = on_admitted, on_rank_line, serve_command
        self._nodes: set[Node] = set()
        self._tree = AgentTree()
        self.recordings = Recordings(self._agent_of)
        self._storage = storage
        self.shift = Shift(directory, storage.agents)
        self._commands: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # have not authenticated; the oldest first

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        try:
            admitted = await self._authenticate(reader, writer)
            if admitted is None:
                return
            role, seals = admitted
            channel = Channel(reader, writer, seals)
            if role == "rank":
                await self._serve_rank(channel)
            elif role == "node":
                notice_loss(writer.get_extra_info("socket"))
                await self._serve_node(channel)
            else:
                await self._serve_one_command(channel)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled: the job has ended, and so does this task
        except Exception:
            log.exception("a connection")
        finally:
            writer.close()

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, handshake.Seals] | None:
        """Return the role of the other end and the seals, or None if it is refused. Raises the errors that accept()
        handles."""
        fd = writer.get_extra_info("socket").fileno()
        if self._strangers and processes.is_scarce(fd):
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        try:
            return await asyncio.wait_for(
                handshake.admit_stream(reader, writer, self._secret, busy=lambda role: self._refusal(role, fd)),
                HANDSHAKE_SECONDS,
            )
        except ValueError as error:  # its line is too long
            raise ConnectionError(str(error)) from error
        finally:
            self._strangers.pop(writer, None)

    async def answered(self, seconds: float) -> None:
        """Wait until all commands have their answers, or for so long."""
        if self._commands:
            await asyncio.wait(self._commands, timeout=seconds)

    def close_nodes(self) -> None:
        """Close the connections with agents: this ends them."""
        for node in self._nodes:
            node.close()

    def _refusal(self, role: str, fd: int) -> str:
        """Why a connection is refused, or empty. A rank tries again later; a command prints the reason, and a new job
        waits for the lock."""
        if role == "command" and self._ranks.leaving:
            return "its processes have ended"
        if role == "command" or not (reason := processes.is_scarce(fd)):
            return ""
        if reason != self.busy:
            log.error("%s", reason)
        self.busy = reason
        return reason

    async def _serve_one_command(self, channel: Channel) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._commands.add(task)
        try:
            await self._serve_command(channel)
        finally:
            self._commands.discard(task)

    async def _serve_rank(self, channel: Channel) -> None:
        kind, fields, _ = await channel.receive()
        rank = self._admit(kind, fields, channel)
        if rank is None:
            return
        try:
            while True:
                kind, fields, line = await channel.receive()
                if not kind:
                    break
                if not self._flow.on_line((rank.number,), kind, fields, line):
                    self._on_rank_line(rank, kind, fields, line)
        finally:
            self._ranks.on_connection_lost(rank, now())

    def _admit(self, kind: str, fields: list[str], channel: Channel | NodeChannel) -> Rank | None:
        if kind != "HELLO" or len(fields) != 6:
            log.error("a rank did not say HELLO but %s", kind)
            return None
        rank = self._ranks.admit(fields, channel)
        if rank is not None:
            self._on_admitted()
        return rank

    async def _serve_node(self, channel: Channel) -> None:
        kind, fields, _ = await channel.receive()
        if kind != "NODE" or len(fields) != 2:
            log.error("the agent of a node did not say NODE but %s", kind)
            return
        node = Node(protocol.decode_text(fields[0]), channel)
        log.info("host %s: its agent is process %s", node.host, fields[1])
        if (below := await self._tree.place(node)) is not None and not await self._stays(below, channel):
            return
        self._nodes.add(node)
        self._storage.agents.on_agent(node.host, node)
        try:
            while message := await channel.receive_line():
                self._on_message(node, message)
        finally:
            noticed = now()
            self._nodes.discard(node)
            behind = self._tree.below(node)
            lost: list[HostAgent] = [node, *behind]
            self._tree.remove(node)
            for agent in lost:
                self._on_agent_lost(agent)
            self._on_host_lost(node.host, [agent.host for agent in behind], sorted(node.ranks), noticed)

    async def _stays(self, below: LowerAgent, channel: Channel) -> bool:
        """Wait until an agent has connected to the one above it (False), or can't reach it (True)."""
        leaves = asyncio.ensure_future(below.joined.wait())
        speaks = asyncio.ensure_future(channel.receive())
        try:
            await asyncio.wait((leaves, speaks), return_when=asyncio.FIRST_COMPLETED)
            if leaves.done():
                return False
            self._tree.remove(below)
            if speaks.result()[0] == "STAY":
                log.warning("host %s: its agent has not reached that of host %s", below.host, below.above.host)
                return True
            self._on_host_lost(below.host, (), (), now())
            return False
        finally:
            leaves.cancel()
            speaks.cancel()

    def _on_message(self, node: Node, message: str) -> None:
        """A line of an agent."""
        if message.startswith("LINES "):  # they are long: nothing more is done with the whole
            for numbers, one in bundle.read(message):
                self._on_node_line(node, numbers, one)
            return
        kind, _, rest = message.partition(" ")
        number, _, line = rest.partition(" ")
        if kind == "LISTENS":
            self._tree.on_listens(node, rest)
        elif kind == "TIME":
            node.time.note(int(rest))
        elif kind in ("JOINED", "FROM", "PARTED"):
            if (below := self._tree.find(node, number)) is not None:
                self._on_below(below, kind, line)
        elif not self._on_own_line(node, message):
            log.warning("host %s: its agent sent something unknown: %s", node.host, message[:200])

    def _on_below(self, below: LowerAgent, kind: str, line: str) -> None:
        """The agent above another one speaks of it, or passes its line on."""
        if kind == "JOINED":
            below.joined.set()
            self._storage.agents.on_agent(below.host, below)
            log.info("host %s: its agent is connected through that of host %s", below.host, below.above.host)
        elif kind == "FROM":
            self._on_own_line(below, line)
        else:
            self._tree.remove(below)
            self._on_agent_lost(below)
            noticed, _, ranks = line.partition(" ")
            lost = [rank for rank in decode_ranks(ranks) if rank in below.above.ranks]
            self._on_host_lost(below.host, (), lost, below.above.time.here(int(noticed)))

    def _on_own_line(self, agent: HostAgent, line: str) -> bool:
        """A line of an agent about its host. False: it is about something else."""
        return any(part.on_line(agent, line) for part in (self.recordings, self.shift, self._storage))

    def _on_agent_lost(self, agent: HostAgent) -> None:
        self.recordings.on_agent_lost(agent)
        self.shift.on_agent_lost(agent)
        self._storage.on_agent_lost(agent)

    def _agent_of(self, host: str) -> HostAgent | None:
        agents: list[Node | LowerAgent] = [
            *self._nodes,
            *(below for node in self._nodes for below in self._tree.below(node)),
        ]
        return next((agent for agent in agents if agent.host == host), None)

    def _on_node_line(self, node: Node, numbers: tuple[int, ...], line: str) -> None:
        line = node.time.translate(line)
        kind, *fields = line.split(" ")
        if kind == "HELLO":
            (number,) = numbers
            if self._admit(kind, fields, NodeChannel(node, number)) is not None:
                node.ranks.add(number)
            return
        if kind == "GONE":
            for number in numbers:
                self._ranks.on_process_ended(number, node)
            return
        if not node.ranks.issuperset(numbers):  # left over from ranks that are gone or were refused
            numbers = tuple(number for number in numbers if number in node.ranks)
        if not numbers or self._flow.on_line(numbers, kind, fields, line):
            return
        for number in numbers:
            if kind == "LOST":
                self._ranks.on_connection_lost(self._ranks.known[number], int(fields[0]) if fields else now())
            else:
                self._on_rank_line(self._ranks.known[number], kind, fields, line)

    def _on_host_lost(self, host: str, behind: Sequence[str], lost: Sequence[int], noticed: int) -> None:
        """The connection with an agent has ended: its ranks can't be saved or ended through it any more. ``behind``:
        the hosts that were connected through it; ``lost``: the connected ranks of them all; ``noticed``: when."""
        if (lost or not self._ranks.all_came) and not self._ranks.over.is_set():
            others = f"{len(behind)} other host{'s' * (len(behind) > 1)}"
            hosts = f", and {others} connected through it" if behind else ""
            ranks = f", and {name_ranks(lost)} with {'them' if behind else 'it'}" if lost else ""
            reason = f"host {host} is lost{hosts}{ranks}: its agent has ended"
            log.error("%s", reason)
            self._flow.fail(reason)
            self._ranks.lose(host, list(lost), reason, noticed)
        self._ranks.on_agents_lost({host, *behind})
