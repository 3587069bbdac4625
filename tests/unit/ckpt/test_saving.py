"""Checkpoints whose images are written beside the running ranks, with ranks played in this process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import FakeJob
from manapy.ckpt.store import job
from test_coordinator import Test, play, through_agents, times  # noqa: F401 (fixtures)


def play_background(directory: Path, test: Test, **settings: Any) -> None:
    play(directory, test, background=True, **settings)


async def saving(fake: FakeJob) -> asyncio.Task[str]:
    """A checkpoint that waits for the images of ranks 0 and 1; that of rank 2 is written."""
    for rank in fake.ranks[:2]:
        rank.slow = True
    request = asyncio.create_task(fake.checkpoint())
    await fake.until(lambda: fake.coordinator.report.waiting() == ["saving (1 of 3 written)"])
    for rank in fake.ranks:
        await rank.until("RESUME")
    return request


def persist(fake: FakeJob, *ranks: int) -> None:
    for rank in ranks:
        fake.ranks[rank].persist(fake.ranks[rank].captured)


def test_ranks_run_before_the_publication(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        request = await saving(fake)
        status = await fake.status()
        assert status["phase"] == "saving" and [rank["state"] for rank in status["ranks"]] == ["running"] * 3
        assert fake.ranks[0].kinds() == ["CHECK", "INTENT", "TARGETS", "FREEZE", "STOP", "DRAIN", "CAPTURE", "RESUME"]
        assert not fake.published()
        persist(fake, 0, 1)
        answer = await request
        assert answer.startswith(f"RESULT ok {fake.dir}/ckpt-000001 the job was paused for ")
        assert fake.published() == ["ckpt-000001"] and not fake.temporary()
        assert "written while" not in answer

    play_background(tmp_path, test)


def test_says_why_a_rank_stood(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[1].why_not = "too little memory"
        assert (await fake.checkpoint()).endswith(" (written while the job was paused: too little memory)")

    play_background(tmp_path, test)


def test_next_request_waits(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        first = await saving(fake)
        second = asyncio.create_task(fake.checkpoint())
        await fake.until(lambda: fake.coordinator.requests.next is not None)
        assert fake.ranks[0].kinds().count("CHECK") == 1
        persist(fake, 0, 1)
        assert "ckpt-000001" in await first
        for rank in fake.ranks[:2]:
            await rank.until("RESUME", 2)
            await fake.until(lambda rank=rank: rank.captured)
        persist(fake, 0, 1)
        assert "ckpt-000002" in await second

    play_background(tmp_path, test)


def test_exit_is_written_while_the_job_stands(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        assert await fake.checkpoint("exit") == f"RESULT ok {fake.dir}/ckpt-000001"
        assert "WRITE" in fake.ranks[0].kinds() and "CAPTURE" not in fake.ranks[0].kinds()

    play_background(tmp_path, test)


def test_failure_leaves_the_last_one(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        await fake.checkpoint()
        request = await saving(fake)
        fake.ranks[1].send("FAILED 2 No%20space%20left%20on%20device")
        assert await request == "RESULT failed rank 1: No space left on device"
        for rank in fake.ranks:
            await rank.until("ABORT")
            rank.slow = False
        assert os.readlink(fake.dir / "latest") == "ckpt-000001" and not fake.temporary()
        assert "ckpt-000002" in await fake.checkpoint()

    play_background(tmp_path, test)


@pytest.mark.parametrize("kind", ["CAPTURE", "RESUME"])
def test_failed_capture(tmp_path: Path, kind: str) -> None:
    async def test(fake: FakeJob) -> None:
        fake.ranks[1].act[kind] = "FAILED {epoch} no%20memory"
        assert await fake.checkpoint() == "RESULT failed rank 1: no memory"
        await fake.ranks[0].until("ABORT")
        assert not fake.temporary() and not fake.published()

    play_background(tmp_path, test)


@pytest.mark.parametrize("rank", [1, 2])
def test_rank_dies_while_images_are_written(tmp_path: Path, rank: int) -> None:
    """Also if its own image is complete."""

    async def test(fake: FakeJob) -> None:
        request = await saving(fake)
        fake.ranks[rank].die()
        assert (await request).startswith(f"RESULT died rank {rank} ")
        assert not fake.temporary() and not fake.published()
        await fake.task
        assert job.read(fake.dir).state == "failed"

    play_background(tmp_path, test)


def test_ranks_finish_while_images_are_written(tmp_path: Path) -> None:
    """Their processes wait for their images, and the checkpoint is published."""

    async def test(fake: FakeJob) -> None:
        request = await saving(fake)
        for rank in fake.ranks:
            rank.send("DONE 0")
        await fake.until(lambda: fake.coordinator.flow.controller.finishing)
        persist(fake, 0, 1)
        for rank in fake.ranks:
            rank.writer.close()
        assert (await request).startswith(f"RESULT ok {fake.dir}/ckpt-000001 ")
        await fake.task
        assert job.read(fake.dir).state == "done" and fake.published() == ["ckpt-000001"]

    play_background(tmp_path, test)


def test_rank_ends_without_its_image(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        request = await saving(fake)
        fake.ranks[0].finish()
        assert (await request).endswith("rank 0 has ended before its image was complete")
        assert not fake.temporary()
        await fake.end()

    play_background(tmp_path, test)
