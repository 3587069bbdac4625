"""The storage of a host, as the coordinator uses it: an agent takes orders (STORE), and answers each (STORED).
The coordinator plays the agent for its own host.

Invariants
 1. Each order has a thread of its own: a long copy delays no other order, and no line.
 2. Only the owner's thread sends lines. What another thread has to say waits in a queue, and wakes it.
 3. A thread ends with the process. An order that has not been answered then has no valid effect (store/local.py).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..core.errors import CheckpointError, ManapyError, explained
from .folding import Folding
from .protocol import decode_text, join

if TYPE_CHECKING:
    from .transfer import Server

log = logging.getLogger(__name__)


class LocalStorage:
    """``say`` sends a line to the coordinator. The owner calls ready() when fileno() is readable. ``address()``:
    where other hosts of the job reach this one."""

    def __init__(self, say: Callable[[str], object], secret: bytes, address: Callable[[], str]) -> None:
        self._say, self._secret, self._address = say, secret, address
        self._server: Server | None = None
        self._folding = Folding()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()  # held while the server starts

    def fileno(self) -> int:
        """Readable if ready() has something to do."""
        return self._wake

    def take(self, line: str) -> bool:
        """Handle a line of the coordinator. False: it is about something else."""
        kind, *fields = line.split(" ")
        if kind != "STORE":
            return False
        number, verb, *words = map(decode_text, fields)
        try:
            threading.Thread(target=self._perform, args=(number, verb, words), daemon=True).start()
        except RuntimeError:
            self._answer(join("STORED", number, "failed", "the limit of processes does not allow another thread"))
        return True

    def ready(self) -> None:
        """Send the answers that are there."""
        os.eventfd_read(self._wake)
        while self._lines:
            self._say(self._lines.popleft())

    def _perform(self, number: str, verb: str, words: list[str]) -> None:
        try:
            line = join("STORED", number, "ok", *self._found(verb, words))
        except ManapyError as error:
            line = join("STORED", number, "failed", str(error))
        except Exception as error:
            log.exception("%s", verb)
            line = join("STORED", number, "failed", f"internal error: {error}")
        self._answer(line)

    def _answer(self, line: str) -> None:
        self._lines.append(line)
        os.eventfd_write(self._wake, 1)

    def _found(self, verb: str, words: list[str]) -> Sequence[str]:
        """Carry out an order. Returns what it has found."""
        from . import transfer  # here: most jobs have no local storage
        from .store import local

        if verb == "offer":
            with self._lock, explained(CheckpointError):
                self._server = self._server or transfer.Server(self._address(), self._secret)
            return self._server.place
        if verb == "pull":
            address, port, root, job, checkpoint, *images = words
            transfer.pull(self._secret, address, port, root, job, checkpoint, images)
            return []
        if verb == "fold":
            with explained(CheckpointError):
                return self._folding.run(words[0], words[1], words[2:])
        if verb == "unfold":
            self._folding.end()
            return []
        if verb in ("encode", "rebuild"):
            from .redundancy import blocks

            return blocks.perform(verb, words[0], self._secret)
        return local.perform(verb, words)
