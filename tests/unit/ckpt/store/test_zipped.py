"""Compressed images: what the writer makes of memory is loaded as it was, and all damage is found before a frame is
expanded. The writer and the loader are the real ones (drivers/zipped.c)."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import mmap
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import compiling
import images
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manapy.ckpt.store import image
from manapy.core.errors import ImageError
from rounds import rounds
from waiting import until

DRIVERS = Path(__file__).parent.parent / "drivers"
SECRET = bytes(range(32))
FRAME = 1 << 20  # MPY_FRAME_MAX
KINDS = {  # of pages
    "zero": lambda _: bytes(image.PAGE),
    "random": lambda generator: generator.randbytes(image.PAGE),
    "text": lambda generator: generator.randbytes(16) * (image.PAGE // 16),
    "mixed": lambda generator: generator.randbytes(2048) + bytes(2048),
}
# kinds of pages, and how many of each follow each other
SEGMENTS = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 400)), min_size=1, max_size=8)


class Memory:
    """Pages of this process that an image can hold."""

    def __init__(self, content: bytes) -> None:
        self.map = mmap.mmap(-1, len(content), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.content = content
        self.map[:] = content
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    @classmethod
    def of(cls, segments: Sequence[tuple[str, int]], seed: int = 1) -> Memory:
        generator = random.Random(seed)
        return cls(b"".join(KINDS[kind](generator) for kind, count in segments for _ in range(count)))


class Driver:
    """drivers/zipped.c"""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.pays.argtypes = [ctypes.c_double, ctypes.c_char_p]

    def write(self, path: Path, memory: Memory, compress: str = "on", threads: int = 1) -> image.Image:
        """The image of this memory. threads: how many compress."""
        self.library.write_image(
            bytes(path),
            ctypes.c_uint64(memory.address),
            ctypes.c_uint64(len(memory.content)),
            compress.encode(),
            threads,
            SECRET,
        )
        return image.Image.open(path)

    def load(self, path: Path, address: int, size: int, secret: bytes = SECRET) -> bytes:
        """The memory that the image is of. Raises ImageError as a restart fails."""
        memory, error = Memory(bytes(size)), ctypes.create_string_buffer(2048)
        if self.library.load_image(
            bytes(path),
            ctypes.c_uint64(address),
            ctypes.c_void_p(memory.address),
            secret,
            error,
            ctypes.c_size_t(2048),
        ):
            raise ImageError(error.value.decode())
        return memory.map[:]


@pytest.fixture(scope="module")
def sources(root: Path) -> list[Path]:
    """Of the driver, and of what it uses."""
    lower = root / "lowerhalf"
    return [
        DRIVERS / "zipped.c",
        lower / "image" / "pages.c",
        *sorted((lower / "image" / "dirty").glob("*.c")),
        lower / "isolate" / "fdguard.c",
        *sorted((lower / "image" / "file").glob("*.c")),
        *sorted((lower / "image" / "write").glob("*.c")),
        *(lower / "base" / name for name in ("sha256.c", "zstd.c")),
    ]


@pytest.fixture(scope="module")
def driver(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Driver:
    library = tmp_path_factory.mktemp("driver") / "zipped.so"
    return Driver(compiling.build_core(library, sources, *compiling.SHARED, "-fno-stack-protector", "-Wl,-z,now"))


@pytest.fixture(scope="module")
def zstd() -> Callable[[bytes], bytes]:
    """The frame of some bytes, from the library itself."""
    if not (name := ctypes.util.find_library("zstd")):
        pytest.skip("needs libzstd (apt install libzstd1)")
    library = ctypes.CDLL(name)
    library.ZSTD_compress.restype = ctypes.c_size_t

    def compress(data: bytes) -> bytes:
        frame = ctypes.create_string_buffer(len(data) + 1024)
        sizes = map(ctypes.c_size_t, (len(frame), len(data)))
        length = library.ZSTD_compress(frame, next(sizes), data, next(sizes), 3)
        return frame.raw[:length]

    return compress


@pytest.fixture
def memory() -> Memory:
    return Memory.of([("text", 300), ("zero", 1), ("random", 20), ("zero", 5), ("mixed", 3), ("text", 300)])


@pytest.mark.parametrize("how", ["as it was", "replaced"])
def test_mapped_file(driver: Driver, tmp_path: Path, how: str) -> None:
    """An image has only the checksum of a mapped file. If another file has its name by then, the image is not written:
    a restart would map that one."""
    file, other = tmp_path / "library", tmp_path / "other"
    file.write_bytes(bytes(range(256)) * 64)
    other.write_bytes(file.read_bytes())
    what = ctypes.create_string_buffer(512)
    code = driver.library.write_mapped(
        bytes(tmp_path / "image"),
        bytes(file),
        bytes(other) if how == "replaced" else None,
        SECRET,
        what,
        ctypes.c_size_t(512),
    )
    expected = {"as it was": (0, ""), "replaced": (errno.ESTALE, str(file))}
    assert (code, what.value.decode()) == expected[how]


@settings(max_examples=rounds(30, 300))  # each one waits for the disk
@given(segments=SEGMENTS, compress=st.sampled_from(["on", "auto", "off"]), seed=st.integers(0, 9))
def test_round_trip(
    driver: Driver,
    zstd: object,
    tmp_path_factory: pytest.TempPathFactory,
    segments: list[tuple[str, int]],
    compress: str,
    seed: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.img"
    memory = Memory.of(segments, seed)
    written = driver.write(path, memory, compress)
    image.verify(path, 0, 1, secret=SECRET)
    assert driver.load(path, memory.address, len(memory.content)) == memory.content
    nonzero = sum(count for kind, count in segments if kind != "zero") * image.PAGE
    assert written.header.memory_bytes == sum(run.bytes for run in written.runs) == nonzero
    assert sum(run.stored for run in written.runs) < written.header.file_bytes
    if compress == "off":
        assert written.bytes_of(image.RUN_DATA) == nonzero
    if compress == "on" and not any(kind == "random" for kind, _ in segments):
        assert written.bytes_of(image.RUN_ZIPPED) == nonzero  # these pages shrink to half or less
        assert sum(run.stored for run in written.runs) <= 0.6 * nonzero


@settings(max_examples=rounds(20, 300), deadline=None)
@given(segments=SEGMENTS, threads=st.integers(2, 9), seed=st.integers(0, 9))
def test_threads_change_nothing(
    driver: Driver,
    zstd: object,
    tmp_path_factory: pytest.TempPathFactory,
    segments: list[tuple[str, int]],
    threads: int,
    seed: int,
) -> None:
    """The same frames at the same places, however many threads have made them. No thread is left."""
    memory, found = Memory.of([*segments, ("text", 1500), ("random", 300), ("text", 1500)], seed), []
    before = set(os.listdir("/proc/self/task"))
    for name, some in (("one", 1), ("several", threads)):
        path = tmp_path_factory.getbasetemp() / f"{name}.img"
        written = driver.write(path, memory, threads=some)
        found.append([(run.address, run.bytes, run.stored, run.offset, run.crc) for run in written.runs])
        assert driver.load(path, memory.address, len(memory.content)) == memory.content
    assert found[0] == found[1]
    until(lambda: set(os.listdir("/proc/self/task")) <= before, "the end of the threads")


def test_size_of_the_crew(driver: Driver, zstd: object) -> None:
    assert [driver.library.helpers(threads) for threads in (0, 1, 4, 99)] == [0, 0, 3, 7]


def test_frames(driver: Driver, zstd: object, memory: Memory, tmp_path: Path) -> None:
    """A long run becomes several frames, not aligned; plain data is."""
    runs = driver.write(tmp_path / "x.img", memory).runs
    assert {run.kind for run in runs} == {image.RUN_DATA, image.RUN_ZIPPED}
    for run in runs:
        assert run.stored == run.bytes if run.kind == image.RUN_DATA else run.stored < run.bytes <= FRAME
    assert all(run.offset % image.PAGE == 0 for run in runs if run.kind == image.RUN_DATA)
    assert any(run.offset % image.PAGE for run in runs if run.kind == image.RUN_ZIPPED)


@pytest.mark.parametrize(("library", "last"), [("there", ["expanding some"]), ("hidden", [])])
def test_writing_calls_no_malloc(
    sources: list[Path], zstd: object, tmp_path: Path, library: str, last: list[str]
) -> None:
    """It may be a forked process that writes. Nor does that one look again for a library that is missing."""
    program = compiling.build_core(tmp_path / "frugal", [DRIVERS / "frugal.c", *sources], "-fno-stack-protector")
    done = subprocess.run([program, tmp_path / "x.img", library], capture_output=True, text=True)
    assert (done.stdout.splitlines(), done.stderr) == (["on 0", "auto 0", "off 0", *last], "")


def test_random_data_costs_few_tries(driver: Driver, zstd: object) -> None:
    frames = 1000
    assert 0 < driver.library.tried_frames(frames, random.Random(2).randbytes(FRAME)) < 0.03 * frames


def test_auto_compresses_only_for_a_slow_disk(driver: Driver, zstd: object) -> None:
    """This frame saves 500 s, or half a nanosecond."""
    noise = b"".join(random.Random(3).randbytes(512) + bytes(512) for _ in range(FRAME // 1024))
    assert driver.library.pays(1e6, noise) and not driver.library.pays(1e-6, noise)


def test_auto_measures_the_disk_first(driver: Driver, zstd: object, memory: Memory, tmp_path: Path) -> None:
    """The first frame shrinks, so it and what follows, 8 MiB in all, is written as it is. Then a frame is tried, and
    its result is used in any case."""
    assert driver.write(tmp_path / "x.img", memory, "auto").bytes_of(image.RUN_ZIPPED) == 0
    large = Memory.of([("text", 1000), ("zero", 1), ("text", 2000)])
    written = driver.write(tmp_path / "y.img", large, "auto")
    sizes = [(run.kind, run.bytes // image.PAGE) for run in written.runs[:7]]
    most = image.RUN_MAX // image.PAGE
    raw = [256, most, 744 - most, most, most, 1048 - 2 * most]
    assert sizes == [*((image.RUN_DATA, pages) for pages in raw), (image.RUN_ZIPPED, 256)]
    assert driver.load(tmp_path / "y.img", large.address, len(large.content)) == large.content


def test_random_data_does_not_wait_for_the_disk(driver: Driver, zstd: object) -> None:
    assert not driver.library.measures(random.Random(5).randbytes(FRAME))
    assert driver.library.measures(bytes(range(256)) * (FRAME // 256))


def test_every_flipped_bit_is_found(driver: Driver, zstd: object, memory: Memory, tmp_path: Path) -> None:
    """Of the data of all runs, and of what describes them."""
    path = tmp_path / "x.img"
    written = driver.write(path, memory)
    header = image.HeaderStruct.from_buffer_copy(path.read_bytes())
    places = [(run.offset, run.stored) for run in written.runs]
    places += [(section.offset, section.bytes) for section in header.sections if section.bytes]
    generator = random.Random(4)
    for offset, length in places:
        for at in {0, length - 1, *(generator.randrange(length) for _ in range(20))}:
            bit = generator.randrange(8)
            images.flip(path, offset + at, bit)
            for check in (lambda: image.verify(path), lambda: driver.load(path, memory.address, len(memory.content))):
                with pytest.raises(ImageError, match="damaged: "):
                    check()
            images.flip(path, offset + at, bit)
    assert driver.load(path, memory.address, len(memory.content)) == memory.content


def test_truncated(driver: Driver, zstd: object, memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "x.img"
    driver.write(path, memory)
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, image.PAGE + 5, image.PAGE, 100):
        path.write_bytes(whole[:length])
        for check in (lambda: image.verify(path), lambda: driver.load(path, memory.address, len(memory.content))):
            with pytest.raises(ImageError, match="truncated"):
                check()


def built(path: Path, frame: Callable[[bytes], bytes]) -> Path:
    """An image whose runs of 16 KiB have these frames, with right checksums and seals."""
    return images.build(path, secret=SECRET, frame=frame)


def test_image_of_another_writer(driver: Driver, zstd: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = built(tmp_path / "x.img", zstd)
    image.verify(path, 0, 1, secret=SECRET)
    page = random.Random(1).randbytes(64) * (image.PAGE // 64)
    assert driver.load(path, images.ARENA, 16 * image.PAGE) == 2 * (4 * page + 4 * bytes(image.PAGE))[: 8 * image.PAGE]


@pytest.mark.parametrize("change", [-image.PAGE, -1, 1, image.PAGE])
def test_frame_of_another_length(driver: Driver, zstd: Callable[[bytes], bytes], tmp_path: Path, change: int) -> None:
    """The job has written it, so checksum and seal are right. The memory behind the run stays as it was."""
    path = built(tmp_path / "x.img", lambda part: zstd((part + part)[: len(part) + change]))
    image.verify(path, 0, 1, secret=SECRET)
    with pytest.raises(ImageError, match="damaged: the frame at byte 4096 of the file does not contain 16384 bytes"):
        driver.load(path, images.ARENA, 16 * image.PAGE)


@pytest.mark.parametrize("frame", [lambda part: b"no frame", lambda part: part[:64]])
def test_no_frame(driver: Driver, tmp_path: Path, frame: Callable[[bytes], bytes]) -> None:
    path = built(tmp_path / "x.img", frame)
    with pytest.raises(ImageError, match="damaged: the frame at byte 4096"):
        driver.load(path, images.ARENA, 16 * image.PAGE)


@pytest.mark.parametrize("frame", [lambda part: b"", lambda part: part, lambda part: part + part])
def test_frames_that_do_not_shrink(tmp_path: Path, frame: Callable[[bytes], bytes]) -> None:
    path = built(tmp_path / "x.img", frame)
    with pytest.raises(ImageError, match="damaged: run 0 has unknown kind 3, or a wrong length or place"):
        image.verify(path)


@pytest.mark.parametrize("field", ["kind", "address", "bytes", "stored"])
def test_the_seal_covers(field: str) -> None:
    """A run in which one of these fields was changed does not have the seal of the run."""
    library = image._library()
    run = image.RunStruct(kind=image.RUN_ZIPPED, address=images.ARENA, bytes=8192, stored=100)
    other = image.RunStruct.from_buffer_copy(run)
    setattr(other, field, getattr(other, field) + 1)
    keys = ctypes.create_string_buffer(1024)
    library.mpy_image_keys(keys, SECRET)
    seals = []
    for which in (run, other):
        seal = ctypes.create_string_buffer(image.RUN_SEAL)
        library.mpy_image_seal_run(keys, ctypes.byref(which), ctypes.byref(image.Polyval(bytes(16))), seal)
        seals.append(seal.raw)
    assert seals[0] != seals[1]
