"""The evidence on ranks for which others wait, and the texts of the verdicts."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ...core.units import span
from ..host import activity
from ..host.process_state import BUSY, DEAD, STOPPED, ZOMBIE
from ..host.runqueue import Delays
from ..model import calls
from ..model.events import OPEN, Op, Trace
from ..model.match import IS_COMPLETION, IS_RECEIVE, IS_SEND, Matching
from ..model.verdict import Cause, Phase, State, Verdict
from . import schedule_position
from .timeouts import FIRST, Expected, Memory
from .waitfor import Graph, Open, WaitCondition, build, described, inside
from .waiting import Waiting

if TYPE_CHECKING:
    from ..model.stages import Labels


class Suspects:
    """The suspects of one trace, and the verdicts so far.

    over: the job's processes are gone, so that no process can be inspected.
    found: verdicts so far.
    accused: ranks that need no other verdict.
    unproven: texts on waits that may be too long.
    undecided: verdicts UNKNOWN, about ranks whose processes may have to be inspected.
    """

    def __init__(
        self,
        trace: Trace,
        matching: Matching,
        labels: Labels | None,
        delays: Delays,
        memory: Memory | None = None,
        died: int | None = None,
    ) -> None:
        """died: as in hang.verdicts."""
        self.trace, self.matching, self.labels, self.delays = trace, matching, labels, delays
        self.expected = Expected(trace, matching, memory)
        self.over = bool(trace.ranks) and all(r.process in (DEAD, ZOMBIE) or r.ended for r in trace.ranks.values())
        dead = {r for r, known in trace.ranks.items() if known.process in (DEAD, ZOMBIE) and not known.ended}
        self.dead = set() if self.over else dead
        self.died = died if self.over and died in trace.ranks and not trace.ranks[died].ended else None
        self._several_hosts = len({known.host for known in trace.ranks.values()}) > 1
        self.stopped = {r for r, known in trace.ranks.items() if known.process in STOPPED}
        self.graph: Graph = build(trace, matching, frozenset(self.dead | self.stopped))
        self.waiting = Waiting(self.graph)
        self.found: list[Verdict] = []
        self.accused: set[int] = set()
        self.unproven: list[str] = []
        self.undecided: list[Verdict] = []

    def name(self, rank: int) -> str:
        """Return the name of a rank: `rank 17 (node24)`."""
        known = self.trace.ranks.get(rank)
        return f"rank {rank} ({known.host})" if known is not None and known.host else f"rank {rank}"

    def last_active(self, rank: int) -> int | None:
        """Return when the rank's newest call was entered or has returned, or when its recording was resumed, ns. None:
        it made no call."""
        at = self.graph.last.get(rank)
        if at is None:
            return None
        event = self.trace.events[at]
        return self.resumed(rank) or int(event["enter"] if event["exit"] == OPEN else event["exit"])

    def resumed(self, rank: int) -> int | None:
        """Return when its recording was resumed after a pause, ns, if it has made no call since. Its last action is
        then unknown."""
        known, at = self.trace.ranks.get(rank), self.graph.last.get(rank)
        if known is None or not known.pauses or known.paused:
            return None
        if at is not None and int(self.trace.events["enter"][at]) >= known.pauses[-1][1]:
            return None
        return known.pauses[-1][1]

    def outside(self, rank: int) -> tuple[int, int]:
        """Return its usual time outside MPI after its last call, and the time from which on it is too long, ns. (0,
        FIRST) if unknown."""
        at = self.graph.last.get(rank)
        return (0, FIRST) if at is None or self.resumed(rank) is not None else self.expected.outside(at)

    def idle(self, rank: int) -> int:
        """Return for how long a rank has recorded nothing, at least, ns."""
        known = self.trace.ranks.get(rank)
        last = self.last_active(rank)
        uncertainty = min(known.uncertainty_ns, 1 << 61) if known is not None and self._several_hosts else 0
        return self.trace.now - (last if last is not None else self._begin) - uncertainty

    @functools.cached_property
    def _begin(self) -> int:
        """When the oldest call was entered, ns."""
        return int(self.trace.events["enter"].min())

    def starved(self, ranks: Iterable[int], since: int) -> int:
        """Return for how long one of these ranks had to wait for a processor since then, ns."""
        return max((self.delays.about(rank, since, self.trace.now) for rank in ranks), default=0)

    def doing(self, rank: int) -> str | None:
        """Return the activity of its process besides MPI: activity.NOTHING, or a description. None: not known."""
        known = self.trace.ranks.get(rank)
        if known is None or self.over or not known.process:
            return None
        if known.doing is not None:
            return known.doing
        if known.cpu_share >= BUSY:
            return activity.COMPUTES
        return activity.STORAGE if known.process == "D" else None

    def works_elsewhere(self, rank: int) -> bool:
        """Return whether another thread of a rank than the one that represents it is outside MPI, and its process may
        be working there."""
        known = self.trace.ranks.get(rank)
        if known is None or rank not in self.graph.threads or self.doing(rank) == activity.NOTHING:
            return False
        calls = {int(self.trace.events["thread"][call.call]) for call in self.graph.calls if call.rank == rank}
        return bool(set(known.threads) - calls - {self.graph.threads[rank]})

    def process(self, rank: int) -> tuple[str, str]:
        """Return the activity of its process, for the sentence, and the detail of a verdict."""
        known = self.trace.ranks.get(rank)
        if known is None or self.over or not known.process:
            return "", ""
        doing = self.doing(rank)
        if doing == activity.STORAGE:
            return "its process is in an uninterruptible wait of the kernel (storage?)", "waits for the kernel"
        if doing == activity.COMPUTES:
            whose = "a thread of its process" if rank in self.graph.threads else "its process"
            return f"{whose} is alive and busy in user code: it computes, or spins", "spinning"
        if doing in (activity.READS, activity.WRITES):
            return f"its process is alive and {doing} data", doing
        if doing == activity.MOVES:
            return "its process is alive and wakes up now and then", "asleep"
        if doing == activity.READY:
            return "its process is ready to run, and gets no processor", "starved"
        if doing == activity.NOTHING or known.process in ("S", "I"):
            still = (
                f", and has done nothing for {span(known.still_s * 1e9)}"
                if doing == activity.NOTHING and known.still_s
                else ""
            )
            return f"its process is alive and asleep outside MPI{still}", "asleep"
        if known.cpu_share == known.cpu_share:
            return f"its process is alive, but gets only {known.cpu_share:.0%} of a processor", "starved"
        return "its process is alive", ""

    def look_at(self, rank: int) -> str:
        """Return what to do about a rank that may be stuck. The process of an imported recording is not known."""
        known = self.trace.ranks[rank]
        if not known.pid:
            return f"look at the stack of the process of rank {rank} (py-spy dump)"
        where = f" on {known.host}" if known.host else ""
        return f"look at the stack of process {known.pid}{where}: py-spy dump --pid {known.pid}"

    def facts(self, rank: int) -> list[str]:
        """Return evidence on a suspect."""
        found = []
        at = self.graph.last.get(rank)
        if (resumed := self.resumed(rank)) is not None:
            ago = span(self.trace.now - resumed)
            found.append(
                f"the recording of rank {rank} went on {ago} ago (MPI_Pcontrol), and it has made no call since"
            )
        elif at is None:
            found.append(f"rank {rank} has made no MPI call")
        elif rank in self.graph.opened:
            call = self.graph.opened[rank]
            found.append(f"rank {rank} {self.been(call)}")
        elif self.over:
            what = calls.describe(self.trace, self.matching, at)
            found.append(f"rank {rank} was outside MPI at the end; its last call was {what}")
        else:
            typical, limit = self.outside(rank)
            usually = f"; after this call it usually makes the next one in {span(typical)}" if typical else ""
            found.append(
                f"rank {rank} returned from {calls.describe(self.trace, self.matching, at)} {span(self.idle(rank))} ago"
                f"{usually} (limit {span(limit)})"
            )
        known = self.trace.ranks.get(rank)
        if known is not None and known.place:
            found.append(f"its newest call was made by {known.place}")
        if rank in self.graph.threads:
            found.append(
                f"this is its thread {self.graph.threads[rank]}, which made such calls before;"
                " what its other threads do doesn't count"
            )
        if known is not None and known.process and not self.over:
            share = f", {known.cpu_share:.0%} of a processor" if known.cpu_share == known.cpu_share else ""
            host = f" on {known.host}" if known.host else ""
            found.append(f"process {known.pid}{host}: state {known.process}{share}")
        return found

    def been(self, call: Open) -> str:
        """Return the text `has been in MPI_Recv from rank 1, tag 7 for 12 s`. If the job is over, the time until its
        death is unknown and not stated."""
        what = described(self.trace, self.matching, call, call.call)
        if self.over:
            return f"was in {what} at the end"
        long = span(self.trace.now - call.since)
        return f"has polled for {long}: it is in {what}" if call.polling else f"has been in {what} for {long}"

    def ended(self, victim: int | None = None) -> tuple[str, ...]:
        """For a job that is over, return evidence on ranks that may have ended it. victim: only ranks for which this
        rank waited, directly or behind others."""
        outside = [
            rank
            for rank, known in sorted(self.trace.ranks.items())
            if self.over
            and not known.ended
            and rank not in self.graph.opened
            and (victim is None or victim in self.waiting.behind(rank))
        ]
        return tuple(
            f"at the end, {self.name(rank)} was outside MPI and had not finalized: it may have ended the job"
            " (MPI_Abort, exit, a signal)"
            + (f"; {calls.count(len(behind), 'rank')} for it" if (behind := self.waiting.behind(rank)) else "")
            for rank in outside[:4]
        )

    def at_the_end(self) -> tuple[str, ...]:
        """For a job that is over, return evidence on ranks that were in a call, because it may have ended in one of
        these calls."""
        return tuple(
            f"{self.name(rank)} {self.been(call)}"
            for rank, call in sorted(self.graph.opened.items())
            if self.over and not self.trace.ranks[rank].ended and not call.polling
        )[:4]

    def paused(self) -> tuple[list[str], bool]:
        """Return evidence on ranks whose recording is paused, and whether these are all ranks that run."""
        running = {rank: known for rank, known in sorted(self.trace.ranks.items()) if not known.ended}
        found = [rank for rank, known in running.items() if known.paused]
        if not found:
            return [], False
        whose = "all ranks" if len(found) == len(running) else calls.named(found)
        does = "they do" if len(found) > 1 else "it does"
        return [f"the recording of {whose} is paused (MPI_Pcontrol): what {does} isn't known"], len(found) == len(
            running
        )

    def parts(self, event: int, rank: int) -> np.ndarray:
        """Return what `rank` has posted for the collective or the message that this event posts or completes, as
        indices of events."""
        m, post = self.matching, self.posted_by(event)
        if m.collectives.of[post] >= 0:
            theirs = m.collectives.calls(int(m.collectives.of[post]))
            return theirs[self.trace.events["rank"][theirs] == rank]
        return np.array([m.partner[post]]) if m.partner[post] >= 0 else np.zeros(0, int)

    def partners(self, event: int) -> list[int]:
        """Return the known participants of the collective or the message that this event posts or completes."""
        m, events = self.matching, self.trace.events
        post = self.posted_by(event)
        if m.collectives.of[post] >= 0:
            return events["rank"][m.collectives.calls(int(m.collectives.of[post]))].tolist()
        return [int(m.peer[post])] if m.peer[post] >= 0 else []

    def hidden(self, event: int, rank: int) -> bool:
        """Return whether it may have continued with that operation while its recording was paused."""
        known = self.trace.ranks.get(rank)
        if known is None or not known.pauses:
            return False
        return bool((self.trace.events["enter"][self.parts(event, rank)] < known.first_ns).any())

    def unposted(self, event: int) -> bool:
        """Return whether it completes an operation that may have been started while recording was paused."""
        known = self.trace.ranks.get(int(self.trace.events["rank"][event]))
        if known is None or not known.pauses:
            return False
        return bool(IS_COMPLETION[self.matching.op[event]] and self.matching.post[event] < 0)

    def unrecorded(self, rank: int) -> str:
        """Return the reason why the calls of a rank are unknown: `rank 1, which has no trace`."""
        known = self.trace.ranks.get(rank)
        if known is None:
            return f"rank {rank}, which has no trace"
        why = "whose records of that time are lost"
        if known.pauses:
            why = f"whose recording {'is paused' if known.paused else 'was paused then'} (MPI_Pcontrol)"
        return f"rank {rank}, {why}"

    def victims(self, rank: int) -> list[str]:
        """Return evidence on the ranks that wait for a suspect."""
        direct = self.waiting.on(rank)
        found = [
            f"rank {call.rank} {'waited' if self.over else f'has waited {span(self.trace.now - call.since)}'}"
            f" {inside(self.trace, self.matching, call, want.event)}{' at the end' if self.over else ''}"
            for call, want in direct[:4]
        ]
        more = len(self.waiting.behind(rank)) - min(len(direct), 4)
        return [*found, f"{calls.count(more, 'more rank')} behind or beside these"] if more > 0 else found

    def posted_by(self, event: int) -> int:
        """Return the operation that a call completes, or the call itself."""
        post = int(self.matching.post[event])
        return post if post >= 0 else event

    def needed(self, want: WaitCondition, rank: int) -> str:
        """Return the call that `rank` would have to make: the other side of the operation that is waited for.

        For a rank that polls for something unknown, `want.event` is only its last call, which has returned.
        """
        if want.call:
            return want.call
        if not want.known:
            return f"anything that rank {int(self.trace.events['rank'][want.event])} polls for"
        m, event = self.matching, want.event
        post = self.posted_by(event)
        op, waiter, tag = int(m.op[post]), int(self.trace.events["rank"][post]), int(m.tag[post])
        tags = f", tag {tag}" if tag >= 0 else ""
        if IS_SEND[op]:
            return f"MPI_Recv from rank {waiter}{tags}"
        if IS_RECEIVE[op] or op in (Op.PROBE, Op.MPROBE):
            return f"MPI_Send to rank {waiter}{tags}"
        if op in (Op.INIT, Op.FINALIZE):
            return "MPI_Init" if op == Op.INIT else "MPI_Finalize"
        return calls.describe(self.trace, m, post)

    def place(self, rank: int, at: int | None = None) -> dict[str, object]:
        """Return the place of a rank in the schedule: at the call with which it should answer event `at`, or else at
        its newest call or after it."""
        if self.labels is None:
            return {}
        where = self.labels.now(rank)
        answered = schedule_position.position(self.labels, at, rank) if at is not None else None
        where = answered if answered is not None else where
        return {"phase": where.phase, "stage": where.stage, "iteration": where.iteration, "micro": where.micro}

    def add(
        self,
        rank: int | None,
        cause: Cause,
        sentence: str,
        at: int | None = None,
        state: State = State.HUNG,
        **more: object,
    ) -> None:
        """Add a verdict, once per rank. at: the event that the rank should have answered, if this shows its place."""
        if rank is not None:
            if rank in self.accused:
                return
            self.accused.add(rank)
            more = {**self.place(rank, at), **more}
        self.found.append(Verdict(state, sentence, cause, rank, **more))  # type: ignore[arg-type]

    def doubt(self, call: Open, want: WaitCondition, why: str) -> None:
        """Add a wait that may be too long, without proof."""
        if (long := self.trace.now - call.since) > FIRST:
            what = inside(self.trace, self.matching, call, want.event)
            self.unproven.append(f"rank {call.rank} has waited {span(long)} {what}{why}")

    def where(self, rank: int, at: int | None = None) -> str:
        """Return the text `backward of micro-batch 3 in iteration 12`, or nothing."""
        place = self.place(rank, at)
        if not place or place["phase"] is Phase.UNKNOWN:
            return ""
        micro = f" of micro-batch {place['micro']}" if place["micro"] is not None else ""
        return f"{place['phase'].value}{micro} in iteration {place['iteration']}"  # type: ignore[attr-defined]

    def stuck(self, rank: int, at: int | None = None, how: str = "stuck") -> str:
        """Return the text `rank 17 (node24) is stuck in backward of micro-batch 3`; unknown parts are left out."""
        where = self.where(rank, at)
        return f"{self.name(rank)} is {how}{f' in {where}' if where else ''}"
