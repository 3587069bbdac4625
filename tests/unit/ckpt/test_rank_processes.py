"""STATUS with the processes of the ranks: who is asked, who answers, and who does not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import FakeJob, fake_job
from manapy.ckpt import protocol

TREE = protocol.encode_text("100 17 0 S sh\n108 108 100 R a name: 50 %\x1c \r\n").replace(":", "%3a")
SHOWN = [
    {"pid": 100, "known_as": 17, "parent": None, "state": "S", "name": "sh"},
    {"pid": 108, "known_as": 108, "parent": 100, "state": "R", "name": "a name: 50 %\x1c \r"},
]
LONG = 60_000  # ms


async def processes(job: FakeJob, ms: int) -> list[Any]:
    (answer,) = await job.command(f"STATUS {ms}")
    return [rank["processes"] for rank in json.loads(answer.removeprefix("JSON "))["ranks"]]


@pytest.mark.parametrize("agents", [0, 1, 2])
def test_processes_of_ranks(tmp_path: Path, agents: int) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=agents) as job:
            for rank, tree in zip(job.ranks, (TREE, "%", TREE), strict=True):
                rank.act["TREE"] = f"TREE {{epoch}} {tree}"
            assert await processes(job, LONG) == [SHOWN, [], SHOWN]
            job.ranks[1].act["TREE"] = "hold"  # it is stopped
            assert await processes(job, 300) == [SHOWN, None, SHOWN]
            job.ranks[1].send(f"TREE 2 {TREE}")  # an answer that comes late
            job.ranks[1].act["TREE"] = "TREE {epoch} %"
            assert await processes(job, LONG) == [SHOWN, [], SHOWN]
            job.ranks[0].finish()
            await job.until(lambda: job.coordinator.ranks.known[0].done)
            assert await processes(job, LONG) == [None, [], SHOWN]

    asyncio.run(run())


def test_nobody_asks_without_need(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake") as job:
            assert "processes" not in (await job.status())["ranks"][0]
            assert all("TREE" not in rank.kinds() for rank in job.ranks)

    asyncio.run(run())
