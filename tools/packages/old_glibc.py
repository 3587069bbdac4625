"""Linking for an older glibc than the one of this machine.

The compiler stays the machine's gcc. Only what it links with is replaced: libraries that have exactly the symbols of
the old glibc, with the versions that they had there, and the start code of that time. So a program that needs anything
newer is not linked. Zig makes such libraries for any glibc, from lists of its symbols (PyPI's package ziglang).

Invariants
 1. The headers are the machine's. If they declare a function that the old glibc does not have, its use fails at the
    link. `stat` and its relatives are functions of the old libc_nonshared.a, as they were before glibc 2.33.
 2. Functions of libdl and libpthread are found without -ldl and -lpthread, as in a new glibc. A file needs these
    libraries only if it uses them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PARTS = ("Scrt1.o", "libc.so.6", "libc_nonshared.a", "libdl.so.2", "libld.so.2", "libm.so.6", "libpthread.so.0")
BY_NAME = {"libdl.so": "libdl.so.2", "libm.so": "libm.so.6", "libpthread.so": "libpthread.so.0"}


class OldGlibcError(Exception):
    """The libraries could not be made; the text is one line with the reason."""


def link_options(version: str, where: Path) -> list[str]:
    """Make the libraries of a glibc ("2.28") in the folder `where`. Returns the options with which gcc uses them."""
    where.mkdir(parents=True, exist_ok=True)
    for part in _made_by_zig(version, where):
        shutil.copyfile(part, where / part.name)
    for name, library in BY_NAME.items():
        (where / name).unlink(missing_ok=True)
        (where / name).symlink_to(library)
    if_needed = " ".join(str(where / name) for name in ("libld.so.2", "libpthread.so.0", "libdl.so.2"))
    (where / "libc.so").write_text(
        f"GROUP ( {where / 'libc.so.6'} {where / 'libc_nonshared.a'} AS_NEEDED ( {if_needed} ) )\n"
    )
    return [f"-B{where}", f"-L{where}"]


def _made_by_zig(version: str, where: Path) -> list[Path]:
    """The parts, in zig's cache: it makes them when it links a program, and says so."""
    program = where / "empty"
    program.with_suffix(".c").write_text("int main(void) { return 0; }\n")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{version}", "-v", "-fPIE", "-pie"]
    done = subprocess.run([*command, program.with_suffix(".c"), "-o", program], capture_output=True, text=True)
    words = [Path(word) for line in done.stderr.splitlines() if line.startswith("ld.lld ") for word in line.split()]
    parts = [word for word in words if word.name in PARTS and word.is_file()]
    if lacking := set(PARTS).difference(part.name for part in parts):
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise OldGlibcError(f"zig makes no {', '.join(sorted(lacking))} of glibc {version}: {last}")
    return parts
