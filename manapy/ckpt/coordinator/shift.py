"""The RDMA agents of a job (manapy/rdma): where they run, and their keys. That of the coordinator's own host runs here,
those of other hosts in the agents of the nodes (node/shift.py). A rank that uses RDMA asks for the agent of its host
(`manapy _shift`).

    command -> SERVE host -> coordinator -> SERVE job store -> agent of the node
               RESULT     <-                SERVES reason   <-

Invariants
 1. A host gets one RDMA agent, however many ranks ask. If it cannot serve, the next one that asks has it tried again.
 2. The keys are in this process's memory (rdma/central.py). Those of a host vanish with the connection of its agent.
 3. A job that does not ask imports nothing of manapy/rdma.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import CheckpointError, ManapyError
from .. import protocol
from ..store import job
from .agents import LOST, Agents
from .channel import Channel
from .recordings import HostAgent

if TYPE_CHECKING:
    from ...rdma import agent, central

log = logging.getLogger(__name__)

AGENT_SECONDS = 60.0  # until the agent of a node has come, and serves
END_SECONDS = 2.0  # for the programs of this host to end with the job


class Shift:
    """The RDMA agents of the job in ``directory``."""

    def __init__(self, directory: Path, agents: Agents) -> None:
        self._dir, self._agents = directory, agents
        self._names: tuple[str, str] = ("", "")  # of the job and of the store, for RDMA agents; since the first request
        self._store: central.CentralStore
        self._desk: central.KeyService
        self._serving: dict[HostAgent | None, asyncio.Future[str]] = {}  # why it cannot, or empty; None: our own host's
        self._own: agent.RdmaAgent | None = None
        self._task: asyncio.Task[None] | None = None  # in which our own host's runs

    async def serve(self, channel: Channel, host: str) -> None:
        """A rank on this host asks for the RDMA agent."""
        try:
            async with asyncio.timeout(AGENT_SECONDS):
                reason = await self._serve(host)
        except TimeoutError:
            reason = f"the agent of host {host} does not answer"
        except CheckpointError as error:
            reason = str(error)
        outcome = ("failed", reason) if reason else ("ok", "")
        channel.send(protocol.join("RESULT", *outcome))

    def on_line(self, node: HostAgent, line: str) -> bool:
        """A line of an agent. False: it is about something else."""
        kind, _, rest = line.partition(" ")
        if kind == "KEYS":
            if node in self._serving:
                node.tell(self._desk.answer(node, line))
        elif kind == "SERVES":
            self._answer(node, protocol.decode_text(rest))
        else:
            return False
        return True

    def on_agent_lost(self, node: HostAgent) -> None:
        """Its connection has ended."""
        if node in self._serving:
            self._desk.leave(node)  # invariant 2
            self._answer(node, LOST)

    async def end(self) -> None:
        """The job has ended. The programs of this host are about to end, too."""
        if self._own is None or self._task is None:
            return
        self._own.end_when_idle(0.0)
        await asyncio.wait((self._task,), timeout=END_SECONDS)
        self._own.end()
        await asyncio.wait((self._task,))

    async def _serve(self, host: str) -> str:
        """Why the agent of this host cannot serve; empty if it does."""
        if not self._names[0]:
            self._open()
        node = None if host == socket.gethostname() else await self._agents.of(host)
        if node not in self._serving:
            self._serving[node] = asyncio.get_running_loop().create_future()
            if node is None:
                self._task = asyncio.ensure_future(self._serve_here())
            else:
                node.tell(" ".join(("SERVE", *self._names)))
        return await asyncio.shield(self._serving[node])

    def _open(self) -> None:
        from ...rdma import central, place, store

        record = job.read(self._dir)
        self._store = central.CentralStore()
        self._desk = central.KeyService(self._store)
        self._names = place.job_name(self._dir), store.central_url(record.host, record.port)

    async def _serve_here(self) -> None:
        from ...rdma import host

        try:
            own, listener = await asyncio.to_thread(host.make, *self._names, self._store)
            self._own = own
            await own.run(listener, lambda _: self._answer(None, ""))
        except (ManapyError, OSError) as error:
            self._answer(None, str(error))
        except Exception as error:
            log.exception("the RDMA agent of this host")
            self._answer(None, f"internal error: {error}")

    def _answer(self, node: HostAgent | None, reason: str) -> None:
        """An RDMA agent serves, or cannot (invariant 1)."""
        if (waiting := self._serving.get(node)) is None:
            return
        if not waiting.done():
            waiting.set_result(reason)
        if reason:
            del self._serving[node]
