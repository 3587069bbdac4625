"""Evidence on the network between ranks whose transfer does not end: work requests that do not complete, and probes.

A hook tells whether the network between two hosts works now: ping, ibping, or the fabric's own test. stalled.py calls
it before it names the network as the cause (MegaTrace paper, "validation via active probing"). If the network works,
probes without payload return at once, and something else keeps the transfer from ending.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from ...core.units import span
from ..model.events import Trace

Probe = Callable[[str, str], bool | None]
"""Probes the network from one host to another. True: it works; False: it doesn't; None: unknown."""

SECONDS = 10.0  # time limit of a probe
AGAIN = 10.0  # seconds after which a pair of hosts is probed again
IDLE = 500_000_000  # ns without progress of a queue pair, after which what is in flight had time to complete
MOST = 8  # largest number of pairs of hosts that are probed for one transfer


def by_command(command: str) -> Probe:
    """Return a probe that runs a shell command on this host.

    MANAPY_FROM and MANAPY_TO name the hosts. Exit code 0: the network works; 1: it does not; other results mean
    nothing.
    """
    known: dict[tuple[str, str], tuple[float, bool | None]] = {}

    def ask(here: str, there: str) -> bool | None:
        when, answer = known.get((here, there), (-AGAIN, None))
        if time.monotonic() - when >= AGAIN:
            answer = {0: True, 1: False}.get(_run(command, here, there))
            known[here, there] = time.monotonic(), answer
        return answer

    return ask


def _run(command: str, here: str, there: str) -> int:
    """Return the exit code of the command; -1 if it takes too long."""
    env = {**os.environ, "MANAPY_FROM": here, "MANAPY_TO": there}
    try:
        none = subprocess.DEVNULL
        return subprocess.run(
            command, shell=True, stdin=none, stdout=none, stderr=none, env=env, timeout=SECONDS
        ).returncode
    except subprocess.TimeoutExpired:
        return -1


def probed(trace: Trace, probe: Probe, rank: int, members: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """Return evidence on the paths from the host of one rank to those of others: paths that work, and paths that
    don't."""
    found: tuple[list[str], list[str]] = [], []
    hosts = {member: trace.ranks[member].host for member in members if member in trace.ranks}
    here = hosts.get(rank, "")
    others = [host for host in dict.fromkeys(hosts.values()) if host not in ("", here)]
    for host in others[:MOST] if here else []:
        if (answer := probe(here, host)) is not None:
            found[not answer].append(f"a probe from {here} to {host} {'came back' if answer else 'did not come back'}")
    return found


def in_flight(trace: Trace, members: tuple[int, ...], began: int) -> tuple[str, ...]:
    """Return evidence on work requests of a transfer between these ranks that were posted and have not completed.
    began: when the first of them began the transfer, ns.

    Only queue pairs between two of the ranks count, and only if they have moved since then: other work requests belong
    to other transfers. Those without a completion of their own (unsignaled) may stay in flight although they are done.
    So there must be more of them than ever stayed while the queue pair was idle.
    """
    records = trace.rdma[np.isin(trace.rdma["rank"], members)]
    pairs: dict[tuple[int, int], list[np.void]] = {}
    for event in records[np.argsort(records["enter"], kind="stable")]:
        pairs.setdefault((int(event["rank"]), int(event["comm"])), []).append(event)
    ends = {(rank, pair, int(mine[-1]["peer"])) for (rank, pair), mine in pairs.items()}
    found = []
    for (rank, pair), mine in sorted(pairs.items()):
        newest, peer = mine[-1], int(mine[-1]["peer"])
        if newest["enter"] < began or not any((other, peer, pair) in ends for other in members if other != rank):
            continue
        if (left := _left(newest)) > max(map(_left, _idle(mine)), default=0):
            found.append(
                f"rank {rank}: queue pair {pair}: {left} work requests posted and not completed, nothing completed for"
                f" {span(trace.now - int(newest['enter']))}"
            )
    return tuple(found[:4])


def _left(record: np.void) -> int:
    """Return the number of work requests that were posted and not completed."""
    return int(record["request"]) - int(record["context"])


def _idle(records: list[np.void]) -> Iterator[np.void]:
    """Yield the records after which a queue pair did not move for a while, and then went on."""
    for record, after in pairwise(records):
        if after["enter"] - record["enter"] >= IDLE:
            yield record
