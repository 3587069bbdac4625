"""The RDMA agent of a node (manapy/rdma/host.py) inside the node's agent: it starts when the coordinator says so, in a
thread of its own.

Invariants
 1. For a job that does not ask for it, this costs one descriptor: nothing of manapy/rdma is imported before.
 2. Only the thread of the node's agent sends lines. What the other thread has to say waits in a queue, and wakes it.
 3. After the loss of the coordinator the RDMA agent goes on until the programs of this node have ended: they keep
    connections, events and commands, but find no more keys.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol import join

if TYPE_CHECKING:
    from ...rdma.central import RemoteStore
    from ...rdma.host import AgentThread


class Shift:
    """``say`` sends a line to the coordinator. The owner calls ready() when fileno() is readable."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lines: deque[str] = deque()
        self._store: RemoteStore | None = None
        self._agent: AgentThread | None = None

    def fileno(self) -> int:
        """Readable if ready() has something to do."""
        return self._wake

    def take(self, line: str) -> bool:
        """Handle a line of the coordinator. False: it is about something else."""
        kind, _, rest = line.partition(" ")
        if kind == "SERVE":
            self._start(*rest.split(" "))
        elif kind == "KEYED" and self._store is not None:
            self._store.take(line)
        else:
            return False
        return True

    def ready(self) -> None:
        """Send what the thread has said."""
        os.eventfd_read(self._wake)
        while self._lines:
            self._say(self._lines.popleft())

    def close(self) -> None:
        """The connection to the coordinator has ended (invariant 3)."""
        if self._store is not None:
            self._store.lose()
        if self._agent is not None:
            self._agent.finish()
        os.close(self._wake)

    def _start(self, job: str, url: str) -> None:
        if self._agent is not None and self._agent.is_alive():
            self._say(join("SERVES", ""))
            return
        from ...rdma.central import RemoteStore
        from ...rdma.host import AgentThread

        self._store = RemoteStore(self._put)
        self._agent = AgentThread(job, url, self._store, lambda trouble: self._put(join("SERVES", trouble)))

    def _put(self, line: str) -> None:
        """Called by other threads."""
        self._lines.append(line)
        os.eventfd_write(self._wake, 1)
