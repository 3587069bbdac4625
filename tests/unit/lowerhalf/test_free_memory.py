"""lowerhalf/base/proc/free_memory.c: is there memory for a copy of a rank?"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import compiling

ROOM = 1 << 40  # more than a host has


def test_deleted_files_count(root: Path, tmp_path: Path) -> None:
    """A copy of the rank has all of a shared file that was deleted, whatever the kernel has in memory now."""
    source = root / "lowerhalf/base/proc/free_memory.c"
    library = ctypes.CDLL(str(compiling.build_core(tmp_path / "free_memory.so", [source], *compiling.SHARED)))
    library.mpy_memory_lacking.restype = ctypes.c_char_p
    path = tmp_path / "sparse"
    with path.open("w+b") as file:
        file.truncate(ROOM)
        memory = mmap.mmap(file.fileno(), ROOM)
    assert library.mpy_memory_lacking(1) is None
    path.unlink()
    assert library.mpy_memory_lacking(1) == b"the host has too little free memory for a copy"
    memory.close()
    assert library.mpy_memory_lacking(1) is None
