"""Ranks behind the agents of their nodes: what the agents make of the clock's lines loses nothing that the controller
decides on. Programs run on the model as in test_clock_programs.py, with the agents' real fold and bundles between the
ranks and the coordinator."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest
from clock_programs import build, results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import rounds

from manapy.ckpt import bundle
from manapy.clock import Controller, from_wire
from manapy.clock.line_merging import STALE, LineMerger
from manapy.clock.messages import Done, FromRank, ToRank
from manapy.clock.model.model import Simulator, Violation
from manapy.clock.model.programs import Program

LINES = st.lists(
    st.tuples(
        st.integers(0, 4),  # rank
        st.integers(0, 2),  # by which its version rises
        st.sampled_from(["STATE 7 {} 3 0", "RAISE 7 {} 0000000000000001 4", "FROZEN 7 {}", "ROWS 7 {} 0 0"])
        | st.lists(st.sampled_from(["a:1:2", "b:1:2", "c:1:3"]), max_size=3).map(
            lambda rows: " ".join(["ROWS 7 {}", "1", str(len(rows)), *rows])
        ),
        st.booleans(),  # do all lines go up now?
    ),
    max_size=40,
)


def through(waiting: bundle.Bundle) -> list[tuple[tuple[int, ...], str]]:
    """What the coordinator reads when the agent passes its lines up."""
    return [part for message in waiting.take() for part in bundle.read(message)]


@given(LINES)
def test_nothing_is_lost(lines: list[tuple[int, int, str, bool]]) -> None:
    """Each rank's lines arrive in order. Their numbers rise with the versions. A FREEZE gets the rank's version only if
    the coordinator has heard of it."""
    fold, waiting = LineMerger(), bundle.Bundle()
    versions: dict[int, int] = {}
    sent: dict[int, list[str]] = {}
    heard: dict[int, list[str]] = {}
    numbers: dict[int, dict[str, int]] = {}

    def hear() -> None:
        for ranks, line in through(waiting):
            for rank in ranks:
                heard.setdefault(rank, []).append(line)

    for rank, rise, form, now in lines:
        versions[rank] = versions.get(rank, 1) + rise
        line = form.format(versions[rank])
        sent.setdefault(rank, []).append(line)
        for passed in fold.up(rank, line):
            waiting.add(rank, passed)
            numbers.setdefault(rank, {})[passed.split(" ")[2]] = versions[rank]
        if now:
            hear()
    hear()
    for rank, passed in numbers.items():
        known = [int(number) for number in passed]
        assert known == sorted(known) and list(passed.values()) == sorted(set(passed.values()))
        *old, newest = passed
        assert frozen(fold, rank, newest) == str(versions[rank])
        assert {frozen(fold, rank, number) for number in old} <= {STALE}
        assert unfolded(heard[rank], passed) == sent[rank]


def frozen(fold: LineMerger, rank: int, number: str) -> str:
    """The version in the FREEZE that a rank gets for one with a number."""
    ((ranks, line),) = fold.down((rank,), f"FREEZE 7 {number}")
    assert list(ranks) == [rank] and line.startswith("FREEZE 7 ")
    return line.split(" ")[2]


def unfolded(lines: list[str], versions: dict[str, int]) -> list[str]:
    """A rank's lines, from those that stand for them."""
    found: list[str] = []
    rows: list[str] = []
    for line in lines:
        kind, epoch, number, *fields = line.split(" ")
        if kind == "ROWS" and fields[1] == "1":
            rows.append(fields[2])
        elif kind == "ROWS":
            found.append(" ".join([kind, epoch, str(versions[number]), fields[0], str(len(rows)), *rows]))
            rows = []
        else:
            found.append(" ".join([kind, epoch, str(versions[number]), *fields]))
    assert not rows
    return found


@given(LINES, st.integers(1, 5), st.data())
def test_lines_joined_on_the_way(lines: list[tuple[int, int, str, bool]], nodes: int, data: st.DataObject) -> None:
    """Agents below another one pass lines up at any time, also in the next epoch. What each rank says, and what it gets
    for a FREEZE, does not depend on the agents and on other ranks: it is as if each rank had an agent of its own."""
    folds = [LineMerger() for _ in range(nodes)]
    waiting = [bundle.Bundle() for _ in folds]
    above = bundle.Bundle()
    alone = [LineMerger() for _ in range(5)]
    sent: dict[int, list[str]] = {}
    heard: dict[int, list[str]] = {}
    versions = [1] * 5
    epoch = 7

    def pass_up(node: int) -> None:
        for ranks, line in through(waiting[node]):
            above.add_all(ranks, line)

    def hear() -> None:
        for ranks, line in through(above):
            for rank in ranks:
                heard.setdefault(rank, []).append(line)

    for rank, rise, form, now in lines:
        epoch += data.draw(st.sampled_from([0, 0, 0, 1]))
        versions[rank] += rise
        line = form.format(versions[rank]).replace(" 7 ", f" {epoch} ", 1)
        node = rank % nodes
        sent.setdefault(rank, []).extend(alone[rank].up(rank, line))
        for passed in folds[node].up(rank, line):
            waiting[node].add(rank, passed)
        if now:
            pass_up(node)
            if data.draw(st.booleans()):
                hear()
    for node in range(nodes):
        pass_up(node)
    hear()
    assert heard == sent
    for rank, of_rank in sent.items():
        for _, of_epoch, number, *_ in (line.split(" ") for line in of_rank):
            order = f"FREEZE {of_epoch} {number}"
            got = [[(list(ranks), line) for ranks, line in fold.down((rank,), order)]
                   for fold in (folds[rank % nodes], alone[rank])]  # fmt: skip
            assert got[0] == got[1]


def test_ranks_of_several_agents_in_one_line() -> None:
    """They have done the same, but not at the same time."""
    folds, above = [LineMerger(), LineMerger()], bundle.Bundle()
    for rank in range(4):
        for line in (f"ROWS 3 {5 + rank} 0 1 w", f"STATE 3 {8 + rank} 2 0"):
            for passed in folds[rank // 2].up(rank, line):
                above.add_all((rank,), passed)
    assert through(above) == [
        ((0, 1, 2, 3), "ROWS 3 1 1 1 w"),
        ((0, 1, 2, 3), "ROWS 3 1 0 0"),
        ((0, 1, 2, 3), "STATE 3 2 2 0"),
    ]


def test_a_number_of_another_epoch_is_stale() -> None:
    fold = LineMerger()
    assert list(fold.up(0, "STATE 3 8 2 0")) == ["STATE 3 1 2 0"]
    assert list(fold.up(0, "STATE 4 9 1 0")) == ["STATE 4 1 1 0"]
    assert list(fold.down((0,), "FREEZE 3 1")) == [([0], f"FREEZE 3 {STALE}")]
    assert list(fold.down((0,), "FREEZE 4 1")) == [([0], "FREEZE 4 9")]


def test_ranks_that_say_the_same_in_one_line() -> None:
    """Versions differ, and of three communicators only two are shared."""
    fold, waiting = LineMerger(), bundle.Bundle()
    for rank in range(4):
        version = 10 * rank + 1
        for line in (f"ROWS 3 {version} 0 3 w g{rank // 2} c{rank}", f"STATE 3 {version + 1} 2 0"):
            for passed in fold.up(rank, line):
                waiting.add(rank, passed)
    assert through(waiting) == [
        ((0, 1, 2, 3), "ROWS 3 1 1 1 w"),
        ((0, 1), "ROWS 3 1 1 1 g0"),
        ((2, 3), "ROWS 3 1 1 1 g1"),
        *(((rank,), f"ROWS 3 1 1 1 c{rank}") for rank in range(4)),
        ((0, 1, 2, 3), "ROWS 3 1 0 0"),
        ((0, 1, 2, 3), "STATE 3 2 2 0"),
    ]
    assert list(fold.down(range(4), "FREEZE 3 2")) == [([rank], f"FREEZE 3 {10 * rank + 2}") for rank in range(4)]
    assert list(fold.down(range(4), "FREEZE 3 1")) == [([0, 1, 2, 3], f"FREEZE 3 {STALE}")]
    assert list(fold.down(range(4), "THAW 3")) == [(range(4), "THAW 3")]


@pytest.mark.parametrize("line", ["STATE", "STATE 1", "ROWS 1 2", "ROWS 1 2 0", "ROWS 1 2 0 2 a", "ROWS 1 2 0 x"])
def test_malformed_lines_pass_as_they_are(line: str) -> None:
    assert list(LineMerger().up(0, line)) == [line]


# ---- whole programs


class Folded(Simulator):
    """The ranks are behind agents. An agent passes lines up at random moments, many together or each at once. In a
    tree, all agents are below the first one.

    Events of agent n have the number size + n. ``heard``: what the controller got.
    """

    def __init__(self, program: Program, *, per_node: int, tree: bool, **options: Any) -> None:
        super().__init__(program, **options)
        size = len(program)
        self.per_node, self.tree = per_node, tree
        self.folds = [LineMerger() for _ in range(0, size, per_node)]
        self.waiting = [bundle.Bundle() for _ in self.folds]
        self.passed_up: list[deque[str]] = [deque() for _ in self.folds]
        self.passed_down: list[deque[str]] = [deque() for _ in self.folds]
        self.heard: list[tuple[tuple[int, ...], FromRank]] = []
        self.saved = 0  # lines that the coordinator did not have to read

    def _rise(self, r: int) -> None:
        if r >= self.controller.size:
            self._pass_up(r - self.controller.size)
            return
        depth, msg = self.up[r].popleft()
        if self.up[r]:
            self._rising.add(r)
        self._depth = max(self._depth, depth)
        node = r // self.per_node
        for line in self.folds[node].up(r, msg.to_wire()):
            self.waiting[node].add(r, line)
        self._rising.add(self.controller.size + node)

    def _pass_up(self, node: int) -> None:
        queue = self.passed_up[node]
        if self.waiting[node].ranks and self.rng.random() < 0.7:
            queue.extend(self.waiting[node].take())
        if queue:
            parts = list(bundle.read(queue.popleft()))
            if self.tree and node:
                for ranks, line in parts:
                    self.waiting[0].add_all(ranks, line)
                self._rising.add(self.controller.size)
            else:
                self._hear_all(parts)
        if queue or self.waiting[node].ranks:
            self._rising.add(self.controller.size + node)

    def _hear_all(self, parts: list[tuple[tuple[int, ...], str]]) -> None:
        for i, (ranks, line) in enumerate(parts):
            self.saved += len(ranks) - 1
            message = from_wire(line)
            self.heard.append((ranks, message))  # type: ignore[arg-type]
            before = len(self.checkpoints)
            self._hear(ranks, message)  # type: ignore[arg-type]
            if len(self.checkpoints) > before and self.checkpoints[-1].converged and i + 1 < len(parts):
                raise Violation(f"safe before {parts[i + 1 :]}")

    def _lower(self, out: Sequence[tuple[int, ToRank]]) -> None:
        bundles = [bundle.Bundle() for _ in self.folds]
        for msg, group in groupby(out, itemgetter(1)):
            for rank, _ in group:
                bundles[0 if self.tree else rank // self.per_node].add(rank, msg.to_wire())
        self._send_down(bundles)

    def _send_down(self, bundles: list[bundle.Bundle]) -> None:
        for node, lines in enumerate(bundles):
            self.passed_down[node].extend(lines.take())
            if self.passed_down[node]:
                self._falling.add(self.controller.size + node)

    def _fall(self, r: int) -> None:
        if r < self.controller.size:
            super()._fall(r)
            return
        node = r - self.controller.size
        below = [bundle.Bundle() for _ in self.folds]
        for ranks, order in bundle.read(self.passed_down[node].popleft()):
            for rank in ranks:
                if rank // self.per_node != node:
                    below[rank // self.per_node].add(rank, order)
            own = [rank for rank in ranks if rank // self.per_node == node]
            for some, line in self.folds[node].down(own, order):
                for rank in some:
                    self.down[rank].append((self._depth + 1, from_wire(line)))  # type: ignore[arg-type]
                    self._falling.add(rank)
        self._send_down(below)
        if self.passed_down[node]:
            self._falling.add(r)

    def _check_safe(self) -> None:
        super()._check_safe()
        if any(self.passed_up) or any(self.passed_down) or any(waiting.ranks for waiting in self.waiting):
            raise Violation("lines on their way through agents")


def check(program: Program, seed: int, moments: list[int], per_node: int, tree: bool, **options: Any) -> Folded:
    """Run with and without checkpoints; both must end alike. Then give the controller each line by itself."""
    plain = Simulator(program, seed=seed)
    expected = results(plain.run(), len(program))
    requests = sorted(moment * plain.steps // 1000 for moment in moments)
    promises = (0.0, 0.1)[seed % 2]
    run = Folded(
        program, per_node=per_node, tree=tree, seed=seed + 1, requests=requests, promises=promises, **options
    )  # fmt: skip
    assert results(run.run(), len(program)) == expected
    for checkpoint in run.checkpoints:
        assert checkpoint.converged or checkpoint.reason == "the job is finishing"
    compare(run)
    return run


def view(controller: Controller) -> tuple[Any, ...]:
    """What decisions depend on, except messages on their way."""
    return (
        controller.stage,
        controller.epoch,
        {cid: (comm.target, comm.open, comm.seqs) for cid, comm in controller.comms.items()},
        [(r.threads, r.below, r.hidden, r.inside, r.disabled, r.version) for r in controller.ranks],
        [controller._needs.needed(rank) for rank in range(controller.size)],
    )


def compare(run: Folded) -> None:
    """Give two controllers what was heard in the first epoch: one as it came, the other each rank's message by itself.

    The latter may decide between the messages of a group, so they are compared until their stages part.
    """
    both = Controller(run.controller.size), Controller(run.controller.size)
    heard = [(ranks, message) for ranks, message in run.heard if not isinstance(message, Done)]
    if not heard:
        return
    for controller in both:
        controller.begin(heard[0][1].epoch)
    for ranks, message in heard:
        both[0].on_messages(ranks, message)
        for rank in ranks:
            both[1].on_message(rank, message)
        if both[0].stage is not both[1].stage or not both[0].pending:
            break
        assert view(both[0]) == view(both[1])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rng=st.randoms(use_true_random=False),
    size=st.integers(2, 7),
    events=st.integers(1, 25),
    seed=st.integers(0, 2**32),
    moments=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
    patience=st.sampled_from((0, 1, 5)),
    lazy=st.booleans(),
    threads=st.integers(1, 3),
    per_node=st.integers(1, 7),
    tree=st.booleans(),
)
def test_any_program_behind_agents(
    rng: random.Random,
    size: int,
    events: int,
    seed: int,
    moments: list[int],
    patience: int,
    lazy: bool,
    threads: int,
    per_node: int,
    tree: bool,
) -> None:
    check(build(rng, size, events, threads), seed, moments, per_node, tree, patience=patience, lazy=lazy)


def test_many_programs_behind_agents() -> None:
    """The same without hypothesis. It also checks that every mechanism is used."""
    total: Counter[str] = Counter()
    for seed in range(rounds(200, 2000)):
        rng = random.Random(seed)
        program = build(rng, rng.randint(2, 9), rng.randint(1, 30), rng.choice((1, 3)))
        moments = [rng.randrange(1001) for _ in range(3)]
        options = {"patience": rng.choice((0, 1, 5)), "lazy": rng.random() < 0.5}
        run = check(program, seed, moments, rng.randint(1, 9), tree=seed % 2 == 0, **options)
        total["saved"] += run.saved
        for checkpoint in run.checkpoints:
            total["converged"] += checkpoint.converged
            total.update(asdict(checkpoint.counters))
    assert total["converged"] > 180 and total["freezes"] > total["converged"], total
    assert all(total[key] for key in ("raises", "advances", "withdraws", "retracts", "saved")), total
