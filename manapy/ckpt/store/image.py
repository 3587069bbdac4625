"""Image files: the mirror of lowerhalf/include/manapy/image.h.

The structures below have the layout of the C structures; tests/unit/ckpt/store/test_image.py compiles a probe from
image.h and compares sizes, offsets and constants. Checking is done by the C library libmanapy_image.so, the same code
that a restart uses, so that both always agree on what a good image is.

    image = Image.open(path)        # header and sections, checksums verified
    image.header.rank, image.regions, image.runs, image.threads
    verify(path, rank=1, size=4)    # all of it, page data and mapped files included
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...core import installation
from ...core.errors import ImageError, why

MAGIC = b"MANAPYIM"
VERSION = 11
PAGE = 4096
RUN_MAX = 2 << 20  # bytes of memory
SECTIONS_MAX = 16
CHAIN_MAX = 100  # images of a chain
SEAL, RUN_SEAL, PARENT_PATH = 32, 16, 128  # bytes

(
    SECTION_REGIONS,
    SECTION_RUNS,
    SECTION_FILES,
    SECTION_STRINGS,
    SECTION_THREADS,
    SECTION_PROCESS,
    SECTION_FDS,
    SECTION_KEPT,
    SECTION_TREE,
) = range(1, 10)
REGION_SHARED, REGION_FILE = 1, 2
RUN_DATA, RUN_FILE, RUN_ZIPPED = 1, 2, 3


class SectionStruct(ctypes.LittleEndianStructure):
    """mpy_image_section_t"""

    _fields_ = [("kind", c_uint32), ("crc", c_uint32), ("offset", c_uint64), ("bytes", c_uint64), ("count", c_uint64)]


class HeaderStruct(ctypes.LittleEndianStructure):
    """mpy_image_header_t"""

    _fields_ = [
        ("magic", c_char * 8),
        ("version", c_uint32),
        ("boundary_version", c_uint32),
        ("table_hash", c_uint64),
        ("rank", c_int32),
        ("size", c_int32),
        ("generation", c_uint32),
        ("nsections", c_uint32),
        ("created_ns", c_uint64),
        ("file_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("cpu_features", c_uint64 * 8),
        ("xsave_bytes", c_uint64),
        ("host", c_char * 64),
        ("program", c_char * 256),
        ("parent", c_char * PARENT_PATH),
        ("parent_seal", c_uint8 * SEAL),
        ("parent_crc", c_uint32),
        ("folded_crc", c_uint32),
        ("folded_seal", c_uint8 * SEAL),
        ("sections", SectionStruct * SECTIONS_MAX),
        ("local_size", c_uint32),
        ("gpu", c_uint32),
        ("seal", c_uint8 * SEAL),
        ("header_crc", c_uint32),
    ]


class RegionStruct(ctypes.LittleEndianStructure):
    """mpy_image_region_t"""

    _fields_ = [
        ("lo", c_uint64),
        ("hi", c_uint64),
        ("prot", c_uint32),
        ("flags", c_uint32),
        ("file", c_uint32),
        ("policy", c_uint32),
        ("file_offset", c_uint64),
        ("nodes", c_uint64),
    ]


class RunStruct(ctypes.LittleEndianStructure):
    """mpy_image_run_t"""

    _fields_ = [
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("stored", c_uint64),
        ("offset", c_uint64),
        ("kind", c_uint32),
        ("crc", c_uint32),
        ("seal", c_uint8 * RUN_SEAL),
    ]


class KeptStruct(ctypes.LittleEndianStructure):
    """mpy_image_kept_t"""

    _fields_ = [("address", c_uint64), ("bytes", c_uint64)]


class MemberStruct(ctypes.LittleEndianStructure):
    """mpy_image_member_t"""

    _fields_ = [
        ("index", c_uint32),
        ("pid", c_int32),
        ("parent", c_int32),
        ("group", c_int32),
        ("session", c_int32),
        ("seal", c_uint8 * SEAL),
    ]


class FileStruct(ctypes.LittleEndianStructure):
    """mpy_image_file_t"""

    _fields_ = [
        ("path", c_uint64),
        ("device", c_uint64),
        ("inode", c_uint64),
        ("bytes", c_uint64),
        ("mtime_ns", c_uint64),
    ]


class ThreadStruct(ctypes.LittleEndianStructure):
    """mpy_image_thread_t"""

    _fields_ = [
        ("ucontext", c_uint64),
        ("fs_base", c_uint64),
        ("gs_base", c_uint64),
        ("clear_tid", c_uint64),
        ("robust_list", c_uint64),
        ("robust_bytes", c_uint64),
        ("tid", c_int32),
        ("mpi_slot", c_uint32),
        ("name", c_char * 16),
    ]


STRUCTURES: dict[str, type[ctypes.LittleEndianStructure]] = {
    "section": SectionStruct,
    "header": HeaderStruct,
    "region": RegionStruct,
    "run": RunStruct,
    "kept": KeptStruct,
    "member": MemberStruct,
    "file": FileStruct,
    "thread": ThreadStruct,
}


class Header(NamedTuple):
    """The header of an image: what it contains, and of which job and rank."""

    rank: int
    size: int
    generation: int
    created_ns: int
    file_bytes: int
    memory_bytes: int
    host: str
    program: str
    version: int
    boundary_version: int
    table_hash: int
    cpu_features: tuple[int, ...]
    xsave_bytes: int
    parent: str
    """The path of the parent image, relative to the directory of this one; empty for a full image."""
    parent_seal: str
    parent_crc: int
    folded_seal: str
    """Seal and checksum of the incremental image that this full one has replaced; an empty text if there is none."""
    folded_crc: int
    seal: str
    crc: int

    @property
    def identity(self) -> tuple[str, int]:
        """Seal and checksum with which the image was first written (image.h): by them others name it."""
        return (self.folded_seal, self.folded_crc) if self.folded_seal else (self.seal, self.crc)


class Region(NamedTuple):
    """One mapping of the program: [lo, hi) with its protection; path is None for anonymous memory."""

    lo: int
    hi: int
    prot: int
    flags: int
    path: str | None
    file_offset: int

    @property
    def permissions(self) -> str:
        """Return the permissions in the form of /proc/self/maps: rwxp."""
        letters = "".join(c if self.prot & bit else "-" for c, bit in (("r", 1), ("w", 2), ("x", 4)))
        return letters + ("s" if self.flags & REGION_SHARED else "p")


class Run(NamedTuple):
    """Consecutive pages: of the image (RUN_DATA, RUN_ZIPPED) or of the mapped file (RUN_FILE), at offset. stored: the
    bytes of the image that they take."""

    address: int
    bytes: int
    stored: int
    offset: int
    kind: int
    crc: int


class Kept(NamedTuple):
    """Consecutive pages that are as in the parent image."""

    address: int
    bytes: int


class Thread(NamedTuple):
    """One thread of the program; the first becomes the main thread of the restarted process."""

    tid: int
    name: str
    mpi_slot: int | None


class Member(NamedTuple):
    """One process of a rank that was a tree of processes, with its ids as the program knows them."""

    image: int  # its number; 0: the rank's own, of the process that uses MPI
    pid: int
    parent: int


@dataclass(frozen=True)
class Image:
    """A read image. Page data stays in the file."""

    path: Path
    header: Header
    regions: list[Region]
    runs: list[Run]
    kept: list[Kept]
    threads: list[Thread]
    members: list[Member]  # empty: the rank was a single process
    sections: dict[int, bytes] = field(repr=False, default_factory=dict)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Image:
        """Read header and sections. Raises ImageError if the file is not an image, or is truncated or damaged there."""
        path = Path(path)
        with _opened(path) as stream:
            header = _header(path, stream)
            sections = {s.kind: _section(path, stream, s) for s in header.sections[: header.nsections]}
        for kind in (SECTION_REGIONS, SECTION_RUNS, SECTION_FILES, SECTION_STRINGS, SECTION_THREADS):
            if kind not in sections:
                raise ImageError(f"{path}: damaged: section {kind} is missing")
        strings = sections[SECTION_STRINGS]
        paths = [_string(strings, f.path) for f in _records(FileStruct, sections[SECTION_FILES])]
        return cls(
            path=path,
            header=_convert_header(header),
            regions=[_convert_region(r, paths) for r in _records(RegionStruct, sections[SECTION_REGIONS])],
            runs=[
                Run(r.address, r.bytes, r.stored, r.offset, r.kind, r.crc)
                for r in _records(RunStruct, sections[SECTION_RUNS])
            ],
            kept=[Kept(k.address, k.bytes) for k in _records(KeptStruct, sections.get(SECTION_KEPT, b""))],
            threads=[_convert_thread(t) for t in _records(ThreadStruct, sections[SECTION_THREADS])],
            members=[Member(m.index, m.pid, m.parent) for m in _records(MemberStruct, sections.get(SECTION_TREE, b""))],
            sections=sections,
        )

    def of_member(self, member: Member) -> Image:
        """The image of a process of the tree. Raises ImageError."""
        return Image.open(self.path.with_suffix(f".{member.image}.img")) if member.image else self

    @property
    def mapped_bytes(self) -> int:
        """Size of all regions."""
        return sum(r.hi - r.lo for r in self.regions)

    def bytes_of(self, *kinds: int) -> int:
        """Bytes of memory in runs of these kinds."""
        return sum(r.bytes for r in self.runs if r.kind in kinds)

    @property
    def kept_bytes(self) -> int:
        """Bytes that are in a parent."""
        return sum(k.bytes for k in self.kept)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read only the header. Raises ImageError as Image.open does."""
    path = Path(path)
    with _opened(path) as stream:
        return _convert_header(_header(path, stream))


def read_chain(path: str | os.PathLike[str]) -> list[tuple[Path, Header]]:
    """The headers of an image and of all its parents, the full image last. Raises ImageError, which names the damaged
    one."""
    path = Path(path)
    chain = [(path, read_header(path))]
    while (header := chain[-1][1]).parent:
        if len(chain) == CHAIN_MAX:
            raise ImageError(f"{path}: its chain of parents has more than {CHAIN_MAX} images")
        child = chain[-1][0]
        parent = Path(os.path.realpath(child.parent / header.parent))
        found = read_header(parent)
        if found.identity != (header.parent_seal, header.parent_crc):
            raise ImageError(f"{parent}: not the image that {child} needs: it was replaced")
        chain.append((parent, found))
    return chain


def load(path: str | os.PathLike[str], address: int, size: int, secret: bytes | None = None) -> bytes:
    """The memory [address, address + size) of an image and its parents, as a restart restores it. All regions of the
    image must lie there. Raises ImageError."""
    error = ctypes.create_string_buffer(2048)
    memory = mmap.mmap(-1, size)
    with memory:
        place = (ctypes.c_char * size).from_buffer(memory)
        failed = _library().mpy_image_load(os.fsencode(path), secret, address, size, place, error, len(error))
        found = place.raw
        del place
    if failed:
        raise ImageError(os.fsdecode(error.value))
    return found


def fold(path: Path, into: Path, secret: bytes) -> None:
    """Write a full image with the identity and the memory of an incremental one to a new file. secret: of the job that
    has written it. Raises ImageError, which names the damaged file; then there is no new file."""
    error = ctypes.create_string_buffer(2048)
    if _library().mpy_image_fold(os.fsencode(path), secret, os.fsencode(into), error, len(error)):
        raise ImageError(os.fsdecode(error.value))


def verify(
    path: str | os.PathLike[str],
    rank: int = -1,
    size: int = -1,
    progress: Callable[[int], None] | None = None,
    secret: bytes | None = None,
) -> None:
    """Check every byte of an image, of the memory that it needs of its parents, and of the mapped files that it needs.
    Raises ImageError with the reason, which names the damaged file.

    rank, size: the rank and the number of ranks that the image must have (-1: any). secret: the secret of the job that
    must have written it (None: any). progress is called with the number of bytes checked since its last call. The check
    runs without the interpreter lock, so that threads can check several images in parallel.
    """
    error = ctypes.create_string_buffer(2048)
    callback = _PROGRESS(progress) if progress else _PROGRESS()
    if _library().mpy_image_verify(os.fsencode(path), rank, size, secret, callback, error, len(error)):
        raise ImageError(os.fsdecode(error.value))


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of data, continued from crc."""
    return int(_library().mpy_crc32c(crc, data, len(data)))


class Polyval(ctypes.Structure):
    """mpy_polyval_t of lowerhalf/image/file/polyval.h: POLYVAL of RFC 8452 under a key of 16 bytes."""

    _fields_ = [
        ("powers", c_uint64 * 2 * 4),
        ("sum", c_uint64 * 2),
        ("partial", c_uint8 * 16),
        ("filled", ctypes.c_uint),
    ]

    def __init__(self, key: bytes) -> None:
        super().__init__()
        _library().mpy_polyval_init(ctypes.byref(self), key)

    def update(self, data: bytes, *, plain: bool = False) -> None:
        """plain: as on a CPU without carry-less multiplication."""
        (_library().mpy_polyval_update_plain if plain else _library().mpy_polyval_update)(
            ctypes.byref(self), data, ctypes.c_size_t(len(data))
        )

    def final(self) -> bytes:
        """The hash."""
        out = ctypes.create_string_buffer(16)
        _library().mpy_polyval_final(ctypes.byref(self), out)
        return out.raw


_PROGRESS = ctypes.CFUNCTYPE(None, c_uint64)


@functools.cache
def _library() -> ctypes.CDLL:
    path = installation.library("libmanapy_image.so")
    if path is None:
        raise ImageError("libmanapy_image.so is missing: this installation of manapy is incomplete")
    library = ctypes.CDLL(str(path))
    library.mpy_image_verify.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_char_p,
        _PROGRESS,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.mpy_image_verify.restype = ctypes.c_int
    library.mpy_image_load.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        c_uint64,
        c_uint64,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.mpy_image_load.restype = ctypes.c_int
    library.mpy_image_fold.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.mpy_image_fold.restype = ctypes.c_int
    library.mpy_crc32c.argtypes = [c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    library.mpy_crc32c.restype = c_uint32
    library.mpy_crc32c_plain.argtypes = [c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    library.mpy_crc32c_plain.restype = c_uint32
    library.mpy_crc32c_join.argtypes = [c_uint32, c_uint32, c_uint64]
    library.mpy_crc32c_join.restype = c_uint32
    return library


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open an image for reading. Every error is raised as ImageError."""
    try:
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise ImageError(f"{path}: the image is missing") from error
    except OSError as error:
        raise ImageError(why(error, path)) from error


def _header(path: Path, stream: BinaryIO) -> HeaderStruct:
    page, file_bytes = stream.read(PAGE), os.fstat(stream.fileno()).st_size
    if len(page) < PAGE:
        raise ImageError(f"{path}: truncated: {len(page)} bytes are less than a header")
    header = HeaderStruct.from_buffer_copy(page)
    if page[:8] != MAGIC:
        raise ImageError(f"{path}: not an image of manapy, or one whose writing was interrupted")
    if header.version != VERSION:
        raise ImageError(f"{path}: image format {header.version}, this manapy reads format {VERSION}")
    if crc32c(page[: HeaderStruct.header_crc.offset]) != header.header_crc:
        raise ImageError(f"{path}: damaged: the header's checksum is wrong")
    if header.file_bytes != file_bytes:
        raise ImageError(f"{path}: truncated or extended: {file_bytes} bytes instead of {header.file_bytes}")
    return header


def _section(path: Path, stream: BinaryIO, section: SectionStruct) -> bytes:
    stream.seek(section.offset)
    data = stream.read(section.bytes)
    if len(data) != section.bytes or crc32c(data) != section.crc:
        raise ImageError(f"{path}: damaged: the checksum of section {section.kind} is wrong")
    return data


def _records(structure: type[ctypes.LittleEndianStructure], data: bytes) -> list[Any]:
    return list((structure * (len(data) // ctypes.sizeof(structure))).from_buffer_copy(data))


def _string(strings: bytes, offset: int) -> str:
    return os.fsdecode(strings[offset:].split(b"\0", 1)[0])


def _convert_header(h: HeaderStruct) -> Header:
    return Header(
        rank=h.rank,
        size=h.size,
        generation=h.generation,
        created_ns=h.created_ns,
        file_bytes=h.file_bytes,
        memory_bytes=h.memory_bytes,
        host=os.fsdecode(h.host),
        program=os.fsdecode(h.program),
        version=h.version,
        boundary_version=h.boundary_version,
        table_hash=h.table_hash,
        cpu_features=tuple(h.cpu_features),
        xsave_bytes=h.xsave_bytes,
        parent=os.fsdecode(h.parent),
        parent_seal=bytes(h.parent_seal).hex() if h.parent else "",
        parent_crc=h.parent_crc,
        folded_seal=bytes(h.folded_seal).hex() if any(h.folded_seal) else "",
        folded_crc=h.folded_crc,
        seal=bytes(h.seal).hex(),
        crc=h.header_crc,
    )


def _convert_region(r: RegionStruct, paths: list[str]) -> Region:
    return Region(r.lo, r.hi, r.prot, r.flags, paths[r.file] if r.flags & REGION_FILE else None, r.file_offset)


def _convert_thread(t: ThreadStruct) -> Thread:
    return Thread(t.tid, os.fsdecode(t.name), None if t.mpi_slot == 0xFFFFFFFF else t.mpi_slot)
