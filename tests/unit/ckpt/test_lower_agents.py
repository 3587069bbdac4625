"""Agents below another one: who is lost with whom, and ways around an agent that can't be reached (test_coordinator.py
runs every course of a checkpoint through a tree). Ranks 1, 2 and 3 are each behind an agent; the first agent is above
the others."""

from __future__ import annotations

import asyncio
import os
import contextlib
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import PATIENCE, FakeJob, fake_job, shake_hands

from manapy.ckpt import protocol
from manapy.ckpt.coordinator import agent_tree as placing
from manapy.ckpt.coordinator import ranks
from manapy.ckpt.coordinator.agent_tree import AgentTree, LowerAgent
from manapy.ckpt.coordinator.nodes import Node
from manapy.ckpt.node import leader
from manapy.ckpt.node import lower_agents as joining
from manapy.ckpt.node.agent import NodeAgent
from manapy.ckpt.node.peer import Poll
from manapy.ckpt.store import job

HOST = socket.gethostname()
NEVER = 1e6
PHASES = ["CHECK", "INTENT", "TARGETS", "FREEZE", "STOP", "DRAIN", "WRITE"]
Test = Callable[[FakeJob], Awaitable[None]]


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of ranks, which do not end, are not waited for."""
    monkeypatch.setattr(ranks, "LOOK_SECONDS", 0.2)


def play(directory: Path, test: Test, **settings: Any) -> None:
    async def run() -> None:
        async with fake_job(directory / "job", ranks=4, **settings) as fake, asyncio.timeout(2 * PATIENCE):
            await test(fake)

    asyncio.run(run())


def agents(fake: FakeJob) -> list[list[LowerAgent]]:
    """Those below each agent that is connected to the coordinator."""
    placed = fake.coordinator._connections
    return [placed._tree.below(node) for node in placed._nodes]


@pytest.mark.parametrize("kind", PHASES)
def test_an_agent_below_is_lost(tmp_path: Path, kind: str) -> None:
    """Only its own node is lost: the others are told by the coordinator."""

    async def test(fake: FakeJob) -> None:
        assert [len(below) for below in agents(fake)] == [2]
        await fake.lose_agent(2, kind, f"host {HOST} is lost, and rank 2 with it: its agent has ended")
        for rank in fake.ranks[1], fake.ranks[3]:
            assert await rank.until("KILL") == "KILL 1 %"
        await fake.task
        assert job.read(fake.dir).record["lost_host"] == HOST and not fake.published() and not fake.temporary()

    play(tmp_path, test, agents=3)


@pytest.mark.parametrize("kind", PHASES)
def test_the_agent_above_is_lost(tmp_path: Path, kind: str) -> None:
    """So are all nodes that are connected through it."""

    async def test(fake: FakeJob) -> None:
        why = f"host {HOST} is lost, and 2 other hosts connected through it, and ranks 1, 2, 3 with them"
        await fake.lose_agent(1, kind, f"{why}: its agent has ended")
        await fake.task
        assert job.read(fake.dir).state == "failed" and not fake.published() and not fake.temporary()

    play(tmp_path, test, agents=3)


@pytest.mark.parametrize("below", [False, True])
def test_lost_soon_after_the_connection_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    """A whole step is killed, its agents among its processes. Nobody tells that the process of the rank has ended."""
    monkeypatch.setattr(ranks, "EXEC_SECONDS", NEVER)
    monkeypatch.setattr(ranks.Rank, "here", False)
    monkeypatch.setattr("manapy.ckpt.node.agent.os.pidfd_open", lambda _: os.eventfd(0))  # it lives

    async def test(fake: FakeJob) -> None:
        lost = fake.ranks[2 if below else 1]
        for rank in fake.ranks:
            rank.host = HOST if rank is lost else "elsewhere"
        await fake.join(*fake.ranks)
        lost.die()
        await fake.until(lambda: not fake.coordinator.ranks.known[lost.number].connected)
        assert not fake.coordinator.ranks.known[lost.number].gone
        fake.leaders[lost.number - 1].socket.shutdown(socket.SHUT_RDWR)
        await fake.until(lambda: fake.coordinator.ranks.known[lost.number].gone)
        await fake.ranks[0].until("KILL")
        await fake.task
        assert job.read(fake.dir).record["first_failure"]["rank"] == lost.number

    play(tmp_path, test, agents=3, connect=False)


def test_an_agent_is_lost_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody waits at that moment, the next step fails for the same reason."""
    monkeypatch.setattr(ranks, "GRACE_SECONDS", PATIENCE)

    async def test(fake: FakeJob) -> None:
        fake.leaders[1].socket.shutdown(socket.SHUT_RDWR)
        await fake.until(lambda: fake.coordinator.ranks.known[2].gone)
        command = await fake.ask("CHECKPOINT continue -1")
        why = f"host {HOST} is lost, and rank 2 with it: its agent has ended"
        assert (await command.end())[-1] == f"RESULT died {why}"

    play(tmp_path, test, agents=3)


def test_ranks_of_an_agent_whose_agent_above_is_lost(tmp_path: Path) -> None:
    """Without UNLED from above: nobody else can end them. One of them prints why."""

    async def test(fake: FakeJob) -> None:
        fake.leaders[1].socket.shutdown(socket.SHUT_RDWR)
        told = [protocol.decode_text(await rank.until("KILL")) for rank in fake.ranks[2:]]
        why = f"the agent of host {HOST} is lost, and this host was connected through it: the job ends"
        assert sorted(told) == ["KILL 1 %", f"KILL 1 {why}"]

    play(tmp_path, test, agents=2)


def test_the_coordinator_is_lost(tmp_path: Path) -> None:
    async def test(fake: FakeJob) -> None:
        fake.task.cancel()
        for rank in fake.ranks[1:]:
            await rank.until("UNLED")
            await rank.closed.wait()
        assert not any("KILL" in rank.kinds() for rank in fake.ranks)

    play(tmp_path, test, agents=3)


async def node_of(fake: FakeJob) -> Node:
    """The agent that is connected to the coordinator."""
    (node,) = await fake.until(lambda: fake.coordinator._connections._nodes)
    return node


@pytest.mark.parametrize("port", ["refused", "never said"])
def test_the_agent_above_cannot_be_reached(
    tmp_path: Path, port: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another agent is connected to the coordinator then."""
    monkeypatch.setattr(leader, "ABOVE_SECONDS", 0.1)
    monkeypatch.setattr(placing, "LISTEN_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]

    async def test(fake: FakeJob) -> None:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if port == "refused":
            said.set_result(f"127.0.0.1 {nobody}")
        fake.coordinator._connections._tree._ports[await node_of(fake)] = said
        fake.agents.append(str(tmp_path / "second"))
        await fake.start_agent(fake.agents[-1])
        await fake.join(*fake.ranks)
        assert agents(fake) == [[], []]
        assert "ok" in await fake.checkpoint()

    play(tmp_path, test, agents=1, connect=False)
    assert ("has not reached that of host" in caplog.text) == (port == "refused")


def test_lost_on_its_way_to_the_agent_above(tmp_path: Path) -> None:
    """It has left the coordinator's connection and has not come to the other agent."""

    async def test(fake: FakeJob) -> None:
        await node_of(fake)
        record = job.read(fake.dir)
        reader, writer = await asyncio.open_connection(record.host, record.port)
        seals = await shake_hands(reader, writer, record.secret(), "node")
        writer.write(seals.seal(protocol.join("NODE", "there", 1).encode()) + b"\n")
        assert seals.open((await reader.readline())[:-1]).startswith(b"BELOW ")
        writer.close()
        await fake.join(fake.ranks[0])
        why = "host there is lost: its agent has ended"
        assert why in protocol.decode_text(await fake.ranks[0].until("KILL"))

    play(tmp_path, test, agents=1, connect=False)


def test_strangers_at_the_port_of_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent serves only agents of the job, each under a name of its own. A stranger that sends nothing is closed
    when another one comes. A stranger that never ends a line is closed at once."""
    monkeypatch.setattr(joining, "JOIN_SECONDS", 0.0)

    async def test(fake: FakeJob) -> None:
        ports = fake.coordinator._connections._tree._ports
        address, port = ports[await node_of(fake)].result().split(" ")
        secret = (fake.dir / "secret").read_bytes()
        for role, known in (("node", b"x" * 32), ("rank", secret), ("command", secret)):
            reader, writer = await asyncio.open_connection(address, int(port))
            with pytest.raises(AssertionError):
                await shake_hands(reader, writer, known, role)
            writer.close()
        for line in "JOIN 1", "LINES 2 DONE 3":
            reader, writer = await asyncio.open_connection(address, int(port))
            seals = await shake_hands(reader, writer, secret, "node")
            writer.write(seals.seal(line.encode()) + b"\n")
            assert not await reader.read()
            writer.close()
        silent, silent_writer = await asyncio.open_connection(address, int(port))
        endless, endless_writer = await asyncio.open_connection(address, int(port))
        assert (await silent.read()).startswith(b"MANAPY ")
        endless_writer.write(bytes(1 << 12))
        with contextlib.suppress(ConnectionResetError):
            assert (await endless.read()).startswith(b"MANAPY ")
        silent_writer.close()
        endless_writer.close()
        assert "ok" in await fake.checkpoint()

    play(tmp_path, test, agents=2)


class Told(Node):
    """An agent that was told something."""

    def __init__(self, host: str) -> None:
        self.host, self.ranks, self.told = host, set(), []  # type: ignore[var-annotated]

    def tell(self, line: str) -> None:
        self.told.append(line)


@pytest.mark.parametrize(("fanin", "count"), [(64, 64), (64, 999), (2, 7)])
def test_places(fanin: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with few agents has no tree. With more, all agents above others have equally many below them."""
    monkeypatch.setattr(placing, "FANIN", fanin)
    monkeypatch.setattr(placing, "LISTEN_SECONDS", PATIENCE)

    async def run() -> None:
        made, nodes = AgentTree(), [Told(f"n{i}") for i in range(count)]
        places = [asyncio.ensure_future(made.place(node)) for node in nodes]
        await asyncio.sleep(0)
        for node in nodes[:fanin]:
            made.on_listens(node, f"{node.host} 1")
        below = [found for found in await asyncio.gather(*places) if found is not None]
        assert all(node.told == ["DIRECT"] + ["LISTEN"] * (count > fanin) for node in nodes[:fanin])
        assert len(below) == max(0, count - fanin)
        for found in below:
            found.joined.set()
            assert f"BELOW {found.number} {found.above.host} {found.above.host} 1" in nodes[int(found.host[1:])].told
        sizes = {len(made.below(node)) for node in nodes[:fanin]}
        assert max(sizes) - min(sizes) <= 1

    asyncio.run(run())


def test_fan_in_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, fanin in (("2", 2), ("0", 1), ("x", placing.FANIN), ("", placing.FANIN)):
        monkeypatch.setenv("MANAPY_AGENT_FANIN", given)
        assert AgentTree()._fanin == fanin


def test_ranks_behind_an_agent_come_and_go() -> None:
    """Orders for ranks that are not behind an agent below are left to the caller."""
    secret, poll = bytes(32), Poll()
    said: list[str] = []
    passed: list[tuple[Sequence[int], str]] = []
    made = joining.LowerAgents(secret, poll, said.append, lambda ranks, line: passed.append((ranks, line)))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as up:
        made.listen(up)
        _, address, port = said.pop().split(" ")
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(leader._open, address, int(port), secret, PATIENCE)
            while not opening.done():
                poll.wait(0.01)
        below = opening.result()
        for line, rest in (("JOIN 1", [4, 5]), ("LINES 5 HELLO 5 6", [4]), ("LINES 5 LOST", [4, 5])):
            below.send(line)
            below.flush()
            poll.wait(PATIENCE)
            assert list(made.take((4, 5), "SAY x")) == rest
        made.flush()
        assert below.answer(PATIENCE) == ["LINES 5 SAY x"]
        assert said == ["JOINED 1"] and passed == [((5,), "HELLO 5 6"), ((5,), "LOST")]
        below.socket.close()
        poll.wait(PATIENCE)
        assert said[0] == "JOINED 1" and re.fullmatch(r"PARTED 1 \d+ -", said[1]) and len(said) == 2
        made.close()


def test_a_line_of_the_node_comes_after_those_of_its_ranks() -> None:
    ours, theirs = socket.socketpair()
    with theirs, socket.socket(socket.AF_UNIX) as listener:
        made = NodeAgent(listener, bytes(32), leader.Leader(ours, None))
        made._add(5, "DONE 0")
        made._say("PARTED 1 5")
        assert theirs.recv(1000) == b"LINES 5 DONE 0\nPARTED 1 5\n"
        ours.close()
