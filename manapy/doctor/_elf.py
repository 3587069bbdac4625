"""Just enough ELF (System V ABI, "Object Files") to find out the kind of a program and the libraries that it needs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 14, 15, 29
EM_X86_64 = 62
ET_EXEC = 2


class NotElf(ValueError):
    """The file is not an ELF file, or is truncated."""


@dataclass
class Elf:
    """interpreter is None for a static program; bits 32 or 64."""

    bits: int
    machine: int
    kind: int
    interpreter: str | None = None
    dynamic: bool = False
    needed: list[str] = field(default_factory=list)
    rpath: list[str] = field(default_factory=list)
    runpath: list[str] = field(default_factory=list)


def read(path: Path) -> Elf:
    """Read a file. Raises NotElf if it is not an ELF file."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise NotElf(str(path))
    if data[4] != 2:
        return Elf(bits=32, machine=struct.unpack_from("<H", data, 18)[0], kind=struct.unpack_from("<H", data, 16)[0])
    try:
        return _read64(data, path)
    except struct.error as error:
        raise NotElf(f"{path}: truncated") from error


def _read64(data: bytes, path: Path) -> Elf:
    kind, machine = struct.unpack_from("<HH", data, 16)
    elf = Elf(bits=64, machine=machine, kind=kind)
    phoff = struct.unpack_from("<Q", data, 32)[0]
    entry, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []
    table = b""
    for i in range(count):
        p_type, _, offset, vaddr, _, size = struct.unpack_from("<IIQQQQ", data, phoff + i * entry)
        if p_type == PT_LOAD:
            loads.append((vaddr, offset, size))
        elif p_type == PT_DYNAMIC:
            table = data[offset : offset + size]
        elif p_type == PT_INTERP:
            elf.interpreter = data[offset : offset + size].rstrip(b"\0").decode()
    entries = [struct.unpack_from("<QQ", table, i) for i in range(0, len(table) - 15, 16)]
    elf.dynamic = bool(entries)
    strtab = next((value for tag, value in entries if tag == DT_STRTAB), None)
    if strtab is None:
        return elf
    start = next((offset + strtab - vaddr for vaddr, offset, size in loads if vaddr <= strtab < vaddr + size), None)
    if start is None:
        raise NotElf(f"{path}: no string table")

    def text(at: int) -> str:
        return data[start + at : data.index(b"\0", start + at)].decode(errors="replace")

    for tag, value in entries:
        if tag == DT_NEEDED:
            elf.needed.append(text(value))
        elif tag == DT_RPATH:
            elf.rpath = text(value).split(":")
        elif tag == DT_RUNPATH:
            elf.runpath = text(value).split(":")
    return elf
