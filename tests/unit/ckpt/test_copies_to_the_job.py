"""What the coordinator of a job with --local says of the copies to the job directory."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_jobs import fake_job
from manapy import cli
from manapy.ckpt.coordinator.levels import storage
from manapy.ckpt.store import job, local, publish
from manapy.core.errors import CheckpointError


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator stores the images of the ranks, although they run on another host."""
    monkeypatch.setattr(storage, "socket", SimpleNamespace(gethostname=lambda: "elsewhere"))


def test_job_says_how_long_a_copy_takes(tmp_path: Path) -> None:
    """What ends the job must begin so much earlier. A restarted job knows it, too."""

    async def run() -> float:
        async with fake_job(tmp_path / "job", agents=0, local=tmp_path / "nvme") as fake:
            await fake.until(lambda: job.read(fake.dir).state == "running")
            assert job.read(fake.dir).record["flush_seconds"] is None
            assert "RESULT ok" in await fake.checkpoint()
            await fake.until(lambda: job.read(fake.dir).record["flush_seconds"] is not None)
            copied = float(job.read(fake.dir).record["flush_seconds"])
            assert publish.read_manifest(fake.dir / "ckpt-000001").levels.shared
            assert fake.coordinator._later_stop._took() == fake.coordinator.flow.took + copied
        return copied

    async def restarted(copied: float) -> None:
        resume = str(tmp_path / "job" / "ckpt-000001")
        async with fake_job(tmp_path / "job", agents=0, local=tmp_path / "nvme", resume=resume) as fake:
            assert job.read(fake.dir).record["flush_seconds"] == copied
            assert fake.coordinator._later_stop._took() == 0.1 + copied

    asyncio.run(restarted(asyncio.run(run())))


def test_copy_that_takes_longer_than_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes complete with --keep 1, too. After the next copy it is deleted."""
    begun, go_on, real, copied = threading.Event(), threading.Event(), local.perform, []

    def perform(verb: str, given: Sequence[str]) -> list[str]:
        if verb == "flush":
            begun.set()
            assert go_on.wait(60)
        found = real(verb, given)
        if verb == "flush":
            copied.append(Path(given[0]).name)
        return found

    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=0, local=tmp_path / "nvme", keep=1) as fake:
            assert "RESULT ok" in await fake.checkpoint()
            assert await asyncio.to_thread(begun.wait, 60)
            for _ in range(2):
                assert "RESULT ok" in await fake.checkpoint()
            await fake.until(lambda: fake.published() == ["ckpt-000001", "ckpt-000003"])
            go_on.set()
            await fake.until(lambda: fake.published() == ["ckpt-000003"])

    monkeypatch.setattr(local, "perform", perform)
    asyncio.run(run())
    assert copied == ["ckpt-000001", "ckpt-000003"]


@pytest.mark.parametrize("words", [["stop"], ["stop", "--next"], ["stop", "--json"], ["checkpoint", "--then", "exit"]])
def test_last_checkpoint_that_cannot_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It may be lost with the nodes, so whoever ends the job with it is told."""
    real = local.perform

    def perform(verb: str, given: Sequence[str]) -> list[str]:
        if verb == "flush":
            raise CheckpointError("No space left on device")
        return real(verb, given)

    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=0, local=tmp_path / "nvme") as fake:
            stopped = asyncio.ensure_future(asyncio.to_thread(cli.main, [words[0], str(fake.dir), *words[1:]]))
            if "--next" in words:
                await fake.until(lambda: fake.coordinator._later_stop.text)
                assert "RESULT ok" in await fake.checkpoint()
            assert await stopped == 1

    monkeypatch.setattr(local, "perform", perform)
    asyncio.run(run())
    printed = capsys.readouterr()
    path = tmp_path / "job" / "ckpt-000001"
    remark = f"{path} stays on local storage only: host elsewhere: No space left on device"
    if "--json" in words:
        assert json.loads(printed.out) == {"stopped": str(path.parent), "checkpoint": str(path), "remark": remark}
    else:
        assert printed.out == f"{path}\n" and remark in printed.err


def test_job_that_copies_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=0, local=tmp_path / "nvme", flush=-1.0) as fake:
            assert "RESULT ok" in await fake.checkpoint()
            assert "flush_seconds" not in job.read(fake.dir).record

    asyncio.run(run())
