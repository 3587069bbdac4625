"""A program that comes while an agent starts or ends is served, or is told to look for the next agent. It is never left
with an agent that is ending."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manapy.core import processes
from manapy.core.errors import AgentError
from manapy.rdma import client, place, prepare
from rdma_agents import MANAPY, Agent
from waiting import PATIENCE, until

Start = Callable[..., Agent]
CONNECT = "42"  # the system call in which a thread is: proc_pid_syscall(5)


def test_its_starter_is_killed(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that dies while it starts leaves an agent, and no process reads its report that it is ready. The agent
    stays, because ranks that have found its socket rely on it."""
    monkeypatch.setenv("MANAPY_SHIFT_DIR", str(short / "host"))
    where = place.make("job")
    ready, ready_end = os.pipe()
    os.close(ready)
    with where.locked(), where.listen() as listener, where.log.open("wb") as log:
        fds = (listener.fileno(), ready_end)
        command = [
            *MANAPY,
            "rdma",
            "agent",
            "--group",
            "job",
            "--linger=1000s",
            "--fd",
            str(fds[0]),
            "--ready-fd",
            str(fds[1]),
        ]
        agent = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=fds)
    os.close(ready_end)
    try:
        until(lambda: "the store is reached" in where.log.read_text() or agent.poll() is not None, "the agent's start")
    finally:
        agent.terminate()
    assert agent.wait(PATIENCE) == 0 and "Traceback" not in where.log.read_text(), where.log.read_text()


def test_nobody_is_told_that_an_agent_stays_that_ends(agent: Start, short: Path) -> None:
    """A rank of the next job comes directly after the agent has decided to end. Ending takes as long as leaving its
    store."""
    leave, decide = short / "leave", short / "decide"
    slow = f"""
import time
from pathlib import Path
from manapy.rdma.agent import RdmaAgent
from manapy.rdma.sqlite import SqliteStore
idle = RdmaAgent._end_when_idle
async def when_met(self, linger):
    import asyncio
    while not Path({str(decide)!r}).exists():
        await asyncio.sleep(0.01)
    await idle(self, linger)
RdmaAgent._end_when_idle = when_met
close = SqliteStore.close
def when_told(self):
    while not Path({str(leave)!r}).exists():
        time.sleep(0.01)
    close(self)
SqliteStore.close = when_told
"""
    old = agent("host", "--linger=50ms", settings=slow)
    with client.Connection(old.place) as connection:
        decide.touch()
        until(lambda: not old.place.address.exists(), "the agent's decision")
        with pytest.raises(AgentError, match="the agent has ended"):
            connection.ask("STAY", "-")
    leave.touch()
    assert old.process.wait(PATIENCE) == 0


def test_an_agent_is_there_for_who_started_it(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is so slow that more than the agent's time to linger passes before it is asked to stay."""
    start, linger = place.start, 0.05

    def slowly(*arguments: Any) -> str | None:
        said = start(*arguments)
        # on a busy machine this may be less than the agent needs to notice it; the test is weaker then
        time.sleep(10 * linger)
        return said

    monkeypatch.setenv("MANAPY_SHIFT_DIR", str(short / "host"))
    monkeypatch.setattr(place, "start", slowly)
    where = place.make("job")
    with subprocess.Popen(["sleep", "1000"]) as program:
        assert prepare.agent(where, where.default_url, linger=linger, pid=program.pid) is None
        with client.Connection(where) as connection:
            served = connection.status()["pid"]
        program.kill()
    until(lambda: not where.address.exists(), "the agent's end")
    until(lambda: not processes.is_alive(served), "the end of its process")


def test_more_come_at_once_than_its_queue_holds(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is still starting accepts no connections: they wait until it does."""
    monkeypatch.setenv("MANAPY_SHIFT_DIR", str(short / "host"))
    where = place.make("job")
    said: list[str] = []

    def connect() -> None:
        try:
            client.Connection(where)
        except AgentError as error:
            said.append(str(error))

    with where.locked(), where.listen() as listener:
        listener.listen(0)
        waiting = []
        with pytest.raises(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(where.address))
        late = threading.Thread(target=connect)
        late.start()
        until(
            lambda: said or Path(f"/proc/self/task/{late.native_id}/syscall").read_text().split()[0] == CONNECT,
            "the late one",
        )
        assert not said
        for _ in waiting:  # the last one didn't get in; the late one comes instead
            listener.accept()[0].close()
        late.join(PATIENCE)
        for one in waiting:
            one.close()
    assert said == ["job job: the agent has ended"]
