"""Makes a failure of one rank end the waits of all ranks.

1. A rank that fails sends its message to every other rank, once, and then raises its own error.
2. Every wait of the communication thread checks for such a message, and raises it as RemoteError. So no rank waits for
   a rank that has given up.
3. After a failure there may be messages that nobody will receive, so that MPI_Finalize may not return. Therefore the
   process ends by MPI_Abort at its exit: once all ranks are at their exits and have printed their errors, or after
   GRACE seconds, if a rank waits for ever outside the engine.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ..errors import FcdpError, RemoteError
from ..mpi import MPI

if TYPE_CHECKING:
    from .topology import Topology

log = logging.getLogger(__name__)

GRACE = 10.0  # seconds
# seconds between two checks; each takes some 40 µs of processor time from the computation
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-4, 1e-3

T = TypeVar("T")


class Alarm:
    """The failure of a job, if there is one. check, wait and spread may be called from any thread."""

    def __init__(self, topology: Topology) -> None:
        """Collective."""
        self._comm = topology.comm.Dup()
        self._lock = threading.Lock()
        self._error: FcdpError | None = None  # what check() raises
        self._sent: list[MPI.Request] = []

    def check(self) -> None:
        """Raise RemoteError if a rank has failed."""
        with self._lock:
            if self._error is None and self._comm.Iprobe():
                status = MPI.Status()
                text = self._comm.recv(status=status)
                self._fail(RemoteError(f"rank {status.source} has failed: {text}"))
            if self._error is not None:
                raise self._error

    def wait(self, done: Callable[[], T]) -> T:
        """Wait until `done` returns something true, and return that. Raises RemoteError if a rank fails meanwhile."""
        pause = SHORTEST_PAUSE
        while not (result := done()):
            self.check()
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)  # half of the time waited so far
        return result

    def spread(self, error: BaseException) -> None:
        """Tell all other ranks that this one has failed. Does nothing if a failure is known already, or after close():
        no rank waits there any more."""
        with self._lock:
            if self._error is not None or self._comm == MPI.COMM_NULL:
                return
            text = str(error) if isinstance(error, FcdpError) else f"{type(error).__name__}: {error}".removesuffix(": ")
            self._fail(RemoteError(f"rank {self._comm.rank} has failed: {text}"))
            self._sent = [self._comm.isend(text, other) for other in range(self._comm.size) if other != self._comm.rank]

    def close(self) -> None:
        """Collective, where nobody has failed."""
        self._comm.Free()

    def _fail(self, error: FcdpError) -> None:
        self._error = error
        atexit.register(self._end)

    def _end(self) -> None:
        """Wait for the other ranks at the exit of the process (rule 3)."""
        everybody = self._comm.Ibarrier()
        deadline = time.monotonic() + GRACE
        while not everybody.Test():
            if time.monotonic() > deadline:
                log.error("%s; some ranks haven't ended after %.0f s: aborting", self._error, GRACE)
                break
            time.sleep(0.01)
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(1)
