"""Agents of nodes that are lost: orders to them fail at once, those of before and those that come later."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from fake_jobs import PATIENCE, FakeJob, fake_job
from manapy.core.errors import CheckpointError

HOST, LOST = "there", "host there: its node is lost"


class _Agent:
    """It keeps the lines that it gets, and answers none."""

    def __init__(self, fake: FakeJob) -> None:
        self.told: list[str] = []
        fake.coordinator.storage.agents.on_agent(HOST, self)

    def tell(self, line: str) -> None:
        self.told.append(line)


def test_orders_to_a_lost_agent(tmp_path: Path) -> None:
    """A checkpoint would wait for the second one for ever, and the job's end for the checkpoint."""

    async def run() -> None:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(PATIENCE):
            storage, lost = fake.coordinator.storage, _Agent(fake)
            before = asyncio.ensure_future(storage.order(HOST, "offer"))
            await fake.until(lambda: lost.told)
            storage.on_agent_lost(lost)
            for order in (before, storage.order(HOST, "offer")):
                with pytest.raises(CheckpointError, match=LOST):
                    await order
            assert len(lost.told) == 1
            another = _Agent(fake)
            after = asyncio.ensure_future(storage.order(HOST, "offer"))
            await fake.until(lambda: another.told)
            storage.on_line(another, f"STORED {another.told[0].split(' ')[1]} ok place")
            assert await after == ["place"]

    asyncio.run(run())


def test_a_lost_node_serves_nobody(tmp_path: Path) -> None:
    """The RDMA agent is asked for after the loss."""

    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(PATIENCE):
            (node,) = fake.coordinator._connections._nodes
            node.host = HOST
            fake.coordinator.storage.agents.on_agent(HOST, node)
            fake.leaders[0].socket.shutdown(socket.SHUT_RDWR)
            await fake.until(lambda: not fake.coordinator._connections._nodes)
            assert await fake.command(f"SERVE {HOST}") == ["RESULT failed its node is lost"]

    asyncio.run(run())
