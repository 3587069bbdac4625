"""The sockets on which an agent accepts connections.

Invariants
 1. Nothing here waits.
 2. An agent without free descriptors lets no peer wait, and does not spin: it closes each new connection immediately.
    The peer tries again (control.c, leader.py).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time

log = logging.getLogger(__name__)

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
SAY_SECONDS = 10.0  # between two lines of the log that say the same


class ListeningSocket:
    """One listening socket, whose owner it is."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._spare = _any_descriptor()
        self._said = -SAY_SECONDS
        listener.setblocking(False)

    def fileno(self) -> int:
        """The descriptor that becomes readable when a peer has connected."""
        return self._listener.fileno()

    def accept(self) -> socket.socket | None:
        """The next connection; None if no peer has connected, or none can be accepted."""
        try:
            return self._listener.accept()[0]
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self._turn_away(error)
            return None

    def close(self) -> None:
        """Close the socket. New connections are refused from now on."""
        self._listener.close()
        self._drop_spare()

    def _turn_away(self, reason: OSError) -> None:
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            log.error("a connection is closed again: %s", reason.strerror)
        self._drop_spare()
        with contextlib.suppress(OSError):  # it has gone, or other processes have taken the host's last descriptor
            self._listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = _any_descriptor()

    def _drop_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
        self._spare = -1


def _any_descriptor() -> int:
    return os.open("/", os.O_PATH | os.O_CLOEXEC)
