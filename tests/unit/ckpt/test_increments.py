"""Which base the coordinator offers to the ranks for incremental images, and what it publishes."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_jobs import FakeJob
from manapy.ckpt import protocol
from manapy.ckpt.coordinator.increments import Increments
from manapy.ckpt.store import publish
from test_coordinator import play, through_agents, times  # noqa: F401 (fixtures)


def offered(fake: FakeJob) -> list[list[str]]:
    """The fields behind the directory of each WRITE or CAPTURE that rank 0 has got."""
    lines = [line.split(" ") for line in fake.ranks[0].seen if line.startswith(("WRITE ", "CAPTURE "))]
    return [[protocol.decode_text(field) for field in fields[3:]] for fields in lines]


def parents(fake: FakeJob) -> list[str]:
    return [publish.read_manifest(fake.dir / name).parent for name in fake.published()]


def keep(fake: FakeJob, kept: int = 4096) -> None:
    for rank in fake.ranks:
        rank.kept = kept


def test_off(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        for _ in range(2):
            await fake.checkpoint()
        assert offered(fake) == [[], []] and parents(fake) == ["", ""]
        assert (await fake.status())["dirty"] == ""

    play(tmp_path, test)


@pytest.mark.parametrize("background", [False, True])
def test_chain_has_a_limit(tmp_path: Path, background: bool) -> None:
    async def test(fake: FakeJob) -> None:
        for number in range(6):
            keep(fake, 4096 if number % 3 else 0)
            await fake.checkpoint()
        bases = ["", "../ckpt-000001", "../ckpt-000002", "", "../ckpt-000004", "../ckpt-000005"]
        assert [base for _, _, base in offered(fake)] == bases
        assert {way for way, _, _ in offered(fake)} == {"hash"}
        assert [bool(int(epoch)) for _, epoch, _ in offered(fake)] == [bool(base) for base in bases]
        assert parents(fake) == [base.removeprefix("../") for base in bases]
        assert (await fake.status())["dirty"] == "hash"

    play(tmp_path, test, background=background, dirty="hash", full_every=3)


def test_chain_is_no_larger_than_twice_its_beginning(tmp_path: Path) -> None:
    """Two images of 40 bytes are as large as one of 100, as far as can be foreseen: a third would be larger."""

    async def test(fake: FakeJob) -> None:
        for number in range(4):
            keep(fake, 4096 if number else 0)
            for rank in fake.ranks:
                rank.write, rank.size_if_kept = bytes(100), 40
            await fake.checkpoint()
        assert [base for _, _, base in offered(fake)] == ["", "../ckpt-000001", "../ckpt-000002", ""]

    play(tmp_path, test, dirty="hash", full_every=10)


def test_chain_that_does_not_pay(tmp_path: Path) -> None:
    """Changed pages are looked for again in the last of the full checkpoints."""

    async def test(fake: FakeJob) -> None:
        for number in range(8):
            keep(fake, 4096 if number in (1, 5) else 0)
            for rank in fake.ranks:
                rank.write, rank.size_if_kept = bytes(100), 51
            await fake.checkpoint()
        chain = [["hash", ""], ["hash", "../ckpt-000001"], [], [], ["hash", ""], ["hash", "../ckpt-000005"], [], []]
        assert [[*fields[:1], *fields[2:]] for fields in offered(fake)] == chain

    play(tmp_path, test, dirty="hash", full_every=3)


def test_failed_checkpoint_is_no_base(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        epoch = next(line for line in fake.ranks[0].seen if line.startswith("WRITE ")).split(" ")[1]
        keep(fake)
        fake.ranks[1].act["WRITE"] = "FAILED {epoch} full"
        assert "failed" in await fake.checkpoint()
        del fake.ranks[1].act["WRITE"]
        await fake.checkpoint()
        assert offered(fake)[1:] == [["hash", epoch, "../ckpt-000001"]] * 2
        assert parents(fake) == ["", "ckpt-000001"]

    play(tmp_path, test, dirty="hash", full_every=10)


def test_full_images_are_no_link(tmp_path: Path) -> None:
    """No rank has kept anything: the checkpoint needs no parent, and begins a chain."""

    async def test(fake: FakeJob) -> None:
        for _ in range(4):
            await fake.checkpoint()
        assert [base for _, _, base in offered(fake)] == ["", *(f"../ckpt-{n:06d}" for n in (1, 2, 3))]
        assert parents(fake) == [""] * 4

    play(tmp_path, test, dirty="hash", full_every=2)


def test_base_that_is_gone(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        (fake.dir / "ckpt-000001" / "manifest.json").unlink()
        await fake.checkpoint()
        assert [base for _, _, base in offered(fake)] == ["", ""]

    play(tmp_path, test, dirty="hash", full_every=10)


def test_base_in_another_place(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        keep(fake)
        for place in ("a", "a", "b"):
            (tmp_path / place).mkdir(exist_ok=True)
            fake.ranks[0].send(protocol.join("PLACE", str(tmp_path / place)))
            await fake.until(lambda place=place: place in str(fake.coordinator.flow.place.parent.name))
            await fake.checkpoint()
        assert [base for _, _, base in offered(fake)] == ["", "../ckpt-000001", ""]

    play(tmp_path, test, dirty="hash", full_every=10)


def test_folded_checkpoint_begins_the_chain(tmp_path: Path) -> None:
    chain = Increments("hash", 4)

    def take(number: int, incremental: bool) -> Path:
        path = tmp_path / f"ckpt-{number:06d}"
        path.mkdir()
        (path / "manifest.json").touch()
        chain.begin(tmp_path, [""])
        assert (chain.base is not None) or not incremental
        chain.published(path, number, [""], [], incremental)
        return path

    due = []
    for number, incremental in enumerate((False, True, True, True), 1):
        take(number, incremental)
        due.append(chain.due() is not None)
    assert due == [False, False, True, True]
    chain.begin(tmp_path, [""])
    assert chain.base is None  # the chain is as long as it may be
    chain.folded(tmp_path / "ckpt-000003")
    assert chain.due() is None
    fifth = take(5, True)
    assert chain.due() == fifth
    chain.folded(tmp_path / "ckpt-000002")  # it is no part of the chain any more
    assert chain.due() == fifth
