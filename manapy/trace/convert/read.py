"""Finds out which tool has written some files, and reads them (`manapy trace import`).

Nothing in a file is executed, and a file is read up to LARGEST bytes, also if it is compressed.
"""

from __future__ import annotations

import json
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ...core.errors import why
from . import chrome, flight_recorder, otf2_archive
from .foreign import LARGEST, ForeignError, ForeignJob

GZIP, PICKLE = b"\x1f\x8b", b"\x80"
_HINT = "manapy reads OTF2 archives, dumps of PyTorch's Flight Recorder, and traces in Chrome's format (torch.profiler)"


def read(paths: Sequence[Path], ranks: int | None = None) -> ForeignJob:
    """Read the files of one job. A folder stands for the files in it, or is an OTF2 archive.

    ranks: how many ranks the job had, if the files do not say so.

    Raises ForeignError.
    """
    if len(paths) == 1 and (archive := otf2_archive.anchor(paths[0])) is not None:
        return otf2_archive.job(archive, ranks)
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise ForeignError(f"{paths[0]}: an empty folder")
    loaded = map(_loaded, files)
    first = next(loaded)
    return first.job(_same_tool(first, loaded), ranks)


@dataclass(frozen=True)
class _Loaded:
    """A file that was read. job: the function that reads files of its tool."""

    path: Path
    data: Mapping[str, Any]
    job: Callable[[Iterable[tuple[Path, Mapping[str, Any]]], int | None], ForeignJob]


def _loaded(path: Path) -> _Loaded:
    """Read a file. Raises ForeignError."""
    content = _content(path)
    if content[:1] == PICKLE:
        return _Loaded(path, flight_recorder.parsed(path, content), flight_recorder.job)
    data = _json(path, content)
    if flight_recorder.is_dump(data):
        return _Loaded(path, flight_recorder.checked(path, data), flight_recorder.job)
    if chrome.is_trace(data):
        return _Loaded(path, chrome.checked(path, data), chrome.job)
    raise ForeignError(f"{path}: of no known tool: {_HINT}")


def _same_tool(first: _Loaded, others: Iterable[_Loaded]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the files one after the other: all of a profiler's traces together may not fit into memory."""
    for one in chain([first], others):
        if one.job is not first.job:
            raise ForeignError(f"{first.path} and {one.path} are of different tools: import them one after the other")
        yield one.path, one.data


def _files(path: Path) -> list[Path]:
    """Return a file, or the files in a folder."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


def _content(path: Path) -> bytes:
    """Return the content of a file, uncompressed. Raises ForeignError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
            raise ForeignError(f"{path}: not a file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ForeignError(why(error, path)) from None
    if data[:2] == GZIP:
        inflate = zlib.decompressobj(wbits=31)
        try:
            data = inflate.decompress(data, LARGEST + 1)
        except zlib.error as error:
            raise ForeignError(f"{path}: damaged ({error})") from None
        if not inflate.eof and len(data) <= LARGEST:
            raise ForeignError(f"{path}: truncated")
    if len(data) > LARGEST:
        raise ForeignError(f"{path}: larger than {LARGEST >> 30} GiB: record less, or fewer steps")
    if not data:
        raise ForeignError(f"{path}: empty")
    return data


def _json(path: Path, content: bytes) -> Any:
    if content.lstrip()[:1] not in (b"{", b"["):
        raise ForeignError(f"{path}: of no known tool: {_HINT}")
    try:
        return _parsed(content)
    except (ValueError, RecursionError) as error:
        raise ForeignError(f"{path}: damaged or truncated ({str(error)[:80]})") from None


def _parsed(content: bytes) -> Any:
    """Return what JSON says. The bracket at the end of an array may be missing: Chrome's format allows it, because a
    tracer of a job that hangs or dies can't write it. Raises ValueError, RecursionError."""
    try:
        return json.loads(content)
    except ValueError:
        events = content.strip().removesuffix(b",")
        if not events.startswith(b"[") or not events.endswith(b"}"):
            raise
    return json.loads(events + b"]")
