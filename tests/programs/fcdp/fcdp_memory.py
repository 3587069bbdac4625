"""Host memory of sharded training. Prints as JSON the largest memory of each node's ranks together, in bytes, by
strategy, and for fcdp also on ranks that may lock no memory.

A page that several processes share counts once (PSS, proc(5)). Units of 8 MB: four are frozen and one is trainable.
Freed memory goes back to the system at once. Otherwise malloc sometimes keeps large blocks.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
from pathlib import Path

import numpy as np

from manapy.fcdp import Engine, Phase, Topology, Unit

ELEMENTS, FROZEN = 2**21, 4
CAP_IPC_LOCK = 14  # linux/capability.h
M_MMAP_THRESHOLD = -3  # malloc.h


def forbid_locking() -> None:
    """Works for root, too (capset(2))."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
    library = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert library.capget(header, sets) == 0
    for index in range(3):
        sets[index] &= ~(1 << CAP_IPC_LOCK)
    assert library.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def field(file: str, name: str) -> int:
    """The value of a line in a file of /proc/self, which is in kilobytes, as bytes."""
    line = next(line for line in (Path("/proc/self") / file).read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def train(topology: Topology, strategy: str) -> dict[str, object]:
    units = [Unit(f"{number}", (("w", (ELEMENTS,)),), trainable=number == FROZEN) for number in range(FROZEN + 1)]
    most = 0

    def look() -> None:
        nonlocal most
        topology.comm.Barrier()
        most = max(most, topology.node.allreduce(field("smaps_rollup", "Pss")))
        topology.comm.Barrier()

    with Engine(topology, units, strategy=strategy, prefetch=0) as engine:
        look()
        for unit in units:
            engine.load(unit.name, {"w": np.full(ELEMENTS, 1, np.float32)})
            look()
        for _ in range(2):
            for phase, order in ((Phase.FORWARD, units), (Phase.BACKWARD, units[::-1])):
                for unit in order:
                    assert engine.gather(unit.name, phase)["w"][-1] == 1
                    look()
                    engine.release(unit.name)
            engine.gradients(units[-1].name)["w"][:] = 0
            engine.reduce(units[-1].name)
            look()
            engine.finish()
            engine.updated()
            look()
        return {"most": topology.comm.allgather(most), "locked": topology.comm.allgather(field("status", "VmLck"))}


ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
here = Topology(ranks_per_node=2)
done = {strategy: train(here, strategy) for strategy in ("zero3", "fcdp")}
forbid_locking()
done["unlocked"] = train(here, "fcdp")
if here.rank == 0:
    print("RESULT", json.dumps([done]), flush=True)
