"""Incremental images: a chain gives the memory of the moment of its newest image, whatever was written before, and all
damage in what it needs is detected."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import images
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manapy.ckpt.store import image
from manapy.core.errors import ImageError

PAGES, BORDER = 24, 10  # the page at which a second region begins
SECRET = bytes(range(32))
ZERO = bytes(image.PAGE)

Memory = list[int]  # of each page, the number that fills it; 0: a page of zeros


def page(number: int) -> bytes:
    return number.to_bytes(4, "little") * (image.PAGE // 4)


def content(memory: Memory) -> bytes:
    return b"".join(map(page, memory))


def ranges(pages: list[int]) -> list[tuple[int, int]]:
    """First page and length of the runs of consecutive pages of a region."""
    found: list[tuple[int, int]] = []
    for number in pages:
        if found and sum(found[-1]) == number != BORDER:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found


def write(path: Path, memory: Memory, before: tuple[Path, Memory] | None = None, rank: int = 0, size: int = 1) -> Path:
    """The image of a memory; with `before`, an incremental one."""
    same = [n for n in range(PAGES) if memory[n] and before is not None and memory[n] == before[1][n]]
    new = [n for n in range(PAGES) if memory[n] and n not in same]
    parts = [(first, content(memory[first : first + count])) for first, count in ranges(new)]
    parent = before[0] if before is not None and same else None
    return images.build_memory(path, PAGES, parts, ranges(same), parent, rank, size, secret=SECRET, borders=[BORDER])


def load(path: Path) -> bytes:
    return image.load(path, images.ARENA, PAGES * image.PAGE, SECRET)


def check(path: Path) -> None:
    image.verify(path, 0, 1, secret=SECRET)


@pytest.fixture
def chain(tmp_path: Path) -> list[tuple[Path, Memory]]:
    """Four images: the first has all pages, each other one changes some."""
    memory, found = list(range(1, PAGES + 1)), []
    for number, changed in enumerate(([], [0, 5, 6], [6, 7, 23], [1])):
        memory = [100 * number + n if n in changed else memory[n] for n in range(PAGES)]
        found.append((write(tmp_path / f"{number}.img", memory, found[-1] if found else None), memory))
    return found


steps = st.lists(
    st.tuples(
        st.booleans(),  # a full image
        st.dictionaries(st.integers(0, PAGES - 1), st.integers(0, 3), max_size=PAGES),
    ),
    min_size=1,
    max_size=7,
)


@given(steps)
def test_any_history_gives_the_memory_of_each_moment(history: list[tuple[bool, dict[int, int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        memory, taken = [0] * PAGES, []
        for number, (full, changes) in enumerate(history):
            memory = [changes.get(n, memory[n]) for n in range(PAGES)]
            before = None if full or not taken else taken[-1]
            taken.append((write(Path(directory) / f"{number}.img", memory, before), memory))
        for path, then in taken:
            assert load(path) == content(then)
            check(path)


@given(steps, st.data())
def test_any_damage_is_found_or_harmless(history: list[tuple[bool, dict[int, int]]], data: st.DataObject) -> None:
    """A bit flips in any image of a chain. Then the memory is right, or an error names that image."""
    with tempfile.TemporaryDirectory() as directory:
        memory, taken = [1] * PAGES, []
        for number, (_, changes) in enumerate(history):
            memory = [changes.get(n, memory[n]) for n in range(PAGES)]
            taken.append((write(Path(directory) / f"{number}.img", memory, taken[-1] if taken else None), memory))
        newest, then = taken[-1]
        damaged = data.draw(st.sampled_from([path for path, _ in taken]))
        images.flip(damaged, data.draw(st.integers(0, damaged.stat().st_size - 1)), data.draw(st.integers(0, 7)))
        for use in (check, load):
            try:
                found = use(newest)
                assert found is None or found == content(then)
            except ImageError as error:
                assert str(error).startswith(f"{damaged}: ")


def test_chain_is_read(chain: list[tuple[Path, Memory]]) -> None:
    for path, memory in chain:
        assert load(path) == content(memory)
    newest = chain[-1][0]
    done: list[int] = []
    image.verify(newest, 0, 1, done.append, SECRET)
    assert sum(done) == image.read_header(newest).memory_bytes == PAGES * image.PAGE
    assert [path for path, _ in image.read_chain(newest)] == [path for path, _ in reversed(chain)]
    found = image.Image.open(newest)
    assert found.kept_bytes == (PAGES - 1) * image.PAGE and found.bytes_of(image.RUN_DATA) == image.PAGE


def test_a_parent_is_missing(chain: list[tuple[Path, Memory]]) -> None:
    chain[1][0].unlink()
    for use in (check, load, image.read_chain):
        with pytest.raises(ImageError, match=f"^{chain[1][0]}: the image is missing"):
            use(chain[3][0])
        use(chain[0][0])


def test_a_parent_was_replaced(chain: list[tuple[Path, Memory]]) -> None:
    write(chain[1][0], [7] * PAGES)
    for use in (check, load, image.read_chain):
        with pytest.raises(ImageError, match=f"^{chain[1][0]}: not the image that {chain[2][0]} needs: it was"):
            use(chain[3][0])


def test_damage_that_is_not_needed(chain: list[tuple[Path, Memory]], tmp_path: Path) -> None:
    """A run of a parent that no newer image needs is not read."""
    older, newer = [1] * PAGES, [1] * 12 + [2] * 12
    parts = [(0, content(older[:12])), (12, content(older[12:]))]
    first = images.build_memory(tmp_path / "a.img", PAGES, parts, secret=SECRET)
    second = write(tmp_path / "b.img", newer, (first, older))
    images.flip(first, image.PAGE + 20 * image.PAGE)
    assert load(second) == content(newer)
    with pytest.raises(ImageError, match=f"^{first}: damaged"):
        load(first)


def test_a_circle_ends(chain: list[tuple[Path, Memory]], tmp_path: Path) -> None:
    """Somebody who ignores seals and corrects checksums could make one: a chain that is too long is refused."""
    path = tmp_path / "long.img"
    previous = write(tmp_path / "first.img", [1] * PAGES)
    for number in range(image.CHAIN_MAX - 1):
        previous = write(tmp_path / f"long{number}.img", [1] * PAGES, (previous, [1] * PAGES))
    check(previous)
    write(path, [1] * PAGES, (previous, [1] * PAGES))
    for use in (check, load, image.read_chain):
        with pytest.raises(ImageError, match="its chain of parents has more than 100 images"):
            use(path)


Change = Callable[[Path, Path], Path]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p, to: images.build_memory(to, PAGES, [], [(0, 1), (0, 1)], p), "pages at 0x200010000000 are out of"),
        (lambda p, to: images.build_memory(to, PAGES, [], [(3, 0)], p), "out of order"),
        (lambda p, to: images.build_memory(to, PAGES, [], [(PAGES - 1, 2)], p), "lie in no region"),
        (lambda p, to: images.build_memory(to, PAGES, [(2, ZERO)], [(1, 2)], p), "are in a run, too"),
        (lambda p, to: images.build_memory(to, PAGES, [], [(1, 3)], p), "does not have the memory at 0x200010003000"),
        (
            lambda p, to: images.build_memory(to, PAGES, [], [], p, change={"parent": b"/x"}),
            "path of its parent is inv",
        ),
        (lambda p, to: images.build_memory(to, PAGES, [], [], p, change={"parent": b"y" * 128}), "its parent is inv"),
        (lambda p, to: images.build_memory(to, PAGES, [], [], p, change={"parent": b""}), "must have kept pages if"),
        (lambda p, to: images.build_memory(to, PAGES, [], change={"parent": b"x"}), "must have kept pages if it has a"),
        (lambda p, to: images.build_memory(to, PAGES, [], [(0, 1)], p, rank=1), "image of rank 0, not of rank 1"),
    ],
)
def test_kept_pages_that_cannot_be(tmp_path: Path, change: Change, text: str) -> None:
    parent = images.build_memory(tmp_path / "parent.img", PAGES, [(0, page(1) * 3), (4, page(2))])
    path = change(parent, tmp_path / "x.img")
    with pytest.raises(ImageError, match=text):
        image.verify(path)


def test_parent_in_the_folder_of_another_checkpoint(tmp_path: Path) -> None:
    """The checkpoint may be reached by a link; its parent lies beside the real one."""
    for name in ("ckpt-000001/node-00000", "ckpt-000002/node-00000"):
        (tmp_path / "place" / name).mkdir(parents=True)
    os.symlink(tmp_path / "place" / "ckpt-000002", tmp_path / "latest")
    memory = list(range(1, PAGES + 1))
    first = write(tmp_path / "place/ckpt-000001/node-00000/rank-00000.img", memory)
    changed = [9, *memory[1:]]
    write(tmp_path / "place/ckpt-000002/node-00000/rank-00000.img", changed, (first, memory))
    path = tmp_path / "latest/node-00000/rank-00000.img"
    assert load(path) == content(changed)
    assert image.read_chain(path)[1][0] == first
