"""`manapy why` and `manapy trace top` on a job of many hosts, through the coordinator and its agents: their answers,
and the memory that they take. The nodes are emulated (many_nodes.py); no remote shell reaches them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import many_nodes
import pytest
from jobs import BIN, PATIENCE
from manapy.ckpt.store import job
from waiting import until

RANKS = 2  # on each node
# as `manapy`, but a host may take long to answer: the collectors of all nodes start on this machine
PATIENT = (
    "import sys; from manapy.trace.capture import collect; from manapy.cli import main; collect.PATIENCE = 600.0; "
    "sys.exit(main())"
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="emulated nodes need root")


class Nodes(NamedTuple):
    """A job on emulated nodes. coordinator: its process id. env: the environment of commands."""

    dir: Path
    coordinator: int
    env: dict[str, str]


@contextlib.contextmanager
def running(where: Path, nodes: int, records: int, odd: int) -> Iterator[Nodes]:
    """A job whose ranks have all come."""
    directory, traces = where / "job", where / "traces"
    directory.mkdir(mode=0o700)
    traces.mkdir()
    env = {**os.environ, "MANAPY_TRACE_ROOT": str(traces), "XDG_STATE_HOME": str(where)}
    (directory / "secret").touch(0o600)
    (directory / "secret").write_bytes(os.urandom(32))
    listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    host, port = listener.getsockname()
    ranks = nodes * RANKS
    record = {"format": 1, "id": "job", "state": "starting", "host": host, "port": port, "ranks": ranks}
    job.write(
        directory, record | {"argv": ["played"], "cwd": "/", "started": time.time(), "mpi": None, "protocol": "cc"}
    )
    log = (where / "log").open("wb")
    options = ["--dir", directory, "--fd", str(listener.fileno()), "--ranks", str(ranks)]
    coordinator = subprocess.Popen(
        [BIN / "manapy", "_coordinator", *options], pass_fds=[listener.fileno()], env=env, stderr=log
    )
    listener.close()
    numbers = map(str, (nodes, RANKS, records, odd))
    played = subprocess.Popen(
        [sys.executable, many_nodes.__file__, directory, *numbers], stdin=subprocess.PIPE, env=env, stderr=log
    )
    try:
        until(lambda: job.read(directory).state == "running", lambda: (where / "log").read_text(), 5 * PATIENCE)
        yield Nodes(directory, coordinator.pid, env)
    finally:
        coordinator.kill()  # which ends the agents, and these their ranks
        coordinator.wait()
        assert played.stdin is not None
        played.stdin.close()
        played.wait(PATIENCE)
        log.close()


def ask(nodes: Nodes, where: Path, *arguments: str | Path) -> tuple[int, dict[str, Any], int]:
    """Exit code, data, and peak memory (bytes) of a command."""
    with (where / "out").open("w+b") as out, (where / "errors").open("w+b") as errors:
        asked = subprocess.Popen([sys.executable, "-c", PATIENT, *arguments], env=nodes.env, stdout=out, stderr=errors)
        _, status, used = os.wait4(asked.pid, 0)
        asked.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        text = out.read()
        assert text, errors.read()
        return asked.returncode, json.loads(text), used.ru_maxrss * 1024


def peak(pid: int) -> int:
    """The peak memory of a process so far, in bytes."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.parametrize(
    ("nodes", "fanin", "records"),
    [(8, 2, 1 << 14), pytest.param(64, 64, 1 << 13, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_many_hosts_answer_through_their_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, fanin: int, records: int
) -> None:
    """All ranks are seen, those of agents below another one, too. The coordinator passes the recordings on and keeps
    nothing of them."""
    monkeypatch.setenv("MANAPY_AGENT_FANIN", str(fanin))
    odd = nodes * RANKS - 3  # not on the coordinator's host
    with running(tmp_path, nodes, records, odd) as emulated:
        before = peak(emulated.coordinator)
        code, said, memory = ask(emulated, tmp_path, "why", emulated.dir, "--json")
        assert said["unreachable"] == {} and (code, said["state"]) == (4, "hung"), said
        (verdict,) = said["verdicts"]
        assert verdict["rank"] == odd and f"rank {odd} (node{odd // RANKS:02d})" in verdict["sentence"], verdict

        code, shown, _ = ask(emulated, tmp_path, "trace", "top", "--once", emulated.dir, "--json")
        hosts = [socket.gethostname(), *(f"node{number:02d}" for number in range(1, nodes))]
        assert [(row["rank"], row["host"]) for row in shown["ranks"]] == [
            (rank, hosts[rank // RANKS]) for rank in range(nodes * RANKS)
        ]
        assert shown["verdicts"][0]["rank"] == odd, shown["verdicts"]

        recorded = 64 * records * nodes * RANKS
        grown = peak(emulated.coordinator) - before
        print(f"{recorded / 1e6:.0f} MB recorded; why {memory / 1e6:.0f} MB, coordinator +{grown / 1e6:.1f} MB")
        assert grown < nodes * 150e3, "without MORE it is half as much again, and grows with the recordings"
