"""The agent of a host as a part of another process, for a job of manapy-launch: in the coordinator on rank 0's host, in
the agent of the node (`manapy _node`) on every other one. So the job needs no process more.

Invariants
 1. It takes the place of any agent of this job on this host: that one belongs to an earlier run. Programs that are
    connected with that one stay connected, and it leaves the files of this one alone.
 2. In a thread, it has an event loop of its own, and the owner of the thread never waits for it before the job's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from ..core.errors import ManapyError
from . import place
from .agent import RdmaAgent
from .store import TTL_SECONDS, Store

log = logging.getLogger(__name__)


def make(job: str, url: str, store: Store) -> tuple[RdmaAgent, socket.socket]:
    """An agent, and its socket, at which programs may connect already. Blocks for a moment. Raises ManapyError or
    OSError."""
    where = place.make(job)
    with where.locked():
        listener = where.listen()
        return RdmaAgent(where, url, store, None, TTL_SECONDS), listener


class AgentThread:
    """An agent in a thread. ready() is called in that thread, once: with an empty text, or why the agent cannot
    serve."""

    def __init__(self, job: str, url: str, store: Store, ready: Callable[[str], None]) -> None:
        self._job, self._url, self._store, self._ready = job, url, store, ready
        self._loop: asyncio.AbstractEventLoop
        self._over = asyncio.Event()
        self._begun = threading.Event()  # the loop is there
        self._thread = threading.Thread(target=self._work, name="shift", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Does it serve, or is it about to?"""
        return self._thread.is_alive()

    def finish(self) -> None:
        """The job is over, or its coordinator is lost: let the agent serve its programs to their end, and wait for
        that."""
        self._begun.wait()
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except (ManapyError, OSError) as error:
            self._ready(str(error))
        except Exception:
            log.exception("the RDMA agent of this host failed")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        agent, listener = make(self._job, self._url, self._store)
        serving = asyncio.ensure_future(agent.run(listener, lambda _: self._ready("")))
        over = asyncio.ensure_future(self._over.wait())
        await asyncio.wait((serving, over), return_when=asyncio.FIRST_COMPLETED)
        agent.end_when_idle(0.0)
        await serving
