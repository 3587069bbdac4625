"""Folding: full images take the place of incremental ones, and whoever names those finds the same memory."""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import itertools
import os
import resource
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import images
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manapy.ckpt.coordinator.increments import Increments
from manapy.ckpt.coordinator.levels.fold import Fold
from manapy.ckpt.store import fold, image, publish, verify
from manapy.core.errors import CheckpointError, ImageError, ManapyError
from rounds import rounds
from test_chain_images import BORDER, PAGES, SECRET, Memory, check, content, load, write

RANKS = 2


@pytest.fixture
def chain(tmp_path: Path) -> list[tuple[Path, Memory]]:
    """Three images: the first has all pages but one, each other one changes some."""
    memory, found = [*range(1, PAGES), 0], []
    for number, changed in enumerate(([], [0, 5, 6], [6, 7, PAGES - 1])):
        memory = [100 * number + n if n in changed else memory[n] for n in range(PAGES)]
        found.append((write(tmp_path / f"{number}.img", memory, found[-1] if found else None), memory))
    return found


def replace(path: Path) -> image.Header:
    """Fold an image in place. Returns its header."""
    new = path.with_suffix(".new")
    image.fold(path, new, SECRET)
    os.replace(new, path)
    return image.read_header(path)


def test_folded_image_needs_no_parent(chain: list[tuple[Path, Memory]]) -> None:
    path, memory = chain[-1]
    before = image.Image.open(path)
    header = replace(path)
    for older, _ in chain[:-1]:
        older.unlink()
    after = image.Image.open(path)
    assert not header.parent and not after.kept and load(path) == content(memory)
    assert header.identity == before.header.identity == (before.header.seal, before.header.crc)
    assert header.seal != before.header.seal and header.memory_bytes == before.header.memory_bytes
    rest = set(before.sections) - {image.SECTION_RUNS, image.SECTION_KEPT}
    assert {kind: after.sections[kind] for kind in rest} == {kind: before.sections[kind] for kind in rest}
    assert os.stat(path).st_mode & 0o777 == 0o600
    check(path)


def test_consecutive_pages_of_a_region_become_one_run(chain: list[tuple[Path, Memory]]) -> None:
    for (path, _), last in zip(chain[1:], (PAGES - 1, PAGES), strict=True):
        replace(path)
        assert [run.bytes // image.PAGE for run in image.Image.open(path).runs] == [BORDER, last - BORDER]


def test_children_find_the_folded_image(chain: list[tuple[Path, Memory]]) -> None:
    (base, _), (middle, _), (newest, memory) = chain
    replace(middle)
    base.unlink()
    assert [path for path, _ in image.read_chain(newest)] == [newest, middle] and load(newest) == content(memory)
    check(newest)


def test_another_image_with_a_stolen_identity_is_refused(chain: list[tuple[Path, Memory]]) -> None:
    """Only the job can give an image the identity of another one."""
    middle, newest = chain[1][0], chain[2][0]
    wanted = image.read_header(middle)
    images.build_memory(
        middle,
        PAGES,
        [(0, bytes([7]) * PAGES * image.PAGE)],
        secret=bytes(32),
        change={"folded_crc": wanted.crc, "folded_seal": (ctypes.c_uint8 * 32)(*bytes.fromhex(wanted.seal))},
    )
    assert image.read_header(middle).identity == (wanted.seal, wanted.crc)
    with pytest.raises(ImageError, match=f"^{middle}: changed after its job had written it"):
        load(newest)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_damage_of_a_link_is_named_and_nothing_is_left(chain: list[tuple[Path, Memory]], which: int) -> None:
    damaged = chain[which][0]
    images.flip(damaged, image.Image.open(damaged).runs[0].offset)
    into = damaged.with_name("new.img")
    with pytest.raises(ImageError, match=f"^{damaged}: damaged: "):
        image.fold(chain[-1][0], into, SECRET)
    assert not into.exists()


def test_mapped_files_stay_files(tmp_path: Path) -> None:
    mapped = tmp_path / "library"
    mapped.write_bytes(b"code" * 5000)
    base = images.build_memory(tmp_path / "0.img", 4, [(0, content([1, 2]))], mapped=mapped, secret=SECRET)
    newest = images.build_memory(
        tmp_path / "1.img", 4, [(1, content([3]))], [(0, 1)], base, mapped=mapped, secret=SECRET
    )
    replace(newest)
    assert [run.kind for run in image.Image.open(newest).runs] == [image.RUN_DATA, image.RUN_FILE]
    check(newest)


def test_compressed_images_stay_compressed(tmp_path: Path) -> None:
    """A frame of which all is wanted is copied; the rest of another one is compressed anew."""
    zstd = ctypes.util.find_library("zstd")
    if zstd is None:
        pytest.skip("no libzstd")
    library = ctypes.CDLL(zstd)

    def frame(data: bytes) -> bytes:
        room = ctypes.create_string_buffer(len(data))
        length = library.ZSTD_compress(room, len(data), data, len(data), 1)
        assert 0 < length < len(data)
        return room.raw[:length]

    first, second = content([5] * 8), content([6] * 8)
    base = images.build_memory(tmp_path / "0.img", 32, [(0, first), (16, second)], secret=SECRET, frame=frame)
    newest = images.build_memory(
        tmp_path / "1.img", 32, [(2, content([9, 9]))], [(0, 2), (4, 4), (16, 8)], base, secret=SECRET, frame=frame
    )
    replace(newest)
    runs = image.Image.open(newest).runs
    assert [(r.address - images.ARENA) // image.PAGE for r in runs] == [0, 2, 4, 16]
    assert {run.kind for run in runs} == {image.RUN_ZIPPED}
    assert runs[-1].crc == image.Image.open(base).runs[-1].crc
    base.unlink()
    found = image.load(newest, images.ARENA, 32 * image.PAGE, SECRET)
    assert found == content([5, 5, 9, 9, 5, 5, 5, 5, *[0] * 8, *[6] * 8, *[0] * 8])


def test_full_disk(chain: list[tuple[Path, Memory]]) -> None:
    """The file may not become as long as it must."""
    path = chain[-1][0]
    code = f"""
import resource, signal
from pathlib import Path
from manapy.ckpt.store import image
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8 * {image.PAGE}, resource.RLIM_INFINITY))
image.fold(Path({str(path)!r}), Path({str(path)!r} + ".new"), {SECRET!r})
"""
    assert resource.RLIM_INFINITY == -1
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(f"{path}.new: cannot write the image: File too large")
    assert not path.with_name(f"{path.name}.new").exists() and load(path) == content(chain[-1][1])


# ---- whole checkpoints


class History:
    """The checkpoints of a job, and what memory each rank had."""

    def __init__(self, directory: Path) -> None:
        self.job = directory / "job"
        self.job.mkdir(mode=0o700)
        (self.job / "job.json").write_text("{}")
        (self.job / "secret").write_bytes(SECRET)
        (self.job / "secret").chmod(0o600)
        self.memory: list[Memory] = [[1] * PAGES for _ in range(RANKS)]
        self.taken: dict[str, list[Memory]] = {}
        self.damaged: set[Path] = set()

    def checkpoint(self, full: bool) -> None:
        last = publish.latest(self.job)
        temporary, entries = publish.begin(self.job), []
        for rank, memory in enumerate(self.memory):
            name = f"rank-{rank:05d}.img"
            before = None if full or last is None else (last / name, self.taken[last.name][rank])
            try:
                written = write(temporary / name, memory, before, rank, RANKS)
            except ImageError:  # of a parent's header, which a real rank remembers
                written = write(temporary / name, memory, None, rank, RANKS)
            h = image.read_header(written)
            kept = h.memory_bytes if h.parent else 0
            entries.append(publish.Entry(rank, name, h.memory_bytes, h.file_bytes, h.crc, 0.1, "h", h.seal, kept))
        parent = {"parent": last.name} if last and any(entry.kept for entry in entries) else {}
        path = publish.commit(temporary, {"argv": [], "manapy": "0", **parent}, entries, SECRET)
        self.taken[path.name] = [list(memory) for memory in self.memory]

    def fold(self, path: Path, ranks: int) -> None:
        """Fold the images of so many ranks, and note that if it was done for all."""
        temporary = self.job / "tmp-fold"
        try:
            temporary.mkdir(exist_ok=True)
            for rank in range(ranks):
                image_path = path / f"rank-{rank:05d}.img"
                fold._one(image_path, temporary / image_path.name, SECRET)
            if ranks == RANKS:
                publish.note_folded(path, {p.name: p.stat().st_size for p in path.glob("*.img")}, SECRET)
        except ImageError as error:
            self.blames_damage(error)

    def damage(self, path: Path, offset: float) -> None:
        images.flip(path, int(offset * (path.stat().st_size - 1)))
        self.damaged.add(path)

    def restart(self, path: Path) -> None:
        """Each rank gets its memory, or an error names a damaged image."""
        for rank, memory in enumerate(self.taken[path.name]):
            try:
                image.verify(path / f"rank-{rank:05d}.img", rank, RANKS, secret=SECRET)
                assert load(path / f"rank-{rank:05d}.img") == content(memory)
            except ImageError as error:
                self.blames_damage(error)
        problems = verify.headers(path, publish.read_manifest(path))[1]
        assert not problems or self.damaged

    def blames_damage(self, error: ManapyError) -> None:
        assert any(str(error).startswith(f"{path}: ") for path in self.damaged), error

    def all(self) -> list[Path]:
        return [path for _, path in publish.numbered(self.job)]


events = st.one_of(
    st.tuples(
        st.just("write"), st.integers(0, RANKS - 1), st.dictionaries(st.integers(0, PAGES - 1), st.integers(0, 3))
    ),
    st.tuples(st.just("checkpoint"), st.sampled_from([False, False, False, True])),
    st.tuples(st.just("fold"), st.integers(0, 20), st.integers(0, RANKS)),
    st.tuples(st.just("fold"), st.just(0), st.just(RANKS)),
    st.tuples(st.just("prune"), st.integers(1, 3)),
    st.tuples(st.just("damage"), st.integers(0, 20), st.floats(0, 1)),
    st.tuples(st.just("restart"), st.integers(0, 20)),
)


@settings(max_examples=rounds(80, 2000), deadline=None)
@given(st.lists(events, min_size=4, max_size=24))
def test_any_history_gives_the_memory_of_the_chosen_moment(steps: list[tuple]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = History(Path(directory))
        history.checkpoint(True)
        for kind, *values in steps:
            there = history.all()[::-1]
            if kind == "write":
                for number, value in values[1].items():
                    history.memory[values[0]][number] = value
            elif kind == "checkpoint":
                history.checkpoint(values[0])
            elif kind == "fold":
                history.fold(there[values[0] % len(there)], values[1])
            elif kind == "prune":
                publish.prune(history.job, values[0])
            elif kind == "damage":
                files = sorted(itertools.chain(*(path.glob("*.img") for path in there)))
                history.damage(files[values[0] % len(files)], values[1])
            else:
                history.restart(there[values[0] % len(there)])
        for path in history.all():
            history.restart(path)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Three checkpoints, each of which needs the one before."""
    made = History(tmp_path)
    for number in range(3):
        made.memory[0][number] = 2
        made.checkpoint(False)
    return made


def test_checkpoint_is_folded(history: History) -> None:
    newest = history.all()[-1]
    temporary = history.job / "tmp-fold"
    before = publish.read_manifest(newest)
    assert [path.name for path in publish.chain(newest)] == ["ckpt-000003", "ckpt-000002", "ckpt-000001"]
    fold.folders(temporary, newest, ["."])
    assert publish.read_manifest(newest) == before and not temporary.exists()
    history.restart(newest)
    sizes = {path.name: path.stat().st_size for path in newest.glob("*.img")}
    publish.note_folded(newest, sizes, SECRET)
    after = publish.read_manifest(newest)
    assert publish.chain(newest) == [newest] and after.file_bytes == sum(sizes.values()) > before.file_bytes
    assert verify.headers(newest, after)[1] == [] and [entry.kept for entry in after.ranks] == [0, 0]
    assert [path.name for path in publish.prune(history.job, 1)] == ["ckpt-000001", "ckpt-000002"]
    history.restart(newest)
    history.checkpoint(False)
    assert publish.chain(history.all()[-1]) == history.all()[::-1]


class Hosts:
    """Plays the agents of two hosts that have nothing to fold. The second one begins first and finishes last."""

    def __init__(self) -> None:
        self.begun, self.finished = asyncio.Event(), asyncio.Event()

    async def order(self, host: str, verb: str, temporary: str, checkpoint: str, *names: str) -> list[str]:
        if host == "second":
            Path(temporary).mkdir()  # as its process does
            self.begun.set()
            await self.finished.wait()
            assert Path(temporary).is_dir(), "the other host has removed it"
        await self.begun.wait()
        fold.folders(Path(temporary), Path(checkpoint), names)
        self.finished.set()
        return []


def test_hosts_do_not_disturb_each_other(history: History) -> None:
    """The one that finishes first removes its own directory of new images, not that of the other one."""
    newest, ranks = history.all()[-1], []
    manifest = publish.read_manifest(newest)
    for entry, host in zip(manifest.ranks, ("first", "second"), strict=True):
        (newest / host).mkdir()
        ranks.append(entry._replace(image=f"{host}/{entry.image}", host=host))
    newest.with_name("tmp-fold").mkdir()
    folding = Fold(SECRET, Increments(), Hosts(), lambda: None, print)  # type: ignore[arg-type]
    asyncio.run(folding._on_hosts(newest, manifest._replace(ranks=ranks), "tmp-fold"))
    assert not list(newest.with_name("tmp-fold").iterdir())


def test_too_little_room(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = history.all()[-1]
    full = namedtuple("full", "f_bavail f_frsize")(1, 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(CheckpointError, match=r"rank-00000.img: to fold it may take .*, but only 4.1 kB are free"):
        fold.folders(history.job / "tmp-fold", newest, ["."])
    history.restart(newest)
