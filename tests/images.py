"""Synthetic images for tests, written as lowerhalf/include/manapy/image.h says, independently of the C writer.

build(path, rank=1, size=4, mapped=some_file)    a good image
build_memory(path, 4, [(0, page)], kept=[(1, 3)], parent=older)    an incremental image
build(path, ..., change={"version": 9})          a good checksum over a header with other values
build(path, ..., frame=zstd)                     a compressed image
checkpoint(job_directory, ranks=4)               a whole checkpoint
"""

from __future__ import annotations

import ctypes
import hmac
import itertools
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manapy.ckpt.store import image, publish
from manapy.core import boundary

ARENA = 0x200010000000


def _align(data: bytearray, to: int) -> None:
    data.extend(bytes(-len(data) % to))


def build(
    path: Path,
    rank: int = 0,
    size: int = 1,
    pages: int = 8,
    mapped: Path | None = None,
    seed: int = 1,
    change: dict[str, Any] | None = None,
    secret: bytes = bytes(32),
    frame: Callable[[bytes], bytes] | None = None,
) -> Path:
    """An image, sealed with a job's secret. It has one anonymous region of twice `pages` pages, half of them zero, and
    one region mapped from `mapped`. frame: compresses the pages of a run (None: the image is not compressed)."""
    content = _random(pages * image.PAGE, seed) if frame is None else _random(64, seed) * (pages * image.PAGE // 64)
    parts = []
    for first, count in ((0, pages // 2), (pages, pages - pages // 2)):
        part = content[first // 2 * image.PAGE :][: count * image.PAGE] if first else content[: count * image.PAGE]
        parts.append((first, part))
    return build_memory(
        path, 2 * pages, parts, rank=rank, size=size, mapped=mapped, change=change, secret=secret, frame=frame
    )


def build_memory(
    path: Path,
    pages: int,
    parts: Sequence[tuple[int, bytes]],
    kept: Sequence[tuple[int, int]] = (),
    parent: Path | None = None,
    rank: int = 0,
    size: int = 1,
    mapped: Path | None = None,
    change: dict[str, Any] | None = None,
    secret: bytes = bytes(32),
    frame: Callable[[bytes], bytes] | None = None,
    borders: Sequence[int] = (),
) -> Path:
    """An image of one anonymous region of `pages` pages, or of several, which begin at the pages `borders`. parts: the
    runs, each with its first page. kept: first page and number of pages that are as in `parent`. frame: compresses the
    pages of a run."""
    data = bytearray(image.PAGE)
    ends = [ARENA + number * image.PAGE for number in (0, *borders, pages)]
    regions = [image.RegionStruct(lo=lo, hi=hi, prot=3) for lo, hi in itertools.pairwise(ends)]
    runs = []
    kind = image.RUN_DATA if frame is None else image.RUN_ZIPPED
    data_key, hash_key = (hmac.digest(secret, use, "sha256") for use in (b"image data", b"image hash"))
    for first, part in parts:
        stored = part if frame is None else frame(part)
        hashed = image.Polyval(hash_key[:16])
        hashed.update(stored)
        where = struct.pack("<IQQQ", kind, ARENA + first * image.PAGE, len(part), len(stored))
        seal = (ctypes.c_uint8 * image.RUN_SEAL)(
            *hmac.digest(data_key, where + hashed.final(), "sha256")[: image.RUN_SEAL]
        )
        runs.append(
            image.RunStruct(
                address=ARENA + first * image.PAGE,
                bytes=len(part),
                stored=len(stored),
                offset=len(data),
                kind=kind,
                crc=image.crc32c(stored),
                seal=seal,
            )
        )
        data += stored
    files, strings = [], bytearray(b"\0")
    if mapped is not None:
        body = mapped.read_bytes()
        body += bytes(-len(body) % image.PAGE)
        lo = ARENA + 0x1000000
        regions.append(image.RegionStruct(lo=lo, hi=lo + len(body), prot=5, flags=image.REGION_FILE))
        runs.append(image.RunStruct(address=lo, bytes=len(body), kind=image.RUN_FILE, crc=image.crc32c(body)))
        status = mapped.stat()
        files.append(
            image.FileStruct(
                path=len(strings),
                device=status.st_dev,
                inode=status.st_ino,
                bytes=status.st_size,
                mtime_ns=status.st_mtime_ns,
            )
        )
        strings += os.fsencode(mapped) + b"\0"
    threads = [
        image.ThreadStruct(tid=1000 + rank, mpi_slot=0, name=b"main"),
        image.ThreadStruct(tid=2000 + rank, mpi_slot=0xFFFFFFFF, name=b"worker"),
    ]

    sections = (image.SectionStruct * image.SECTIONS_MAX)()
    sections_of_image = [
        (image.SECTION_REGIONS, b"".join(map(bytes, regions)), len(regions)),
        (image.SECTION_RUNS, b"".join(map(bytes, runs)), len(runs)),
        (image.SECTION_FILES, b"".join(map(bytes, files)), len(files)),
        (image.SECTION_STRINGS, bytes(strings), len(strings)),
        (image.SECTION_THREADS, b"".join(map(bytes, threads)), len(threads)),
    ]
    values: dict[str, Any] = {}
    if parent is not None:
        ranges = [image.KeptStruct(address=ARENA + first * image.PAGE, bytes=n * image.PAGE) for first, n in kept]
        sections_of_image.append((image.SECTION_KEPT, b"".join(map(bytes, ranges)), len(ranges)))
        seal, crc = image.read_header(parent).identity
        values = dict(
            parent=os.fsencode(os.path.relpath(parent, path.parent)),
            parent_seal=(ctypes.c_uint8 * image.SEAL)(*bytes.fromhex(seal)),
            parent_crc=crc,
        )
    for i, (kind, body, count) in enumerate(sections_of_image):
        _align(data, 8)
        sections[i] = image.SectionStruct(
            kind=kind, crc=image.crc32c(body), offset=len(data), bytes=len(body), count=count
        )
        data += body
    values |= dict(
        magic=image.MAGIC,
        version=image.VERSION,
        boundary_version=boundary.VERSION,
        rank=rank,
        size=size,
        nsections=len(sections_of_image),
        created_ns=1_700_000_000_000_000_000,
        file_bytes=len(data),
        memory_bytes=sum(r.bytes for r in runs) + sum(n for _, n in kept) * image.PAGE,
        host=b"testhost",
        program=b"/usr/bin/python3",
        sections=sections,
    )
    written = image.HeaderStruct(**{**values, **(change or {})})
    finish(written, data, secret)
    path.write_bytes(data)
    return path


def finish(header: image.HeaderStruct, data: bytearray, secret: bytes) -> None:
    """Seal the header, compute its checksum, and write it at the start of an image's data."""
    sections = b"".join(bytes(data[s.offset : s.offset + s.bytes]) for s in header.sections[: header.nsections])
    header.seal[:] = hmac.digest(
        hmac.digest(secret, b"image head", "sha256"),
        sections + bytes(header)[: image.HeaderStruct.seal.offset],
        "sha256",
    )
    header.header_crc = image.crc32c(bytes(header)[: image.HeaderStruct.header_crc.offset])
    data[: ctypes.sizeof(header)] = bytes(header)


def checkpoint(
    job: Path, ranks: int, seed: int = 1, mpirun: str | None = None, argv: tuple[str, ...] = ("python3", "solver.py")
) -> Path:
    """Publish one more checkpoint in a job directory."""
    temporary = publish.begin(job)
    if not (job / "secret").exists():
        (job / "secret").write_bytes(bytes(32))
    secret = (job / "secret").read_bytes()
    entries = []
    for rank in range(ranks):
        name = f"rank-{rank:05d}.img"
        header = image.read_header(build(temporary / name, rank, ranks, seed=seed, secret=secret))
        entries.append(
            publish.Entry(rank, name, header.memory_bytes, header.file_bytes, header.crc, 0.1, "testhost", header.seal)
        )
    return publish.commit(temporary, {"argv": list(argv), "manapy": "0.1.0", "mpirun": mpirun}, entries, secret)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ (1 << bit)]))


def forge(path: Path) -> None:
    """Change a byte of the memory in an image and correct all checksums."""
    found = image.Image.open(path)
    index, run = next((i, r) for i, r in enumerate(found.runs) if r.stored)
    flip(path, run.offset)
    with path.open("r+b") as stream:
        header = image.HeaderStruct.from_buffer_copy(stream.read(image.PAGE))
        section = next(s for s in header.sections if s.kind == image.SECTION_RUNS)
        stream.seek(run.offset)
        crc = image.crc32c(stream.read(run.stored))
        stream.seek(section.offset + index * ctypes.sizeof(image.RunStruct) + image.RunStruct.crc.offset)
        stream.write(struct.pack("<I", crc))
        stream.seek(section.offset)
        section.crc = image.crc32c(stream.read(section.bytes))
        header.header_crc = image.crc32c(bytes(header)[: image.HeaderStruct.header_crc.offset])
        stream.seek(0)
        stream.write(bytes(header))


def _random(count: int, seed: int) -> bytes:
    import random

    return random.Random(seed).randbytes(count)
