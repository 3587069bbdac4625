"""The tree of agents, as the coordinator makes it: in a job of many nodes only the first agents are connected to the
coordinator. Each later one is connected to one of them (node/lower_agents.py).

    agent -> NODE host pid -> coordinator -> DIRECT                                     one of the first
                                          -> BELOW number host address port             a later one: connect there
    agent -> JOIN number -> agent above -> JOINED number -> coordinator                 which ends the first connection
    agent -> STAY -> coordinator                                                        in vain: it remains here

Invariants
 1. A job whose agents are not more than FANIN has no tree, and its agents open no port.
 2. An agent that is to be connected to another agent stays connected to the coordinator until the new connection works.
    So its loss is noticed at any time.
 3. No agent waits for long for another one that does not answer: after LISTEN_SECONDS it stays connected to the
    coordinator.
 4. The tree has two levels, with equally many agents below each of the first ones.
"""

from __future__ import annotations

import asyncio
import itertools
import os

from .. import protocol
from .nodes import Node

FANIN = 64  # MANAPY_AGENT_FANIN changes it
LISTEN_SECONDS = 5.0


class LowerAgent:
    """An agent below another one. ``joined``: is set when it has connected there."""

    def __init__(self, number: str, host: str, above: Node) -> None:
        self.number, self.host, self.above = number, host, above
        self.joined = asyncio.Event()

    def tell(self, line: str) -> None:
        """Send a line to the agent itself."""
        self.above.tell(f"FOR {self.number} {line}")


class AgentTree:
    """The agents of one job."""

    def __init__(self) -> None:
        given = os.environ.get("MANAPY_AGENT_FANIN", "")
        self._fanin = max(int(given), 1) if given.isdigit() else FANIN
        self._above: dict[Node, dict[str, LowerAgent]] = {}  # the first agents, and those below each, by number
        self._ports: dict[Node, asyncio.Future[str]] = {}  # address and port of those that were told to listen
        self._numbers = map(str, itertools.count(1))

    async def place(self, node: Node) -> LowerAgent | None:
        """Tell a new agent where it belongs: below another one, or (None) to the coordinator."""
        if len(self._above) < self._fanin:
            self._above[node] = {}
        else:
            above = min(self._above, key=lambda node: len(self._above[node]))
            below = LowerAgent(next(self._numbers), node.host, above)
            self._above[above][below.number] = below  # now: others are being placed
            if port := await self._port(above):
                node.tell(f"{protocol.join('BELOW', below.number, above.host)} {port}")
                return below
            self.remove(below)
        node.tell("DIRECT")
        return None

    async def _port(self, above: Node) -> str:
        """Where an agent listens. Empty if it does not say so in time."""
        if above not in self._ports:
            self._ports[above] = asyncio.get_running_loop().create_future()
            above.tell("LISTEN")
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                return await asyncio.shield(self._ports[above])
        except TimeoutError:
            return ""

    def on_listens(self, node: Node, port: str) -> None:
        """An agent has opened its port."""
        if (opened := self._ports.get(node)) is not None and not opened.done():
            opened.set_result(port)

    def find(self, node: Node, number: str) -> LowerAgent | None:
        """The agent with this number below another one; None if it is lost, or has stayed."""
        return self._above.get(node, {}).get(number)

    def below(self, node: Node) -> list[LowerAgent]:
        """All agents that have come to this one."""
        return [below for below in self._above.get(node, {}).values() if below.joined.is_set()]

    def remove(self, agent: Node | LowerAgent) -> None:
        """An agent is lost, or does not go below another one."""
        if isinstance(agent, LowerAgent):
            self._above.get(agent.above, {}).pop(agent.number, None)
        else:
            self._above.pop(agent, None)
            self._ports.pop(agent, None)
