"""Emulated nodes with recordings, for test_why_many_hosts.py: the real agent (ckpt/node) in a process of its own for
each node, with its own host name and its own folder of recordings. The ranks are played: they only say HELLO.

    python many_nodes.py DIR NODES RANKS RECORDS ODD

The host of this process is the first node, where the coordinator runs. Each node has RANKS ranks, each with RECORDS
Barriers on the world. Then all ranks wait in one more, except rank ODD, which has called Allreduce instead. This needs
root and MANAPY_TRACE_ROOT. It ends with its standard input.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np

from manapy.ckpt.node import agent, leader
from manapy.ckpt.protocol import LINE_MAX, join
from manapy.ckpt.store import job
from manapy.core import handshake
from manapy.core.connection import Connection
from manapy.core.proc import START, stat_fields
from manapy.trace.capture import format, tsc_clock
from manapy.trace.capture.clocks import Sample
from manapy.trace.model.events import Op

NEWNS, NEWUTS, REC, PRIVATE = 0x20000, 0x4000000, 0x4000, 0x40000  # unshare(2), mount(2)


def become(host: str, folder: Path) -> None:
    """Give this process its own host name, and an empty file system in this folder."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(NEWNS | NEWUTS))
    check(libc.mount(b"none", b"/", None, REC | PRIVATE, None))
    check(libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, None))
    socket.sethostname(host)


def record(of: job.Job, rank: int, records: int, odd: bool, begin: Sample, end: Sample) -> None:
    """Write the recording of a rank, whose process is this one. All calls lie between these moments."""
    folder = format.root() / format.job_name(of.dir)
    folder.mkdir(parents=True, exist_ok=True)
    capacity = 1 << records.bit_length()
    writer = format.Writer(
        folder,
        rank,
        of.ranks,
        host=socket.gethostname(),
        capacity=capacity,
        ticks_per_second=round((end.ticks - begin.ticks) / (end.monotonic - begin.monotonic) * 1e9),
        pid=os.getpid(),
        pid_start=int(stat_fields(Path("/proc/self"))[START]),
    )
    for sample in (begin, end):
        writer.sample(sample.ticks, sample.realtime, sample.monotonic)
    world = writer.comm(1, list(range(of.ranks)), name="MPI_COMM_WORLD")
    writer.ring()
    ticks = np.linspace(begin.ticks, end.ticks, records + 2).astype(np.uint64)
    calls = np.zeros(records, format.RECORD)
    calls["op"], calls["comm"], calls["peer"] = Op.BARRIER, world, -32768
    calls["context"] = np.arange(1, records + 1)
    # numbers of all kinds, which can't be packed into nothing
    random = np.random.default_rng(rank)
    calls["bytes"] = random.integers(0, 1 << 48, records)
    calls["enter"] = ticks[:-2] + random.integers(1, int(ticks[1] - ticks[0]) // 2, records, dtype=np.uint64)
    calls["exit"] = ticks[1:-1]
    writer.extend(calls)
    op = Op.ALLREDUCE if odd else Op.BARRIER
    writer.put(op=op, comm=world, enter=int(ticks[-2]), context=records + 1)


def play(of: job.Job, ranks: range, address: str | tuple[str, int]) -> list[Connection]:
    """Say HELLO for these ranks, to the agent with this socket or to the coordinator."""
    made = []
    for rank in ranks:
        local = isinstance(address, str)
        connected = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        connected.connect(address)
        service = handshake.COORDINATOR._replace(sealed=not local)
        connection = Connection(
            connected, of.secret(), service, what="a played rank", lost="lost", secret_path="secret", timeout=300.0,
            limit=LINE_MAX, role="rank",
        )  # fmt: skip
        connection.send(join("HELLO", rank, of.ranks, socket.gethostname(), os.getpid(), 0, ""))
        made.append(connection)
    return made


def node(of: job.Job, number: int, ranks: range, records: int, odd: int, begin: Sample, end: Sample) -> None:
    """Be one node: fork the process that is its ranks, and be the agent."""
    become(f"node{number:02d}", Path(os.environ["MANAPY_TRACE_ROOT"]))
    address = f"\0manapy-many-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    if os.fork() == 0:
        listener.close()
        for rank in ranks:
            record(of, rank, records, rank == odd, begin, end)
        (first, *_) = play(of, ranks, address)
        first.patient()
        while first.receive() != "UNLED":  # the coordinator has ended
            pass
        return
    agent.NodeAgent(listener, of.secret(), leader.connect(of.host, of.port, of.secret())).serve()


def main() -> None:
    """See the head of this file."""
    of = job.read(Path(sys.argv[1]))
    nodes, per_node, records, odd = map(int, sys.argv[2:])
    begin = tsc_clock.now()
    time.sleep(0.1)  # the time in which all calls lie
    end = tsc_clock.now()
    assert begin is not None and end is not None
    for number in range(1, nodes):
        if os.fork() == 0:
            node(of, number, range(number * per_node, (number + 1) * per_node), records, odd, begin, end)
            os._exit(0)
    for rank in range(per_node):
        record(of, rank, records, rank == odd, begin, end)
    held = play(of, range(per_node), (of.host, of.port))
    sys.stdin.read()
    del held


if __name__ == "__main__":
    main()
