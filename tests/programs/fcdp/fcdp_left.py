"""Leaves the block of an engine before its end: by closing a generator, and finally by sys.exit(). fcdp_torch_calls.py
does the former with fully_shard.

    mpirun -n 2 python fcdp_left.py CODE all     all ranks call sys.exit(CODE) in the middle of a step
    mpirun -n 2 python fcdp_left.py CODE 1       only rank 1 does; the others continue
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

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


walk = steps(Engine(topology, UNITS))
next(walk)
walk.close()
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
