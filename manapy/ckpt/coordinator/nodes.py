"""Ranks that share a connection: the coordinator's end of the connections with the agents of nodes (node/agent.py).

Invariants
 1. An agent speaks only for ranks whose HELLO came through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..bundle import Bundle
from ..peer_time import PeerTime
from .channel import Channel


class Node:
    """One agent's connection. ``ranks``: the numbers of the ranks behind it that were admitted, those behind the agents
    below it among them. ``time``: its clock."""

    def __init__(self, host: str, channel: Channel) -> None:
        self.host = host
        self.ranks: set[int] = set()
        self.time = PeerTime()
        self._channel = channel
        self._waiting = Bundle()

    def send(self, ranks: Sequence[int], line: str) -> None:
        """Send a line to some of its ranks, with all other lines of this moment."""
        if not self._waiting.ranks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.add_all(ranks, line)

    def tell(self, line: str) -> None:
        """Send a line to the agent itself."""
        self._channel.send(line)

    def close(self) -> None:
        """Close the connection: the agent ends."""
        self._channel.close()

    def _flush(self) -> None:
        for message in self._waiting.take():
            self._channel.send(message)


class NodeChannel:
    """The channel of one rank behind an agent: lines go through ``node``."""

    __slots__ = ("_rank", "node")

    def __init__(self, node: Node, rank: int) -> None:
        self.node, self._rank = node, rank

    def close(self) -> None:
        """The rank's connection is gone."""
        self.node.ranks.discard(self._rank)
