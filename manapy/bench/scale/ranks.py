"""Stubs of ranks: one process speaks the real control protocol (control.h) for many ranks, each on its own connection.

    python -m manapy.bench.scale.ranks DIR RANKS PER_NODE SOCKETS

The first PER_NODE ranks connect to the coordinator, all others to the agents of their nodes (agents.py).

The program that they play: every odd rank is inside a collective of all ranks when a checkpoint is requested, and every
even rank computes. So half of the ranks are below their target and must enter it. Each rank has the communicators of
its row and its column of a grid, too. Images are small files. After each checkpoint one line of JSON on standard output
says how long it took, in seconds.

Invariants
 1. A stub sends what a rank sends, in the same order: nothing is left out or folded.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from ...ckpt import protocol
from ...ckpt.node.agent import Peer
from ...ckpt.store import job
from ...clock import WORLD, Row, child_identity, ggid
from ...clock.messages import encode_row
from ...core import handshake, processes
from .agents import say

IMAGE = b"image"


class Ranks:
    """All ranks of one job."""

    def __init__(self, directory: Path, size: int, per_node: int, sockets: str) -> None:
        self.size = size
        self._job = job.read(directory)
        self._secret = self._job.secret()
        self._per_node, self._sockets = per_node, sockets
        self._rows = _Grid(size)
        self._ranks: dict[int, Stub] = {}
        self._inside: list[Stub] = []  # ranks in the collective
        self._times: dict[str, float] = {}
        self._resumed = 0

    def connect(self) -> None:
        """Connect every rank, one after the other."""
        for number in range(self.size):
            stub = Stub(self._open(number), number)
            self._shake_hands(stub)
            stub.send(protocol.join("HELLO", number, self.size, f"node{number // self._per_node}", os.getpid(), 0, ""))
            stub.send(protocol.join("PROGRAM", "up", "stub", "-"))
            stub.flush()
            self._ranks[stub.socket.fileno()] = stub

    def serve(self) -> None:
        """Answer until a connection ends."""
        poll = select.epoll()
        for fd in self._ranks:
            poll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll():
                stub = self._ranks[fd]
                lines = stub.lines()
                if lines is None:
                    return
                for line in lines:
                    self._answer(stub, line)
                stub.flush()

    def _open(self, number: int) -> socket.socket:
        node = number // self._per_node
        if node == 0:
            return socket.create_connection((self._job.host, self._job.port))
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(f"\0{self._sockets}-{node}")
        return connected

    def _shake_hands(self, stub: Stub) -> None:
        greeting = stub.wait_line()
        line, expected = handshake.answer(self._secret, greeting, "rank")
        stub.send(line)
        stub.flush()
        if stub.wait_line() != expected:
            raise SystemExit("the coordinator refuses a stub")
        if stub.socket.family != socket.AF_UNIX:
            stub.seals = handshake.seals(self._secret, greeting, line, client=True)

    def _mark(self, event: str, *, last: bool = False) -> None:
        if last or event not in self._times:
            self._times[event] = time.monotonic()

    def _answer(self, stub: Stub, line: str) -> None:
        kind, *fields = line.split(" ")
        if kind == "CHECK":
            self._mark("asked")
            stub.send(f"CHECKED {fields[0]}")
        elif kind == "INTENT":
            self._on_intent(stub, int(fields[0]))
        elif kind == "TARGETS":
            self._on_targets(stub, fields[3:])
        elif kind in ("TARGET", "THAW"):
            stub.acknowledge()
        elif kind == "FREEZE":
            stub.applied += 1
            answer = "FROZEN" if int(fields[1]) == stub.version else "NOTFROZEN"
            stub.send(f"{answer} {stub.epoch} {stub.version}")
        elif kind == "STOP":
            self._mark("safe")
            stub.send(f"STOPPED {fields[0]}")
        elif kind == "DRAIN":
            stub.send(f"DRAINED {fields[0]}")
        elif kind == "WRITE":
            self._mark("write")
            (Path(protocol.decode_text(fields[1])) / f"rank-{stub.number:05d}.img").write_bytes(IMAGE)
            self._mark("written", last=True)
            stub.send(protocol.join("WRITTEN", int(fields[0]), 4096, len(IMAGE), 7, "0.1", "node", "0" * 32))
        elif kind == "RESUME":
            self._on_resume(stub, fields[0])

    def _on_intent(self, stub: Stub, epoch: int) -> None:
        stub.epoch, stub.applied = epoch, 1
        stub.version += 1
        if stub.number % 2:
            stub.sequence += 1
            self._enter(stub)
        stub.send(f"ROWS {epoch} {stub.version} 0 3 {self._rows.of(stub.number, stub.sequence)}")
        if stub.inside:
            stub.report()

    def _on_targets(self, stub: Stub, rows: list[str]) -> None:
        stub.acknowledge()
        for row in rows:
            cid, _, target = row.partition(":")
            stub.sequence = int(target)
            stub.version += 1
            self._enter(stub)
            stub.send(f"RAISE {stub.epoch} {stub.version} {cid} {target}")
            stub.report()
        if len(self._inside) == self.size:  # the collective is complete
            for rank in self._inside:
                rank.inside = False
                rank.version += 1
                rank.report()
                rank.flush()
            self._inside.clear()

    def _enter(self, stub: Stub) -> None:
        stub.inside = True
        self._inside.append(stub)

    def _on_resume(self, stub: Stub, epoch: str) -> None:
        self._mark("resume", last=True)
        stub.send(f"RESUMED {epoch}")
        self._resumed += 1
        if self._resumed == self.size:
            self._resumed, times = 0, self._times
            self._times = {}
            result = {
                "to_safe": times["safe"] - times["asked"],
                "to_write": times["write"] - times["safe"],
                "to_resume": times["resume"] - times["written"],
            }
            say(json.dumps(result))


class Stub(Peer):
    """One rank: its connection, and its clock on the communicator of all ranks."""

    def __init__(self, connected: socket.socket, number: int) -> None:
        super().__init__(connected)
        self.number = number
        self.epoch = self.version = self.applied = 0
        self.sequence = 10  # collectives of all ranks so far
        self.inside = False

    def wait_line(self) -> str:
        """The next line, of which nothing has been read yet."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while True:
            poll.poll()
            if lines := self.lines():
                return lines[0]
            if lines is None:
                raise SystemExit("a connection has ended")

    def acknowledge(self) -> None:
        """A message of the clock has been applied."""
        self.applied += 1
        self.version += 1
        self.report()

    def report(self) -> None:
        """The state of the only thread."""
        thread = f"1 collective:{WORLD:016x}:all:-" if self.inside else "0"
        self.send(f"STATE {self.epoch} {self.version} {self.applied} {thread}")


class _Grid:
    """The rows of a rank: all ranks, its row of a grid, its column."""

    def __init__(self, size: int) -> None:
        self._size, self._side = size, max(1, int(size**0.5))
        world = tuple(range(size))
        self._world = encode_row(Row(WORLD, ggid(world), 0, world, name="MPI_COMM_WORLD")).split(":0:", 1)
        self._texts: dict[tuple[str, int], str] = {}

    def of(self, number: int, sequence: int) -> str:
        """The rows in a ROWS line."""
        row, column = divmod(number, self._side)
        first = row * self._side
        parts = (
            self._text("row", 1, range(first, min(self._size, first + self._side))),
            self._text("column", 2, range(column, self._size, self._side)),
        )
        return " ".join((f":{sequence}:".join(self._world), *parts))

    def _text(self, name: str, parent_sequence: int, members: Any) -> str:
        key = name, members[0]
        if key not in self._texts:
            cid = child_identity(WORLD, parent_sequence, members[0])
            self._texts[key] = encode_row(Row(cid, ggid(members), 5, tuple(members), name=name))
        return self._texts[key]


def main() -> None:
    """See the head of this file."""
    directory, size, per_node, sockets = sys.argv[1:]
    processes.raise_limit()
    ranks = Ranks(Path(directory), int(size), int(per_node), sockets)
    ranks.connect()
    say("connected")
    ranks.serve()


if __name__ == "__main__":
    main()
