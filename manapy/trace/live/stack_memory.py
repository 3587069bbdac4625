"""The stacks of suspects as evidence of verdicts. Taking one costs a process of py-spy, so a watch keeps them.

Invariants
 1. A stack is taken when a verdict is found for the first time, and when the watch is to act on it. In other looks the
    verdict has the newest one.
 2. Of one look's verdicts only the first STACKS findings have one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from ..host import process_state, stacks
from ..host.activity import ObservedActivity, Suspect
from ..model.events import Rank, Trace
from ..model.verdict import State, Verdict
from .standing import same

STACKS = 4  # largest number of suspects whose stacks are taken


class RemoteProcesses(Protocol):
    """The questions that can be asked about processes of other hosts (collect.Hosts)."""

    def stack(self, rank: Rank) -> list[str]: ...
    def activity(self, suspects: dict[int, Suspect]) -> dict[int, ObservedActivity]: ...


class SuspectStacks:
    """The stacks that one watch has taken."""

    def __init__(self) -> None:
        self._kept: list[tuple[Verdict, Sequence[str]]] = []  # of the verdicts of the last look

    def added(
        self, verdicts: Sequence[Verdict], due: Collection[Verdict], trace: Trace, others: RemoteProcesses | None
    ) -> list[Verdict]:
        """Return the verdicts of a look, with stacks. due: those to act on now. others: the job's other hosts."""
        kept: list[tuple[Verdict, Sequence[str]]] = []
        found = []
        for i, verdict in enumerate(verdicts):
            if i < STACKS and verdict.state in (State.HUNG, State.LATE):
                lines = next((lines for known, lines in self._kept if same(known, verdict)), None)
                if lines is None or verdict in due:
                    lines = _stack(verdict, trace, others)
                kept.append((verdict, lines))
                verdict = replace(verdict, evidence=(*verdict.evidence, *lines))
            found.append(verdict)
        self._kept = kept
        return found


def _stack(verdict: Verdict, trace: Trace, others: RemoteProcesses | None) -> list[str]:
    """Return evidence on where the process of a verdict's rank is. Empty if it can't be learned."""
    known = trace.ranks.get(verdict.rank) if verdict.rank is not None else None
    if known is None:
        return []
    if known.rank in process_state.here(trace):
        return stacks.of(known.pid, known.pid_start)
    return others.stack(known) if others is not None else []
