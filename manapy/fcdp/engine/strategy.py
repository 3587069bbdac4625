"""The differences between strategies: where a rank keeps its slice of a unit, when the slice is fetched from the other
nodes, and when gradients are summed over nodes.

    strategy    slice kept           fetched                        gradients across nodes
    fcdp        host                 when it has changed            after the last micro-batch
    zero3       nowhere              for every gather               after every micro-batch
    hpz         device               when it has changed            after every micro-batch
    hpz_naive   device               for every forward pass         after every micro-batch
    mics        device, as shard     never                          after the last micro-batch
    fcdp_sched  host                 for every micro-batch          after every micro-batch
    fcdp_comm   host                 when it has changed            after every micro-batch

    hpz         DeepSpeed's ZeRO++: frozen weights stay
    hpz_naive   ZeRO++ as the FCDP paper describes it; frozen weights are fetched, too
    mics        the optimizer updates the slice, on every node
    fcdp_sched  the paper's FCDP-Sched: a backward pass makes all slices dirty, also frozen weights
    fcdp_comm   the paper's FCDP-Comm: an optimizer step makes trainable slices dirty

Sources: FCDP paper, sections IV-C, IV-E, VI and algorithm 1; "fetched when it has changed" is its dirty flag. It has no
micro-batches: IV-C marks the cache dirty after each backward pass, algorithm 1 after the optimizer's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..errors import SetupError


class Keep(Enum):
    """The place of a unit's slice between uses."""

    NOWHERE = "nowhere"
    DEVICE = "device"
    HOST = "host"  # the node's shared window
    SHARD = "shard"  # the optimizer's own


class Fetch(Enum):
    """When a slice is gathered from the other nodes."""

    NEVER = "never"
    CHANGED = "changed"
    MICRO_BATCH = "micro-batch"  # and when it has changed
    FORWARD = "forward"
    ALWAYS = "always"


class Reduce(Enum):
    """When gradients are summed over nodes. Over the ranks of a node they are after every micro-batch."""

    LAST = "last"
    EVERY = "every"


@dataclass(frozen=True)
class Strategy:
    """One row of the table above."""

    name: str
    keep: Keep
    fetch: Fetch
    reduce: Reduce


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("fcdp", Keep.HOST, Fetch.CHANGED, Reduce.LAST),
        Strategy("zero3", Keep.NOWHERE, Fetch.ALWAYS, Reduce.EVERY),
        Strategy("hpz", Keep.DEVICE, Fetch.CHANGED, Reduce.EVERY),
        Strategy("hpz_naive", Keep.DEVICE, Fetch.FORWARD, Reduce.EVERY),
        Strategy("mics", Keep.SHARD, Fetch.NEVER, Reduce.LAST),
        Strategy("fcdp_sched", Keep.HOST, Fetch.MICRO_BATCH, Reduce.EVERY),
        Strategy("fcdp_comm", Keep.HOST, Fetch.CHANGED, Reduce.EVERY),
    )
}


def find(name: str, tau: float) -> Strategy:
    """The strategy of that name. tau: share of the device up to which gathered units stay there (FCDP-Cache). Raises
    SetupError."""
    if name not in STRATEGIES:
        raise SetupError(f"unknown strategy '{name}': choose {', '.join(STRATEGIES)}")
    if not 0 <= tau <= 1:
        raise SetupError(f"tau must be between 0 and 1, not {tau:g}")
    strategy = STRATEGIES[name]
    if tau and strategy.keep is not Keep.HOST:
        raise SetupError(f"tau is for fcdp, fcdp_sched and fcdp_comm; {name} keeps no parameters in the host's memory")
    return strategy
