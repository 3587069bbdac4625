"""Named test vectors for the rank side: the answer and the outbox of each call on a clock, in flat lists.

A *scenario* plays several RankClocks against a Controller, step by step. The calls of each rank are recorded as one
vector. The expected verdicts are written in the scenario by hand (a wrong one raises an error); the outboxes come from
the model. A C test replays a vector on the wrapper's clock: it makes the call in ``call``, passes the line of a
``receive`` to the control thread's side, flushes its reports after each step and compares. Within one step it may order
STATE and RAISE differently, repeat a STATE or number versions higher. The set of messages must agree, and their
contents except ``version``.

    python -m manapy.clock.model.vectors         writes vectors.json beside this file (a test compares both)

Step: {"call", "args", "result" (null, "go" or "park"), "outbox" (lines)}, and "thread" unless it is 0. Identities are
16 hex digits, as on the wire.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._state import WORLD, Decision, Mode, child_identity, ggid, group_identity
from ..controller import Controller
from ..messages import ToRank
from ..rank import RankClock

PATH = Path(__file__).with_name("vectors.json")
GO, PARK = Decision.GO, Decision.PARK


class Scenario:
    """Ranks 0..size-1 and a coordinator. Control messages wait until ``deliver`` or ``settle``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.clocks = [RankClock(r, tuple(range(size))) for r in range(size)]
        self.controller = Controller(size)
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(size)]
        self._made = 0
        self._up: list[tuple[int, Any]] = []
        self._down: list[tuple[int, ToRank]] = []

    def comm(self, *members: int, only: tuple[int, ...] | None = None, cid: int | None = None, handle: int = 1) -> int:
        """A communicator of ``members``, as if made by a constructor on WORLD. Its rows appear on ``only`` (default: on
        all members)."""
        if cid is None:
            self._made += 1
            cid = child_identity(WORLD, self._made, min(members))
        for r in members if only is None else only:
            self._record(
                r, "add_row", [f"{cid:016x}", list(members), handle], lambda c: c.add_row(cid, members, handle=handle)
            )
        return cid

    def enter(self, rank: int, cid: int, expect: Decision = GO, *, blocking: bool = True, thread: int = 0) -> None:
        got = self._record(
            rank,
            "enter_collective",
            [f"{cid:016x}", blocking],
            lambda c: c.enter_collective(cid, blocking=blocking, thread=thread),
            thread,
        )
        if got is not expect:
            raise AssertionError(f"rank {rank} on {cid:016x}: {got}, not {expect}")

    def exit(self, *ranks: int, thread: int = 0) -> None:
        for r in ranks:
            self._record(r, "exit_collective", [], lambda c: c.exit_collective(thread=thread), thread)

    def fail(self, rank: int, *, thread: int = 0) -> None:
        """The collective that the rank is inside fails on its arguments."""
        self._record(rank, "fail_collective", [], lambda c: c.fail_collective(thread=thread), thread)
        self.exit(rank, thread=thread)

    def collective(self, cid: int, *ranks: int) -> None:
        for r in ranks:
            self.enter(r, cid)
        self.exit(*ranks)

    def block(self, rank: int, *peers: int, mode: Mode = Mode.ALL, cid: int = 0, thread: int = 0) -> None:
        self._record(
            rank,
            "block",
            [list(peers), mode.value, f"{cid:016x}"],
            lambda c: c.block(peers, mode, cid, thread=thread),
            thread,
        )

    def unblock(self, rank: int, *, thread: int = 0) -> None:
        self._record(rank, "unblock", [], lambda c: c.unblock(thread=thread), thread)

    def free(self, cid: int, *ranks: int) -> None:
        for r in ranks:
            self._record(r, "remove_row", [f"{cid:016x}"], lambda c: c.remove_row(cid))

    def finish(self, rank: int) -> None:
        self._record(rank, "finish", [], lambda c: c.finish())

    def request(self, epoch: int = 1) -> None:
        self._down += self.controller.begin(epoch)

    def deliver(self, *ranks: int) -> None:
        """Messages in flight to these ranks (default: to all) arrive, then those in flight to the coordinator."""
        now = [(r, m) for r, m in self._down if not ranks or r in ranks]
        self._down = [(r, m) for r, m in self._down if ranks and r not in ranks]
        for r, msg in now:
            self._record(r, "receive", [msg.to_wire()], lambda c, msg=msg: c.receive(msg))  # type: ignore[misc]
        up, self._up = self._up, []
        for r, msg in up:
            self._down += self.controller.on_message(r, msg)

    def settle(self) -> None:
        while self._up or self._down:
            self.deliver()

    def end(self) -> None:
        """All ranks are frozen; publish and continue."""
        self.settle()
        if not self.controller.converged:
            raise AssertionError(f"not converged: {self.controller.stage} {self.controller.status()}")
        self._down += self.controller.resume()
        self.settle()

    def _record(self, rank: int, call: str, args: list[Any], run: Callable[[RankClock], Any], thread: int = 0) -> Any:
        clock = self.clocks[rank]
        result = run(clock)
        out, clock.outbox = clock.outbox, []
        self._up += [(rank, m) for m in out]
        verdict = result.value if isinstance(result, Decision) else None
        which = {"thread": thread} if thread else {}
        self.steps[rank].append(
            {"call": call, **which, "args": args, "result": verdict, "outbox": [m.to_wire() for m in out]}
        )
        return result


# ---- scenarios; the ranks are numbered as in the paper's figures; rank 0 takes no part in them


def idle(s: Scenario) -> None:
    """Nothing to do: all ranks compute. Twice in a row."""
    for epoch in (1, 2):
        s.request(epoch)
        s.end()
        s.collective(WORLD, *range(s.size))


def inside_at_request(s: Scenario) -> None:
    """Ranks 1 and 2 are inside a collective that rank 0 has not entered: rank 0 enters it, the others don't enter the
    next."""
    s.enter(1, WORLD)
    s.enter(2, WORLD)
    s.request()
    s.deliver()
    s.enter(0, WORLD, PARK)
    s.settle()
    s.enter(0, WORLD, GO)
    s.exit(0, 1, 2)
    s.enter(2, WORLD, PARK)
    s.end()
    s.enter(2, WORLD, GO)


def figure_2a(s: Scenario) -> None:
    """P2 has left N2 (with P3), and P1 is inside N3: P2 continues to N3. P3 waits."""
    n2, n3 = s.comm(2, 3), s.comm(1, 2)
    s.collective(n2, 2, 3)
    s.enter(1, n3)
    s.request()
    s.settle()
    s.enter(3, n2, PARK)
    s.enter(2, n3, GO)
    s.exit(1, 2)
    s.enter(2, n2, PARK)
    s.end()


def figure_2b(s: Scenario) -> None:
    """On its way to N3, P2 visits the new node N5. So P4 (which has left N4) must visit it, too."""
    n3, n4, n5 = s.comm(1, 2), s.comm(4, 5), s.comm(2, 4)
    s.collective(n4, 4, 5)
    s.enter(1, n3)
    s.request()
    s.settle()
    s.enter(4, n5, PARK)
    s.enter(5, n4, PARK)
    s.settle()
    s.enter(2, n5, GO)  # raises the target of N5
    s.settle()
    s.enter(4, n5, GO)
    s.exit(2, 4)
    s.enter(4, n4, PARK)
    s.enter(2, n3, GO)
    s.exit(1, 2)
    s.end()


def _figure_3(s: Scenario) -> tuple[int, int, int, int]:
    """Targets 5, 7, 2 and 3 for {1,2}, {2,3}, {3,4,5} and {5,6}; P3, P4 and P5 are below 7, 2 and 3."""
    g12, g23, g345, g56 = s.comm(1, 2), s.comm(2, 3), s.comm(3, 4, 5), s.comm(5, 6)
    for _ in range(5):
        s.collective(g12, 1, 2)
    for _ in range(6):
        s.collective(g23, 2, 3)
    for _ in range(2):
        s.collective(g56, 5, 6)
    s.collective(g345, 3, 4, 5)
    s.enter(5, g345)
    s.exit(5)  # a rooted collective, so P5 needn't wait for the others
    s.enter(3, g345)
    s.exit(3)
    s.enter(2, g23)  # inside number 7
    s.enter(6, g56)  # inside number 3
    s.request()
    s.settle()
    return g12, g23, g345, g56


def figure_3a(s: Scenario) -> None:
    """Each rank continues to its own target and stops after it."""
    g12, g23, g345, g56 = _figure_3(s)
    s.enter(1, g12, PARK)
    s.enter(4, g345, GO)
    s.exit(4)
    s.enter(5, g56, GO)
    s.exit(5, 6)
    s.enter(5, g345, PARK)
    s.enter(3, g23, GO)
    s.exit(2, 3)
    s.enter(3, g345, PARK)
    s.end()


def figure_3b(s: Scenario) -> None:
    """All ranks except P3 have reached their targets. P3 first enters number 3 on {3,4,5}, then P5 number 4 on
    {5,6}."""
    g12, g23, g345, g56 = _figure_3(s)
    s.enter(4, g345, GO)
    s.exit(4)
    s.enter(5, g56, GO)
    s.exit(5, 6)
    s.enter(5, g56, PARK)
    s.enter(4, g345, PARK)
    s.settle()
    s.enter(3, g345, GO)  # 3 > 2
    s.settle()
    s.enter(4, g345, GO)
    s.enter(5, g56, GO)  # 4 > 3, before number 3 on {3,4,5}
    s.settle()
    s.enter(6, g56, GO)
    s.exit(5, 6)
    s.enter(5, g345, GO)
    s.exit(3, 4, 5)
    s.enter(3, g23, GO)
    s.exit(2, 3)
    s.enter(1, g12, PARK)
    s.end()


def p2p_hole(s: Scenario) -> None:
    """P1 is below target and waits for a message that P2 sends after the collective at whose entry P2 is parked."""
    a, b = s.comm(0, 1), s.comm(2, 3)
    s.enter(0, a)
    s.request()
    s.settle()
    s.enter(2, b, PARK)
    s.enter(3, b, PARK)
    s.block(1, 2)
    s.settle()
    s.enter(2, b, GO)  # ADVANCE; raises the target, so P3 follows
    s.settle()
    s.enter(3, b, GO)
    s.exit(2, 3)
    s.unblock(1)
    s.settle()
    s.enter(2, b, PARK)  # WITHDRAW
    s.enter(1, a, GO)
    s.exit(0, 1)
    s.end()


def p2p_chain(s: Scenario) -> None:
    """P1 waits for P2, P2 for P3, P3 for P4, which is parked and at target: the request is transitive."""
    a, b = s.comm(0, 1), s.comm(4, 5)
    s.enter(0, a)
    s.request()
    s.settle()
    s.enter(4, b, PARK)
    s.block(3, 4)
    s.block(2, 3)
    s.settle()
    s.block(1, 2)
    s.settle()
    s.enter(4, b, GO)
    s.settle()
    s.enter(5, b, GO)
    s.exit(4, 5)
    for r in (3, 2, 1):
        s.unblock(r)
        s.settle()
    s.enter(4, b, PARK)
    s.enter(1, a, GO)
    s.exit(0, 1)
    s.end()


def any_source(s: Scenario) -> None:
    """P1, below target, receives from any rank. While P3 computes no rank is asked; when it parks, all are."""
    a, b = s.comm(0, 1), s.comm(2, 3)
    s.enter(0, a)
    s.request()
    s.settle()
    s.enter(2, b, PARK)
    s.block(1, mode=Mode.ANY, cid=WORLD)
    s.settle()
    s.enter(2, b, PARK)  # still
    s.enter(3, b, PARK)
    s.settle()
    s.enter(2, b, GO)
    s.enter(3, b, GO)
    s.exit(2, 3)
    s.unblock(1)
    s.settle()
    s.enter(2, b, PARK)
    s.enter(1, a, GO)
    s.exit(0, 1)
    s.end()


def crossed_ibarriers(s: Scenario) -> None:
    """Congruent communicators a and b; rank 0 has started Ibarrier(a), rank 1 Ibarrier(b): both must start the
    other."""
    a, b = s.comm(0, 1), s.comm(0, 1)
    s.enter(0, a, blocking=False)
    s.enter(1, b, blocking=False)
    s.request()
    s.settle()
    s.enter(0, b, GO, blocking=False)
    s.block(1, mode=Mode.ALL)  # a wait for a nonblocking collective asks nobody
    s.unblock(1)
    s.enter(1, a, GO, blocking=False)
    s.enter(0, a, PARK, blocking=False)
    s.end()


def group_while_pending(s: Scenario) -> None:
    """Comm_create_group counts on its own new row. Rank 1 doesn't know the row, so ADVANCE asks it; then it makes the
    row."""
    group = (0, 1)
    cid = group_identity(ggid(group), 0, 1)
    s.comm(*group, only=(0,), cid=cid, handle=0)
    s.enter(0, cid)
    s.request()
    s.settle()
    s.enter(1, WORLD, PARK)  # not the constructor: a collective before it
    s.settle()
    s.enter(1, WORLD, GO)
    s.settle()
    s.enter(2, WORLD, GO)
    s.exit(1, 2)
    s.comm(*group, only=(1,), cid=cid, handle=0)
    s.enter(1, cid, GO)
    s.comm(*group, cid=cid, handle=7)
    s.exit(0, 1)
    s.settle()
    s.enter(0, WORLD, GO)
    s.exit(0)
    s.end()


def dup_while_pending(s: Scenario) -> None:
    """Inside Comm_dup at the request. Rank 0 leaves it first and uses the new communicator; rank 1's row is reported
    later."""
    s.enter(0, WORLD)
    s.enter(1, WORLD)
    s.request()
    s.settle()
    new = child_identity(WORLD, 1, 0)
    s.comm(0, 1, only=(0,), cid=new)
    s.exit(0)
    s.enter(0, new, PARK, blocking=False)
    s.settle()
    s.comm(0, 1, only=(1,), cid=new)
    s.exit(1)
    s.end()
    s.enter(0, new, GO, blocking=False)
    s.request(2)
    s.settle()
    s.enter(1, new, GO, blocking=False)
    s.end()


def late_row(s: Scenario) -> None:
    """A row is made while the FREEZE is in flight: NOTFROZEN, THAW, and another round."""
    cid = group_identity(ggid((0, 1)), 3, 1)
    s.request()
    s.deliver()  # INTENT
    s.deliver()  # TARGETS, answered; FREEZE is in flight
    s.comm(0, 1, only=(0,), cid=cid, handle=0)
    s.enter(0, cid, PARK)
    s.end()


def freed(s: Scenario) -> None:
    """Rank 0 has dropped the row of a freed communicator, rank 1 is about to: both are at its last SEQ."""
    a = s.comm(0, 1)
    s.enter(0, a)
    s.enter(1, a)
    s.exit(0)
    s.free(a, 0)
    s.request()
    s.settle()
    s.exit(1)
    s.free(a, 1)
    s.end()


def aborted(s: Scenario) -> None:
    """Rank 2 ends: the epoch is aborted, parked and blocked ranks continue, leftovers of the epoch are dropped."""
    s.enter(0, WORLD)
    s.request()
    s.settle()
    s.enter(1, WORLD, GO)
    s.finish(2)
    s.settle()
    s.exit(0, 1)
    s.enter(1, WORLD, GO)


def parked_beside_inside(s: Scenario) -> None:
    """P0's first thread is inside a collective with P1. P1 waits for a message of P0's second thread, which is parked:
    ADVANCE."""
    a, b = s.comm(0, 1), s.comm(0)
    s.enter(0, a)
    s.request()
    s.settle()
    s.enter(0, b, PARK, thread=1)
    s.block(1, 0)
    s.settle()
    s.enter(0, b, GO, thread=1)
    s.exit(0, thread=1)
    s.unblock(1)
    s.settle()
    s.enter(0, b, PARK, thread=1)  # WITHDRAW
    s.enter(1, a, GO)
    s.exit(0, 1)
    s.end()


def blocked_beside_inside(s: Scenario) -> None:
    """P0's first thread is inside a collective with P1. The second waits for a message of P2, which is parked: P2 is
    asked."""
    a, b, c = s.comm(0, 1), s.comm(0, 1), s.comm(2)
    s.enter(0, b)
    s.enter(1, a)
    s.request()
    s.settle()
    s.enter(2, c, PARK)
    s.block(0, 2, thread=1)
    s.settle()
    s.enter(2, c, GO)
    s.exit(2)
    s.unblock(0, thread=1)
    s.settle()
    s.enter(0, a, GO, thread=1)
    s.exit(1)
    s.exit(0, thread=1)
    s.enter(1, b, GO)
    s.exit(0, 1)
    s.enter(2, c, PARK)
    s.end()


def threads_at_two_rows(s: Scenario) -> None:
    """P0 is below target on b by two. The thread at b enters. Only when it is inside, and another call is still
    missing, the thread at a enters."""
    a, b = s.comm(0, 1), s.comm(0, 1)
    for _ in range(2):
        s.enter(1, b)
        s.exit(1)  # a rooted collective
    s.request()
    s.deliver()  # INTENT
    s.enter(0, a, PARK)
    s.enter(0, b, PARK, thread=1)
    s.deliver()  # TARGETS
    s.enter(0, a, PARK)
    s.enter(0, b, GO, thread=1)
    s.enter(0, a, GO)  # raises the target of a
    s.settle()
    s.enter(1, a, GO)
    s.exit(0, 1)
    s.exit(0, thread=1)
    s.enter(0, b, GO, thread=1)
    s.exit(0, thread=1)
    s.enter(0, a, PARK)
    s.end()


def wrong_call(s: Scenario) -> None:
    """P0 makes wrong calls on a: before the request, between two reports of others, and after it has raised the
    targets."""
    a = s.comm(0, 1)
    s.enter(0, a)
    s.fail(0)
    s.collective(a, 0, 1)
    s.enter(0, a)
    s.request()
    s.deliver(0)  # INTENT finds it inside
    s.fail(0)
    s.settle()
    s.enter(0, a, PARK)
    s.end()
    s.enter(0, a, GO)
    s.enter(1, a, GO)
    s.exit(0, 1)

    s.enter(1, WORLD)
    s.request(s.controller.epoch + 1)
    s.settle()
    s.enter(0, a, GO)  # on its way to WORLD; raises the target of a
    s.deliver()
    s.deliver(1)
    s.fail(0)
    s.settle()
    s.enter(0, WORLD, GO)
    s.exit(0, 1)
    s.enter(0, a, PARK)
    s.end()
    s.enter(0, a, GO)
    s.enter(1, a, GO)
    s.exit(0, 1)


SCENARIOS: dict[str, tuple[Callable[[Scenario], None], int]] = {
    "idle": (idle, 2), "inside_at_request": (inside_at_request, 3), "figure_2a": (figure_2a, 4),
    "figure_2b": (figure_2b, 6),
    "figure_3a": (figure_3a, 7), "figure_3b": (figure_3b, 7), "p2p_hole": (p2p_hole, 4), "p2p_chain": (p2p_chain, 6),
    "any_source": (any_source, 4), "crossed_ibarriers": (crossed_ibarriers, 2),
    "group_while_pending": (group_while_pending, 3),
    "dup_while_pending": (dup_while_pending, 2), "late_row": (late_row, 2), "freed": (freed, 2),
    "aborted": (aborted, 3),
    "parked_beside_inside": (parked_beside_inside, 2), "blocked_beside_inside": (blocked_beside_inside, 3),
    "threads_at_two_rows": (threads_at_two_rows, 2), "wrong_call": (wrong_call, 2),
}  # fmt: skip


def vectors() -> list[dict[str, Any]]:
    """Every scenario as seen by each rank: {"name", "about", "rank", "size", "steps"}."""
    found = []
    for name, (play, size) in SCENARIOS.items():
        s = Scenario(size)
        play(s)
        about = " ".join((play.__doc__ or "").split())
        found += [{"name": name, "about": about, "rank": r, "size": size, "steps": s.steps[r]} for r in range(size)]
    return found


def text() -> str:
    """The contents of vectors.json: one step per line."""
    lines = []
    for v in vectors():
        head = json.dumps({k: v[k] for k in ("name", "about", "rank", "size")})
        steps = ",\n".join("   " + json.dumps(step) for step in v["steps"])
        lines.append(f'  {head[:-1]}, "steps": [\n{steps}]}}')
    return '{"format": 1, "vectors": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    PATH.write_text(text())
