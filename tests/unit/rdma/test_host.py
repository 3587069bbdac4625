"""Agents inside other processes, with the keys in one coordinator. The programs are real ones, with the C client."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rdma_agents import Program
from waiting import PATIENCE, until

from manapy.rdma import client, place
from manapy.rdma.central import CentralStore, KeyService, RemoteStore
from manapy.rdma.host import AgentThread

Run = Callable[..., Program]
LONG = int(1000 * PATIENCE)  # ms


class Node:
    """An agent in a thread that plays one host, and its lines to the coordinator."""

    job = "job"

    def __init__(self, root: Path, desk: KeyService, lock: threading.Lock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MANAPY_SHIFT_DIR", str(root))
        self.place = place.of(self.job)
        self.said: list[str] = []
        self._desk, self._lock = desk, lock
        self.store = RemoteStore(self._send)
        self.agent = AgentThread(self.job, "coordinator://x:1", self.store, self.said.append)
        until(lambda: self.said, "the agent's start")

    def _send(self, line: str) -> None:
        with self._lock:  # there the event loop has the lines one by one
            answer = self._desk.answer(self, line)
        self.store.take(answer)

    def lose(self) -> threading.Thread:
        """Lose the coordinator. The thread waits for the end of the agent."""
        self.store.lose()
        end = threading.Thread(target=self.agent.finish, daemon=True)
        end.start()
        return end


@pytest.fixture
def desk() -> KeyService:
    """The coordinator."""
    return KeyService(CentralStore())


@pytest.fixture
def nodes(short: Path, desk: KeyService, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Node]]:
    """The agents of two hosts."""
    lock = threading.Lock()
    made = [Node(short / name, desk, lock, monkeypatch) for name in "ab"]
    yield made
    for node in made:
        node.lose().join(PATIENCE)


def test_programs_of_two_hosts(nodes: list[Node], program: Run) -> None:
    assert [node.said for node in nodes] == [[""], [""]]
    a, b = (program(node) for node in nodes)
    assert a("many", 1000) == (1000, "")
    a.put("x", b"1")
    b.put("y", bytes(range(256)))
    assert b.get("x") == b"1" and a.get("y") == bytes(range(256))
    a.put("x", b"2")
    assert b.get("x") == b"2", "asked again"
    b.kill()
    until(lambda: a.get("y") is None, "the end of the keys")
    assert a.quit() == 0


def test_after_the_loss_of_the_coordinator(nodes: list[Node], program: Run) -> None:
    """Programs have events and commands to their end. Then the agent ends, too, and leaves nothing."""
    node = nodes[0]
    a = program(node, PMI_RANK="0")
    a.put("x", b"1")
    end = node.lose()
    result, text = a("put", "y", b"2")
    assert result == -errno.EHOSTUNREACH and text == "the coordinator is lost: it has the keys of all hosts"
    assert a("event", '{"event": "x"}') == (0, "")
    with client.Connection(node.place) as connection:
        status = connection.status()
        assert status["trouble"] == text and len(status["clients"]) == 1
        assert connection.ask("MOVE", 0, "*", "m1") == "1"
    assert a("wait", LONG) == (1, "") and end.is_alive()
    a.kill()
    end.join(PATIENCE)
    assert not end.is_alive()
    assert sorted(path.name for path in node.place.dir.iterdir()) == ["agent.lock"]


def test_the_next_run_of_a_job_has_its_own_agent(
    nodes: list[Node], program: Run, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place of the last one, which still has a program and leaves it alone."""
    old = nodes[0]
    a = program(old)
    a.put("x", b"1")
    end = old.lose()
    new = Node(short / "a", KeyService(CentralStore()), threading.Lock(), monkeypatch)
    b = program(new)
    assert b.get("x") is None
    b.put("x", b"2")
    a.kill()
    end.join(PATIENCE)
    assert not end.is_alive() and b.get("x") == b"2" and new.place.is_alive()
    b.kill()
    new.lose().join(PATIENCE)
