"""Authentication of control connections: HMAC-SHA-256 in both directions over nonces of both sides (control.h).

Invariants
 1. Nothing but the greeting and DENIED is sent to a peer that hasn't proved that it knows the secret.
 2. Hashes are compared in constant time.
"""

from __future__ import annotations

import hmac
import os
import re

from .errors import CoordinatorError
from .protocol import VERSION

ROLES = ("rank", "command")
_NONCE = re.compile(r"[0-9a-f]{32}\Z")


def nonce() -> str:
    """128 random bits, as hex."""
    return os.urandom(16).hex()


def client_hash(secret: bytes, server_nonce: str, client_nonce: str, role: str) -> str:
    """What a client sends."""
    return hmac.digest(secret, f"client{server_nonce}{client_nonce}{role}".encode(), "sha256").hex()


def server_hash(secret: bytes, server_nonce: str, client_nonce: str) -> str:
    """What the server answers."""
    return hmac.digest(secret, f"server{client_nonce}{server_nonce}".encode(), "sha256").hex()


def greeting(server_nonce: str) -> str:
    """The server's first line."""
    return f"MANAPY {VERSION} {server_nonce}"


def admit(secret: bytes, server_nonce: str, line: str) -> tuple[str, str] | None:
    """Server: check the client's AUTH line; its role and the answer, or None to deny."""
    fields = line.split(" ")
    if len(fields) != 4 or fields[0] != "AUTH" or fields[1] not in ROLES or not _NONCE.match(fields[2]):
        return None
    if not hmac.compare_digest(client_hash(secret, server_nonce, fields[2], fields[1]).encode(), fields[3].encode("utf-8", "replace")):
        return None
    return fields[1], f"OK {server_hash(secret, server_nonce, fields[2])}"


def answer(secret: bytes, greeting_line: str, role: str) -> tuple[str, str]:
    """Client: the AUTH line for a greeting, and the line that the server must answer. Raises CoordinatorError."""
    fields = greeting_line.split(" ")
    if len(fields) != 3 or fields[0] != "MANAPY" or not _NONCE.match(fields[2]):
        raise CoordinatorError("what answers at the coordinator's address is not a coordinator")
    if fields[1] != str(VERSION):
        raise CoordinatorError(f"the coordinator speaks protocol version {fields[1]}, this command version {VERSION}")
    mine = nonce()
    return f"AUTH {role} {mine} {client_hash(secret, fields[2], mine, role)}", f"OK {server_hash(secret, fields[2], mine)}"
