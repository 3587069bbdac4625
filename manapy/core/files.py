"""Files that are replaced atomically, and files with one JSON object that has a `format`: job.json, manifest.json,
chain.json. Also where the user's cache is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ManapyError, explained
from .records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, BinaryIO


@contextmanager
def reading(path: Path, version: int, error: type[ManapyError], otherwise: str) -> Iterator[dict[str, Any]]:
    """Read a JSON object; the body of the `with` takes it apart. Paths and arguments in it need not be UTF-8: they
    become what os.fsdecode() makes of them.

    Every defect, found here or in the body, is raised as ``error`` with a one-line reason. ``otherwise`` is the reason
    if the file lacks what the body needs."""
    try:
        with explained(error, path):
            record = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
            if record["format"] != version:
                raise error(f"{path}: format {record['format']}, this manapy reads format {version}")
            yield record
    except (ValueError, KeyError, TypeError) as cause:
        raise error(f"{path}: {otherwise} ({cause})") from cause


@contextmanager
def replacing(path: Path, suffix: str = ".new", *, private: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file so that others see the old content or the new, never part of it. If the body raises, the old one
    stays.

    suffix: of the name until then. private: as create_private; otherwise the umask decides who may read the file. Only
    its owner may write it, because manapy trusts no other file (ckpt/store/own.py). durable: the content is on disk
    before the file has its name; the name itself is after sync()."""
    temporary = path.with_name(path.name + suffix)
    try:
        with create_private(temporary) if private else _create_own(temporary) as stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, data: bytes | bytearray, *, durable: bool = False) -> None:
    """Replace a file by one with these bytes."""
    with replacing(path, durable=durable) as stream:
        stream.write(data)


def make_private(folder: Path) -> None:
    """Make a directory and its missing parents for their owner only, whatever the umask is. (With mkdir(parents=True)
    the mode is that of the last one only.)"""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _create_own(path: Path) -> BinaryIO:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    os.fchmod(fd, os.fstat(fd).st_mode & 0o755)  # it may have existed
    return os.fdopen(fd, "wb")


def create_private(path: Path) -> BinaryIO:
    """Open a file for writing that only its owner can read, whatever the umask is: it gets the content of memory."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)  # it may have existed
    return os.fdopen(fd, "wb")


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace a file that ``reading`` reads, durably."""
    replace_file(path, as_text(record), durable=True)


def as_text(record: dict[str, Any]) -> bytes:
    """Return the content of such a file."""
    return json.dumps(record, indent=1).encode() + b"\n"


def those_with(name: str, directories: Iterable[Path]) -> list[Path]:
    """The directories that have a file of this name. Those that this user may not look into have none."""
    return [directory for directory in directories if os.path.isfile(directory / name)]


def cache_directory() -> Path:
    """The part of the user's cache directory that belongs to manapy: ~/.cache/manapy, or below XDG_CACHE_HOME (XDG Base
    Directory Specification 0.8). It may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manapy"


def sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(tree: Path) -> None:
    """Delete a directory and all that is in it."""
    import shutil  # imported here: it costs a quick command 3 ms

    shutil.rmtree(tree, ignore_errors=True)
