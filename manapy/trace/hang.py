"""Is the job stuck, who is to blame, and why: Algorithm 1 of the paper without a need for a schedule.

The graph of who waits for whom is always built. What then is at its ends is looked at in the order of Cause: a process that is dead or stopped; calls that can't belong
together; a knot of calls that wait for each other; a rank outside MPI, or one that has ended, whose call others wait for; and where everybody has arrived, the transfer.
The suspect is always a rank that waits for nobody (the least advanced one has no open wait on a peer), so that its victims are never accused.

Late is not hung: a rank outside MPI that computes, reads or writes is LATE, however long it takes, and so is one of
which it can't be seen what it does. It is HUNG if its process does
nothing by any measure (activity.py), or can't go on whatever it does: dead, stopped, in a knot, finalized.

Invariants
 1. No rank is accused of a call that its trace couldn't show (invariant 1 of waitfor.py): then the verdict is UNKNOWN, unless another rank is proven guilty.
 2. A rank outside MPI, or a transfer, is only suspected after the time that expected.py allows, and the uncertainty of its clock. Time for which a rank was ready to run
    and had no processor doesn't count.
 3. A snapshot of running rings isn't taken at one moment: a knot counts when all its calls are older than FLOOR.
 4. Ranks that are parked for a checkpoint are healthy, and so is who waits for them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from . import activity, answers, calls, habits, network
from .calls import span
from .events import NO_PEER, OPEN, Flag, Op, Trace
from .expected import FIRST, FLOOR, Memory
from .match import IS_COLLECTIVE, IS_RECEIVE, IS_SEND, Matching, match
from .network import Probe
from .runqueue import Delays
from .stages import REDUCING
from .suspects import Suspects
from .verdict import PARKED, Cause, Phase, State, Verdict
from .waitfor import Open, Want, described
from .waiting import cycle_in

if TYPE_CHECKING:
    from .stages import Labels

STILL = 60.0  # seconds without doing anything: surely hung, also where it isn't known how long it usually takes
STARVING = 0.9  # of its time without a processor: a rank that gets no further for that alone


def verdicts(
    trace: Trace,
    matching: Matching | None = None,
    *,
    labels: Labels | None = None,
    parked: frozenset[int] = frozenset(),
    delays: Delays | None = None,
    probe: Probe | None = None,
    memory: Memory | None = None,
) -> list[Verdict]:
    """One for each fault found, the surest first; or one that says HEALTHY, or UNKNOWN and why. labels: of a schedule, if one is known (stages.py).
    parked: ranks that a checkpoint holds. delays: what is known of ranks' waits for a processor. probe: of the network
    between hosts. memory: of earlier looks at this job."""
    if not len(trace.events):
        return [Verdict(State.UNKNOWN, "nothing was recorded", confidence=0.0, action="is the job running under manapy-launch, without --no-trace?")]
    return _Search(
        trace, matching if matching is not None else match(trace), labels, parked, delays or Delays(), probe, memory
    ).run()


class _Search(Suspects):
    def __init__(
        self,
        trace: Trace,
        matching: Matching,
        labels: Labels | None,
        parked: frozenset[int],
        delays: Delays,
        probe: Probe | None,
        memory: Memory | None,
    ) -> None:
        super().__init__(trace, matching, labels, delays, memory)
        self.parked, self.probe = parked, probe
        self.unproven: list[str] = []
        self._inside_halted()

    def run(self) -> list[Verdict]:
        """The whole search."""
        if self.parked:
            return [
                Verdict(
                    State.HEALTHY,
                    f"{PARKED}: {len(self.parked)} of {self.trace.size} ranks are parked for it",
                    detail=PARKED,
                )
            ]
        if self.over and (failed := self._failed()) is not None:
            return [failed]
        self._halted()
        mismatched = self._mismatches()
        self._knots(mismatched)
        self._outside()
        self._transfers(mismatched)
        order = list(Cause)
        if self.found:
            return sorted(
                self.found, key=lambda v: (v.state is State.LATE, order.index(v.cause), -v.confidence, v.since_ns or 0)
            )
        if self.unproven:
            text = self.unproven[0] + (f" (and {len(self.unproven) - 1} more like this)" if len(self.unproven) > 1 else "")
            return [Verdict(State.UNKNOWN, text, confidence=0.0, evidence=tuple(self.unproven[1:5]), action="look again; more records: a larger ring, or `manapy trace record` from the start")]
        return [self._healthy()]

    # ---- causes, in the order of proof ----

    def _inside_halted(self) -> None:
        """Who waits for a transfer with a dead or stopped process, or with one that has posted its part but is outside MPI, waits for that process."""
        for call in self.graph.calls:
            for want in call.wants:
                if want.ranks or want.unproven or not want.known:
                    continue
                for rank in self._partners(want.event):
                    if rank != call.rank and (rank in self.dead or rank in self.stopped or rank not in self.graph.opened and self._unfinished(want.event, rank)):
                        self.waiting.add(rank, call, want)

    def _partners(self, event: int) -> list[int]:
        m, events = self.matching, self.trace.events
        post = self.posted_by(event)
        if m.collectives.of[post] >= 0:
            return events["rank"][m.collectives.calls(int(m.collectives.of[post]))].tolist()
        return [int(m.peer[post])] if m.peer[post] >= 0 else []

    def _unfinished(self, event: int, rank: int) -> bool:
        """Has `rank` posted its part of this without completing it?"""
        return not self.hidden(event, rank) and bool((self.matching.done[self.parts(event, rank)] < 0).any())

    def _halted(self) -> None:
        for rank in sorted(self.dead):
            behind = self.waiting.behind(rank)
            text = f"{self.name(rank)}: its process {self.trace.ranks[rank].pid} is dead, and had not finalized MPI"
            if (at := self.graph.last.get(rank)) is not None and self.trace.events["flags"][at] & Flag.FAILED:
                text += f"; its last call, {calls.describe(self.trace, self.matching, at)}, failed"
            self.add(
                rank,
                Cause.DEAD,
                text + (f"; {calls.count(len(behind), 'rank')} for it" if behind else ""),
                since_ns=self.last_active(rank),
                evidence=tuple(self.facts(rank) + self.victims(rank)),
                action="see the job's output for its last words; continue from the last checkpoint with `manapy restart`",
            )
        for rank in sorted(self.stopped):
            if self.idle(rank) < FLOOR:
                continue
            pid, behind = self.trace.ranks[rank].pid, self.waiting.behind(rank)
            self.add(
                rank,
                Cause.STOPPED,
                f"{self.stuck(rank)}: its process {pid} is stopped (SIGSTOP, or a debugger)" + (f"; {calls.count(len(behind), 'rank')} for it" if behind else ""),
                since_ns=self.last_active(rank),
                evidence=tuple(self.facts(rank) + self.victims(rank)),
                action=f"kill -CONT {pid} on {self.trace.ranks[rank].host or 'its host'}, or end the debugger that holds it",
            )

    def _mismatches(self) -> set[int]:
        """Collectives whose members made different calls, or named different roots, at the same place; returns their instances."""
        m, events = self.matching, self.trace.events
        instances = {
            int(m.collectives.of[w.event])
            for call in self.graph.calls
            for w in call.wants
            if m.collectives.of[w.event] >= 0
        }
        found = set()
        for instance in sorted(instances):
            theirs = m.collectives.calls(instance)
            op, root = events["op"][theirs], events["peer"][theirs]
            made = [(int(o), int(r) if r >= 0 else NO_PEER) for o, r in zip(op, root, strict=True)]
            kinds = Counter(made)
            if len(kinds) < 2:
                continue
            found.add(instance)
            if self.trace.now - int(events["enter"][theirs].max()) < FLOOR and not self.over:
                continue
            usual, most = kinds.most_common(1)[0]
            odd = [int(e) for e, call in zip(theirs, made, strict=True) if call != usual]
            alone = 2 * most > len(made)
            if not alone:
                guilty = [e for e in theirs.tolist() if self._left_out(int(events["rank"][e]), instance) is not None]
                alone, odd = bool(guilty), guilty or odd
            usual_call = next(int(e) for e in theirs.tolist() if int(e) not in odd)
            rank = int(events["rank"][odd[0]])
            what, others = (calls.describe(self.trace, m, e) for e in (odd[0], usual_call))
            left_out = self._left_out(rank, instance) if alone else None
            skipped = f"; it has left out {calls.describe(self.trace, m, left_out)}" if left_out is not None else ""
            alternatives = () if alone else (f"as well possible that {self.name(int(events['rank'][usual_call]))} is wrong",)
            self.add(
                rank if alone else None,
                Cause.MISSING if left_out is not None else Cause.MISMATCH,
                f"{self.stuck(rank)}: it called {what}, where {'others' if most > 1 else self.name(int(events['rank'][usual_call]))} called {others}{skipped}",
                call=what,
                since_ns=int(events["enter"][theirs].max()),
                evidence=tuple(f"rank {int(events['rank'][e])}: {calls.describe(self.trace, m, int(e))}" for e in theirs[:8]),
                alternatives=alternatives,
                confidence=0.95 if alone else 0.8,
                action="compare the paths that these ranks have taken through the program before this call",
            )
            self.accused.update(events["rank"][theirs].tolist())
        return found

    def _left_out(self, rank: int, instance: int) -> int | None:
        """An event like the call of this communicator that a rank has skipped, judging by its habits."""
        comm = int(self.matching.collectives.comm[instance])
        for skip in habits.skipped(self.trace, self.matching, rank):
            if int(self.matching.comm[skip.like]) == comm and IS_COLLECTIVE[self.matching.op[skip.like]]:
                return skip.like
        return None

    def _skip_awaited(self, rank: int) -> Want | None:
        """What others wait for at `rank`, if the schedule or its habits show that it has left out just that."""
        m = self.matching
        skips = None
        for call, want in self.waiting.on(rank)[:16]:
            if self.labels is not None and answers.passed(self.labels, self.posted_by(want.event), rank):
                return want
            if skips is None:
                skips = habits.skipped(self.trace, m, rank)
            post = self.posted_by(want.event)
            for skip in skips:
                if m.comm[skip.like] != m.comm[post]:
                    continue
                if IS_COLLECTIVE[m.op[post]]:
                    fits = m.op[skip.like] == m.op[post]
                else:
                    other_side = IS_RECEIVE if IS_SEND[m.op[post]] else IS_SEND
                    fits = other_side[m.op[skip.like]] and m.peer[skip.like] == call.rank and (m.tag[skip.like] == m.tag[post] or m.tag[post] < 0)
                if fits:
                    return want
        return None

    def _missing(self, rank: int, want: Want, went_on: str, confidence: float, late: bool = False) -> None:
        call = self.needed(want, rank)
        said, detail = self.process(rank) if rank not in self.graph.opened else ("", "")
        waiter = int(self.trace.events["rank"][want.event])
        self.add(
            rank,
            Cause.MISSING,
            f"{self.stuck(rank, self.posted_by(want.event), 'late' if late else 'stuck')}: it never called {call}{went_on}"
            + (f"; {said}" if said else ""),
            at=self.posted_by(want.event),
            state=State.LATE if late else State.HUNG,
            peer=waiter,
            call=call,
            detail=detail,
            since_ns=int(self.trace.events["enter"][want.event]),
            evidence=tuple(self.facts(rank) + self.victims(rank)),
            confidence=confidence,
            action=f"look at what the program of rank {rank} does around {call}",
        )

    def _knots(self, mismatched: set[int]) -> None:
        events = self.trace.events
        for knot in self.graph.knots:
            if set(knot) & self.accused:
                continue
            opens = [self.graph.opened[r] for r in knot]
            since = max(call.since for call in opens)
            if self.trace.now - since < FLOOR and not self.over:
                continue
            guilty = [(rank, skip) for rank in knot if (skip := self._skip_awaited(rank)) is not None]
            if len(guilty) == 1:
                rank, want = guilty[0]
                at = self.graph.opened[rank].call
                self._missing(rank, want, f", and went on to {calls.describe(self.trace, self.matching, at)}", 0.9)
                self.accused.update(knot)
                continue
            if crossed := self._crossed(knot):
                self.accused.update(knot)
                self.found.append(crossed)
                continue
            if not self._finalizing(knot):
                self._deadlock(knot, opens)

    def _deadlock(self, knot: tuple[int, ...], opens: list[Open]) -> None:
        """Of a rank that polls it isn't known that it does nothing else: it is late, if it isn't even known what
        for."""
        cycle = cycle_in(self.graph, knot)
        chain = "; ".join(self._waits(r, want, p) for r, want, p in cycle[:6])
        more = f"; and {len(cycle) - 6} more" if len(cycle) > 6 else ""
        behind = {r for rank in knot for r in self.waiting.behind(rank)} - set(knot)
        evidence = [f"{self.name(call.rank)} {self.been(call)}" for call in opens[:8]]
        self.accused.update(knot)
        blind = any(not want.known for call in opens for want in call.wants)
        polling = blind or any(call.polling for call in opens)
        what = f"deadlock of {calls.named(knot)}" if len(knot) > 1 else f"rank {knot[0]} waits for itself"
        self.found.append(
            Verdict(
                State.LATE if blind else State.HUNG,
                f"{'perhaps a ' if blind else ''}{what}: {chain}{more}",
                Cause.DEADLOCK,
                call=described(self.trace, self.matching, self.graph.opened[cycle[0][0]], cycle[0][1].event),
                detail=" -> ".join(str(r) for r in [*(r for r, _, _ in cycle), cycle[0][0]]),
                since_ns=int(max(self.trace.events["enter"][call.call] for call in opens)),
                evidence=(
                    *evidence,
                    *((f"{calls.count(len(behind), 'more rank')} behind these",) if behind else ()),
                    *self.ended(),
                ),
                confidence=0.5 if blind else 0.7 if polling else 0.98,
                alternatives=("a rank that tests may find something else to do, or end by itself what it tests for",)
                if polling
                else (),
                action="these calls can't all be right: change the order of one of them, or make it nonblocking",
            )
        )

    def _waits(self, rank: int, want: Want, peer: int) -> str:
        call = self.graph.opened[rank]
        what = described(self.trace, self.matching, call, want.event)
        return f"rank {rank} {'is' if call.polling else 'waits'} in {what}" + (
            "" if f"rank {peer}" in what or call.polling else f" for rank {peer}"
        )

    def _finalizing(self, knot: tuple[int, ...]) -> bool:
        """Ranks of a knot that are in Finalize while others wait for another call of theirs."""
        events = self.trace.events
        found = False
        for rank in knot:
            if events["op"][self.graph.opened[rank].call] != Op.FINALIZE:
                continue
            wanted = [want for call, want in self.waiting.on(rank) if events["op"][call.call] != Op.FINALIZE]
            if wanted:
                self._missing(rank, wanted[0], ", and went on to MPI_Finalize", 0.98)
                found = True
        if found:
            self.accused.update(knot)
        return found

    def _crossed(self, ranks: tuple[int, ...]) -> Verdict | None:
        """A receive of one of these ranks, who wait for ever, for which a message has come with another tag, on another
        communicator, or from another source."""
        m = self.matching
        for rank in ranks:
            for want in self.graph.opened[rank].wants:
                post = self.posted_by(want.event)
                peer = int(m.peer[post])
                if not IS_RECEIVE[m.op[post]] or peer < 0 or peer not in want.ranks:
                    continue
                if (sent := self._unreceived(post)) is not None:
                    return self._disagree(rank, peer, want, post, sent)
        return None

    def _unreceived(self, post: int) -> int | None:
        """The message that a receive was most probably meant for: one to its rank that nobody receives, from its source
        or, with its tag and communicator, from another one."""
        m, events = self.matching, self.trace.events
        rank, peer = int(events["rank"][post]), int(m.peer[post])
        sends = np.flatnonzero(
            IS_SEND[m.op] & (m.peer == rank) & (m.partner < 0) & m.sure & (events["flags"] & Flag.FAILED == 0)
        )
        theirs = sends[events["rank"][sends] == peer]
        alike = sends[(m.tag[sends] == m.tag[post]) & (m.comm[sends] == m.comm[post])]
        found = theirs if len(theirs) else alike
        return int(found[-1]) if len(found) else None

    def _disagree(self, rank: int, peer: int, want: Want, post: int, sent: int) -> Verdict:
        m, sender = self.matching, int(self.trace.events["rank"][sent])
        wants, made = (calls.describe(self.trace, m, e) for e in (post, sent))
        on = ""
        if m.comm[post] != m.comm[sent]:
            there, here = (calls.communicator(self.trace, int(m.comm[event])) for event in (sent, post))
            on = f" on {there}, not on {here}"
        which = "sources" if sender != peer else "communicators" if on else "tags"
        return Verdict(
            State.HUNG,
            f"rank {rank} and rank {sender} don't agree: rank {rank} waits in {wants}, and rank {sender} made {made}{on},"
            " which nobody receives",
            Cause.MISMATCH,
            call=wants,
            peer=sender,
            since_ns=int(self.trace.events["enter"][want.event]),
            evidence=tuple(self.facts(rank) + self.facts(sender)),
            confidence=0.9,
            action=f"compare {which} of these two calls",
        )

    def _outside(self) -> None:
        """Ranks that others wait for and that wait for nobody, and are in no call."""
        for rank in sorted(self.waiting.ranks()):
            if rank in self.accused or rank in self.dead or rank in self.stopped or rank not in self.graph.free or rank in self.graph.opened:
                continue
            direct = self.waiting.on(rank)
            if all(call.any and not call.polling or want.any for call, want in direct):
                others = {r for call, want in direct for r in want.ranks} - {rank}
                if any(r not in self.graph.deadlocked and r not in self.accused for r in others):
                    continue  # of several that would do, this is but one
            call, want = direct[0]
            known = self.trace.ranks.get(rank)
            if known is None:
                self.unproven.append(f"rank {call.rank} waits for rank {rank}, of which there is no trace")
                continue
            if known.paused:
                self._doubt(call, want, f", perhaps for {self.unrecorded(rank)}")
                continue
            if known.ended and (self.trace.now - call.since > FLOOR or self.over):
                if crossed := self._crossed(
                    tuple(waiter.rank for waiter, _ in direct if waiter.rank not in self.accused)
                ):
                    self.found.append(crossed)
                    self.accused.add(rank)
                    continue
                self._missing(rank, want, ", and has finalized MPI", 0.98)
                continue
            if self.over:
                continue  # it isn't known how long it would still have taken
            typical, limit = self.outside(rank)
            if rank in self.graph.last:
                self.expected.awaited(self.graph.last[rank])
            if self.idle(rank) <= limit:
                continue
            waited = self.starved([rank], self.trace.now - self.idle(rank))
            if self.idle(rank) - waited <= limit:
                self._starving(rank, waited)
                continue
            late = self.doing(rank) != activity.NOTHING
            skip = self._skip_awaited(rank)
            if skip is not None:
                self._missing(rank, skip, ", and went on", 0.95, late)
                continue
            self._awaited(rank, call, want, typical, late)

    def _awaited(self, rank: int, call: Open, want: Want, typical: int, late: bool) -> None:
        """A rank outside MPI for longer than expected."""
        known, said, detail = self.trace.ranks[rank], *self.process(rank)
        needed, behind, idle = self.needed(want, rank), self.waiting.behind(rank), span(self.idle(rank))
        lacks = f"it never called {needed}" if not late else f"it has not called {needed} yet"
        if not want.ranks:
            lacks = f"it has posted {needed}, but makes no call in which that could go on"
        others = (
            ()
            if typical
            else (f"it computes for longer than anything seen so far, and {calls.count(len(behind), 'rank')} for it",)
        )
        if late and not said:
            others = (*others, "it may be stuck: what its process does can't be seen from here")
        sure = typical or known.still_s >= STILL
        self.add(
            rank,
            Cause.COMPUTE,
            f"{self.stuck(rank, how='late' if late else 'stuck')}{'' if self.where(rank) else f' outside MPI for {idle}'}: {lacks}"
            + (f"; {said}" if said else ""),
            state=State.LATE if late else State.HUNG,
            peer=call.rank,
            call=needed,
            detail=detail,
            since_ns=self.last_active(rank),
            evidence=tuple([*self.facts(rank), *self.victims(rank)]),
            alternatives=(*self._between(rank), *others),
            confidence=0.7 if detail == "starved" else 0.95 if sure else 0.6,
            action=f"look at the stack of process {known.pid}{f' on {known.host}' if known.host else ''}: py-spy dump --pid {known.pid}",
        )

    def _starving(self, rank: int, waited: int) -> None:
        """It would go on if it could. That is only said if it has as good as no processor, for long, and all of that
        was sampled."""
        since = self.trace.now - self.idle(rank)
        if waited < max(FIRST, STARVING * self.idle(rank)) or self.delays.waited(rank, since, self.trace.now) is None:
            return
        known = self.trace.ranks[rank]
        self.add(
            rank,
            Cause.STARVED,
            f"{self.stuck(rank, how='late')}: its process is ready to run, and has had no processor for {span(waited)}"
            f" of the last {span(self.idle(rank))}",
            state=State.LATE,
            since_ns=self.last_active(rank),
            evidence=tuple([*self.facts(rank), *self.victims(rank)]),
            confidence=0.9,
            action=f"see what else runs on the processors of process {known.pid} (taskset -p {known.pid}; top; the cpu.max of its cgroup)",
        )

    def _between(self, rank: int) -> tuple[str, ...]:
        """Between two iterations no call tells the optimizer from the first forward pass."""
        at = self.graph.last.get(rank)
        if self.labels is None or at is None or self.labels.item[at] != REDUCING or self.place(rank)["phase"] is not Phase.FORWARD:
            return ()
        return (f"still in the optimizer of iteration {self.labels.iteration[at]}, or waiting for data",)

    def _transfers(self, mismatched: set[int]) -> None:
        """Calls that have all they need and don't end. Of a job that is over, that says nothing."""
        if self.over:
            return
        m, events = self.matching, self.trace.events
        seen = set()
        for call in sorted(self.graph.calls, key=lambda one: one.rank):
            rank = call.rank
            if rank in self.dead or rank in self.stopped:
                continue
            long = self.trace.now - call.since
            waits = any(want.ranks or want.unproven for want in call.wants)  # the records of a Waitall end together: which of its transfers have ended isn't known as long as it waits for somebody
            for want in call.wants:
                post = self.posted_by(want.event)
                instance = int(m.collectives.of[post])
                if want.unproven:
                    self._doubt(call, want, f", perhaps for {' and '.join(self.unrecorded(r) for r in want.unproven[:3])}")
                    continue
                if not want.known:
                    if self.unposted(want.event):
                        self._doubt(call, want, "; what for was begun while its recording was paused")
                    elif long > FIRST and self.waiting.on(rank) and rank not in self.accused and not waits:
                        self._local(call, want)
                    continue
                if waits or instance in mismatched or call.any:
                    continue
                partners = self._partners(want.event)
                if any(r in self.accused or self.waiting.has(r, call) for r in partners if r != rank):
                    continue
                if doubtful := [r for r in partners if r != rank and self.hidden(want.event, r)]:
                    self._doubt(call, want, f", perhaps for {self.unrecorded(doubtful[0])}")
                    continue
                if instance < 0 and m.partner[post] >= 0 and not m.sure[post]:
                    self._doubt(call, want, "; records that could tell why are lost")
                    continue
                key = ("collective", instance) if instance >= 0 else ("message", *sorted((rank, partners[0] if partners else -1)))
                if key in seen:
                    continue
                arrival = int(events["enter"][m.collectives.last[instance]]) if instance >= 0 else max(call.since, self._posted(post))
                typical, limit = self.expected.transfer(post)
                members = tuple(sorted({*partners, rank}))
                if self.trace.now - arrival <= limit or self.trace.now - arrival - self.starved(members, arrival) <= limit:
                    continue
                seen.add(key)
                if m.op[want.event] == Op.FINALIZE and self._left_over(call):
                    continue
                self._network(call, want, members, arrival, typical)

    def _left_over(self, call: Open) -> bool:
        """All are in Finalize, and one doesn't get out of it: is there a message that it has sent, or was sent to it,
        and that nobody receives? MPI may wait for its receiver."""
        m, events = self.matching, self.trace.events
        left = np.flatnonzero(
            IS_SEND[m.op]
            & (m.partner < 0)
            & m.sure
            & (m.peer >= 0)
            & (events["flags"] & (Flag.FAILED | Flag.PERSISTENT) == 0)
        )
        left = left[(events["rank"][left] == call.rank) | (m.peer[left] == call.rank)]
        if not len(left):
            return False
        sent = int(left[-1])
        sender, receiver = int(events["rank"][sent]), int(m.peer[sent])
        if {sender, receiver} <= self.accused:
            return True
        needed = self.needed(Want(sent), receiver)
        self.accused.update((sender, receiver))
        self.found.append(
            Verdict(
                State.HUNG,
                f"rank {receiver} and rank {sender} don't agree: rank {receiver} never called {needed}, and went on to"
                f" MPI_Finalize; rank {sender} made"
                f" {calls.describe(self.trace, m, sent)}, which nobody receives",
                Cause.MISSING,
                rank=receiver,
                peer=sender,
                call=needed,
                since_ns=call.since,
                evidence=(f"{self.name(call.rank)} {self.been(call)}", f"messages that nobody receives: {len(left)}"),
                confidence=0.9,
                action="receive each message that is sent, or don't send it",
            )
        )
        return True

    def _doubt(self, call: Open, want: Want, why: str) -> None:
        """A wait that may be too long, of which nothing is proven."""
        if (long := self.trace.now - call.since) > FIRST:
            self.unproven.append(f"rank {call.rank} has waited {span(long)} in {calls.describe(self.trace, self.matching, want.event)}{why}")

    def _posted(self, post: int) -> int:
        partner = int(self.matching.partner[post])
        return int(self.trace.events["enter"][partner]) if partner >= 0 else 0

    def _local(self, call: Open, want: Want) -> None:
        what = calls.describe(self.trace, self.matching, want.event)
        self.add(
            call.rank,
            Cause.NONE,
            f"{self.stuck(call.rank)} in {what} for {span(self.trace.now - call.since)}; what that waits for is not recorded",
            call=what,
            since_ns=call.since,
            evidence=tuple(self.victims(call.rank)),
            confidence=0.5,
            action=f"look at the stack of its process {self.trace.ranks[call.rank].pid}" if call.rank in self.trace.ranks else "",
        )

    def _network(self, call: Open, want: Want, members: tuple[int, ...], arrival: int, typical: int) -> None:
        what = calls.describe(self.trace, self.matching, want.event)
        rdma = network.in_flight(self.trace, members)
        partner = int(self.matching.partner[self.posted_by(want.event)])  # where it is stuck is the message's place: a sender has gone on to the Wait for it
        usual = f" (usually {span(typical)})" if typical else ""
        everybody = f"all {len(members)} ranks have entered" if len(members) > 2 else "both sides have made their calls"
        collective = len(members) > 2
        lasts = f"{what} of rank {call.rank} hasn't ended in {span(self.trace.now - arrival)}{usual}"
        works, broken = network.probed(self.trace, self.probe, call.rank, members) if self.probe is not None else ([], [])
        elsewhere = bool(works) and not broken and not rdma
        others = [r for r in members if r != call.rank]
        self.found.append(
            Verdict(
                State.HUNG,
                f"{lasts}, though {everybody} and probes find the network working"
                if elsewhere
                else f"the network {'between' if len(members) > 1 else 'of'} {calls.named(members)} is stuck: {everybody}, and {lasts}",
                Cause.NONE if elsewhere else Cause.NETWORK,
                rank=call.rank,
                peer=None if collective or not others else others[0],
                **{**self.place(call.rank, partner if partner >= 0 else None), "phase": Phase.TRANSFER},  # type: ignore[arg-type]
                call=what,
                since_ns=arrival,
                evidence=(f"last arrival {span(self.trace.now - arrival)} ago", *rdma, *broken, *works),
                alternatives=(
                    "a fault inside of the MPI library",
                    *(("a fault of the network that probes don't meet",) if elsewhere else ()),
                ),
                confidence=0.5 if elsewhere else 0.98 if broken else 0.9 if rdma else 0.75,
                action="check links and switches between these hosts (`manapy rdma status`, ping); stacks of these ranks, if they are on one host",
            )
        )

    def _failed(self) -> Verdict | None:
        """Of a job that is over: a rank whose last call has returned an error, which by default ends it; MPI_Abort may
        be recorded as a Finalize that doesn't return."""
        events = self.trace.events
        last = dict(self.graph.last)
        for rank, at in self.graph.last.items():
            if events["op"][at] == Op.FINALIZE and events["exit"][at] == OPEN and at > self.matching.of_rank(rank)[0]:
                last[rank] = at - 1
        last = {
            rank: at
            for rank, at in last.items()
            if not self.trace.ranks[rank].ended and events["flags"][at] & Flag.FAILED
        }
        if not last:
            return None
        rank, at = min(last.items(), key=lambda one: int(events["exit"][one[1]]))
        what = calls.describe(self.trace, self.matching, at)
        return Verdict(
            State.HUNG,
            f"{self.name(rank)} has ended the job: its {what} failed, and it made no other call",
            Cause.DEAD,
            rank,
            call=what,
            since_ns=int(events["exit"][at]),
            evidence=tuple(self.victims(rank)),
            confidence=0.9,
            action="see the job's output for what MPI says of that call",
        )

    def _healthy(self) -> Verdict:
        events, trace = self.trace.events, self.trace
        newest = int(max(events["enter"].max(), events["exit"].max()))
        waiting = len({call.rank for call in self.graph.calls if any(True for _ in call.awaited())})
        text = f"healthy: {len(trace.ranks)} ranks, the last call {span(max(trace.now - newest, 0))} ago"
        if trace.ranks and all(r.ended for r in trace.ranks.values()):
            return Verdict(State.HEALTHY, f"healthy: all {len(trace.ranks)} ranks have finalized MPI")
        if self.over:
            return Verdict(
                State.UNKNOWN,
                "the job's processes are gone, and their records prove no fault",
                confidence=0.0,
                evidence=self.ended(),
                action="see the job's output",
            )
        paused, everywhere = self.paused()
        if everywhere:
            return Verdict(State.UNKNOWN, paused[0], confidence=0.0, action="look again when recording goes on")
        lost = sum(r.lost for r in trace.ranks.values())
        evidence = [*paused, *[f"{calls.count(waiting, 'rank')} for others, not for too long"] * bool(waiting)]
        return Verdict(State.HEALTHY, text, evidence=(*evidence, *((f"{lost} older records are overwritten",) if lost else ())))
