"""Authentication of control connections: HMAC-SHA-256 in both directions over nonces of both sides, then over each line
(control.h).

A Service is the server's side: the coordinator of a job, or the RDMA agent of a host (manapy/rdma). Lines that cross no
network have no seals: those of the RDMA agent, and those between a rank and the agent of its node (ckpt/node).

Invariants
 1. A peer that has not proved that it knows the secret gets only the greeting and DENIED.
 2. Hashes are compared in constant time.
 3. On a connection with seals, a line is accepted only if its seal fits this connection, direction and place in the
    stream.
"""

from __future__ import annotations

import hmac
import os
import re

from .errors import CoordinatorError, ManapyError
from .records import TYPE_CHECKING, NamedTuple
from .wire_text import encode_text

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Callable

VERSION = 11  # of the control protocol (control.h)
SECRET_BYTES = 32
_NONCE = re.compile(r"[0-9a-f]{32}\Z")


class Service(NamedTuple):
    """A server: the first word of its greeting, its protocol version, the roles of its clients, its name in messages,
    the error that clients raise, and whether lines are sealed."""

    word: str
    version: int
    roles: tuple[str, ...]
    name: str
    error: type[ManapyError]
    sealed: bool


COORDINATOR = Service("MANAPY", VERSION, ("rank", "command", "node"), "coordinator", CoordinatorError, sealed=True)
SEAL_HEX = 32  # digits of a line's seal


class AlteredError(Exception):
    """A line differs from the line that the other end has sent."""


class Seals:
    """The seals of one connection at one of its ends (``client`` or server)."""

    def __init__(self, secret: bytes, server_nonce: str, client_nonce: str, role: str, *, client: bool) -> None:
        self._key = hmac.digest(secret, f"session{server_nonce}{client_nonce}{role}".encode(), "sha256")
        self._ours, self._theirs = (b"client", b"server") if client else (b"server", b"client")
        self._sent = self._received = 0

    def _seal(self, end: bytes, number: int, line: bytes) -> bytes:
        return hmac.digest(self._key, b"%s %d %s" % (end, number, line), "sha256").hex()[:SEAL_HEX].encode()

    def seal(self, line: bytes) -> bytes:
        """Return the next line to send, with its seal."""
        self._sent += 1
        return self._seal(self._ours, self._sent - 1, line) + b" " + line

    def open(self, line: bytes) -> bytes:
        """The next received line, without its seal. Raises AlteredError; then no later line can be trusted."""
        seal, _, rest = line.partition(b" ")
        self._received += 1
        if not hmac.compare_digest(seal, self._seal(self._theirs, self._received - 1, rest)):
            raise AlteredError("a line was changed on the network")
        return rest


def nonce() -> str:
    """128 random bits, as hex."""
    return os.urandom(16).hex()


def client_hash(secret: bytes, server_nonce: str, client_nonce: str, role: str) -> str:
    """The proof that a client sends."""
    return hmac.digest(secret, f"client{server_nonce}{client_nonce}{role}".encode(), "sha256").hex()


def server_hash(secret: bytes, server_nonce: str, client_nonce: str) -> str:
    """The proof that the server answers."""
    return hmac.digest(secret, f"server{client_nonce}{server_nonce}".encode(), "sha256").hex()


def greeting(server_nonce: str, service: Service = COORDINATOR) -> str:
    """The server's first line."""
    return f"{service.word} {service.version} {server_nonce}"


def admit(secret: bytes, server_nonce: str, line: str, service: Service = COORDINATOR) -> tuple[str, str] | None:
    """Server: check the client's AUTH line. Returns its role and the answer, or None to deny."""
    fields = line.split(" ")
    if len(fields) != 4 or fields[0] != "AUTH" or fields[1] not in service.roles or not _NONCE.match(fields[2]):
        return None
    if not hmac.compare_digest(
        client_hash(secret, server_nonce, fields[2], fields[1]).encode(), fields[3].encode("utf-8", "replace")
    ):
        return None
    return fields[1], f"OK {server_hash(secret, server_nonce, fields[2])}"


async def admit_stream(
    reader: StreamReader,
    writer: StreamWriter,
    secret: bytes,
    service: Service = COORDINATOR,
    busy: Callable[[str], str] = lambda role: "",
) -> tuple[str, Seals] | None:
    """Server: do the handshake on a new connection.

    Returns the client's role and the seals of the later lines, or None: then the connection must be closed. ``busy``
    returns the reason why no client of this role can be accepted now, or an empty string."""
    server_nonce = nonce()
    writer.write(f"{greeting(server_nonce, service)}\n".encode())
    line = (await reader.readline()).decode("ascii", "replace").rstrip("\n")
    admitted = admit(secret, server_nonce, line, service)
    if admitted is None:
        if line:
            import logging  # imported here: commands are clients and start faster without it

            log, peer = logging.getLogger(__name__), writer.get_extra_info("peername")
            log.warning("connection from %s denied: it does not know the secret", peer)
            writer.write(b"DENIED\n")
            await writer.drain()
        return None
    role, answer = admitted
    if reason := busy(role):
        writer.write(f"BUSY {encode_text(reason)}\n".encode())
        await writer.drain()
        return None
    writer.write(f"{answer}\n".encode())
    return role, seals(secret, greeting(server_nonce, service), line, client=False)


def seals(secret: bytes, greeting_line: str, auth_line: str, *, client: bool) -> Seals:
    """The seals of the connection that was opened with these lines."""
    _, role, client_nonce, _ = auth_line.split(" ")
    return Seals(secret, greeting_line.split(" ")[2], client_nonce, role, client=client)


def answer(secret: bytes, greeting_line: str, role: str, service: Service = COORDINATOR) -> tuple[str, str]:
    """Client: the AUTH line for a greeting, and the answer that the server must give. Raises the service's error."""
    fields = greeting_line.split(" ")
    if len(fields) != 3 or fields[0] != service.word or not _NONCE.match(fields[2]):
        raise service.error(f"another program, not the {service.name}, answers at the {service.name}'s address")
    if fields[1] != str(service.version):
        raise service.error(
            f"the {service.name} uses protocol version {fields[1]}, this command uses version {service.version}"
        )
    mine = nonce()
    return (
        f"AUTH {role} {mine} {client_hash(secret, fields[2], mine, role)}",
        f"OK {server_hash(secret, fields[2], mine)}",
    )
