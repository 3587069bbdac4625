"""Times of trainings over manapy.fcdp on the nodes that MPI reports.

    mpirun ... python sharded_times.py steps --models full lora --variants alone fcdp-tau fcdp zero3
    mpirun ... python sharded_times.py trace --strategies zero3 fcdp
    mpirun ... python sharded_times.py paths

steps: a step of each variant in turn, so that changes of the machine's speed affect all of them; seconds of the slowest
rank. `alone`: the same program on each rank by itself, which sends nothing. `fcdp-tau`: all gathered data stay on the
device (tau = 1, no limit). trace: the times (CLOCK_MONOTONIC) at which rank 0 began another phase. paths: seconds until
a unit is on the device, by the place from which it comes.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from sharded import Training, Watched, add_model, build, say, sizes

from manapy.fcdp import Engine, Phase, Topology, Unit
from manapy.fcdp.layers import Layer
from manapy.fcdp.layers.numpy_training import units_of

ALONE, CACHED = "alone", "fcdp-tau"
# where a unit comes from when this strategy gathers it a second time
PATHS = {"host": "fcdp", "node": "mics", "network": "zero3"}


def together(topology: Topology) -> None:
    """A barrier whose waiting ranks take no processor from ranks that still compute."""
    request = topology.comm.Ibarrier()
    while not request.Test():
        time.sleep(5e-4)


def seconds(topology: Topology, work: Callable[[], object]) -> float:
    """Seconds until the slowest rank has done it."""
    together(topology)
    begin = time.perf_counter()
    work()
    took = time.perf_counter() - begin
    together(topology)
    return max(topology.comm.allgather(took))


def steps(topology: Topology, options: argparse.Namespace) -> None:
    """The mode `steps`. The first round doesn't count."""
    apart = Topology(MPI.COMM_SELF)
    for kind in options.models:
        layers = build(options, kind)
        with contextlib.ExitStack() as stack:
            trainings = {}
            for variant in options.variants:
                strategy, tau = {ALONE: ("fcdp", 1.0), CACHED: ("fcdp", 1.0)}.get(variant, (variant, 0.0))
                engine = stack.enter_context(
                    Engine(apart if variant == ALONE else topology, units_of(layers), strategy=strategy, tau=tau)
                )
                trainings[variant] = Training(engine, layers, options)
            for number in range(options.rounds + 1):
                for variant, training in trainings.items():
                    took = seconds(topology, training.step)
                    if number:
                        say(
                            topology,
                            {
                                "model": kind,
                                "variant": variant,
                                "round": number - 1,
                                "seconds": took,
                                "weights": sum(sizes(layers)),
                            },
                        )


def trace(topology: Topology, options: argparse.Namespace) -> None:
    """The mode `trace`: [seconds, what] of LoRA's steps by each strategy, including the first step. "step" is the
    beginning of a step, "end" the end of the last one."""
    layers = build(options, "lora")
    for strategy in options.strategies:
        say(topology, {"strategy": strategy, "moments": traced(topology, options, layers, strategy)})


def traced(
    topology: Topology, options: argparse.Namespace, layers: list[Layer], strategy: str
) -> list[tuple[float, str]]:
    """The moments of one training."""
    moments: list[tuple[float, str]] = []
    with Engine(topology, units_of(layers), strategy=strategy) as engine:
        training = Training(engine, layers, options)
        watched = Watched(engine, lambda phase: moments.append((time.monotonic(), phase.name.lower())))
        for _ in range(options.steps):
            together(topology)
            moments.append((time.monotonic(), "step"))
            training.step(watched)
        engine.report()
        moments.append((time.monotonic(), "end"))
    return moments


def paths(topology: Topology, options: argparse.Namespace) -> None:
    """The mode `paths`."""
    unit = Unit("unit", (("values", (options.bytes // 4,)),), trainable=False)
    for path in options.paths:
        with Engine(topology, [unit], strategy=PATHS[path], prefetch=0) as engine:
            engine.load(unit.name, {"values": np.ones(options.bytes // 4, np.float32)})
            for number in range(options.rounds + 1):
                took = seconds(topology, lambda: engine.gather(unit.name, Phase.FORWARD))
                engine.release(unit.name)
                if number:
                    say(topology, {"path": path, "bytes": options.bytes, "round": number - 1, "seconds": took})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("steps")
    mode.set_defaults(run=steps)
    mode.add_argument("--models", nargs="+", choices=("full", "lora"), default=["full"])
    mode.add_argument("--variants", nargs="+", default=[ALONE, "fcdp"])
    mode.add_argument("--rounds", type=int, default=3)
    add_model(mode)
    mode = modes.add_parser("trace")
    mode.set_defaults(run=trace)
    mode.add_argument("--strategies", nargs="+", default=["fcdp"])
    mode.add_argument("--steps", type=int, default=4)
    add_model(mode)
    mode = modes.add_parser("paths")
    mode.set_defaults(run=paths)
    mode.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    mode.add_argument("--bytes", type=int, default=1 << 26)
    mode.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    given.run(Topology(), given)
