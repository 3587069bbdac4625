"""The incremental closure of "which ranks are needed" agrees with one computed from scratch."""

from __future__ import annotations

import random

import pytest

from manapy.clock._state import Mode
from manapy.clock.demand_graph import Needs, Wait


def closure(needs: Needs, roots: set[int], members: dict[int, tuple[int, ...]]) -> set[int]:
    """Computed from scratch, from what each vertex has decided to ask."""
    seen: set[object] = set()
    todo: list[object] = list(roots)
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            todo += needs._asks.get(v, ())  # type: ignore[call-overload]
    return {v for v in seen if isinstance(v, int)}


@pytest.mark.parametrize("seed", range(60))
def test_equals_closure(seed: int) -> None:
    rng = random.Random(seed)
    size = 8
    members = {1: tuple(range(size)), 2: (0, 2, 4)}
    running = dict.fromkeys(range(size), True)
    needs = Needs(running.__getitem__, members.__getitem__)
    roots: set[int] = set()
    waits: dict[int, tuple[Wait, ...]] = {}
    before: set[int] = set()
    for _ in range(150):
        r = rng.randrange(size)
        what = rng.random()
        if what < 0.4:
            peers = [
                tuple(rng.sample([p for p in range(size) if p != r], rng.randint(0, 3)))
                for _ in range(rng.choice((1, 1, 2, 3)))
            ]
            waits[r] = tuple(Wait(rng.choice(list(Mode)), p, rng.choice((1, 2))) for p in peers)
            running[r] = False
            needs.set_waits(r, waits[r])
            needs.stopped(r)
        elif what < 0.7:
            running[r] = True
            waits.pop(r, None)
            needs.set_waits(r, ())
        else:
            (roots.discard if r in roots else roots.add)(r)
            needs.set_root(r, r in roots)
        now = {v for v in range(size) if needs.needed(v)}
        assert now == closure(needs, roots, members)
        assert now ^ before <= set(needs.changed)
        needs.changed.clear()
        before = now
        for w, wait in [(w, wait) for w, several in waits.items() for wait in several]:
            if needs.needed(w):  # complete: each rank that is needed and waits asks, or relies on a running peer
                candidates = [p for p in (wait.peers or members[wait.cid]) if p != w]
                some_runs = wait.mode is Mode.ANY and any(running[p] for p in candidates)
                assert some_runs or all(needs.needed(p) for p in candidates)


def test_mutual_wildcards_keep_nobody_needed() -> None:
    """Two servers in Recv(ANY_SOURCE) ask each other. Without a root both requests must disappear."""
    needs = Needs(lambda r: False, lambda cid: (0, 1, 2, 3))
    for server in (1, 2):
        needs.set_waits(server, (Wait(Mode.ANY, (), 7),))
    needs.set_waits(0, (Wait(Mode.ALL, (1,)),))
    needs.set_root(0, True)
    assert all(needs.needed(r) for r in range(4))
    assert needs.askers(3) == [1, 2]
    needs.set_root(0, False)
    assert not any(needs.needed(r) for r in range(4))
