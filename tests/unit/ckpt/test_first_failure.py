"""Which failure is the first, if those on another host are known later than those on the coordinator's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import PATIENCE, FakeJob, FakeRank, fake_job, shake_hands

from manapy.ckpt import protocol
from manapy.ckpt.coordinator import ranks
from manapy.ckpt.coordinator.nodes import NodeChannel
from manapy.ckpt.peer_time import UNSURE, now
from manapy.ckpt.store import job

MINUTE, HOUR = 60_000_000, 3_600_000_000
Test = Callable[[FakeJob], Awaitable[None]]


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "EXEC_SECONDS", 0.2)


def play(directory: Path, test: Test, **settings: Any) -> dict[str, Any]:
    """What job.json says afterwards."""

    async def run() -> dict[str, Any]:
        async with fake_job(directory / "job", **settings) as fake, asyncio.timeout(2 * PATIENCE):
            await test(fake)
            await fake.task
            return job.read(fake.dir).record

    return asyncio.run(run())


class FakeAgent:
    """The agent of a host, whose clock differs by ``differs``. Rank 1 is behind it; rank 0 is connected directly."""

    def __init__(self, fake: FakeJob, differs: int) -> None:
        self.fake, self.differs = fake, differs

    async def start(self) -> FakeAgent:
        record = job.read(self.fake.dir)
        reader, self._writer = await asyncio.open_connection(record.host, record.port)
        self._seals = await shake_hands(reader, self._writer, record.secret(), "node")
        self.send(protocol.join("NODE", "there", 1))
        assert self._seals.open((await reader.readline())[:-1]) == b"DIRECT"
        self.say_time()
        self.send("LINES 1 " + protocol.join("HELLO", 1, 2, "there", 101, 0, ""))
        await self.fake.join(self.fake.ranks[0])
        await self.fake.until(lambda: 1 in self.fake.coordinator.ranks.known)
        return self

    def send(self, line: str) -> None:
        self._writer.write(self._seals.seal(line.encode()) + b"\n")

    def time(self) -> int:
        return now() + self.differs

    def say_time(self, delay: int = 0) -> None:
        self.send(f"TIME {self.time() - delay}")

    async def fails(self, end: str, noticed: int) -> None:
        """The end of rank 1 arrives, and so does that of its process."""
        self.send(f"LINES 1 {end} {noticed}")
        await self.fake.until(lambda: len(self.fake.coordinator.ranks._failures) == 2)
        self.send("LINES 1 LOST\t1 GONE")

    def part(self) -> None:
        self._writer.close()


async def dies(fake: FakeJob) -> None:
    """Rank 0 dies, and the coordinator knows it."""
    fake.ranks[0].die()
    await fake.until(lambda: not fake.coordinator.ranks.known[0].connected)


@pytest.mark.parametrize("differs", [-HOUR, 0, HOUR])
@pytest.mark.parametrize(("end", "code"), [("LOST", None), ("DONE 7", 7)])
def test_noticed_earlier_but_known_later(tmp_path: Path, differs: int, end: str, code: int | None) -> None:
    """Rank 1 fails, and mpirun kills rank 0. The message about rank 1 is delayed. So were some earlier ones."""

    async def test(fake: FakeJob) -> None:
        agent = await FakeAgent(fake, differs).start()
        agent.say_time(delay=HOUR)
        noticed = agent.time() - MINUTE
        agent.say_time(delay=HOUR)
        await dies(fake)
        await agent.fails(end, noticed)

    record = play(tmp_path, test, ranks=2, connect=False, agents=0)
    assert record["first_failure"] == {"rank": 1, "host": "there", "code": code} and record["lost_host"] == ""
    assert record["state"] == "failed" and record["changed"] - 2 * PATIENCE < record["failed_at"] < record["changed"]


@pytest.mark.parametrize("differs", [-HOUR, 0, HOUR])
def test_noticed_later(tmp_path: Path, differs: int) -> None:
    async def test(fake: FakeJob) -> None:
        agent = await FakeAgent(fake, differs).start()
        await dies(fake)
        await asyncio.sleep(0.05)
        await agent.fails("LOST", agent.time())

    record = play(tmp_path, test, ranks=2, connect=False, agents=0)
    assert record["first_failure"] == {"rank": 0, "host": "elsewhere", "code": None}


@pytest.mark.parametrize(("apart", "is_certain"), [(UNSURE // 5, False), (2 * UNSURE, True)])
def test_order_that_is_not_certain(
    tmp_path: Path, apart: int, is_certain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier one counts. The log names the other one."""

    async def test(fake: FakeJob) -> None:
        agent = await FakeAgent(fake, HOUR).start()
        await dies(fake)
        await agent.fails("LOST", agent.time())
        known = fake.coordinator.ranks
        known._failures[known.known[1]] = known._failures[known.known[0]]._replace(noticed=now() - apart)
        known._failures[known.known[0]] = known._failures[known.known[0]]._replace(noticed=now())

    record = play(tmp_path, test, ranks=2, connect=False, agents=0)
    assert record["first_failure"]["rank"] == 1
    assert ("but perhaps rank 0 on elsewhere failed before it" in caplog.text) != is_certain


@pytest.mark.parametrize("earlier", [True, False])
def test_a_rank_dies_and_its_host_is_lost(tmp_path: Path, earlier: bool) -> None:
    """The host is the cause only if nothing has failed before."""

    async def test(fake: FakeJob) -> None:
        agent = await FakeAgent(fake, HOUR).start()
        if earlier:
            await dies(fake)
        agent.part()
        await fake.until(lambda: fake.coordinator.ranks.known[1].gone)
        fake.ranks[0].die()

    record = play(tmp_path, test, ranks=2, connect=False, agents=0)
    assert record["lost_host"] == ("" if earlier else "there")
    assert record["first_failure"]["rank"] == (0 if earlier else 1)


def test_a_program_that_another_one_replaces_is_no_failure(tmp_path: Path) -> None:
    """It has lost its connection, and has come back."""

    async def test(fake: FakeJob) -> None:
        fake.ranks[1].die()
        await fake.until(lambda: not fake.coordinator.ranks.known[1].connected)
        fake.ranks[1] = await FakeRank(1, 2).connect(fake.dir)
        await fake.until(lambda: fake.coordinator.ranks.known[1].connected)
        await fake.end()

    record = play(tmp_path, test, ranks=2, agents=0)
    assert (record["state"], record["first_failure"], record["failed_at"]) == ("done", None, 0.0)


@pytest.mark.parametrize("code", [None, 5])
@pytest.mark.parametrize("agents", [1, 2], ids=["agent", "tree"])
def test_agents_say_when_they_have_noticed_a_failure(tmp_path: Path, agents: int, code: int | None) -> None:
    """The coordinator does not hear the first agent for a while. The rank that fails is behind the last agent."""

    async def test(fake: FakeJob) -> None:
        last = fake.ranks[-1]
        channel = fake.coordinator.ranks.known[last.number].channel
        assert isinstance(channel, NodeChannel)
        transport = channel.node._channel._writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        if code is not None:
            last.send(f"DONE {code}")
        last.die()
        await asyncio.sleep(0.3)
        await dies(fake)
        for rank in fake.ranks[1:-1]:
            rank.die()
        transport.resume_reading()

    record = play(tmp_path, test, ranks=agents + 1, agents=agents)
    assert record["state"] == "failed"
    assert record["first_failure"] == {"rank": agents, "host": "elsewhere", "code": code}
