"""What a program is and which libraries it asks for, from its ELF file (System V ABI, "Object Files")."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile


class NotElf(ValueError):
    """The file is not an ELF file, or is truncated."""


@dataclass
class Elf:
    """machine, kind: EM_X86_64 ..., ET_EXEC ...; interpreter is None for a static program; bits 32 or 64."""

    bits: int
    machine: str
    kind: str
    interpreter: str | None = None
    dynamic: bool = False
    needed: list[str] = field(default_factory=list)
    rpath: list[str] = field(default_factory=list)
    runpath: list[str] = field(default_factory=list)


def read(path: Path) -> Elf:
    """Read a file; NotElf if it isn't one. Raises OSError if it can't be opened."""
    with path.open("rb") as stream:
        try:
            return _read(ELFFile(stream))
        except (ELFError, ValueError, OSError) as error:  # a damaged one may hold any offset and any text
            raise NotElf(f"{path}: {error}") from error


def _read(file: ELFFile) -> Elf:
    elf = Elf(file.elfclass, file["e_machine"], file["e_type"])
    for segment in file.iter_segments("PT_INTERP"):
        elf.interpreter = segment.get_interp_name()
    for segment in file.iter_segments("PT_DYNAMIC"):
        for tag in segment.iter_tags():
            elf.dynamic = True
            if tag.entry.d_tag == "DT_NEEDED":
                elf.needed.append(tag.needed)
            elif tag.entry.d_tag == "DT_RPATH":
                elf.rpath = tag.rpath.split(":")
            elif tag.entry.d_tag == "DT_RUNPATH":
                elf.runpath = tag.runpath.split(":")
    return elf
