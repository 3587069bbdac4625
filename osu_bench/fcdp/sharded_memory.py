"""Memory of trainings over manapy.fcdp: the largest batch that fits into a device, and the memory of a host.

    mpirun -n 4 python sharded_memory.py batch --hidden 300 360 --budget 13000000 --ranks-per-node 2
    mpirun -n 4 python sharded_memory.py host --trainings lora,1 full,2 --strategies fcdp zero3 --ranks-per-node 2

batch: the batch is doubled until a step does not fit into the device. The device is the engine's arena, which limits
memory that is really allocated: data that the engine keeps and gathers, activations (training.py holds them), and
Adam's moments. Prints a JSON line for each model and strategy. host: the largest sum of the proportional set sizes
(/proc/PID/smaps_rollup) of the ranks of a node during the steps. Shared memory counts once. A training is a model and
its number of micro-batches; all strategies and trainings of a run follow each other in the same processes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI
from sharded import Training, add_model, build, say, sizes

from manapy.fcdp import Engine, Topology
from manapy.fcdp.errors import BudgetError
from manapy.fcdp.layers.numpy_training import units_of

PAUSE = 0.01  # seconds between two reads of the memory's size
M_MMAP_THRESHOLD = -3  # malloc.h


def batches(topology: Topology, options: argparse.Namespace) -> None:
    """The mode `batch`; number of samples of all ranks together, 0 if not even one for each rank fits."""
    for hidden in options.widths:
        options.hidden = hidden
        for strategy in options.strategies:
            largest, options.batch = 0, 1
            while fits(topology, options, strategy):
                largest, options.batch = options.batch, 2 * options.batch
            say(topology, {"hidden": hidden, "strategy": strategy, "batch": largest * topology.size})


def fits(topology: Topology, options: argparse.Namespace, strategy: str) -> bool:
    """Make a step. All ranks allocate the same sizes in the arena, so all get the same result."""
    layers = build(options, "full")
    with contextlib.suppress(BudgetError):
        with Engine(topology, units_of(layers), strategy=strategy, budget=options.budget, prefetch=0) as engine:
            try:
                engine.hold(2 * sum(shard.values.nbytes for shard in engine.shards), "Adam's moments")
                Training(engine, layers, options).step()
            except BudgetError:  # the exception must not leave the engine, because that would end the job
                return False
        return True
    return False


def host(topology: Topology, options: argparse.Namespace) -> None:
    """The mode `host`; a JSON line for each training and strategy."""
    # freed memory goes back to the system; otherwise malloc sometimes keeps large blocks
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    for training in options.trainings:
        model, micro_batches = training.split(",")
        for strategy in options.strategies:
            figures = trained(topology, options, model, int(micro_batches), strategy)
            say(topology, {"model": model, "micro_batches": int(micro_batches), "strategy": strategy, **figures})


def trained(
    topology: Topology, options: argparse.Namespace, model: str, micro_batches: int, strategy: str
) -> dict[str, int]:
    """Bytes of the node with the larger sum, of the node's window, and of the parameters."""
    layers = build(options, model)
    # otherwise the devices' memory would differ, too
    with Engine(topology, units_of(layers), strategy=strategy, prefetch=0) as engine:
        training = Training(engine, layers, options, micro_batches)
        training.step()
        pids = topology.node.allgather(os.getpid())
        with Watch(pids if topology.local == 0 else []) as watch:
            enough = options.looks
            while topology.comm.allreduce(watch.looks if topology.local == 0 else enough, MPI.MIN) < enough:
                training.step()
            engine.report()  # all ranks still exist
        window = engine.host_bytes
    trainable, frozen = sizes(layers)
    largest = max(topology.comm.allgather(watch.largest))
    return {"trainable": trainable, "frozen": frozen, "pss": largest, "window": window}


class Watch:
    """largest: the largest sum in bytes of the memory of the processes, while this context is open. looks: number of
    reads."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._files = [Path(f"/proc/{pid}/smaps_rollup") for pid in pids]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.largest = self.looks = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(PAUSE):
            self.largest = max(self.largest, sum(pss(file) for file in self._files))
            self.looks += 1


def pss(file: Path) -> int:
    """Bytes."""
    return next(int(line.split()[1]) * 1024 for line in file.read_text().splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("batch")
    mode.set_defaults(run=batches)
    mode.add_argument("--widths", type=int, nargs="+", required=True, help="--hidden of each model")
    mode.add_argument("--strategies", nargs="+", default=["fcdp"])
    mode.add_argument("--budget", type=int, required=True, help="bytes of a device")
    add_model(mode)
    mode = modes.add_parser("host")
    mode.set_defaults(run=host)
    mode.add_argument("--trainings", nargs="+", default=["full,1"], help="full or lora, and micro-batches of a step")
    mode.add_argument("--strategies", nargs="+", default=["fcdp"])
    mode.add_argument("--looks", type=int, default=40, help="at the memory; few looks miss the peaks of short steps")
    add_model(mode)
    for mode in modes.choices.values():
        mode.add_argument(
            "--ranks-per-node", type=int, help="nodes are emulated, of so many ranks (default: those that MPI sees)"
        )
    given = parser.parse_args()
    given.run(Topology(ranks_per_node=given.ranks_per_node), given)
