"""Does a wheel run on every machine that its tag promises?

PEP 600: a wheel for manylinux_X_Y runs on any x86-64 machine with glibc X.Y or newer. So its files may need only
libraries of glibc, in versions up to that one, and each other. manapy's own rule: it has all of its C parts, and no
MPI library and no libibverbs is needed to load them. Those are opened at run time.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

GLIBC = {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
PARTS = {
    "manapy-launch",
    "manapy-restart",
    "libmpi.so.12",
    "libmpi.so.40",
    "libmpi_abi.so.1",
    "libdmtcp.so",
    "libmanapy_image.so",
    "libmanapy_trace.so",
    "libmanapy_shift.so",
    "libmanapy-back-openmpi.so",
    "libmanapy-back-standard.so",
}

Version = tuple[int, ...]


@dataclass(frozen=True)
class Binary:
    """What one ELF file needs."""

    place: PurePosixPath
    libraries: tuple[str, ...]
    search_paths: tuple[str, ...]  # RPATH and RUNPATH
    versions: tuple[str, ...]  # of symbols: "GLIBC_2.17"


def version(text: str) -> Version:
    """(2, 17) of "GLIBC_2.17", "manylinux_2_17" or "2.17". () if there is no number, as in "GLIBC_PRIVATE"."""
    return tuple(map(int, re.findall(r"\d+", text)))


def binaries(wheel: Path) -> list[Binary]:
    """The ELF files of a wheel. Raises ValueError if the file is no wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheel}: {error}") from None
    return [_binary(name, data) for name, data in contents.items() if data.startswith(b"\x7fELF")]


def _binary(name: str, data: bytes) -> Binary:
    libraries, paths, versions = [], [], []
    try:
        for section in ELFFile(io.BytesIO(data)).iter_sections():
            if isinstance(section, DynamicSection):
                tags = list(section.iter_tags())
                libraries += [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
                paths += [tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"]
                paths += [tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"]
            elif isinstance(section, GNUVerNeedSection):
                versions += [version.name for _, needed in section.iter_versions() for version in needed]
    except ELFError as error:
        raise ValueError(f"{name}: {error}") from None
    return Binary(PurePosixPath(name), tuple(libraries), tuple(paths), tuple(versions))


def faults(wheel: Path, glibc: Version) -> list[str]:
    """Why the wheel would not run on a machine with this glibc, a line for each reason. Raises ValueError."""
    found = binaries(wheel)
    lines = [f"{name} is missing" for name in sorted(PARTS - {binary.place.name for binary in found})]
    for binary in found:
        name = binary.place.name
        beside = {other.place.name for other in found if other.place.parent == binary.place.parent}
        for path in binary.search_paths:
            if path != "$ORIGIN":
                lines.append(f"{name} looks for libraries in {path}")
        for library in binary.libraries:
            if library not in GLIBC and not (library in beside and "$ORIGIN" in binary.search_paths):
                lines.append(f"{name} needs {library}, which not every machine has")
        for needed in sorted(set(binary.versions), key=version):
            if not needed.startswith("GLIBC_") or not version(needed) or version(needed) > glibc:
                lines.append(f"{name} needs {needed}")
    return lines


def audited(wheel: Path) -> Version:
    """The oldest glibc for which auditwheel accepts the wheel. Raises ValueError if it accepts it for none."""
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True)
    tag = re.search(r'"(manylinux_\d+_\d+)_x86_64"', done.stdout)
    if done.returncode or tag is None:
        last = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
        raise ValueError(f"auditwheel refuses {wheel.name}: {last}")
    return version(tag[1])
