"""How a node's agent reaches the coordinator: by its own connection, or through another agent (lower_agents.py).

The agent connects to the coordinator first. In a job of many nodes the coordinator answers with the address of another
agent, to which the agent then connects instead.

Invariants
 1. The coordinator notices the loss of an agent at any time: the agent's first connection ends only after the upper
    agent has reported the new connection.
 2. An agent that does not reach the other one keeps its first connection.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time

from ...core import handshake
from ...core.connection import Connection, notice_loss
from ...core.errors import CoordinatorError
from ..protocol import LINE_MAX, decode_text, join
from .peer import Peer

log = logging.getLogger(__name__)

CONNECT_SECONDS = 330.0  # as long as ranks try (CONNECT_TRIES_MS of control.c)
ANSWER_SECONDS = 30.0
ABOVE_SECONDS = 10.0  # for another agent
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 10.0  # seconds between tries


class Leader(Peer):
    """The connection upwards.

    ``host``: that of the agent above, or empty for the coordinator itself. ``early``: lines that have arrived already.
    """

    host = ""

    def __init__(self, connected: socket.socket, seals: handshake.Seals | None) -> None:
        super().__init__(connected, seals)
        self.early: list[str] = []

    def answer(self, seconds: float) -> list[str] | None:
        """The lines that arrive next; None at the end of the connection. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while not (lines := self.lines()) and lines is not None:
            if not select.select([self.socket], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("no answer")
        return lines


def connect(host: str, port: int, secret: bytes) -> Leader:
    """The connection upwards. Tries again for minutes. Raises CoordinatorError."""
    begin, pause = time.monotonic(), FIRST_PAUSE
    while True:
        try:
            leader = _open(host, port, secret, ANSWER_SECONDS)
            answer = _ask(leader, join("NODE", socket.gethostname(), os.getpid()))
        except (OSError, CoordinatorError) as error:
            if time.monotonic() - begin > CONNECT_SECONDS:
                raise CoordinatorError(f"no connection to the coordinator at {host} port {port}: {error}") from error
            log.warning("%s port %d: %s", host, port, error)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return leader if answer == "DIRECT" else _below(leader, answer.split(" "), secret)


def _ask(leader: Leader, line: str) -> str:
    """The first line of the answer. Raises CoordinatorError or TimeoutError, and closes the connection."""
    leader.send(line)
    leader.flush()
    try:
        if (lines := leader.answer(ANSWER_SECONDS)) is None:
            raise CoordinatorError("the connection was closed")
    except BaseException:
        leader.socket.close()
        raise
    leader.early = lines[1:]
    return lines[0]


def _below(first: Leader, order: list[str], secret: bytes) -> Leader:
    """The connection with another agent, or the first one if that agent can't be reached."""
    _, number, host, address, port = order
    begin, pause = time.monotonic(), FIRST_PAUSE
    while True:
        try:
            leader = _open(address, int(port), secret, ABOVE_SECONDS)
            leader.host = decode_text(host)
            leader.send(f"JOIN {number}")
            leader.flush()
            _await_end(first, leader)
            return leader
        except (OSError, CoordinatorError) as error:
            if time.monotonic() - begin > ABOVE_SECONDS:
                log.warning("the agent of host %s, at %s port %s: %s", decode_text(host), address, port, error)
                first.send("STAY")
                first.flush()
                return first
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _await_end(first: Leader, leader: Leader) -> None:
    """Wait until the coordinator knows the new connection: then it ends the first one. Raises TimeoutError, and closes
    the new one."""
    try:
        first.answer(ABOVE_SECONDS)
    except TimeoutError:
        leader.socket.close()
        raise
    first.socket.close()


def _open(host: str, port: int, secret: bytes, seconds: float) -> Leader:
    connected = socket.create_connection((host, port), seconds)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    notice_loss(connected)
    connection = Connection(
        connected, secret, handshake.COORDINATOR, what="the agent of this node",
        lost="the connection was closed", secret_path="the job's secret", timeout=seconds, limit=LINE_MAX, role="node",
    )  # fmt: skip
    return Leader(*connection.detach())
