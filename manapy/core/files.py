"""Files that others see whole or not at all, and files that hold one JSON object with a `format`: job.json,
manifest.json, chain.json."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ManapyError, explained


@contextmanager
def reading(path: Path, version: int, error: type[ManapyError], otherwise: str) -> Iterator[dict[str, Any]]:
    """The object; the body takes it apart. What is wrong with it, there or here, is raised as ``error`` in one line; ``otherwise`` says what a
    file is that doesn't hold what the body looks for."""
    try:
        with explained(error, path):
            record = json.loads(path.read_bytes())
            if record["format"] != version:
                raise error(f"{path}: format {record['format']}, this manapy reads format {version}")
            yield record
    except (ValueError, KeyError, TypeError) as cause:
        raise error(f"{path}: {otherwise} ({cause})") from cause


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file so that others see the old content or the new, never part of it."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Replace a file that ``reading`` reads, durably."""
    replace_file(path, as_text(record), durable=True)


def as_text(record: dict[str, Any]) -> bytes:
    """What such a file holds."""
    return json.dumps(record, indent=1).encode() + b"\n"


def sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def discard(tree: Path) -> None:
    """Delete all of a directory."""
    import shutil  # here: it costs a quick command 3 ms

    shutil.rmtree(tree, ignore_errors=True)
