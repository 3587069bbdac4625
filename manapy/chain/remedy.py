"""What a chain does about the verdicts of its watches: about a hung job, a function of the verdict alone; and about a
host that makes a job slow (--on-slow move), by the expected gain over the time left against the cost of a checkpoint
and a restart.

A dead rank is not handled here: the job's coordinator ends such a job, and the attempt counts as crashed.

Invariants
 1. No job is moved unless the watch is sure that the fault lies with the host (cli/hidden/watch.py), the gain is more
    than the cost, and another host is free. Gain and cost are printed and recorded, whatever is decided.
 2. A job runs for an unknown time. If no time limit ends it first, it is expected to run as long again as it has run so
    far: of programs whose lengths have no scale, half of those that have run for some time run at least twice as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..core.units import ago
from . import policy
from .record import Chain, Event
from .watching import Hung, Slow

# The values of trace.model.verdict.Cause. The program itself is at fault: its state has the fault in it, and it can
# hang at the same place on any host.
OF_THE_PROGRAM = ("deadlock", "mismatched calls", "missing call")
# The ranks are well, and may be saved as they are.
OF_THE_SURROUNDINGS = ("network", "starved processor")
OF_THE_HOST = (*OF_THE_SURROUNDINGS, "stopped process", "compute")
IGNORED = ("dead process",)
RESTART = 10.0  # seconds that a restart is assumed to take if none has been measured


class Remedy(NamedTuple):
    """``save``: a checkpoint of this state is worth having; ``host``: the host to exclude from the next attempt, or "";
    ``place``: of a fault of the program, to recognize it; empty for other faults."""

    save: bool
    host: str
    place: tuple[str, ...]


def remedy(hung: Hung) -> Remedy | None:
    """Return what to do before the next attempt; None: nothing."""
    if hung.cause in IGNORED:
        return None
    place = (hung.cause, str(hung.rank), hung.call) if hung.cause in OF_THE_PROGRAM else ()
    return Remedy(hung.cause in OF_THE_SURROUNDINGS, hung.host if hung.cause in OF_THE_HOST else "", place)


class Decision(NamedTuple):
    """``gain``, ``cost``: seconds; ``text``: both, for the user."""

    gain: float
    cost: float
    text: str


def decide(slow: Slow, ran: float, left: float | None, checkpoint: float, restart: float) -> Decision:
    """Compare gain and cost. ``ran``: seconds for which the chain has run; ``left``: until the end of this allocation,
    or None; ``checkpoint``, ``restart``: what these take, seconds."""
    rest = max(min(ran, math.inf if left is None else left), 0.0)
    gain, cost = slow.share * rest, checkpoint + restart
    text = f"another host would save about {ago(gain)} of the next {ago(rest)}, and the move takes about {ago(cost)}"
    return Decision(gain, cost, text)


def restart_seconds(events: Sequence[Event]) -> float:
    """How long the last restart of a chain took, from the end of an attempt until the ranks ran; of a chain without
    one, how long its start took."""
    before = took = None
    for event in events:
        if event["event"] == "end" or (event["event"] == "attempt" and before is None):
            before = float(event["time"])
        elif event["event"] == "running" and before is not None:
            took, before = max(float(event["since"]) - before, 0.0), None
    return RESTART if took is None else took


class Mover:
    """Decides for one attempt. ``say`` shows a line to the user."""

    def __init__(self, chain: Chain, attempt: int, say: Callable[[str], None]) -> None:
        self._chain, self._attempt, self._say = chain, attempt, say
        self._judged: Slow | None = None  # what the newest look of the watch has found
        self._stays = ""  # the slow host that was reported, and is kept

    def look(
        self, slow: Slow | None, deadline: float | None, checkpoint: float, can_replace: Callable[[str], bool]
    ) -> Slow | None:
        """Return what makes a job slow if the job is to be moved. ``deadline``: of this allocation, in seconds since
        the epoch. Each finding is judged once: the next look of the watch brings another, and the expected gain grows
        with the time that the job has run."""
        if slow is None or not slow.host:
            self._stays = ""
            return None
        if slow is self._judged:
            return None
        self._judged = slow
        now = time.time()
        found = decide(
            slow,
            policy.used(self._chain, now),
            None if deadline is None else deadline - now,
            checkpoint,
            restart_seconds(self._chain.events()),
        )
        stays = "it stays" if found.gain <= found.cost else "" if can_replace(slow.host) else "no other host is free"
        if stays and self._stays == slow.host:
            return None
        self._stays = slow.host if stays else ""
        decided = {"host": slow.host, "gain": round(found.gain), "cost": round(found.cost, 1), "moves": not stays}
        self._chain.append("slow", self._attempt, sentence=slow.sentence, **decided)
        self._say(f"{slow.sentence}: {found.text}: {stays or 'saving the job, to continue without that host'}")
        return slow if not stays else None
