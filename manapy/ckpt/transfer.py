"""Images from one host's local storage to another's, over a connection of its own.

    client -> GET root checkpoint file                  -> server       an image or a spare block
              SPAN root checkpoint folder offset bytes  ->              a block of a folder's images (redundancy)
              SIZE bytes                                <-              then that many bytes
              SUM SHA-256                               <-
              NONE reason                               <-              in place of both

Invariants
 1. Both ends know the job's secret (core/handshake.py), and all lines are sealed. So SUM comes from the server, and a
    change of an image on the network is noticed.
 2. The server reads only images and spare blocks, below a directory that nobody else may have written to.
 3. An image has its final name only when its sum is right and it is fsynced.
 4. The server lives as long as its process. Connections that have not authenticated take few threads and descriptors:
    if there are too many, the oldest of them is closed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ..core import handshake
from ..core.connection import Connection, notice_loss
from ..core.errors import CheckpointError, ManapyError, explained
from ..core.files import make_private, replacing, sync
from .protocol import LINE_MAX, decode_text, join
from .redundancy import stripes
from .redundancy.image_stream import FolderSlice
from .store import levels, local
from .store.levels import Levels

log = logging.getLogger(__name__)

CHUNK = 1 << 20
CONNECT_SECONDS = 30.0
STRANGERS_MAX = 128  # connections that have not authenticated
PAUSE_SECONDS = 0.1  # if a connection cannot be served
_FOLDER = re.compile(r"node-\d+\Z")
_IMAGE = re.compile(r"node-\d+/rank-\d+\.img\Z")


class Server:
    """Gives the images of this host to others that know the secret. ``address``: where they come from."""

    def __init__(self, address: str, secret: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
        self._secret = secret
        self._strangers: list[socket.socket] = []  # the oldest first
        self._lock = threading.Lock()  # held while they change
        self.place = (address, str(self._listener.getsockname()[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._begin(self._listener.accept()[0])
            except (OSError, RuntimeError) as error:  # too many descriptors or threads, or the client is gone already
                log.warning("a connection for images was not accepted: %s", error)
                time.sleep(PAUSE_SECONDS)

    def _begin(self, connected: socket.socket) -> None:
        """Serve a connection in a thread (invariant 4). Raises RuntimeError if it cannot be started."""
        with self._lock:
            self._strangers.append(connected)
            if len(self._strangers) > STRANGERS_MAX:
                with contextlib.suppress(OSError):  # the client has closed it
                    self._strangers.pop(0).shutdown(socket.SHUT_RDWR)  # its thread notices this
        try:
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()
        except RuntimeError:
            self._forget(connected)
            connected.close()
            raise

    def _forget(self, connected: socket.socket) -> None:
        """It is no stranger any more."""
        with self._lock, contextlib.suppress(ValueError):
            self._strangers.remove(connected)

    def _serve(self, connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as stream:
            try:
                notice_loss(connected)
                if (seals := self._admit(connected, stream)) is not None:
                    self._forget(connected)
                    while line := stream.readline(LINE_MAX):
                        self._give(connected, seals, seals.open(line[:-1]).decode().split(" "))
            except (OSError, handshake.AlteredError) as error:
                log.warning("an image was not sent: %s", error)
            finally:
                self._forget(connected)

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
            stream, left = _opened(*map(decode_text, words))
        except (ManapyError, TypeError, ValueError) as error:
            return say("NONE", str(error))
        with contextlib.closing(stream):
            digest = hashlib.sha256()
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


def _opened(kind: str, root: str, checkpoint: str, name: str, *span: str) -> tuple[BinaryIO | FolderSlice, int]:
    """Return the file that a client asks for (invariant 2), and its size. Raises CheckpointError; TypeError, ValueError
    for a line with other words."""
    is_file = kind == "GET" and not span and (_IMAGE.match(name) or stripes.NAME.match(name))
    is_block = kind == "SPAN" and len(span) == 2 and all(map(str.isdigit, span)) and _FOLDER.match(name)
    if not (is_file or is_block) or not checkpoint.startswith("ckpt-") or "/" in checkpoint:
        raise CheckpointError(f"{checkpoint}/{name} is no image")
    held, path = Levels(root), levels.local_path(Levels(root), Path(checkpoint), name)
    if strange := levels.complaint(held, Path(checkpoint), name if is_file else f"{name}/"):
        raise CheckpointError(strange)
    with explained(CheckpointError):
        if is_block:
            offset, count = map(int, span)
            return FolderSlice(path, offset, count), count
        stream = open(path, "rb")
        return stream, os.fstat(stream.fileno()).st_size


def connect(secret: bytes, address: str, port: str) -> Connection:
    """Connect to the server of another host. Raises OSError, CheckpointError."""
    connected = socket.create_connection((address, int(port)), CONNECT_SECONDS)
    notice_loss(connected)
    service = handshake.COORDINATOR._replace(name="other host", error=CheckpointError)
    connection = Connection(
        connected, secret, service, what=f"images from {address}", lost="the connection was closed",
        secret_path="the job's secret", timeout=CONNECT_SECONDS, limit=LINE_MAX, role="node",
    )  # fmt: skip
    connection.patient()
    return connection


class Incoming:
    """The answer of a server to a request. ``name``: of the requested file; ``left``: bytes that have not been read.

    Raises CheckpointError.
    """

    def __init__(self, connection: Connection, *request: str) -> None:
        self._connection, self._digest = connection, hashlib.sha256()
        self.name = "/".join(request[1:4])
        connection.send(join(*request))
        kind, word = connection.receive().split(" ")
        if kind != "SIZE":
            raise CheckpointError(decode_text(word))
        self.left = int(word)

    def read(self, count: int) -> bytes:
        """The next bytes, at most so many."""
        data = self._connection.receive_bytes(min(count, self.left))
        self._digest.update(data)
        self.left -= len(data)
        return data

    def check(self) -> None:
        """All bytes were read: are they the server's?"""
        if self._connection.receive() != f"SUM {self._digest.hexdigest()}":
            raise CheckpointError(f"{self.name} was changed on the network")


def pull(secret: bytes, address: str, port: str, root: str, job: str, checkpoint: str, images: Sequence[str]) -> None:
    """Copy images of a checkpoint from another host to this one. Raises CheckpointError."""
    with explained(CheckpointError):
        local.open_root(Path(root), Path(job))
        with connect(secret, address, port) as connection:
            for image in images:
                _save(Incoming(connection, "GET", root, checkpoint, image), Path(root) / checkpoint / image)
        sync(Path(root) / checkpoint)


def _save(incoming: Incoming, path: Path) -> None:
    make_private(path.parent)
    with replacing(path, local.PART, private=True) as stream:
        while incoming.left:
            stream.write(incoming.read(CHUNK))
        incoming.check()
    sync(path.parent)
