"""Whether the coordinators of the jobs of an attempt can still be reached.

Invariants
 1. A coordinator is lost if every attempt to connect has failed for LOSS_SECONDS (core/connection.py): no process
    listens, or the host does not answer. A coordinator that is slow or stopped is not lost: its kernel still accepts
    connections.
 2. Failed attempts are counted. So a time in which this process itself was stopped is not mistaken for a loss.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..ckpt import command
from ..ckpt.store.job import Job
from ..core.connection import loss_seconds

EVERY = 5.0  # seconds between tries
OWN = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)  # our host is short of something


class Address(NamedTuple):
    """A coordinator. Each run of a job has another one."""

    directory: Path
    host: str
    port: int


class Contact:
    """Tries to connect every few seconds, in a thread."""

    def __init__(self) -> None:
        self._failed: dict[Address, int] = {}  # tries in a row
        self._begun = -EVERY
        self._thread: threading.Thread | None = None

    def look(self, live: Iterable[Job]) -> None:
        """Try these jobs' coordinators, if it is time."""
        now = time.monotonic()
        if now < self._begun + EVERY or (self._thread is not None and self._thread.is_alive()):
            return
        asked = [Address(job.dir, job.host, job.port) for job in live]
        thread = threading.Thread(target=self._try, args=(asked,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are allowed now
            return
        self._thread, self._begun = thread, now

    def lost(self, job: Job) -> bool:
        """Is the coordinator of this job lost?"""
        return self._failed.get(Address(job.dir, job.host, job.port), 0) * EVERY >= loss_seconds()

    def _try(self, asked: list[Address]) -> None:
        failed = {}
        for address in asked:
            try:
                socket.create_connection((address.host, address.port), timeout=command.CONNECT_SECONDS).close()
            except OSError as error:
                failed[address] = self._failed.get(address, 0) + (error.errno not in OWN)
        self._failed = failed
