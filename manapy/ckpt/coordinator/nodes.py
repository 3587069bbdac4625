"""Ranks that share a connection: the coordinator's end of the connections with the agents of nodes (node/agent.py).

Invariants
 1. An agent speaks only for ranks whose HELLO came through it.
"""

from __future__ import annotations

import asyncio

from ..bundle import Bundle
from .channel import Channel


class Node:
    """One agent's connection. ``ranks``: the numbers of the ranks behind it that were admitted."""

    def __init__(self, host: str, channel: Channel) -> None:
        self.host = host
        self.ranks: set[int] = set()
        self._channel = channel
        self._waiting = Bundle()

    def send(self, rank: int, line: str) -> None:
        """Send a line to a rank, with all others of this moment."""
        if not self._waiting.ranks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.add(rank, line)

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
    """The channel of one rank behind an agent; as Channel, but the agent receives."""

    def __init__(self, node: Node, rank: int) -> None:
        self._node, self._rank = node, rank
        self._open = True

    def send(self, line: str) -> None:
        """Send one line. Does nothing if the rank's connection is gone."""
        if self._open:
            self._node.send(self._rank, line)

    def close(self) -> None:
        """The rank's connection is gone."""
        self._open = False
        self._node.ranks.discard(self._rank)
