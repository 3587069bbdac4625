"""Checkpoints with many ranks: the real coordinator and the real agents of nodes, ranks that are stubs
(osu_bench/scale/stubs.c).

Times are those of the protocol: from the request to the safe state, and from the last image to the last RESUME. The
images are small files. Everything runs on this machine, the stubs too, so times are upper limits for the coordinator
and its agents. The coordinator and each agent refuse 1 % of their connections of ranks at first.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...ckpt.store import job
from ...core import installation
from ..shared.commands import BenchError, Setting
from ..shared.plots import available
from ..shared.samples import CLOCK, Row, Rows
from . import rows as communicators
from .refusals import refuse

SIZES = ((64, 4), (1000, 16), (4000, 40), (10_000, 100), (100_000, 1000))  # (ranks, nodes)
GOALS = {1000: 300, 10_000: 2000, 100_000: 20_000}  # ms, of WHOLE
WHOLE = "request to writing, last image to RESUME"
SAFE = "request to safe state"


class Job(NamedTuple):
    """Processes. ``refused``: the number of connections that stubs have tried in vain."""

    coordinator: subprocess.Popen[str]
    stubs: subprocess.Popen[str]
    agents: subprocess.Popen[str]
    refused: int


def scale(setting: Setting) -> list[Row]:
    """Several checkpoints for each number of ranks up to ``setting.simulated``. The first number that fails is the last
    one: a machine that is too small for it is too small for more."""
    rows = Rows("scale")
    sizes = [(ranks, nodes) for ranks, nodes in SIZES if ranks <= setting.simulated]
    for i, (ranks, nodes) in enumerate(sizes):
        setting.progress(i / len(sizes), f"{ranks} ranks on {nodes} nodes")
        try:
            _measure(setting, rows, ranks, nodes)
        except BenchError as error:
            rows.fail(f"{ranks} ranks, {nodes} nodes", set(), CLOCK, str(error))
            break
    if available() and any(row.samples for row in rows.all()):
        _plot(rows.all(), setting.pictures / "scale.png")
    return rows.all()


def _measure(setting: Setting, rows: Rows, ranks: int, nodes: int) -> None:
    name = f"{ranks} ranks, {nodes} nodes"
    directory = setting.fresh("scale")
    with _job(setting, directory, ranks, nodes) as (coordinator, stubs, agents, _):
        for number in range(setting.rounds):
            setting.run([setting.tools.manapy, "checkpoint", directory])
            times = json.loads(_line(stubs, setting.limit))
            both = times["to_safe"] + times["to_write"] + times["to_resume"]
            goal = f"≤ {GOALS[ranks]} ms" if ranks in GOALS else ""
            rows.add(f"{name}: {WHOLE}", "ms", CLOCK, number, 1e3 * both, goal)
            rows.add(f"{name}: {SAFE}", "ms", CLOCK, number, 1e3 * times["to_safe"])
        rows.add(f"{name}: memory of the coordinator", "MB", CLOCK, 0, _peak(coordinator.pid) / 1e6)
        begin = time.monotonic()
        setting.run([setting.tools.manapy, "status", directory, "--json"])
        rows.add(f"{name}: manapy status", "ms", CLOCK, 0, 1e3 * (time.monotonic() - begin))
        stubs.terminate()
        used = json.loads(_line(agents, setting.limit))
        rows.add(f"{name}: memory of the largest agent", "MB", CLOCK, 0, used["bytes"] / 1e6)
    shutil.rmtree(directory)


def _plot(rows: list[Row], path: Path) -> None:
    """The times over the number of ranks, with the goals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    for what in (WHOLE, SAFE):
        chosen = [row for row in rows if row.name.endswith(what)]
        values = [(int(row.name.split()[0]), value.median) for row in chosen if (value := row.value(CLOCK))]
        axis.plot(*zip(*values, strict=True), "o-", label=what)
    axis.plot(*zip(*GOALS.items(), strict=True), "k_", markersize=16, label="goal")
    axis.set(xlabel="ranks", ylabel="ms", xscale="log", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


@contextlib.contextmanager
def _job(setting: Setting, directory: Path, ranks: int, nodes: int) -> Iterator[Job]:
    directory.mkdir(mode=0o700)
    secret = directory / "secret"
    secret.touch(0o600)
    secret.write_bytes(os.urandom(32))
    listener = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    listener.set_inheritable(True)
    address = listener.getsockname()
    record = {"format": 1, "id": directory.name, "state": "starting", "host": address[0], "port": address[1]}
    job.write(
        directory,
        record | {"ranks": ranks, "argv": ["stubs"], "cwd": "/", "started": time.time(), "mpi": None, "protocol": "cc"},
    )
    sockets = f"manapy-scale-{os.getpid()}-{address[1]}"
    per_node = -(-ranks // nodes)
    refused = max(1, per_node // 100)
    communicators.write(directory / "rows", ranks)
    program = installation.library("manapy-stubs")
    if program is None:
        raise BenchError("manapy-stubs is missing: this installation of manapy is incomplete")
    play = [program, directory, ranks, per_node, sockets, *address]
    coordinate = [setting.tools.manapy, "_coordinator", "--dir", directory, "--fd", listener.fileno(), "--ranks", ranks]
    with contextlib.ExitStack() as stack:
        log = directory / "stubs.log"
        agents = stack.enter_context(
            _process([sys.executable, "-m", f"{__package__}.agents", directory, nodes, sockets, refused], log)
        )
        _expect(agents, "started", setting.limit)
        stubs = stack.enter_context(_process(play, log))
        listener.settimeout(setting.limit)
        try:
            refuse(listener, refused)
        except TimeoutError as error:
            raise BenchError("the stubs do not connect") from error
        listener.setblocking(True)
        coordinator = stack.enter_context(_process(coordinate, directory / "coordinator.log", listener.fileno()))
        listener.close()
        yield Job(coordinator, stubs, agents, int(_expect(stubs, "connected", setting.limit)))


@contextlib.contextmanager
def _process(command: list[Any], log: Path, *descriptors: int) -> Iterator[subprocess.Popen[str]]:
    with log.open("a") as errors:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            pass_fds=descriptors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _name(process: Any) -> str:
    return "the agents" if process.args[0] == sys.executable else "the stubs"


def _line(process: Any, limit: float) -> str:
    """The next line of its output. Raises BenchError."""
    if not select.select([process.stdout], [], [], limit)[0]:
        raise BenchError(f"{_name(process)} says nothing for {limit:.0f} s")
    line: str = process.stdout.readline()
    if not line:
        raise BenchError(f"{_name(process)} has ended")
    return line.strip()


def _expect(process: Any, word: str, limit: float) -> str:
    """The rest of its next line, which must begin with this word. Raises BenchError."""
    first, _, rest = (line := _line(process, limit)).partition(" ")
    if first != word:
        raise BenchError(f"{_name(process)} says {line!r}")
    return rest


def _peak(pid: int) -> float:
    """The largest resident memory of a process so far, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return float(text.partition("VmHWM:")[2].split()[0]) * 1024
