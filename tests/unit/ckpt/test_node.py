"""The agent of a node: what differs from ranks that are connected directly (test_coordinator.py has the rest)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from fake_jobs import PATIENCE, FakeRank, fake_job, shake_hands
from manapy.ckpt import protocol
from manapy.ckpt.store import job


@pytest.mark.parametrize("kind", ["CHECK", "INTENT", "TARGETS", "FREEZE", "STOP", "DRAIN", "WRITE"])
def test_agent_lost(tmp_path: Path, kind: str) -> None:
    """The agent of a node ends during a checkpoint: the node is lost with its ranks, and the job ends."""

    async def run() -> None:
        async with fake_job(tmp_path / "job", agent=True) as fake, asyncio.timeout(2 * PATIENCE):
            fake.ranks[2].act[kind] = "hold"
            command = await fake.ask("CHECKPOINT continue -1")
            await fake.ranks[2].until(kind)
            fake.up.socket.shutdown(socket.SHUT_RDWR)
            why = f"host {socket.gethostname()} is lost, and ranks 1, 2 with it: its agent has ended"
            assert (await command.end())[-1] == f"RESULT died {why}"
            assert why in protocol.decode_text(await fake.ranks[0].until("KILL"))
            await fake.task
            assert job.read(fake.dir).state == "failed" and not fake.published() and not fake.temporary()

    asyncio.run(run())


def test_agent_says_that_the_coordinator_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "job", agent=True) as fake, asyncio.timeout(2 * PATIENCE):
            fake.task.cancel()
            for rank in fake.ranks[1:]:
                await rank.until("UNLED")
                await rank.closed.wait()
            assert "UNLED" not in fake.ranks[0].kinds()

    asyncio.run(run())


def test_a_rank_of_another_node(tmp_path: Path) -> None:
    """An agent speaks only for its own ranks: rank 0 is connected directly, and another one with its number is
    refused."""

    async def run() -> None:
        async with fake_job(tmp_path / "job", agent=True) as fake, asyncio.timeout(2 * PATIENCE):
            second = await FakeRank(0, 3).connect(fake.dir, fake.agent)
            second.send("DONE 3")
            await fake.checkpoint()  # the agent's lines before it have arrived
            assert not fake.coordinator.ranks.known[0].done
            second.die()
            assert "ok" in await fake.checkpoint()

    asyncio.run(run())


def test_strangers_at_the_agent(tmp_path: Path) -> None:
    """The agent serves only ranks that know the secret, and only their own lines go on."""

    async def run() -> None:
        async with fake_job(tmp_path / "job", agent=True) as fake, asyncio.timeout(2 * PATIENCE):
            for role, secret in (("rank", b"x" * 32), ("command", (fake.dir / "secret").read_bytes())):
                reader, writer = await asyncio.open_unix_connection(fake.agent)
                with pytest.raises(AssertionError):
                    await shake_hands(reader, writer, secret, role)
                writer.close()
            assert "ok" in await fake.checkpoint()

    asyncio.run(run())
