"""The RDMA agents of a job, inside the coordinator and the agents of nodes: when they start, and what becomes of their
lines. tests/integration/start/test_shift_agents.py has both hosts of a real job."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest
from fake_jobs import PATIENCE, FakeJob, fake_job
from manapy.ckpt.coordinator.shift import Shift
from manapy.rdma import client, place

THERE = "there"  # the host of the agent; it is this host, too
HERE = socket.gethostname()


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of agents on this host, with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="mshift-"))
    monkeypatch.setenv("MANAPY_SHIFT_DIR", str(path / "agents"))
    yield path / "agents"
    rmtree(path)


def agent_there(fake: FakeJob) -> None:
    """Give the agent's host another name than the coordinator's."""
    (node,) = fake.coordinator._connections._nodes
    node.host = THERE
    fake.coordinator.storage.agents.on_agent(THERE, node)


def ask(where: place.Place) -> str:
    """The store of the agent that serves there, as it names it itself."""
    with client.Connection(where) as connection:
        return str(connection.status()["store"])


def shift_of(fake: FakeJob) -> Shift:
    return fake.coordinator._connections.shift


@pytest.mark.parametrize("host", [HERE, THERE])
def test_it_serves_to_the_end_of_the_job(tmp_path: Path, host: str) -> None:
    """All that ask get the same agent, and checkpoints go on beside it."""

    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            asked = [await fake.ask(f"SERVE {host}") for _ in range(3)]
            assert [await one.end() for one in asked] == [["RESULT ok "]] * 3
            where = place.of(place.job_name(fake.dir))
            first = where.identity()
            assert (await asyncio.to_thread(ask, where)).startswith("coordinator://127.0.0.1:")
            assert "ok" in await fake.checkpoint()
            assert await fake.command(f"SERVE {host}") == ["RESULT ok "] and where.identity() == first
            await fake.end()
            await fake.served[0]
            assert not where.address.exists() and not where.secret.exists()

    asyncio.run(run())


@pytest.mark.parametrize("host", [HERE, THERE])
def test_it_cannot_serve_and_the_next_one_tries_again(tmp_path: Path, root: Path, host: str) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            root.write_text("no directory")
            (said,) = await fake.command(f"SERVE {host}")
            assert said.startswith(f"RESULT failed {root} must be a directory of this user"), said
            root.unlink()
            assert await fake.command(f"SERVE {host}") == ["RESULT ok "]
            await fake.end()
            await fake.served[0]

    asyncio.run(run())


def test_it_takes_the_place_of_an_agent_of_an_earlier_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake") as fake, asyncio.timeout(2 * PATIENCE):
            where = place.make(place.job_name(fake.dir))
            with where.locked():
                listener = where.listen()
            with listener:
                old = where.identity()
                assert await fake.command(f"SERVE {HERE}") == ["RESULT ok "]
                assert where.identity() != old and await asyncio.to_thread(ask, where)

    asyncio.run(run())


def test_it_is_asked_for_before_the_agent_of_the_node_has_come(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            asked = await fake.ask(f"SERVE {THERE}")
            await fake.until(lambda: THERE in fake.coordinator.storage.agents._hosts)
            agent_there(fake)
            assert await asked.end() == ["RESULT ok "]
            await fake.end()
            await fake.served[0]

    asyncio.run(run())


def test_a_host_without_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manapy.ckpt.coordinator.shift.AGENT_SECONDS", 0.01)

    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            assert await fake.command("SERVE elsewhere") == [
                "RESULT failed the agent of host elsewhere does not answer"
            ]

    asyncio.run(run())


def test_the_agent_of_the_node_is_lost_before_it_serves(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            (node,) = fake.coordinator._connections._nodes
            node.tell = lambda line: None  # type: ignore[method-assign]
            asked = await fake.ask(f"SERVE {THERE}")
            await fake.until(lambda: shift_of(fake)._serving)
            fake.leaders[0].socket.shutdown(socket.SHUT_RDWR)
            assert await asked.end() == ["RESULT failed its node is lost"]

    asyncio.run(run())


def test_a_lost_node_takes_its_keys_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "fake", agents=1) as fake, asyncio.timeout(2 * PATIENCE):
            agent_there(fake)
            (node,) = fake.coordinator._connections._nodes
            assert await fake.command(f"SERVE {THERE}") == ["RESULT ok "]
            desk, store = shift_of(fake)._desk, shift_of(fake)._store
            lease = desk.answer(node, "KEYS 1 LEASE").split(" ")[3]
            assert desk.answer(node, f"KEYS 2 PUT {lease} k 01") == "KEYED 2 OK" and store.get("k") == b"\1"
            fake.leaders[0].socket.shutdown(socket.SHUT_RDWR)
            await fake.until(lambda: store.get("k") is None)

    asyncio.run(run())


@pytest.mark.parametrize("process", ["coordinator.coordinator", "node.agent"])
def test_a_job_without_rdma_imports_nothing_of_it(process: str) -> None:
    program = (
        f"import sys, manapy.ckpt.{process}; "
        "print([name for name in sys.modules if name.startswith('manapy.rdma') or name == 'concurrent.futures.thread'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
