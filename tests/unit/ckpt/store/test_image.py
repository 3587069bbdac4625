"""Images: the Python mirror agrees with image.h, and all damage is detected."""

from __future__ import annotations

import ctypes
import os
import random
import re
from pathlib import Path

import images
import layout
import pytest
from manapy.ckpt.store import image
from manapy.core.errors import ImageError


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    path = tmp_path / "mapped.so"
    path.write_bytes(random.Random(5).randbytes(3 * image.PAGE + 123))
    return path


@pytest.fixture
def good(tmp_path: Path, mapped: Path) -> Path:
    return images.build(tmp_path / "rank-00001.img", rank=1, size=4, mapped=mapped)


def test_layout(tmp_path: Path, include: Path) -> None:
    structures = {f"image_{name}": structure for name, structure in image.STRUCTURES.items()}
    assert layout.differences(tmp_path, include, "manapy/image.h", structures) == []


def test_constants(include: Path) -> None:
    text = " ".join((include / "manapy/image.h").read_text().split())
    assert image.MAGIC.decode() == re.search(r'#define MPY_IMAGE_MAGIC "(\w+)"', text)[1]
    assert image.VERSION == int(re.search(r"#define MPY_IMAGE_VERSION (\d+)u", text)[1])
    assert image.PAGE == int(re.search(r"#define MPY_IMAGE_PAGE (\d+)u", text)[1])
    assert (image.SEAL, image.RUN_SEAL) == tuple(
        map(int, re.search(r"MPY_IMAGE_SEAL = (\d+), MPY_RUN_SEAL = (\d+)", text).groups())
    )
    for name, value in re.findall(r"MPY_(RUN_[A-Z]+) = (\d+)[, ]", text):
        assert getattr(image, name) == int(value)
    kinds = re.search(r"enum \{ MPY_SECTION_REGIONS = 1, (.*?), MPY_SECTIONS_MAX = 16 \}", text)[1].split(", ")
    for number, name in enumerate(kinds, 2):
        assert getattr(image, name.removeprefix("MPY_")) == number


def test_crc_known_answers() -> None:
    assert image.crc32c(b"") == 0
    assert image.crc32c(b"123456789") == 0xE3069283
    assert image.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert image.crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("length", [1, 7, 8, 63, 4079, 4080, 4081, 4096, 12289, 100_003])
def test_crc_fast_equals_plain(length: int) -> None:
    library = image._library()
    data = random.Random(length).randbytes(length)
    fast = image.crc32c(data)
    assert fast == library.mpy_crc32c_plain(0, data, length)
    half = length // 3
    assert image.crc32c(data[half:], image.crc32c(data[:half])) == fast
    assert library.mpy_crc32c_join(image.crc32c(data[:half]), image.crc32c(data[half:]), length - half) == fast


def test_polyval_known_answer() -> None:
    """RFC 8452, appendix A."""
    hashed = image.Polyval(bytes.fromhex("25629347589242761d31f826ba4b757b"))
    hashed.update(bytes.fromhex("4f4f95668c83dfb6401762bb2d01a262d1a24ddd2721d006bbe45f20d3c9f362"))
    assert hashed.final().hex() == "f7a3b47b846119fae5b7866cf5e5b77e"


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 63, 64, 65, 4096, 10_007])
def test_polyval_fast_equals_plain(length: int) -> None:
    generator = random.Random(length)
    key, data = generator.randbytes(16), generator.randbytes(length)
    fast, plain, pieces = (image.Polyval(key) for _ in range(3))
    fast.update(data)
    plain.update(data, plain=True)
    for at in range(0, length, 1 + length // 7):
        pieces.update(data[at : at + 1 + length // 7])
    assert fast.final() == plain.final() == pieces.final()


def test_seals(good: Path, mapped: Path) -> None:
    """An attacker who corrects the checksums still doesn't have the secret."""
    image.verify(good, 1, 4, secret=bytes(32))
    with pytest.raises(ImageError, match="changed after its job had written it: its seal is wrong"):
        image.verify(good, 1, 4, secret=b"x" * 32)
    images.forge(good)
    image.verify(good, 1, 4)
    with pytest.raises(ImageError, match="changed after its job had written it"):
        image.verify(good, 1, 4, secret=bytes(32))


def test_image_of_another_user(good: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(good, 65533, 65533)
    with pytest.raises(ImageError, match=r"belongs to another user \(uid 65533\)"):
        image.verify(good)
    os.chown(good, 0, 0)
    good.chmod(0o620)
    with pytest.raises(ImageError, match="is writable by others"):
        image.verify(good)


def test_read(good: Path, mapped: Path) -> None:
    read = image.Image.open(good)
    assert (read.header.rank, read.header.size, read.header.host, read.header.program) == (
        1,
        4,
        "testhost",
        "/usr/bin/python3",
    )
    assert [r.permissions for r in read.regions] == ["rw-p", "r-xp"]
    assert read.regions[0].path is None and read.regions[1].path == str(mapped)
    assert read.bytes_of(image.RUN_DATA) == 8 * image.PAGE and read.bytes_of(image.RUN_FILE) == 4 * image.PAGE
    assert [(t.tid, t.name, t.mpi_slot) for t in read.threads] == [(1001, "main", 0), (2001, "worker", None)]
    assert image.read_header(good) == read.header


def test_good_image_passes_and_reports_progress(good: Path) -> None:
    done: list[int] = []
    image.verify(good, 1, 4, done.append)
    assert sum(done) == 12 * image.PAGE
    image.verify(good)


@pytest.mark.parametrize(
    ("rank", "size", "text"), [(2, 4, "image of rank 1, not of rank 2"), (1, 3, "of a job of 4 ranks, not of 3")]
)
def test_wrong_place(good: Path, rank: int, size: int, text: str) -> None:
    with pytest.raises(ImageError, match=text):
        image.verify(good, rank, size)


def test_missing(tmp_path: Path) -> None:
    for check in (image.verify, image.Image.open, image.read_header):
        with pytest.raises(ImageError, match="the image is missing"):
            check(tmp_path / "no.img")


def test_every_truncation_is_found(good: Path) -> None:
    whole = good.read_bytes()
    for length in (0, 1, 100, 4095, 4096, 5000, len(whole) // 2, len(whole) - 1):
        good.write_bytes(whole[:length])
        with pytest.raises(ImageError):
            image.verify(good)
        with pytest.raises(ImageError):
            image.Image.open(good)
    good.write_bytes(whole + b"x")
    with pytest.raises(ImageError, match="truncated or extended"):
        image.verify(good)


def test_bit_flips_are_found(good: Path) -> None:
    """A flipped bit is found anywhere except in the few bytes that align sections."""
    whole = good.read_bytes()
    header = image.HeaderStruct.from_buffer_copy(whole)
    inside = [range(image.PAGE)] + [range(s.offset, s.offset + s.bytes) for s in header.sections[: header.nsections]]
    inside += [range(r.offset, r.offset + r.bytes) for r in image.Image.open(good).runs if r.kind == image.RUN_DATA]
    assert sum(map(len, inside)) > len(whole) - 8 * header.nsections
    generator = random.Random(3)
    offsets = [generator.choice(part) for part in inside for _ in range(12)]
    for offset in offsets:
        images.flip(good, offset, generator.randrange(8))
        with pytest.raises(ImageError):
            image.verify(good)
        good.write_bytes(whole)
    image.verify(good)


def test_damage_names_the_place(good: Path) -> None:
    images.flip(good, image.PAGE + 17)
    with pytest.raises(ImageError, match=rf"{good}: damaged: \d+ bytes at 0x2000.* have checksum"):
        image.verify(good)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "image format 2, this manapy reads format 11"),
        ({"boundary_version": 1}, "boundary version 1"),
        ({"magic": b"NOIMAGE!"}, "not an image of manapy"),
        ({"file_bytes": 5}, "truncated or extended"),
        ({"nsections": 17}, "17 sections"),
        ({"nsections": 4}, "section 5 is missing"),
    ],
)
def test_headers_that_say_something_else(tmp_path: Path, change: dict[str, object], text: str) -> None:
    path = images.build(tmp_path / "x.img", change=change)
    with pytest.raises(ImageError, match=text):
        image.verify(path)


def test_sections_outside_the_file(tmp_path: Path) -> None:
    sections = (image.SectionStruct * image.SECTIONS_MAX)()
    for i in range(5):
        sections[i] = image.SectionStruct(kind=i + 1, offset=1 << 62, bytes=1 << 63, count=1)
    path = images.build(tmp_path / "x.img", change={"sections": sections})
    with pytest.raises(ImageError, match="outside the file"):
        image.verify(path)


def test_changed_mapped_file_is_found(good: Path, mapped: Path) -> None:
    images.flip(mapped, 5000)
    with pytest.raises(ImageError, match=rf"{mapped}, which the program has mapped, was changed since the checkpoint"):
        image.verify(good)
    mapped.unlink()
    with pytest.raises(ImageError, match=r"which the program has mapped, cannot be opened: No such file"):
        image.verify(good)


def test_header_fits_its_page() -> None:
    assert ctypes.sizeof(image.HeaderStruct) <= image.PAGE
