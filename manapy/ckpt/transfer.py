"""Images from one host's local storage to another's, over a connection of its own.

    client -> GET root checkpoint image -> server
              SIZE bytes                <-          then so many bytes
              SUM SHA-256               <-
              NONE reason               <-          in place of both

Invariants
 1. Both ends know the job's secret (core/handshake.py), and all lines are sealed. So SUM is the server's: nobody on the
    network can change an image unnoticed.
 2. The server reads only images, below a directory that nobody else may have written to.
 3. An image has its final name only when its sum is right and it is fsynced.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ..core import handshake
from ..core.connection import Connection, notice_loss
from ..core.errors import CheckpointError, ManapyError, explained
from ..core.files import create_private, sync
from .protocol import LINE_MAX, decode_text, join
from .store import levels, local
from .store.levels import Levels

log = logging.getLogger(__name__)

CHUNK = 1 << 20
CONNECT_SECONDS = 30.0


class Server:
    """Gives the images of this host to others that know the secret. ``address``: where they come from."""

    def __init__(self, address: str, secret: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        self._secret = secret
        self.place = (address, str(self._listener.getsockname()[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connected = self._listener.accept()[0]
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as stream:
            try:
                notice_loss(connected)
                if (seals := self._admit(connected, stream)) is not None:
                    while line := stream.readline(LINE_MAX):
                        self._give(connected, seals, seals.open(line[:-1]).decode().split(" "))
            except (OSError, handshake.AlteredError) as error:
                log.warning("an image was not sent: %s", error)

    def _admit(self, connected: socket.socket, stream: BinaryIO) -> handshake.Seals | None:
        connected.settimeout(CONNECT_SECONDS)
        greeting = handshake.greeting(nonce := handshake.nonce())
        connected.sendall(f"{greeting}\n".encode())
        line = stream.readline(CHUNK).decode("ascii", "replace").rstrip("\n")
        admitted = handshake.admit(self._secret, nonce, line)
        if admitted is None or admitted[0] != "node":
            connected.sendall(b"DENIED\n")
            return None
        connected.sendall(f"{admitted[1]}\n".encode())
        connected.settimeout(None)
        return handshake.seals(self._secret, greeting, line, client=False)

    def _give(self, connected: socket.socket, seals: handshake.Seals, words: list[str]) -> None:
        def say(*words: str | int) -> None:
            connected.sendall(seals.seal(join(*words).encode()) + b"\n")  # type: ignore[arg-type]

        try:
            stream = _opened(*map(decode_text, words))
        except (ManapyError, TypeError) as error:
            return say("NONE", str(error))
        with stream:
            digest, left = hashlib.sha256(), os.fstat(stream.fileno()).st_size
            say("SIZE", left)
            while left:
                data = stream.read(min(CHUNK, left))
                if not data:
                    raise OSError(f"{stream.name} has become shorter")
                digest.update(data)
                connected.sendall(data)
                left -= len(data)
            say("SUM", digest.hexdigest())
        return None


def _opened(kind: str, root: str, checkpoint: str, image: str) -> BinaryIO:
    """An image (invariant 2). Raises CheckpointError; TypeError for a line with other words."""
    folder, _, name = image.partition("/")
    is_image = folder.startswith("node-") and name.startswith("rank-") and name.endswith(".img") and "/" not in name
    if kind != "GET" or not is_image or not checkpoint.startswith("ckpt-") or "/" in checkpoint:
        raise CheckpointError(f"{checkpoint}/{image} is no image")
    if strange := levels.complaint(Levels(root), Path(checkpoint), image):
        raise CheckpointError(strange)
    with explained(CheckpointError):
        return open(levels.local_path(Levels(root), Path(checkpoint), image), "rb")


def pull(secret: bytes, address: str, port: str, root: str, job: str, checkpoint: str, images: Sequence[str]) -> None:
    """Copy images of a checkpoint from another host to this one. Raises CheckpointError."""
    with explained(CheckpointError):
        local.open_root(Path(root), Path(job))
        connected = socket.create_connection((address, int(port)), CONNECT_SECONDS)
        notice_loss(connected)
        service = handshake.COORDINATOR._replace(error=CheckpointError)
        with Connection(
            connected, secret, service, what=f"images from {address}", lost="the connection was closed",
            secret_path="the job's secret", timeout=CONNECT_SECONDS, limit=LINE_MAX, role="node",
        ) as connection:  # fmt: skip
            connection.patient()
            for image in images:
                connection.send(join("GET", root, checkpoint, image))
                _receive(connection, Path(root) / checkpoint / image)
        sync(Path(root) / checkpoint)


def _receive(connection: Connection, path: Path) -> None:
    kind, word = connection.receive().split(" ")
    if kind != "SIZE":
        raise CheckpointError(decode_text(word))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, left, part = hashlib.sha256(), int(word), path.with_name(path.name + local.PART)
    with create_private(part) as stream:
        while left:
            data = connection.receive_bytes(min(CHUNK, left))
            digest.update(data)
            stream.write(data)
            left -= len(data)
        stream.flush()
        os.fsync(stream.fileno())
    if connection.receive() != f"SUM {digest.hexdigest()}":
        part.unlink()
        raise CheckpointError(f"{path} was changed on the network")
    os.replace(part, path)
    sync(path.parent)
