"""Combines the verdicts of a watch's looks: which are new, which are withdrawn, and which have stood for long enough to
act on.

A finding is a verdict HUNG or LATE: it describes the present, and stands until a look no longer finds it. A verdict
SLOW describes the past: it is printed once, and stays true. If its fault lasts (Verdict.share), it stands, too, as long
as each look finds it.

Invariants
 1. A watch acts on a verdict only if it is sure (SURE), LOOKS looks in a row have found it, and it has stood for the
    watch's patience. A dead or stopped rank, and a proven deadlock, need no patience, unless a watch says otherwise
    (at_once). The last look at a job that has ended is final. A fault that makes a job slow must also cost WORTH.
 2. A printed verdict that is no longer found is withdrawn, unless another verdict names the same rank.
 3. A look without a result (UNKNOWN), or at a job that a checkpoint holds, changes nothing. If only the job's speed is
    unknown, this is a result: nobody is stuck.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...core.units import ago
from ..model.verdict import PARKED, SPEED, Cause, State, Verdict

SURE = 0.9  # least confidence of a verdict to act on
LOOKS = 3  # least number of looks in a row that have found it
PROVEN = frozenset({Cause.DEAD, Cause.STOPPED, Cause.DEADLOCK})
QUIET = 60.0  # seconds for which a verdict that comes and goes isn't printed again
WORTH = 0.1  # least share of the time that a fault costs which makes a job slow
SAME = 100_000_000  # ns; times of one fault differ between looks, because hosts' clocks are compared again each time


@dataclass
class _Stands:
    """A finding.

    verdict: as the last look found it.
    said: as the first look found it.
    since: the time of the first look, seconds.
    looks: number of looks in a row that have found it.
    acted: it was handed on.
    """

    verdict: Verdict
    said: Verdict
    since: float
    looks: int = 1
    acted: bool = False


@dataclass(frozen=True)
class WatchUpdate:
    """The result of one look. Each verdict comes once.

    new: to be printed.
    back: to be withdrawn: (verdict, seconds for which it stood).
    act: to act on.
    lasting: faults that make the job slow, and may be acted on. These come with each look that finds them.
    """

    new: tuple[Verdict, ...] = ()
    back: tuple[tuple[Verdict, float], ...] = ()
    act: tuple[Verdict, ...] = ()
    lasting: tuple[Verdict, ...] = ()


def taken_back(verdict: Verdict, stood: float, over: bool) -> str:
    """The sentence that withdraws a verdict that stood for so many seconds. over: the job has ended."""
    whose = f"rank {verdict.rank}" if verdict.rank is not None else "the job"
    how = "has ended well" if over else "goes on"
    return f"withdrawn: {whose} {how} after {ago(stood)}; the verdict was: {verdict.sentence}"


@dataclass
class StandingVerdicts:
    """The verdicts of one watch. patience: seconds; at_once: causes that need none. All moments are seconds of one
    clock."""

    patience: float
    at_once: frozenset[Cause] = PROVEN
    slow: bool = False  # a verdict SLOW was printed
    suspects: bool = False  # a fault makes the job slow, and has not stood for long enough to be acted on
    _stands: list[_Stands] = field(default_factory=list)
    _lasting: list[_Stands] = field(default_factory=list)
    _said: list[tuple[float, Verdict]] = field(default_factory=list)  # with the moment when each was last found

    def look(self, verdicts: list[Verdict], moment: float, last: bool = False) -> WatchUpdate:
        """Add the verdicts of a look. last: the job has ended, and there will be no other look."""
        if all(
            verdict.state is State.UNKNOWN and verdict.detail != SPEED or verdict.detail == PARKED
            for verdict in verdicts
        ):
            return WatchUpdate()
        findings = [verdict for verdict in verdicts if verdict.state in (State.HUNG, State.LATE)]
        before, self._stands = self._stands, _standing(findings, self._stands, moment)
        lasting = [verdict for verdict in verdicts if verdict.state is State.SLOW and (verdict.share or 0.0) >= WORTH]
        self._lasting = _standing(lasting, self._lasting, moment)
        accused = {
            verdict.rank for verdict in findings
        }  # A rank that was late may now be dead. A verdict on a knot may name no rank.
        gone = [one for one in before if not any(same(one.verdict, verdict) for verdict in findings)]
        gone = [
            one for one in gone if (one.verdict.rank not in accused if one.verdict.rank is not None else not findings)
        ]
        self._said = [(when, said) for when, said in self._said if not any(same(one.verdict, said) for one in gone)]
        new = tuple(
            verdict
            for verdict in verdicts
            if verdict.state not in (State.HEALTHY, State.UNKNOWN) and not self._repeated(verdict, moment)
        )
        due = [one for one in self._stands if not one.acted and self._due(one, moment, last)]
        for one in due:
            one.acted = True
        self._said = [(when, verdict) for when, verdict in self._said if moment - when < QUIET]
        slow = tuple(verdict for verdict in new if verdict.state is State.SLOW)
        self.slow = self.slow or bool(slow)
        back = tuple((one.said, moment - one.since) for one in gone)
        sure = [one.verdict for one in self._lasting if one.verdict.confidence >= SURE]
        lasts = tuple(one.verdict for one in self._lasting if self._due(one, moment, last=False))
        self.suspects = len(lasts) < len(sure)
        return WatchUpdate(new, back, (*(one.verdict for one in due), *slow), lasts)

    @property
    def stands(self) -> list[tuple[Verdict, float]]:
        """The findings that stand, each with the moment of the first look that has found it."""
        return [(one.verdict, one.since) for one in self._stands]

    @property
    def worst(self) -> State:
        """The final statement on the job: the gravest finding that stands, or SLOW if there ever was one."""
        states = {one.verdict.state for one in self._stands}
        if State.HUNG in states:
            return State.HUNG
        return State.LATE if State.LATE in states else State.SLOW if self.slow else State.HEALTHY

    def _due(self, one: _Stands, moment: float, last: bool) -> bool:
        """Return whether the watch has to act on a finding (invariant 1)."""
        patience = 0.0 if one.verdict.cause in self.at_once else self.patience
        held = one.looks >= LOOKS and moment - one.since >= patience
        return one.verdict.confidence >= SURE and (held or last and one.verdict.state is State.HUNG)

    def _repeated(self, verdict: Verdict, moment: float) -> bool:
        """Return whether the verdict was found less than QUIET seconds ago, and so was printed before. Each time it is
        found, this time begins again."""
        known = [i for i, (_, said) in enumerate(self._said) if same(said, verdict)]
        for i in known:
            self._said[i] = moment, verdict
        if not known:
            self._said.append((moment, verdict))
        return bool(known)


def _standing(found: list[Verdict], before: list[_Stands], moment: float) -> list[_Stands]:
    """The verdicts of a look, each with what is known of it since the first look that found it."""
    stands = []
    for verdict in found:
        one = next((one for one in before if same(one.verdict, verdict)), None)
        stands.append(
            _Stands(verdict, one.said, one.since, one.looks + 1, one.acted)
            if one
            else _Stands(verdict, verdict, moment)
        )
    return stands


def same(one: Verdict, other: Verdict) -> bool:
    """Return whether both describe the same fault."""
    if (one.state, one.cause, one.rank, one.call) != (other.state, other.cause, other.rank, other.call):
        return False
    if one.since_ns is None or other.since_ns is None:
        return one.since_ns == other.since_ns
    return abs(one.since_ns - other.since_ns) < SAME
