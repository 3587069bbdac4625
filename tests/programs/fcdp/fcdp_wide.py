"""Trains a model of two wide layers over manapy.fcdp on the nodes that MPI reports. Prints as JSON the bytes that the
ranks of the first node count as sent to other nodes.

    mpirun -n N python fcdp_wide.py STRATEGY MICRO_BATCHES STEPS
"""

import json
import sys

import numpy as np
from mpi4py import MPI

from manapy.fcdp import Engine, Topology
from manapy.fcdp.layers import Dense, Tanh
from manapy.fcdp.layers.adam import Adam
from manapy.fcdp.layers.numpy_training import initialise, micro_batch, units_of

strategy, micro_batches, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
topology = Topology(MPI.COMM_WORLD)
model = [Dense("in", 40, 10000), Tanh(), Dense("out", 10000, 40)]
random = np.random.default_rng(7)
with Engine(topology, units_of(model), strategy=strategy) as engine:
    initialise(engine, model, random)
    optimizer = Adam(1e-3)
    for _ in range(steps):
        for number in range(micro_batches):
            engine.last_micro_batch = number == micro_batches - 1
            micro_batch(
                engine, model, random.standard_normal((4, 40)).astype(np.float32), random.integers(0, 40, 4), 1.0
            )
        optimizer.step(engine.shards)
        engine.updated()
    sent = topology.node.allreduce(int(engine.traffic.bytes[:, 0].sum()))
    if topology.rank == 0:
        print(
            json.dumps(
                {"nodes": topology.nodes, "sent": sent, "parameters": sum(unit.size for unit in units_of(model))}
            ),
            flush=True,
        )
