"""The communication of a rank: one thread, and the groups of ranks with which it communicates.

1. Only this thread sends and receives. It runs jobs one after the other, in the order of submit().
2. A message's tag stands for an operation and a unit, so that ranks at different operations notice it (exchange.py).
3. An error on the thread is sent to all ranks at once, and raised where the result is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntEnum
from typing import Any

import numpy as np

from ..errors import OrderError
from .exchange import ExchangeGroup
from .failure_broadcast import Alarm
from .small_allgather import Control
from .topology import Topology
from .traffic import Scope, Traffic


class Operation(IntEnum):
    """What a message's tag stands for, together with the number of the unit."""

    FETCH = 0
    GATHER = 1
    REDUCE = 2
    REDUCE_ACROSS = 3
    LOAD = 4
    NORM = 5
    REPORT = 6
    STATE = 7
    CLOSE = 8


class Messenger:
    """node, cross: the ranks of this node, and those of this local number on all nodes; for jobs on the thread.
    traffic: what this rank has sent."""

    def __init__(self, topology: Topology, units: Sequence[str]) -> None:
        """Collective. units: names, in order."""
        self.traffic = Traffic()
        self._units = units
        self._alarm = Alarm(topology)
        members = [topology.rank_of(topology.node_index, local) for local in range(topology.ranks_per_node)]
        self.node = ExchangeGroup(topology.node, members, Scope.INTRA, self.traffic, self._alarm, self._describe)
        peers = [topology.rank_of(node, topology.local) for node in range(topology.nodes)]
        self.cross = ExchangeGroup(topology.cross, peers, Scope.INTER, self.traffic, self._alarm, self._describe)
        self._control = Control(topology, self.node, self.cross)
        self._thread = ThreadPoolExecutor(1, "fcdp")
        self._open = False

    def start(self) -> None:
        """Accept jobs from now on."""
        self._open = True

    def stop(self) -> None:
        """No more jobs; those not begun are dropped."""
        self._open = False
        self._thread.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Collective, after stop(), where nobody has failed."""
        for part in (self.node, self.cross, self._alarm):
            part.close()

    def check_open(self) -> None:
        """Raise OrderError before start() and after stop()."""
        if not self._open:
            raise OrderError("the engine is used inside `with engine:`")

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Run it on the thread, after what was submitted before."""
        self.check_open()
        return self._thread.submit(self._run, job)

    def spread(self, error: BaseException) -> None:
        """This rank fails: tell all others (failure_broadcast.py)."""
        self._alarm.spread(error)

    def rows(self, row: np.ndarray, operation: Operation) -> np.ndarray:
        """Collective. Every rank's row, all of one length, node by node: (P, len(row))."""
        return self.submit(lambda: self._control.rows(row, self.tag(operation))).result()

    def rank_of_row(self, row: int) -> int:
        """Return the rank whose row it is."""
        return self._control.rank_of_row(row)

    def objects(self, value: Any) -> list[Any]:
        """Collective. Every rank's value, by rank."""
        return self.submit(lambda: self._control.objects(value, self.tag(Operation.STATE))).result()

    def tag(self, operation: Operation, unit: int | None = None) -> int:
        """Return the tag of messages. unit: its number, None for what concerns no unit."""
        return (len(self._units) if unit is None else unit) * len(Operation) + operation

    def _describe(self, tag: int) -> str:
        unit, operation = divmod(tag, len(Operation))
        text = Operation(operation).name.lower().replace("_", " ")
        return f"{text} of unit '{self._units[unit]}'" if unit < len(self._units) else text

    def _run(self, job: Callable[[], Any]) -> Any:
        try:
            self._alarm.check()
            return job()
        except BaseException as error:
            # here and not where the result is looked at: the caller may be computing for long
            self._alarm.spread(error)
            raise
