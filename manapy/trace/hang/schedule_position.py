"""The place in the schedule of the call for which another rank waits. A Recv answers a Send, and a member's collective
answers that of another member."""

from __future__ import annotations

from ..model.stages import NONE, RECV, REDUCING, SEND, TP, Item, Labels, Position
from ..model.verdict import Phase


def position(labels: Labels, event: int, rank: int) -> Position | None:
    """Return the place of `rank` at the call that answers this event. None: the schedule does not say."""
    stage, iteration, item = int(labels.schedule.places[rank, 0]), int(labels.iteration[event]), int(labels.item[event])
    if item == REDUCING:
        return Position(Phase.REDUCE, stage, iteration)
    place = _item(labels, event, rank)
    if place is None:
        return None
    block = labels.schedule.blocks_of(stage)[labels.items[stage][place].place]
    phase = (
        Phase.TRANSFER if labels.items[stage][place].kind != TP else Phase.BACKWARD if block.backward else Phase.FORWARD
    )
    return Position(phase, stage, iteration, block.micro)


def passed(labels: Labels, event: int, rank: int) -> bool:
    """Return whether `rank` has made later calls of its schedule, but not the one that answers this event. This is
    never claimed if some of its records are missing."""
    known = labels.trace.ranks.get(rank)
    if known is None or not known.whole:
        return False
    iteration = int(labels.iteration[event])
    lo, hi = int(labels.starts[rank]), int(labels.starts[rank + 1])
    items, iterations = labels.item[lo:hi], labels.iteration[lo:hi]
    mine = items[iterations == iteration]
    place = _item(labels, event, rank)
    if place is None:
        return False
    return not (mine == place).any() and bool(
        (mine > place).any() or (mine == REDUCING).any() or (iterations > iteration).any()
    )


def _item(labels: Labels, event: int, rank: int) -> int | None:
    """Return the index of the answer in the items of the stage of `rank`, or None."""
    item = int(labels.item[event])
    if item in (NONE, REDUCING):
        return None
    schedule = labels.schedule
    own, stage = int(schedule.places[labels.trace.events["rank"][event], 0]), int(schedule.places[rank, 0])
    asked = labels.items[own][item]
    block = schedule.blocks_of(own)[asked.place]
    if asked.kind == TP:
        return item if own == stage else None
    other = schedule.target(own, block) if asked.kind == SEND else schedule.source(own, block)
    if other is None or other[0] != stage:
        return None
    wanted = Item(RECV if asked.kind == SEND else SEND, schedule.place_of(stage, other[1]))
    return next(
        (i for i, one in enumerate(labels.items[stage]) if (one.kind, one.place) == (wanted.kind, wanted.place)), None
    )
