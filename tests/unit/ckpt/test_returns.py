"""Ranks that lose their connection and come back: after an exec, and late."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fake_jobs import FakeJob, FakeRank, fake_job

from manapy.ckpt import protocol
from manapy.ckpt.coordinator import ranks
from manapy.core import processes

NEVER = 1e6
SHORT = 0.2


def play(directory: Path, test: Callable[[FakeJob], Awaitable[None]]) -> None:
    async def run() -> None:
        async with fake_job(directory, agents=0) as fake:
            await test(fake)

    asyncio.run(run())


@pytest.fixture
def living() -> Iterator[int]:
    """The id of a process that lives."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


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


def test_a_program_that_takes_long_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, living: int) -> None:
    """Its process lives: the rank is not dead when it has been looked at a few times."""

    async def test(fake: FakeJob) -> None:
        lost = await connect_here(fake, living)
        await asyncio.sleep(10 * SHORT)
        assert not lost.gone and not fake.coordinator.ranks.killed
        assert (await fake.status())["ranks"][1]["state"] == "starting"
        await fake.ranks[1].connect(fake.dir)
        await fake.until(lambda: fake.coordinator.ranks.known[1] is not lost)
        assert "ok" in await fake.checkpoint()

    monkeypatch.setattr(ranks, "LOOK_SECONDS", SHORT)
    play(tmp_path, test)


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_program_that_ends_before_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, living: int, is_watched: bool
) -> None:
    async def test(fake: FakeJob) -> None:
        lost = await connect_here(fake, living)
        subprocess.run(["kill", "-KILL", str(living)], check=True)
        await fake.until(lambda: lost.gone)
        assert (await fake.status())["ranks"][1]["state"] == "died"
        assert protocol.decode_text(await fake.ranks[0].until("KILL")).endswith("rank 1 died")

    if not is_watched:
        monkeypatch.setattr(processes, "watch", lambda *_: None)
        monkeypatch.setattr(ranks, "LOOK_SECONDS", SHORT)
    else:
        monkeypatch.setattr(ranks, "LOOK_SECONDS", NEVER)
    monkeypatch.setattr(ranks, "EXEC_SECONDS", NEVER)
    play(tmp_path, test)


async def connect_here(fake: FakeJob, pid: int) -> ranks.Rank:
    """Rank 1 comes back as a process of this host, and loses its connection; what the coordinator knows of it."""
    known = fake.coordinator.ranks.known
    before = known[1]
    fake.ranks[1].die()
    await fake.until(lambda: not before.connected)
    fake.ranks[1].host, fake.ranks[1].pid = socket.gethostname(), pid
    await fake.ranks[1].connect(fake.dir)
    lost = await fake.until(lambda: known[1] if known[1] is not before else None)
    fake.ranks[1].die()
    await fake.until(lambda: not lost.connected)
    return lost
