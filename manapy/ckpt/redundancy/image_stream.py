"""The images of a folder as one stream of bytes (stripes.py): reads a block of it, and writes it as images again.

Invariants
 1. Images have their final names only after finish(): complete, each as the manifest says, every byte checked, fsynced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ...core.errors import CheckpointError, ImageError
from ...core.files import create_private, make_private, sync
from ..store import image, local
from ..store.publish import Entry


class FolderSlice:
    """A part of a folder's stream, from an offset, with the interface of a small file. Raises OSError."""

    def __init__(self, folder: Path, offset: int, count: int) -> None:
        self.name, self.left = str(folder), count
        self._files = [folder / name for name in sorted(os.listdir(folder)) if name.endswith(".img")]
        while self._files and offset >= (size := self._files[0].stat().st_size):
            offset -= size
            del self._files[0]
        self._open: BinaryIO | None = None
        self._offset = offset

    def read(self, count: int) -> bytes:
        """Return at most that many bytes; zeroes after the last image."""
        data = bytearray()
        count = min(count, self.left)
        while len(data) < count and self._files:
            if self._open is None:
                self._open = self._files[0].open("rb")
                self._open.seek(self._offset)
                self._offset = 0
            if not (piece := self._open.read(count - len(data))):
                self.close()
                del self._files[0]
            data += piece
        data += bytes(count - len(data))
        self.left -= count
        return bytes(data)

    def close(self) -> None:
        """Close the open file."""
        if self._open is not None:
            self._open.close()
            self._open = None


class Images:
    """The images of a folder, which are written again from its stream. ``entries``: those of the manifest, in the order
    of the images' names; ``where``: the directory of the checkpoint on local storage. Raises OSError."""

    def __init__(self, where: Path, entries: Sequence[Entry], size: int, secret: bytes) -> None:
        self._where, self._entries, self._size, self._secret = where, entries, size, secret
        self._current, self._written = 0, 0
        self._stream: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        """The next bytes of the stream; the zeroes after the last image have no meaning."""
        view = memoryview(data)
        while view and self._current < len(self._entries):
            entry = self._entries[self._current]
            if self._stream is None:
                path = self._part(entry)
                make_private(path.parent)
                self._stream = create_private(path)
            piece = view[: entry.file_bytes - self._written]
            self._stream.write(piece)
            self._written += len(piece)
            view = view[len(piece) :]
            if self._written == entry.file_bytes:
                self._close()
                self._current, self._written = self._current + 1, 0

    def finish(self) -> None:
        """Raises CheckpointError if an image is not the one that the manifest names."""
        for entry in self._entries:
            part, path = self._part(entry), self._where / entry.image
            if not local.is_image(part, entry):
                raise CheckpointError(f"{path} cannot be rebuilt: what other hosts have of it is damaged")
            try:
                image.verify(part, entry.rank, self._size, None, self._secret)
            except ImageError as error:
                raise CheckpointError(f"{path} cannot be rebuilt: {str(error).replace(local.PART, '')}") from error
        for entry in self._entries:
            os.replace(self._part(entry), self._where / entry.image)
        sync((self._where / self._entries[0].image).parent)
        sync(self._where)

    def discard(self) -> None:
        """Delete what is not finished."""
        if self._stream is not None:
            self._stream.close()
        for entry in self._entries:
            with contextlib.suppress(OSError):
                self._part(entry).unlink()

    def _part(self, entry: Entry) -> Path:
        path = self._where / entry.image
        return path.with_name(path.name + local.PART)

    def _close(self) -> None:
        assert self._stream is not None
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._stream = None
