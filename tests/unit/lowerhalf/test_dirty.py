"""lowerhalf/image/dirty: a page counts as unchanged only if it is as in the base, and the base is the image of the
checkpoint that was published last."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from compiling import dirty_library
from hypothesis import given
from hypothesis import strategies as st
from manapy.ckpt.store import image

PAGES = 8
BASE = 0x200010000000


class DirtyImage(ctypes.Structure):
    """mpy_dirty_image_t"""

    _fields_ = [
        ("epoch", ctypes.c_uint64),
        ("seal", ctypes.c_uint8 * image.SEAL),
        ("crc", ctypes.c_uint32),
        ("finished", ctypes.c_uint32),
        ("hashes", ctypes.c_void_p),
        ("held", ctypes.c_void_p),
    ]


Pointer = ctypes.POINTER(DirtyImage)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    found = ctypes.CDLL(str(dirty_library(tmp_path_factory.mktemp("dirty") / "dirty.so")))
    found.mpy_dirty_begin.argtypes = [ctypes.c_uint64] * 3 + [ctypes.POINTER(Pointer)]
    found.mpy_dirty_begin.restype = Pointer
    found.mpy_dirty_is_same.argtypes = [Pointer, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p]
    yield found


class Writer:
    """Writes images as snapshot.c does."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.hash = library, image.Polyval(bytes(range(16)))
        self.header = image.HeaderStruct()

    def begin(self, epoch: int, base: int) -> tuple[Pointer, int]:
        """What is remembered of the new image, and the checksum of the base's header; 0: no base."""
        new = Pointer()
        found = self.library.mpy_dirty_begin(epoch, base, PAGES, ctypes.byref(new))
        return new, found.contents.crc if found else 0

    def same(self, new: Pointer, memory: list[int]) -> list[int]:
        """The pages that the image need not have."""
        return [
            number
            for number, value in enumerate(memory)
            if value
            and self.library.mpy_dirty_is_same(
                new,
                ctypes.byref(self.hash),
                BASE + number * image.PAGE,
                value.to_bytes(2, "little") * (image.PAGE // 2),
            )
        ]

    def finish(self, new: Pointer, epoch: int) -> None:
        self.header.header_crc = epoch
        self.library.mpy_dirty_finish(new, ctypes.byref(self.header))


checkpoints = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, PAGES - 1), st.integers(0, 2), max_size=4),  # changes
        st.sampled_from(["published", "failed", "unfinished"]),
        st.booleans(),  # the coordinator offers a base, if there is one
    ),
    max_size=12,
)


@given(checkpoints)
def test_any_sequence_of_checkpoints(library: ctypes.CDLL, taken: list[tuple[dict[int, int], str, bool]]) -> None:
    writer, memory, base, known = Writer(library), [1] * PAGES, 0, {0: [0] * PAGES}
    for epoch, (changes, outcome, offered) in enumerate(taken, 1):
        memory = [changes.get(number, value) for number, value in enumerate(memory)]
        new, crc = writer.begin(epoch, base if offered else 0)
        assert crc in (0, base)
        same = writer.same(new, memory)
        if not crc:
            assert same == []
        else:
            assert same == [n for n in range(PAGES) if memory[n] and memory[n] == known[base][n]]
        if outcome != "unfinished":
            writer.finish(new, epoch)
            known[epoch] = memory
        if outcome == "published":
            base = epoch


def test_failed_checkpoints_leave_the_base(library: ctypes.CDLL) -> None:
    writer = Writer(library)
    new, _ = writer.begin(1, 0)
    writer.same(new, [1] * PAGES)
    writer.finish(new, 1)
    for epoch in (2, 3):
        new, crc = writer.begin(epoch, 1)
        assert crc == 1 and writer.same(new, [1, 2] + [1] * (PAGES - 2)) == [0, *range(2, PAGES)]
        if epoch == 2:
            writer.finish(new, 2)
    assert writer.begin(4, 3)[1] == 0  # never finished


def test_without_memory(library: ctypes.CDLL) -> None:
    """The image is full, and cannot be a base."""
    new = Pointer()
    assert not library.mpy_dirty_begin(9, 0, 1 << 58, ctypes.byref(new)) and not new
    assert Writer(library).begin(10, 9)[1] == 0
