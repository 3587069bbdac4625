"""Client of the agent of a job on this host, for `manapy rdma ...` and the checkpoint engine. Plain sockets; nothing
heavy is imported."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

from ..core import connection
from ..core.errors import AgentError
from . import kv_protocol
from .place import Place

ANSWER_SECONDS = 20.0  # the agent may be starting, or wait for its store


class Connection(connection.Connection):
    """An authenticated connection in the role of a command. Raises AgentError with a one-line reason."""

    def __init__(self, place: Place) -> None:
        self._number = 0
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            secret = place.secret.read_bytes()
            # a blocking socket waits for a full queue (unix(7))
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(ANSWER_SECONDS), 0))
            connected.connect(str(place.address))
        except OSError as error:
            connected.close()
            raise AgentError(
                f"no agent of job {place.job} runs on this host ({place.address}: {error.strerror or error})"
            ) from error
        what, lost = f"job {place.job}", "the agent has ended"
        super().__init__(
            connected,
            secret,
            kv_protocol.AGENT,
            what=what,
            lost=lost,
            secret_path=place.secret,
            timeout=ANSWER_SECONDS,
            limit=kv_protocol.ANSWER_MAX,
        )

    def ask(self, kind: str, *fields: str | int) -> str:
        """Send one request. Returns the part of the answer after OK."""
        self._number += 1
        self.send(" ".join(map(str, (self._number, kind, *fields))))
        number, _, rest = self.receive().partition(" ")
        outcome, _, text = rest.partition(" ")
        if number != str(self._number) or outcome not in ("OK", "ERROR"):
            raise AgentError(f"the agent's answer is invalid: {number[:20]} {outcome[:20]}")
        if outcome == "ERROR":
            raise AgentError(text.partition(" ")[2])
        return text

    def status(self) -> dict[str, Any]:
        """The status of the agent and its clients; README.md lists the members."""
        return dict(json.loads(self.ask("STATUS")))

    def events(self) -> list[dict[str, Any]]:
        """The events that the agent has stored, oldest first."""
        return list(json.loads(self.ask("EVENTS", 0)))

    def watch(self, after: int = -1) -> Iterator[dict[str, Any]]:
        """Events with a `seq` above this one (0: all stored ones; -1: only new ones) as they arrive, until the agent
        ends (AgentError)."""
        self.ask("WATCH", after)
        self.patient()
        while True:
            _, _, text = self.receive().partition(" EVENT ")
            yield dict(json.loads(text))
