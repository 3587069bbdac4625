"""The agent of a node: what differs from ranks that are connected directly (test_coordinator.py has the rest)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_jobs import PATIENCE, FakeRank, fake_job, shake_hands
from manapy.chain import steps
from manapy.ckpt import protocol
from manapy.ckpt.coordinator import ranks
from manapy.ckpt.node import leader
from manapy.ckpt.node.listener import ListeningSocket
from manapy.ckpt.store import job
from manapy.core import handshake
from waiting import until


@pytest.mark.parametrize("kind", ["CHECK", "INTENT", "TARGETS", "FREEZE", "STOP", "DRAIN", "WRITE"])
def test_agent_lost(tmp_path: Path, kind: str) -> None:
    """The agent of a node ends during a checkpoint: the node is lost with its ranks, and the job ends."""

    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            why = f"host {socket.gethostname()} is lost, and ranks 1, 2 with it: its agent has ended"
            await fake.lose_agent(2, kind, why)
            await fake.task
            assert job.read(fake.dir).state == "failed" and not fake.published() and not fake.temporary()

    asyncio.run(run())


RANK = """
import socket, sys
from pathlib import Path
from manapy.core import handshake
agent, secret, hello = sys.argv[1:]
connection = socket.socket(socket.AF_UNIX)
connection.connect(agent)
stream = connection.makefile("rw")
line, expected = handshake.answer(Path(secret).read_bytes(), stream.readline().strip(), "rank")
print(line, file=stream, flush=True)
assert stream.readline().strip() == expected
print(hello, file=stream, flush=True)
sys.stdin.read()
"""


def test_process_of_a_rank_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent says so: nobody waits for the rank to come back."""
    monkeypatch.setattr(ranks, "EXEC_SECONDS", 1000.0)

    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=1, connect=False) as fake, asyncio.timeout(2 * PATIENCE):
            await fake.join(*fake.ranks[:2])
            hello = protocol.join("HELLO", 2, 3, "elsewhere", 102, 0, "")
            words = [sys.executable, "-c", RANK, fake.agent_of(2), str(fake.dir / "secret"), hello]
            process = subprocess.Popen(words, stdin=subprocess.PIPE)
            await fake.until(lambda: 2 in fake.coordinator.ranks.known)
            process.kill()
            process.communicate()
            assert "rank 2 died" in protocol.decode_text(await fake.ranks[0].until("KILL"))
            monkeypatch.undo()
            for rank in fake.ranks[:2]:  # whose process is this one
                rank.die()

    asyncio.run(run())


def test_agent_lost_before_its_ranks_have_come(tmp_path: Path) -> None:
    """Restarted ranks connect after their MPI_Init. Rank 0 is told through its pipe; if it comes, it is told again."""

    async def run() -> None:
        read, write = os.pipe()
        settings = {"agents": 1, "connect": False, "rank0_pid": os.getpid(), "last_words": write}
        async with fake_job(tmp_path / "job", **settings) as fake, asyncio.timeout(2 * PATIENCE):
            fake.leaders[0].socket.shutdown(socket.SHUT_RDWR)
            host = socket.gethostname()
            why = f"host {host} is lost: its agent has ended"
            assert (await asyncio.to_thread(os.read, read, 1000)).decode() == why
            await fake.join(fake.ranks[0])
            assert why in protocol.decode_text(await fake.ranks[0].until("KILL"))
            fake.ranks[0].die()
            await fake.task
            assert job.read(fake.dir).state == "failed" and job.read(fake.dir).record["lost_host"] == host
            assert steps.fate(fake.dir)[:4] == ("crashed", 0, host, f"host {host} was lost"), "not that of rank 0"
            assert f"host {host} was lost" in str(job.read(fake.dir).end())
        os.close(read)
        os.close(write)

    asyncio.run(run())


def test_agent_is_refused_at_first(caplog: pytest.LogCaptureFixture) -> None:
    """By the kernel, then by a coordinator without free descriptors. It tries again."""
    secret = bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(leader.connect, "127.0.0.1", port, secret)
        until(lambda: "Connection refused" in caplog.text, "a refusal")
        with socket.create_server(("127.0.0.1", port)) as listener:
            for is_busy in (True, False):
                connection, _ = listener.accept()
                with connection, connection.makefile("rw", newline="\n") as stream:
                    stream.write(handshake.greeting(nonce := handshake.nonce()) + "\n")
                    stream.flush()
                    line = stream.readline().rstrip("\n")
                    admitted = handshake.admit(secret, nonce, line)
                    assert admitted is not None and admitted[0] == "node"
                    stream.write("BUSY no%20descriptors\n" if is_busy else admitted[1] + "\n")
                    stream.flush()
                    if not is_busy:
                        seals = handshake.seals(secret, handshake.greeting(nonce), line, client=False)
                        assert seals.open(stream.readline().rstrip("\n").encode()).startswith(b"NODE ")
                        stream.write(seals.seal(b"DIRECT").decode() + "\n")
                        stream.flush()
                        connecting.result(PATIENCE).socket.close()


def test_agent_says_that_the_coordinator_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
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
        async with fake_job(tmp_path / "job", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            second = await FakeRank(0, 3).connect(fake.dir, fake.agents[0])
            second.send("DONE 3")
            await fake.checkpoint()  # the agent's lines before it have arrived
            assert not fake.coordinator.ranks.known[0].done
            second.die()
            assert "ok" in await fake.checkpoint()

    asyncio.run(run())


def test_strangers_at_the_agent(tmp_path: Path) -> None:
    """The agent serves only ranks that know the secret, and only their own lines go on."""

    async def run() -> None:
        async with fake_job(tmp_path / "job", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            for role, secret in (("rank", b"x" * 32), ("command", (fake.dir / "secret").read_bytes())):
                reader, writer = await asyncio.open_unix_connection(fake.agents[0])
                with pytest.raises(AssertionError):
                    await shake_hands(reader, writer, secret, role)
                writer.close()
            assert "ok" in await fake.checkpoint()

    asyncio.run(run())


def test_no_descriptors_are_free(caplog: pytest.LogCaptureFixture) -> None:
    """A new connection is closed at once. A later one succeeds."""
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        door, where = ListeningSocket(listener), listener.getsockname()
        came = [socket.create_connection(where) for _ in range(3)]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 10, limit[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    taken.append(os.dup(0))
            for one in came:
                assert door.accept() is None
                assert one.recv(1) == b""
            assert door.accept() is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            for descriptor in taken:
                os.close(descriptor)
        assert caplog.text.count("Too many open files") == 1
        with socket.create_connection(where), contextlib.closing(until(door.accept, "a connection")):
            pass
        door.close()
        for one in came:
            one.close()
