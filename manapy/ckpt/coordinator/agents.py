"""The agents of the job's hosts, by the names of the hosts. On its own host the coordinator itself is the agent."""

from __future__ import annotations

import asyncio

from ...core.errors import CheckpointError
from .recordings import HostAgent

LOST = "its node is lost"


class Agents:
    """The agents that have connected. A lost agent remains its host's agent until another one connects. No code waits
    for that, because the ranks of a lost host are lost, too."""

    def __init__(self) -> None:
        self._hosts: dict[str, asyncio.Future[HostAgent]] = {}
        self._lost: set[HostAgent] = set()

    def on_agent(self, host: str, agent: HostAgent) -> None:
        """The agent of a host has come, or has another connection now."""
        if self._of(host).done():
            del self._hosts[host]
        self._of(host).set_result(agent)

    def on_agent_lost(self, agent: HostAgent) -> None:
        """Its connection has ended."""
        self._lost.add(agent)

    async def of(self, host: str) -> HostAgent:
        """The agent of a host. Waits until it comes. Raises CheckpointError if it was lost: it would never answer."""
        agent = await asyncio.shield(self._of(host))
        if agent in self._lost:
            raise CheckpointError(LOST)
        return agent

    def _of(self, host: str) -> asyncio.Future[HostAgent]:
        return self._hosts.setdefault(host, asyncio.get_running_loop().create_future())
