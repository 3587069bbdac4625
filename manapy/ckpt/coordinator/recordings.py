"""Recordings of other hosts: the coordinator connects commands (`manapy why`, `manapy trace`) with the collectors of
the job's hosts (ckpt/collectors.py), through the agents of the nodes. It plays the agent for its own host.

Each connection of such a command is one stream: bytes in both directions. This module does not interpret them.

Invariants
 1. A stream has at most one piece in flight: MORE goes to the agent after the command has taken the last piece. So the
    coordinator keeps a few pieces of each stream at most, and a control line waits for no more than these.
 2. An agent sends only pieces of streams that go through it.
 3. A stream ends with its command, with its agent, and with the job, whichever comes first.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from ...core import processes
from .. import protocol
from ..collectors import Collectors
from .channel import Channel

log = logging.getLogger(__name__)


class HostAgent(Protocol):
    """An agent that has collectors, and gets lines for them."""

    def tell(self, line: str) -> None:
        """Send it a line."""


class _OwnCollectors:
    """The coordinator as the agent of its own host."""

    def __init__(self, on_line: Callable[[HostAgent, str], bool]) -> None:
        self._collectors = Collectors(lambda line: on_line(self, line))
        asyncio.get_running_loop().add_reader(self._collectors.fileno(), self._collectors.ready)

    def tell(self, line: str) -> None:
        self._collectors.take(line)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._collectors.fileno())
        self._collectors.close()


class _Stream:
    """One command's collector. ``pieces``: those that have come; None: it has ended."""

    def __init__(self, name: str, agent: HostAgent) -> None:
        self.name, self.agent = name, agent
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self.task = asyncio.current_task()


class Recordings:
    """The streams of one job. agent_of: the agent of a host, or None."""

    def __init__(self, agent_of: Callable[[str], HostAgent | None]) -> None:
        self._agent_of = agent_of
        self._own: _OwnCollectors | None = None  # since the first question about this host
        self._streams: dict[str, _Stream] = {}
        self._names = map(str, itertools.count(1))

    async def serve(self, channel: Channel, host: str) -> None:
        """Connect a command with a new collector on this host, until one of them ends."""
        agent = self._agent(host)
        if agent is None:
            channel.send(protocol.join("RESULT", "failed", f"the job has no agent on {host}"))
            return
        if reason := processes.is_scarce(channel.fileno()):
            channel.send(protocol.join("RESULT", "failed", reason))
            return
        stream = _Stream(next(self._names), agent)
        self._streams[stream.name] = stream
        agent.tell(f"COLLECT {stream.name}")
        channel.send("COLLECTING")
        requests = asyncio.ensure_future(self._pass_requests(channel, stream))
        try:
            while (piece := await stream.pieces.get()) is not None:
                channel.send(f"PIECE {piece}")
                await channel.drain()
                agent.tell(f"MORE {stream.name}")
            channel.send(protocol.join("RESULT", "failed", f"the collector on {host} has ended"))
        finally:
            requests.cancel()
            del self._streams[stream.name]
            agent.tell(f"LEAVE {stream.name}")

    async def _pass_requests(self, channel: Channel, stream: _Stream) -> None:
        while True:
            kind, fields, _ = await channel.receive()
            if kind != "ASK" or len(fields) != 1:
                stream.pieces.put_nowait(None)
                return
            stream.agent.tell(f"ASK {stream.name} {fields[0]}")

    def on_line(self, agent: HostAgent, line: str) -> bool:
        """A line of an agent. False: it is about something else."""
        kind, _, rest = line.partition(" ")
        if kind not in ("PIECE", "ENDED"):
            return False
        name, _, data = rest.partition(" ")
        stream = self._streams.get(name)
        if stream is not None and stream.agent is agent:
            stream.pieces.put_nowait(data if kind == "PIECE" else None)
        return True

    def on_agent_lost(self, agent: HostAgent) -> None:
        """Its streams end."""
        for stream in self._streams.values():
            if stream.agent is agent:
                stream.pieces.put_nowait(None)

    def end(self) -> None:
        """The job has ended, and so do all streams."""
        for stream in self._streams.values():
            if stream.task is not None:
                stream.task.cancel()
        if self._own is not None:
            self._own.close()

    def _agent(self, host: str) -> HostAgent | None:
        if host != socket.gethostname():
            return self._agent_of(host)
        if self._own is None:
            self._own = _OwnCollectors(self.on_line)
        return self._own
