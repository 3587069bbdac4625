"""The descriptors in an image, by kind."""

from __future__ import annotations

import struct
from pathlib import Path

import compiling
from manapy.ckpt.store import descriptors

NAMES = (
    "STDIO INHERITED FILE CONTENT DEVICE FIFO PIPE PAIR SOCKET EVENT TIMER SIGNAL EPOLL ELSEWHERE TCP".split()
)  # of the kinds, from 1 on


def section(kinds: list[int], numbers: list[int]) -> bytes:
    """As fds.c writes it: descriptions of these kinds, and descriptors that refer to them."""

    def sized(data: bytes) -> bytes:
        return struct.pack("<Q", len(data)) + data

    made = struct.pack("<II", descriptors.MAGIC, len(kinds))
    for kind in kinds:
        made += struct.pack("<IIII", kind, 9, 0, 0) + sized(b"/path\0") + sized(bytes(kind)) + sized(b"")
    return made + struct.pack(f"<I{3 * len(numbers)}I", len(numbers), *(w for d in numbers for w in (3, d, 0)))


def test_kinds_and_magic_are_those_of_the_image(include: Path, tmp_path: Path) -> None:
    lower = include.parent
    found = compiling.c_values(
        tmp_path,
        '#include "process/fds/fds_table.h"',
        {name: f"MPY_FD_{name}" for name in NAMES},
        f"-I{include}",
        f"-I{lower}",
    )
    assert list(found.values()) == list(range(1, len(NAMES) + 1)) and set(found.values()) == set(descriptors.KINDS)
    assert f"#define MAGIC {descriptors.MAGIC:#x}u" in (lower / "process/fds/fds.c").read_text()


def test_counts() -> None:
    data = section([1, 7, 3], [0, 0, 0, 1, 2, 1])
    assert descriptors.counts(data) == {"standard": 3, "file": 1, "pipe": 2}
    assert descriptors.counts(section([99], [0])) == {"other": 1}


def test_damaged_sections() -> None:
    data = section([1, 3], [0, 1])
    for length in range(len(data)):
        assert sum(descriptors.counts(data[:length]).values()) < 2
    assert descriptors.counts(b"x" * len(data)) == {}
    assert descriptors.counts(section([1], [5])) == {}
