"""Coordinators whose ranks are played in this process, for the tests of the control plane."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from manapy.ckpt import protocol
from manapy.ckpt.coordinator.coordinator import Coordinator, Settings
from manapy.ckpt.node.agent import NodeAgent
from manapy.ckpt.node.leader import Leader, connect
from manapy.ckpt.store import job
from manapy.clock import RankClock, from_wire
from manapy.core import handshake

AGENTS = 0
PATIENCE = 120.0  # seconds to wait for an event that must happen, on a very busy machine


class NoSeals(handshake.Seals):
    """Of a Unix socket."""

    def seal(self, line: bytes) -> bytes:
        return line

    def open(self, line: bytes) -> bytes:
        return line


async def shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, role: str
) -> handshake.Seals:
    """The client's half of the handshake."""
    greeting = (await reader.readline()).decode().strip()
    line, expected = handshake.answer(secret, greeting, role)
    writer.write(f"{line}\n".encode())
    assert (await reader.readline()).decode().strip() == expected
    if writer.get_extra_info("socket").family == socket.AF_UNIX:
        return NoSeals(secret, "", "", role, client=True)
    return handshake.seals(secret, greeting, line, client=True)


class FakeRank:
    """A rank that answers correctly, except for the message kinds in ``act``: 'die', 'hold', or a line to answer with.

    Its clock is the model's. ``seen`` holds all messages that it got.
    """

    def __init__(self, number: int, size: int, *, generation: int = 0, write: bytes = b"image") -> None:
        self.number, self.size, self.generation, self.write = number, size, generation, write
        self.host, self.pid = "elsewhere", 100 + number
        self.kept = 0  # bytes of an image that are in its parent ...
        self.size_if_kept = 0  # ... and the size of such an image
        self.act: dict[str, str] = {}
        self.seen: list[str] = []
        self.captured: list[str] = []  # fields of the CAPTURE whose image is not written yet
        self.slow = False  # does the test itself call persist()?
        self.why_not = ""  # as it is told in CAPTURED
        self.clock = RankClock(number, tuple(range(size)))
        self.closed = asyncio.Event()
        self._arrived = asyncio.Event()
        self.writer: asyncio.StreamWriter
        self.task: asyncio.Task[None]

    async def connect(self, directory: Path, agent: str = "") -> FakeRank:
        """Connect to the coordinator, or to the agent with this socket."""
        record = job.read(directory)
        if agent:
            reader, self.writer = await asyncio.open_unix_connection(agent, limit=protocol.LINE_MAX)
        else:
            reader, self.writer = await asyncio.open_connection(record.host, record.port, limit=protocol.LINE_MAX)
        self.seals = await shake_hands(reader, self.writer, record.secret(), "rank")
        self.send(protocol.join("HELLO", self.number, self.size, self.host, self.pid, self.generation, ""))
        self.send(protocol.join("PROGRAM", "up", "a program", "-"))
        self.task = asyncio.create_task(self._serve(reader))
        return self

    def send(self, line: str) -> None:
        self.writer.write(self.seals.seal(line.encode()) + b"\n")

    def die(self) -> None:
        self.writer.close()

    def finish(self) -> None:
        self.send("DONE 0")
        self.writer.close()

    async def until(self, kind: str, count: int = 1) -> str:
        """Wait until messages of a kind have come; the last one."""
        async with asyncio.timeout(PATIENCE):
            while sum(line.split(" ")[0] == kind for line in self.seen) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return [line for line in self.seen if line.split(" ")[0] == kind][-1]

    def kinds(self) -> list[str]:
        return [line.split(" ")[0] for line in self.seen]

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := (await reader.readline()).rstrip(b"\n"):
                line = self.seals.open(data).decode()
                self.seen.append(line)
                self._arrived.set()
                self._answer(line)
        self.closed.set()

    def _answer(self, line: str) -> None:
        kind, *fields = line.split(" ")
        action = self.act.get(kind)
        if action == "die":
            self.die()
        elif action == "hold":
            pass
        elif action is not None:
            self.send(action.format(epoch=fields[0]))
        elif kind in ("INTENT", "TARGETS", "TARGET", "ADVANCE", "WITHDRAW", "FREEZE", "THAW"):
            self.clock.receive(from_wire(line))
            self.flush()
        elif kind == "RESUME":
            self.clock.receive(from_wire(line))
            self.send(f"RESUMED {fields[0]}")
            if self.captured and not self.slow:
                self.persist(self.captured)
            if fields[1] == "exit":
                self.finish()
        elif kind == "ABORT":
            self.clock.receive(from_wire(line))
        elif kind == "WRITE":
            self.persist(fields)
        elif kind == "CAPTURE":
            self.send(protocol.join("CAPTURED", int(fields[0]), self.why_not))
            self.captured = fields
        elif kind in ("CHECK", "CALL", "STOP", "DRAIN"):
            self.send(
                {"CHECK": "CHECKED", "CALL": "CALLED", "STOP": "STOPPED", "DRAIN": "DRAINED"}[kind] + f" {fields[0]}"
            )
        elif kind == "KILL":
            self.die()

    def persist(self, fields: list[str]) -> None:
        """Write the image that WRITE or CAPTURE with these fields has asked for."""
        epoch, self.captured = int(fields[0]), []
        path = Path(protocol.decode_text(fields[1])) / f"rank-{self.number:05d}.img"
        image = self.write[: self.size_if_kept] if self.kept else self.write
        try:
            path.write_bytes(image)
        except FileNotFoundError as error:  # the checkpoint has failed meanwhile
            self.send(protocol.join("FAILED", epoch, str(error)))
        else:
            size = len(image)
            self.send(protocol.join("WRITTEN", epoch, 4096, size, 7, "0.1", "elsewhere", "", self.kept, "hash"))

    def flush(self) -> None:
        """Send the messages of the clock."""
        for message in self.clock.outbox:
            self.send(message.to_wire())
        self.clock.outbox.clear()


class Command:
    """A command that was sent to a coordinator. ``answers`` holds the decoded lines that have come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seals: handshake.Seals) -> None:
        self.answers: list[str] = []
        self._reader, self._writer, self._seals = reader, writer, seals

    async def until(self, start: str) -> str:
        """Wait for the first answer with this start."""
        async with asyncio.timeout(PATIENCE):
            while (answer := await self._next()) is not None:
                if answer.startswith(start):
                    return answer
        raise AssertionError(f"no {start!r} but {self.answers}")

    async def end(self) -> list[str]:
        """Wait for the end; all answers."""
        async with asyncio.timeout(PATIENCE):
            while await self._next() is not None:
                pass
        self._writer.close()
        return self.answers

    async def _next(self) -> str | None:
        data = (await self._reader.readline()).rstrip(b"\n")
        if not data:
            return None
        line = self._seals.open(data).decode()
        self.answers.append(" ".join(protocol.decode_text(field) for field in line.split(" ")))
        return self.answers[-1]


class FakeJob:
    """A coordinator in this process, with its ranks."""

    def __init__(self, directory: Path, settings: Settings, agents: int = 0) -> None:
        self.dir, self.settings = directory, settings
        self.agents = [str(directory.parent / f"agent{i}") for i in range(agents)]  # their sockets
        self.leaders: list[Leader] = []  # the connections upwards of these agents
        self.served: list[asyncio.Future[None]] = []
        self.ranks: list[FakeRank] = []
        self.coordinator: Coordinator
        self.task: asyncio.Task[None]

    async def start(self, connect: bool = True) -> FakeJob:
        self.dir.mkdir(exist_ok=True)
        (self.dir / "secret").write_bytes(os.urandom(protocol.SECRET_BYTES))
        listener = socket.create_server(("127.0.0.1", 0))
        job.write(
            self.dir,
            {
                "format": 1,
                "id": "test",
                "state": "starting",
                "host": "127.0.0.1",
                "port": listener.getsockname()[1],
                "ranks": self.settings.ranks,
                "argv": ["prog", "arg"],
                "cwd": "/",
                "started": 0,
                "mpi": None,
            },
        )
        with patch.dict(os.environ, {"MANAPY_AGENT_FANIN": "1"}):
            self.coordinator = Coordinator(self.dir, self.settings)
        self.task = asyncio.create_task(self.coordinator.run(listener))
        self.ranks = [FakeRank(n, self.settings.ranks) for n in range(self.settings.ranks)]
        for agent in self.agents:
            await self.start_agent(agent)
        if connect:
            await self.join(*self.ranks)
        return self

    async def start_agent(self, name: str) -> None:
        """An agent with this socket. The first one is connected to the coordinator, all others to the first."""
        record = job.read(self.dir)
        leader = await asyncio.to_thread(connect, record.host, record.port, record.secret())
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        # not the loop's executor: the coordinator waits for its threads
        loop, own = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        self.leaders.append(leader)
        self.served.append(loop.run_in_executor(own, NodeAgent(listener, record.secret(), leader).serve))

    def agent_of(self, rank: int) -> str:
        """The socket of a rank's agent. Rank 0 has none."""
        return self.agents[min(rank, len(self.agents)) - 1] if rank and self.agents else ""

    async def lose_agent(self, rank: int, kind: str, why: str) -> None:
        """End the connection upwards of a rank's agent, when this order of a checkpoint has come to the rank. Whoever
        waits is told why."""
        self.ranks[rank].act[kind] = "hold"
        command = await self.ask("CHECKPOINT continue -1")
        await self.ranks[rank].until(kind)
        self.leaders[min(rank, len(self.leaders)) - 1].socket.shutdown(socket.SHUT_RDWR)
        assert (await command.end())[-1] == f"RESULT died {why}"
        assert why in protocol.decode_text(await self.ranks[0].until("KILL"))

    async def join(self, *ranks: FakeRank) -> None:
        """Connect the ranks, and wait until the coordinator has admitted them."""
        for rank in ranks:
            await rank.connect(self.dir, self.agent_of(rank.number))
        await self.until(lambda: all(rank.number in self.coordinator.ranks.known for rank in ranks))

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition is true; its value."""
        async with asyncio.timeout(PATIENCE):
            while not (value := condition()):
                await asyncio.sleep(0.01)
        return value

    async def ask(self, line: str) -> Command:
        """Send one command, and don't wait for its answer."""
        record = job.read(self.dir)
        reader, writer = await asyncio.open_connection(record.host, record.port, limit=protocol.LINE_MAX)
        seals = await shake_hands(reader, writer, record.secret(), "command")
        writer.write(seals.seal(line.encode()) + b"\n")
        return Command(reader, writer, seals)

    async def command(self, line: str) -> list[str]:
        """All answers to one command, decoded."""
        return await (await self.ask(line)).end()

    async def status(self) -> dict[str, Any]:
        """The answer to STATUS. It comes after everything that the coordinator sent to a rank before the command."""
        return dict(json.loads((await self.command("STATUS"))[0].removeprefix("JSON ")))

    async def checkpoint(self, then: str = "continue") -> str:
        """Request a checkpoint; the last line of the answer."""
        return (await self.command(f"CHECKPOINT {then} -1"))[-1]

    async def end(self) -> None:
        """All ranks finish, and the coordinator ends."""
        for rank in self.ranks:
            if hasattr(rank, "writer"):
                with contextlib.suppress(ConnectionError):
                    rank.finish()
        async with asyncio.timeout(PATIENCE):
            await self.task

    def temporary(self) -> list[Path]:
        return list(self.dir.glob("tmp-*"))

    def published(self) -> list[str]:
        return sorted(p.name for p in self.dir.glob("ckpt-*"))


@contextlib.asynccontextmanager
async def fake_job(
    directory: Path, ranks: int = 3, connect: bool = True, agents: int | None = None, **settings: object
) -> AsyncIterator[FakeJob]:
    """A running job. The coordinator has ended afterwards, whatever happened.

    agents (default: AGENTS): of other nodes. Rank 1 is behind the first, rank 2 behind the second, and the last one
    has all others. All are below the first.
    """
    agents = AGENTS if agents is None else agents
    fake = await FakeJob(directory, Settings(ranks, **settings), agents).start(connect)  # type: ignore[arg-type]
    try:
        yield fake
    finally:
        fake.task.cancel()
        for rank in fake.ranks:
            if hasattr(rank, "writer"):
                rank.die()
        with contextlib.suppress(asyncio.CancelledError):
            await fake.task
        await asyncio.gather(*fake.served)
