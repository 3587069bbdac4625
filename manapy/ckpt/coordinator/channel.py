"""The coordinator's end of a connection: sealed lines (core/handshake.py) over asyncio's streams.

Invariants
 1. A stream ends at the first wrong seal, as if the connection were lost. The log says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from ...core import handshake

log = logging.getLogger(__name__)


class Channel:
    """An authenticated connection. ``send`` never blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seals: handshake.Seals) -> None:
        self._reader, self._writer, self._seals = reader, writer, seals

    async def receive(self) -> tuple[str, list[str], str]:
        """Receive one line, as (kind, fields, line). Returns ("", [], "") at the end of the connection."""
        line = await self.receive_line()
        kind, *fields = line.split(" ")
        return kind, fields, line

    async def receive_line(self) -> str:
        """Receive one line. Empty at the end of the connection."""
        try:
            data = await self._reader.readline()
        except (ConnectionError, ValueError):  # ValueError: longer than it may be
            data = b""
        if not data.endswith(b"\n"):
            return ""
        try:
            return self._seals.open(data[:-1]).decode("utf-8", "surrogateescape")
        except handshake.AlteredError as error:
            log.error("connection from %s given up: %s", self._writer.get_extra_info("peername"), error)
            return ""

    def send(self, line: str) -> None:
        """Send one line. Does nothing if the connection is gone."""
        self._writer.write(self._seals.seal(line.encode()) + b"\n")

    def fileno(self) -> int:
        """The socket's descriptor."""
        return int(self._writer.get_extra_info("socket").fileno())

    async def drain(self) -> None:
        """Wait until all sent lines have left the buffer."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        """Close the connection. Further calls do nothing."""
        self._writer.close()
