"""Leaves the block of an engine, and of fully_shard, before its end: by closing a generator, and finally by sys.exit().

mpirun -n 2 python fcdp_left.py CODE all     all ranks call sys.exit(CODE) in the middle of a step mpirun -n 2 python
fcdp_left.py CODE 1       only rank 1 does; the others continue
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from manapy.fcdp import Engine, Phase, Topology, Unit

code, who = int(sys.argv[1]), sys.argv[2]
topology = Topology(ranks_per_node=1)
UNITS = [Unit(name, (("w", (5,)),), dtype="float64") for name in ("one", "two")]


def steps(engine: Engine) -> Iterator[int]:
    """Each one leaves unfinished gradients behind."""
    with engine:
        for unit in UNITS:
            engine.load(unit.name, {"w": np.zeros(5)})
        for number in range(3):
            for unit in UNITS:
                engine.gather(unit.name, Phase.FORWARD)
                engine.release(unit.name)
            engine.gradients("two")["w"][:] += 1
            engine.reduce("two")
            yield number


def losses(model: Any) -> Iterator[float]:
    with fully_shard(model, topology=topology) as sharded:
        optimizer = sharded.shard_optimizer(lambda shards: torch.optim.SGD(shards.values(), lr=0.1))
        while True:  # the consumer decides
            loss = model(torch.ones(2, 3)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()


walk = steps(Engine(topology, UNITS))
next(walk)
walk.close()
if who == "all" and code == 0:  # torch takes long to load
    import torch

    from manapy.fcdp.pytorch import fully_shard

    torch.manual_seed(0)
    training = losses(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)))
    assert next(training) != next(training)
    training.close()
print(f"rank {topology.rank} has left its first blocks", flush=True)

with Engine(topology, UNITS) as engine:
    for unit in UNITS:
        engine.load(unit.name, {"w": np.zeros(5)})
    engine.gradients("two")["w"][:] += 1
    engine.reduce("two")
    if who in ("all", str(topology.rank)):
        sys.exit(code)
    for unit in UNITS:
        engine.gather(unit.name, Phase.BACKWARD)
        engine.release(unit.name)
    engine.gradients("one")["w"][:] += 1
    engine.reduce("one")
    engine.finish()
