"""Ranks that lose their connection and come back: after an exec, and late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from fake_jobs import FakeJob, FakeRank, fake_job


def play(directory: Path, test: Callable[[FakeJob], Awaitable[None]]) -> None:
    async def run() -> None:
        async with fake_job(directory, agents=0) as fake:
            await test(fake)

    asyncio.run(run())


def test_a_child_holds_the_connection_of_before_the_exec(tmp_path: Path) -> None:
    """The old connection does not end. The checkpoint that was waiting for the old program asks the new one."""

    async def test(fake: FakeJob) -> None:
        before = fake.coordinator.ranks.known[1]
        fake.ranks[1].act["CHECK"] = "hold"
        command = await fake.ask("CHECKPOINT continue -1")
        await fake.ranks[1].until("CHECK")
        held, fake.ranks[1] = fake.ranks[1], await FakeRank(1, 3).connect(fake.dir)
        assert (await command.end())[-1] == f"RESULT ok {fake.dir}/ckpt-000001"
        await held.closed.wait()
        assert fake.coordinator.ranks.known[1] is not before
        assert await fake.checkpoint() == f"RESULT ok {fake.dir}/ckpt-000002"
        await fake.end()
        assert fake.coordinator.ranks.all_done and not fake.coordinator.ranks.killed

    play(tmp_path, test)


def test_another_process_does_not_take_the_place_of_a_connected_one(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        before = fake.coordinator.ranks.known[1]
        other = FakeRank(1, 3)
        other.pid += 1
        await other.connect(fake.dir)
        await other.closed.wait()
        assert fake.coordinator.ranks.known[1] is before and before.connected

    play(tmp_path, test)
