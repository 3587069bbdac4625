"""Recordings of other hosts through the coordinator and the agents: pieces, the ends of streams, and when a remote
shell takes their place. What the collectors answer: tests/unit/trace/capture/test_collect.py."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_jobs
import numpy as np
import pytest
from fake_jobs import PATIENCE, Command, FakeJob, fake_job
from manapy.ckpt import collectors, command
from manapy.ckpt.collectors import PIECE_BYTES, Collectors
from manapy.ckpt.store import job
from manapy.core.errors import CoordinatorError
from manapy.trace.capture import collect, format, rings
from waiting import until

THERE = "there"  # the host of the agent; it is this host, too
OPEN = {"do": "open", "job": "job", "keep": 1 << 20, "total": None, "sample": False}


def coded(*requests: dict[str, object]) -> str:
    """Requests for a collector, as a field."""
    return base64.b64encode(b"".join(json.dumps(request).encode() + b"\n" for request in requests)).decode()


def record(rank: int, records: int) -> None:
    """Write a recording of this host."""
    folder = format.root() / "job"
    folder.mkdir(parents=True, exist_ok=True)
    writer = format.Writer(folder, rank, 2, host=socket.gethostname(), capacity=records)
    writer.ring()
    noise = os.urandom(writer.records().nbytes)  # which can't be packed
    writer.records().view(np.uint8)[:] = np.frombuffer(noise, np.uint8)
    writer.records()["seq"] = range(1, 1 + records)
    writer.records()["op"] = 1
    writer.ring().head = records
    writer.close()


@pytest.fixture(params=[1, 2], ids=["agent", "tree"])
def agents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs with an agent, and with another one above it."""
    monkeypatch.setattr(fake_jobs, "AGENTS", request.param)


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The request that opens a recording of this host, whose answer has many pieces."""
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    record(0, 1 << 14)
    return {**OPEN, "root": str(tmp_path)}


class Node:
    """Collectors whose lines are kept here."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.collectors = Collectors(self.said.append)

    def work(self, until: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Do what an agent does, until this is true."""
        while not until():
            assert select.select([self.collectors.fileno()], [], [], seconds)[0], self.said
            self.collectors.ready()


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.collectors.close()


def test_one_piece_at_a_time(node: Node, recording: dict[str, object]) -> None:
    """However much a collector has to tell, a piece is sent only after the last one was taken, and none is kept."""
    node.collectors.take("COLLECT 7")
    node.collectors.take(f"ASK 7 {coded(recording, {'do': 'news'})}")
    got = b""
    for number in range(1, 20):
        node.work(lambda: len(node.said) == number)
        assert not select.select([node.collectors.fileno()], [], [], 0.0)[0], "it waits for MORE"
        kind, stream, data = node.said[-1].split(" ")
        assert (kind, stream) == ("PIECE", "7")
        got += base64.b64decode(data)
        assert len(base64.b64decode(data)) <= PIECE_BYTES
        node.collectors.take("MORE 7")
    assert json.loads(got.splitlines()[0])["format"] == collect.FORMAT and len(got) > 1 << 16


def test_a_collector_that_ends_by_itself(node: Node) -> None:
    node.collectors.take("COLLECT 7")
    node.collectors.take(f"ASK 7 {base64.b64encode(b'nonsense').decode()}")
    node.collectors.take(f"ASK 7 {base64.b64encode(bytes([10])).decode()}")
    node.work(lambda: node.said)
    assert node.said == ["ENDED 7"]
    node.collectors.take("MORE 7")  # too late, which is no error
    node.collectors.take("LEAVE 7")


def test_a_request_that_does_not_fit_is_refused(node: Node) -> None:
    """The agent would have to wait for the collector."""
    node.collectors.take("COLLECT 7")
    node.collectors.take(f"ASK 7 {base64.b64encode(bytes(1 << 20)).decode()}")
    assert node.said == ["ENDED 7"]


def test_no_more_collectors_than_most(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "MOST", 1)
    node.collectors.take("COLLECT 1")
    node.collectors.take("COLLECT 2")
    assert node.said == ["ENDED 2"]
    node.collectors.take("LEAVE 1")
    node.collectors.take("COLLECT 3")
    assert node.said == ["ENDED 2"]


def test_other_lines_are_not_for_collectors(node: Node) -> None:
    assert not node.collectors.take("LINES 1 CHECK 1 0")


def processes() -> set[int]:
    """The collectors that this process has started."""
    children: list[str] = []
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended: its children are those of another one
            children += path.read_text().split()
    found = set()
    for pid in map(int, children):
        with contextlib.suppress(OSError):  # it has ended
            if b"_collect" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def agent_there(fake: FakeJob) -> None:
    """Give the last agent's host another name than that of the coordinator and of the agent above it."""
    (node,) = fake.coordinator._connections._nodes
    *_, last = (node, *fake.coordinator._connections._tree.below(node))
    node.host = "between"
    last.host = THERE


async def collecting(fake: FakeJob, host: str, *requests: dict[str, object]) -> Command:
    """A command that asks a collector on a host."""
    asked = await fake.ask(f"COLLECT {host}")
    await asked.until("COLLECTING")
    for request in requests:
        asked._writer.write(asked._seals.seal(f"ASK {coded(request)}".encode()) + b"\n")
    return asked


@pytest.mark.parametrize("host", [THERE, socket.gethostname()])
@pytest.mark.usefixtures("agents")
def test_a_stream_through_the_coordinator(tmp_path: Path, recording: dict[str, object], host: str) -> None:
    """From an agent, and from the coordinator's own host. The collector ends with the command."""

    async def run() -> None:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            read = await asyncio.to_thread(_read_news, job.read(fake.dir), host, recording)
            assert read > 1 << 16
            await fake.until(lambda: not processes())

    asyncio.run(run())


def _read_news(of: job.Job, host: str, recording: dict[str, object]) -> int:
    """As `manapy why` does it: the bytes of all news."""
    with command.Collector(of, host) as collector:
        collector.write(json.dumps(recording).encode() + b"\n")
        assert json.loads(collector.read(PATIENCE))["format"] == collect.FORMAT
        collector.write(b'{"do": "news"}\n')
        got = b""
        while b"\n" not in got or len(got) < got.index(b"\n") + 1 + json.loads(got[: got.index(b"\n")])["bytes"]:
            got += collector.read(PATIENCE)
        with pytest.raises(TimeoutError):
            collector.read(0.01)
        return len(got)


@pytest.mark.parametrize("host", [THERE, socket.gethostname()])
@pytest.mark.usefixtures("agents")
def test_a_checkpoint_passes_a_command_that_does_not_read(
    tmp_path: Path, recording: dict[str, object], host: str
) -> None:
    """Its data waits in the collector, not in the coordinator. Its stream ends with the job, which does not wait for
    it."""
    record(1, 1 << 17)  # more than the sockets take

    async def run() -> None:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            asked = [await collecting(fake, host, recording, {"do": "news"}) for _ in range(3)]
            for one in asked:
                await one.until("PIECE")  # the answer to "open"
                await one.until("PIECE")
            for _ in range(20):
                assert "ok" in await fake.checkpoint()
            streams = list(fake.coordinator._connections.recordings._streams.values())
            assert len(streams) == len(asked) and all(stream.pieces.qsize() <= 1 for stream in streams)
            await fake.end()
            await fake.until(lambda: not processes())

    asyncio.run(run())


@pytest.mark.usefixtures("agents")
def test_why_a_stream_ends(tmp_path: Path, recording: dict[str, object]) -> None:
    """A host without an agent; a collector that was killed; an agent that is lost."""

    async def run() -> None:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            assert (await fake.command("COLLECT nowhere")) == ["RESULT failed the job has no agent on nowhere"]
            with pytest.raises(CoordinatorError, match="the job has no agent on nowhere"):
                await asyncio.to_thread(command.Collector, job.read(fake.dir), "nowhere")
            first = await collecting(fake, THERE)
            await fake.until(processes)
            os.kill(processes().pop(), signal.SIGKILL)
            assert (await first.end())[-1] == f"RESULT failed the collector on {THERE} has ended"
            second = await collecting(fake, THERE)
            fake.leaders[-1].socket.shutdown(socket.SHUT_RDWR)
            assert (await second.end())[1:] in ([], [f"RESULT failed the collector on {THERE} has ended"])

    asyncio.run(run())
    until(lambda: not processes(), "the collectors' end")


@pytest.fixture
def shell(tmp_path: Path) -> list[str]:
    """A remote shell that stays on this host, and notes that it was used."""
    path = tmp_path / "shell"
    path.write_text(f'#!/bin/sh\ntouch "{tmp_path}/used"\nshift\nexec "$@"\n')
    path.chmod(0o700)
    return [str(path)]


@pytest.mark.usefixtures("agents")
def test_a_remote_shell_reads_what_an_ended_job_has_left(
    tmp_path: Path, recording: dict[str, object], shell: list[str]
) -> None:
    """While the job runs, its agent answers."""

    async def run() -> rings.Reader:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            hosts = collect.Hosts([THERE], "job", shell, agents=job.read(fake.dir))
            reader = rings.Reader(tmp_path / "nothing", others=hosts)
            for _ in range(2):
                await asyncio.to_thread(reader.poll)
            assert not hosts.lost and not (tmp_path / "used").exists()
            assert [rank.host for rank in reader.trace().ranks.values()] == [socket.gethostname()]
            await fake.end()
            return reader

    reader = asyncio.run(run())
    reader.poll()
    assert not reader.trace().problems and list(reader.trace().ranks) == [0] and (tmp_path / "used").exists()


@pytest.mark.usefixtures("agents")
def test_a_host_without_an_agent_is_reached_by_the_remote_shell(
    tmp_path: Path, recording: dict[str, object], shell: list[str]
) -> None:
    """If that fails, too, both reasons are told."""

    async def run() -> None:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(2 * PATIENCE):
            agents = job.read(fake.dir)
            hosts = collect.Hosts(["nowhere"], "job", shell, agents=agents)
            await asyncio.to_thread(hosts.poll)
            assert not hosts.lost and (tmp_path / "used").exists()
            hosts = collect.Hosts(["nowhere"], "job", ["false"], agents=agents)
            await asyncio.to_thread(hosts.poll)
            assert hosts.lost == {"nowhere": "the job has no agent on nowhere; false ended with 1"}

    asyncio.run(run())
