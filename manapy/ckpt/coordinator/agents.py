"""The agents of the job's hosts, by the names of the hosts. The coordinator itself is that of its own host."""

from __future__ import annotations

import asyncio

from .recordings import Agent


class Agents:
    """Those that have come."""

    def __init__(self) -> None:
        self._hosts: dict[str, asyncio.Future[Agent]] = {}

    def on_agent(self, host: str, agent: Agent) -> None:
        """The agent of a host has come, or has another connection now."""
        if self._of(host).done():
            del self._hosts[host]
        self._of(host).set_result(agent)

    async def of(self, host: str) -> Agent:
        """The agent of a host. Waits until it comes."""
        return await asyncio.shield(self._of(host))

    def _of(self, host: str) -> asyncio.Future[Agent]:
        return self._hosts.setdefault(host, asyncio.get_running_loop().create_future())
