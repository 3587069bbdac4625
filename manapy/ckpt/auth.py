"""Authentication of control connections: HMAC-SHA-256 in both directions over nonces of both sides (control.h).

Who serves is a Service: the coordinator of a job, or the RDMA agent of a host (manapy/rdma).

Invariants
 1. Nothing but the greeting and DENIED is sent to a peer that hasn't proved that it knows the secret.
 2. Hashes are compared in constant time.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from .errors import CoordinatorError, ManapyError
from .protocol import VERSION

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

log = logging.getLogger(__name__)

_NONCE = re.compile(r"[0-9a-f]{32}\Z")


class Service(NamedTuple):
    """Who greets (the first word), in which version of its protocol, whom it serves; what it is called, and what a client raises."""

    word: str
    version: int
    roles: tuple[str, ...]
    name: str
    error: type[ManapyError]


COORDINATOR = Service("MANAPY", VERSION, ("rank", "command"), "coordinator", CoordinatorError)


def nonce() -> str:
    """128 random bits, as hex."""
    return os.urandom(16).hex()


def client_hash(secret: bytes, server_nonce: str, client_nonce: str, role: str) -> str:
    """What a client sends."""
    return hmac.digest(secret, f"client{server_nonce}{client_nonce}{role}".encode(), "sha256").hex()


def server_hash(secret: bytes, server_nonce: str, client_nonce: str) -> str:
    """What the server answers."""
    return hmac.digest(secret, f"server{client_nonce}{server_nonce}".encode(), "sha256").hex()


def greeting(server_nonce: str, service: Service = COORDINATOR) -> str:
    """The server's first line."""
    return f"{service.word} {service.version} {server_nonce}"


def admit(secret: bytes, server_nonce: str, line: str, service: Service = COORDINATOR) -> tuple[str, str] | None:
    """Server: check the client's AUTH line; its role and the answer, or None to deny."""
    fields = line.split(" ")
    if len(fields) != 4 or fields[0] != "AUTH" or fields[1] not in service.roles or not _NONCE.match(fields[2]):
        return None
    if not hmac.compare_digest(client_hash(secret, server_nonce, fields[2], fields[1]).encode(), fields[3].encode("utf-8", "replace")):
        return None
    return fields[1], f"OK {server_hash(secret, server_nonce, fields[2])}"


async def admit_stream(reader: StreamReader, writer: StreamWriter, secret: bytes, service: Service = COORDINATOR) -> str | None:
    """Server: the handshake on a new connection; the client's role, or None: then the connection is to be closed."""
    server_nonce = nonce()
    writer.write(f"{greeting(server_nonce, service)}\n".encode())
    line = await reader.readline()
    admitted = admit(secret, server_nonce, line.decode("ascii", "replace").rstrip("\n"), service)
    if admitted is None:
        if line:
            log.warning("connection from %s denied: it does not know the secret", writer.get_extra_info("peername"))
            writer.write(b"DENIED\n")
            await writer.drain()
        return None
    role, answer = admitted
    writer.write(f"{answer}\n".encode())
    return role


def answer(secret: bytes, greeting_line: str, role: str, service: Service = COORDINATOR) -> tuple[str, str]:
    """Client: the AUTH line for a greeting, and the line that the server must answer. Raises the service's error."""
    fields = greeting_line.split(" ")
    if len(fields) != 3 or fields[0] != service.word or not _NONCE.match(fields[2]):
        raise service.error(f"what answers at the {service.name}'s address is not a{'n' if service.name[0] in 'aeiou' else ''} {service.name}")
    if fields[1] != str(service.version):
        raise service.error(f"the {service.name} speaks protocol version {fields[1]}, this command version {service.version}")
    mine = nonce()
    return f"AUTH {role} {mine} {client_hash(secret, fields[2], mine, role)}", f"OK {server_hash(secret, fields[2], mine)}"
