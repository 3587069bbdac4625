"""The last state of each queue pair of this host's programs, and the newest events.

An event is a JSON object that a program has sent, with members that the agent adds (README.md). It belongs to the
queue pair `qp` of its program or, without this member, to the whole program. Members that an event lacks keep their
value in the state.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

KEPT = 1000  # events
SWITCHES = frozenset({"fallback", "return", "move"})  # events after which traffic runs on another device

State = dict[str, Any]


def parse(text: str) -> list[State]:
    """One event, or a list of them, in JSON. Raises ValueError."""
    sent = json.loads(text)
    events = sent if isinstance(sent, list) else [sent]
    if not all(
        isinstance(e, dict) and isinstance(e.get("event"), str) and isinstance(e.get("qp", 0), int) for e in events
    ):
        raise ValueError("no 'event', or a 'qp' that isn't a number")
    return events


class Ledger:
    """States and events of one agent."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, Any], State] = {}
        self._events: deque[State] = deque(maxlen=KEPT)
        self._numbers = itertools.count(1)

    def add(self, client: str, about: State, sent: State) -> State:
        """An event that a client has sent; about: what the agent knows of the client. Returns the whole event."""
        event = {**about, **sent, "seq": next(self._numbers), "time": round(time.time(), 6)}
        self._events.append(event)
        state = self._states.setdefault((client, sent.get("qp")), {"switches": 0})
        switches = state["switches"] + (sent["event"] in SWITCHES)
        state.update({"switches": switches, **event})
        return event

    def forget(self, client: str) -> None:
        """The program has ended: remove its states. Its events remain."""
        for key in [k for k in self._states if k[0] == client]:
            del self._states[key]

    def states(self, client: str) -> list[State]:
        """The states of one client: of the whole program first, then of its queue pairs."""
        mine = [(qp, state) for (owner, qp), state in self._states.items() if owner == client]
        return [state for _, state in sorted(mine, key=lambda item: (item[0] is not None, item[0] or 0))]

    def after(self, seq: int) -> Iterator[State]:
        """The kept events that are newer than this one; -1: none."""
        if seq >= 0:
            yield from (event for event in self._events if event["seq"] > seq)
