"""The client's end of a connection to a Service (handshake.py): text lines over a socket, opened by the handshake. And
how either end notices that the other host is gone. Nothing heavy is imported."""

from __future__ import annotations

import hmac
import os
import socket
from types import TracebackType

from . import handshake
from .records import TYPE_CHECKING
from .wire_text import decode_text

if TYPE_CHECKING:
    from typing import Self

LOSS_SECONDS = 120  # after which a peer that does not answer is considered lost; MANAPY_LOSS_SECONDS changes it


def loss_seconds() -> int:
    """The seconds after which a peer that does not answer is considered lost."""
    given = os.environ.get("MANAPY_LOSS_SECONDS", "")
    return max(int(given), 5) if given.isdigit() else LOSS_SECONDS


def notice_loss(connected: socket.socket) -> None:
    """Let the kernel end a connection whose other host does not answer for LOSS_SECONDS (tcp(7)): its node is down, or
    the network between is cut. Without this, an idle connection ends after hours or never. A shorter time would end
    jobs whose network is only interrupted."""
    seconds = loss_seconds()
    interval = seconds // 5
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, seconds // interval - 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


class Connection:
    """An authenticated connection. Failures raise the service's error with a one-line reason.

    what: the beginning of this line, which names the service; lost: the message for the end of the connection; limit:
    bytes of the longest line; role: the client's.
    """

    def __init__(
        self,
        connected: socket.socket,
        secret: bytes,
        service: handshake.Service,
        *,
        what: str,
        lost: str,
        secret_path: object,
        timeout: float,
        limit: int,
        role: str = "command",
    ) -> None:
        self._socket, self._service, self._what, self._lost_text, self._limit = connected, service, what, lost, limit
        self._stream = connected.makefile("rb")
        self._seals: handshake.Seals | None = None
        connected.settimeout(timeout)
        try:
            greeting = self.receive()
            line, expected = handshake.answer(secret, greeting, role, service)
            self.send(line)
            reply = self.receive()
            if reply.startswith("BUSY "):
                raise self._refused(decode_text(reply.removeprefix("BUSY ")))
            if not hmac.compare_digest(reply.encode(), expected.encode()):
                raise service.error(
                    f"{what}: the {service.name} refuses the connection: {secret_path} is not its secret"
                )
            if service.sealed:
                self._seals = handshake.seals(secret, greeting, line, client=True)
        except BaseException:
            self.close()
            raise

    def send(self, line: str) -> None:
        """One line."""
        data = line.encode() if self._seals is None else self._seals.seal(line.encode())
        try:
            self._socket.sendall(data + b"\n")
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> str:
        """One line."""
        try:
            line = self._stream.readline(self._limit)
        except OSError as error:
            raise self._lost(error) from error
        if not line.endswith(b"\n"):
            raise self._lost(None)
        line = line[:-1]
        if self._seals is not None:
            try:
                line = self._seals.open(line)
            except handshake.AlteredError as error:
                raise self._service.error(
                    f"{self._what}: the {self._service.name}'s answer was changed on the network: it is not used"
                ) from error
        return line.decode("utf-8", "replace")

    def receive_bytes(self, count: int) -> bytes:
        """So many bytes, which have no seal of their own."""
        try:
            data = self._stream.read(count)
        except OSError as error:
            raise self._lost(error) from error
        if len(data) < count:
            raise self._lost(None)
        return data

    def patient(self) -> None:
        """Wait for answers without a time limit from now on."""
        self._socket.settimeout(None)

    def fileno(self) -> int:
        """The socket's descriptor, for select and poll. Receive all complete lines before."""
        return self._socket.fileno()

    def _refused(self, reason: str) -> Exception:
        return self._service.error(f"{self._what}: {reason}")

    def _lost(self, error: OSError | None) -> Exception:
        if isinstance(error, TimeoutError):
            return self._service.error(f"{self._what}: the {self._service.name} does not answer")
        return self._service.error(f"{self._what}: {self._lost_text}")

    def detach(self) -> tuple[socket.socket, handshake.Seals | None]:
        """The socket and the seals, for a caller that receives by itself. The server must not have sent lines yet."""
        detached = self._socket.dup()
        detached.settimeout(None)
        self.close()
        return detached, self._seals

    def close(self) -> None:
        """Close the connection. Further calls do nothing."""
        self._stream.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
