"""A small training job that is parallel in three directions, as the training of large language models is, and ways to
break it.

    mpirun -n 8 python pipeline.py --schedule tp=2,pp=2,dp=2,micro=4 --iterations 20
    mpirun -n 4 python pipeline.py --schedule pp=4,micro=8 --fault spin:rank=2,iteration=5,micro=3,phase=backward

Each pipeline stage has some layers. They are divided among the ranks of its tensor-parallel (TP) group, and an
Allreduce adds up the partial results. Micro-batches go through the stages in the order of the schedule (1F1B, GPipe or
interleaved: manapy/trace/model/schedule.py describes --schedule and the place of each rank). Activations go to the next
stage, gradients to the previous one. At the end of an iteration the replicas (DP) add up their gradients, all ranks add
up the square of its norm, and the weights change.

Sends are synchronous and nonblocking (Issend). Each is completed before the next one to the same rank in the same
direction. So, like sends of large messages, they end when the receive has begun, for every size and MPI library. Data
and weights come from one seed.

Faults: KIND:rank=R[,iteration=I][,micro=M][,chunk=C][,phase=forward|backward|transfer][,backward=1]
                      [,seconds=T][,busy=N]
    skip-recv   the block's Recv isn't called (phase: of the block). A block without a Recv, such as a first stage's
                forward, is refused
    spin        computes for ever
    sleep       sleeps, for ever or T seconds
    stop        SIGSTOP to itself
    die         SIGKILL to itself
    compute     computes T seconds more
    starve      from then on shares its processor with N (default 1) busy processes: a node with too few cores
forward and backward are in the block's work, before its first Allreduce; transfer is before the block's Send
(backward=1: of a backward block). --fault may be given several times. A slow or broken link needs emulated nodes
(tools/nodes, UCX_TLS=tcp,self) and these commands: tc qdisc add dev eth0 root tbf rate 10mbit burst 128kb latency
200ms; ip link set eth0 down.

With --pairs N iterations come in pairs. One iteration of a pair is recorded, the other isn't (MPI_Pcontrol). N is the
seed of the order in each pair.

Rank 0 prints a line for each iteration, and a rank with a fault prints one, with the time (seconds since 1970).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from manapy.core.errors import ManapyError
from manapy.trace.model.schedule import Schedule, ScheduleBlock, parse

RATE = 0.01
KINDS = ("skip-recv", "spin", "sleep", "stop", "die", "compute", "starve")
PHASES = ("forward", "backward", "transfer")


class FaultError(ManapyError):
    """A fault has a wrong description, or cannot happen in this schedule."""


# ---- faults


@dataclass(frozen=True)
class Fault:
    """A fault and its place. micro, chunk, backward: the block. seconds: None means for ever. busy: how many processes
    share the processor of a rank that starves."""

    kind: str
    rank: int
    iteration: int = 0
    block: ScheduleBlock = ScheduleBlock(False, 0, 0)
    phase: str = "forward"
    seconds: float | None = None
    busy: int = 1


def fault(text: str, schedule: Schedule) -> Fault:
    """The fault that the text of --fault describes. Raises FaultError."""
    kind, _, rest = text.partition(":")
    values: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        name, _, value = item.partition("=")
        values[name] = value
    if kind not in KINDS:
        raise FaultError(f"no fault '{kind}' (there are {', '.join(KINDS)})")
    try:
        rank, iteration, micro, chunk = (
            int(values.pop(name, "-1" if name == "rank" else "0")) for name in ("rank", "iteration", "micro", "chunk")
        )
        phase = values.pop("phase", "forward")
        backward = bool(int(values.pop("backward", "0"))) or phase == "backward"
        seconds = float(values.pop("seconds")) if "seconds" in values else None
        busy = int(values.pop("busy", "1"))
    except ValueError as error:
        raise FaultError(f"fault '{text}': {error}") from None
    if (
        values
        or phase not in PHASES
        or not 0 <= rank < schedule.size
        or iteration < 0
        or (seconds is not None and seconds < 0)
        or busy < 1
    ):
        raise FaultError(
            f"fault '{text}' can't be: rank=0...{schedule.size - 1}, iteration, micro, chunk, "
            f"phase={'|'.join(PHASES)}, backward=0|1, seconds and busy=1... are what it may say"
        )
    stage, block = int(schedule.places[rank, 0]), ScheduleBlock(backward, chunk, micro)
    if block not in schedule.blocks_of(stage):
        raise FaultError(
            f"fault '{text}': an iteration has micro=0...{schedule.micro - 1} and chunk=0...{schedule.chunks - 1}"
        )
    if kind == "skip-recv" and schedule.source(stage, block) is None:
        raise FaultError(f"fault '{text}': rank {rank} receives nothing for this block")
    if phase == "transfer" and schedule.target(stage, block) is None:
        raise FaultError(f"fault '{text}': rank {rank} sends nothing after this block")
    if kind == "compute" and seconds is None:
        raise FaultError(f"fault '{text}' needs seconds")
    return Fault(kind, rank, iteration, block, phase, seconds, busy)


def spin(seconds: float | None = None) -> None:
    """Compute, for ever if `seconds` is None."""
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        pass


def starve(processes: int) -> None:
    """Stay on one processor, together with this number of busy processes, which end with this one."""
    here = {sorted(os.sched_getaffinity(0))[MPI.COMM_WORLD.rank % len(os.sched_getaffinity(0))]}
    os.sched_setaffinity(0, here)
    for _ in range(processes):
        subprocess.Popen(
            [sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100000))"],
            env={**os.environ, "LD_PRELOAD": ""},
        )


def happen(what: Fault) -> None:
    """Break this rank."""
    print(f"fault {what.kind} on rank {what.rank} in iteration {what.iteration} at {time.time():.6f}", flush=True)
    if what.kind == "spin":
        spin()
    elif what.kind == "compute":
        spin(what.seconds)
    elif what.kind == "sleep":
        time.sleep(10**8 if what.seconds is None else what.seconds)
    elif what.kind == "starve":
        starve(what.busy)
    elif what.kind != "skip-recv":
        os.kill(os.getpid(), signal.SIGSTOP if what.kind == "stop" else signal.SIGKILL)


# ---- one rank's part of the model


class Part:
    """This rank's part of the layers of one chunk, each [hidden / tp, hidden]. A layer takes `hidden / tp` of the
    inputs' columns and gives this rank's part of the sum of all outputs."""

    def __init__(self, seed: list[int], layers: int, hidden: int, tp: MPI.Comm) -> None:
        rng = np.random.default_rng(seed)
        self.tp = tp
        self.columns = slice(tp.rank * hidden // tp.size, (tp.rank + 1) * hidden // tp.size)
        self.weights = rng.normal(scale=hidden**-0.5, size=(layers, hidden // tp.size, hidden)).astype(np.float32)
        self.gradient = np.zeros_like(self.weights)
        self.kept: dict[int, list[np.ndarray]] = {}  # inputs of the layers, by micro-batch, until its backward pass

    def sum(self, part: np.ndarray) -> np.ndarray:
        """The sum over the TP group."""
        if self.tp.size == 1:
            return part
        whole = np.empty_like(part)
        self.tp.Allreduce(np.ascontiguousarray(part), whole)
        return whole

    def forward(self, micro: int, x: np.ndarray) -> np.ndarray:
        """From [batch, hidden] to the same shape."""
        self.kept[micro] = []
        for w in self.weights:
            self.kept[micro].append(x)
            x = np.tanh(self.sum(x[:, self.columns] @ w))
        self.kept[micro].append(x)
        return x

    def backward(self, micro: int, g: np.ndarray) -> np.ndarray:
        """From the gradient of the outputs to that of the inputs; the gradient of the weights is added up."""
        kept = self.kept.pop(micro)
        for i in reversed(range(len(self.weights))):
            g = g * (1 - kept[i + 1] ** 2)
            self.gradient[i] += kept[i][:, self.columns].T @ g
            part = np.zeros_like(g)
            part[:, self.columns] = g @ self.weights[i].T
            g = self.sum(part)
        return g


class Trainer:
    """One rank."""

    def __init__(self, schedule: Schedule, faults: list[Fault], layers: int, hidden: int, batch: int) -> None:
        self.world = MPI.COMM_WORLD
        self.schedule, self.layers, self.shape = schedule, layers, (batch, hidden)
        self.stage, self.replica, self.shard = (int(i) for i in schedule.places[self.world.rank])
        self.tp = self.world.Split(self.stage * schedule.dp + self.replica, self.shard)
        self.dp = self.world.Split(self.stage * schedule.tp + self.shard, self.replica)
        self.parts = [
            Part([1, self.stage, chunk, self.shard], layers, hidden, self.tp) for chunk in range(schedule.chunks)
        ]
        self.faults = [f for f in faults if f.rank == self.world.rank]
        # by receiver and direction
        self.sending: dict[tuple[int, bool], tuple[MPI.Request, np.ndarray]] = {}
        self.iteration = 0

    def fault_at(self, block: ScheduleBlock, *phases: str, kinds: tuple[str, ...] = KINDS) -> Fault | None:
        """The fault that is to happen now."""
        return next(
            (
                f
                for f in self.faults
                if (f.iteration, f.block) == (self.iteration, block) and f.phase in phases and f.kind in kinds
            ),
            None,
        )

    def receive(self, block: ScheduleBlock) -> np.ndarray:
        """The block's input: from another stage, or from the data."""
        source = self.schedule.source(self.stage, block)
        if source is None:
            return (
                np.random.default_rng([self.iteration, self.replica, block.micro, block.backward])
                .normal(size=self.shape)
                .astype(np.float32)
            )
        got = np.zeros(self.shape, np.float32)
        if (skipped := self.fault_at(block, *PHASES, kinds=("skip-recv",))) is not None:
            happen(skipped)
        else:
            self.world.Recv(got, self.rank_of(source[0]), self.schedule.place_of(self.stage, block))
        return got

    def send(self, block: ScheduleBlock, what: np.ndarray) -> None:
        """Send the block's output to the stage that waits for it."""
        target = self.schedule.target(self.stage, block)
        if target is None:
            return
        other = self.rank_of(target[0])
        way = other, block.backward
        if way in self.sending:
            self.sending[way][0].Wait()
        self.sending[way] = self.world.Issend(what, other, self.schedule.place_of(*target)), what

    def rank_of(self, stage: int) -> int:
        """The rank with the same place in another stage."""
        return int(self.schedule.ranks[stage, self.replica, self.shard])

    def work(self, block: ScheduleBlock) -> None:
        """One block."""
        x = self.receive(block)
        active = tuple(kind for kind in KINDS if kind != "skip-recv")
        if (broken := self.fault_at(block, "forward", "backward", kinds=active)) is not None:
            happen(broken)
        part = self.parts[block.chunk]
        y = part.backward(block.micro, x) if block.backward else part.forward(block.micro, x)
        if (broken := self.fault_at(block, "transfer", kinds=active)) is not None:
            happen(broken)
        self.send(block, y)

    def run(self) -> None:
        """One iteration."""
        for block in self.schedule.blocks_of(self.stage):
            self.work(block)
        for request, _ in self.sending.values():
            request.Wait()
        self.sending.clear()
        gradient = np.concatenate([part.gradient.ravel() for part in self.parts])
        if self.dp.size > 1:
            self.dp.Allreduce(MPI.IN_PLACE, gradient)
        norm = np.array([float(gradient @ gradient)])
        self.world.Allreduce(MPI.IN_PLACE, norm)
        scale = RATE / max(1.0, float(norm[0]) ** 0.5)
        for part, piece in zip(self.parts, np.split(gradient, len(self.parts)), strict=True):
            part.weights -= np.float32(scale) * piece.reshape(part.weights.shape)
            part.gradient[:] = 0
        self.iteration += 1

    def digest(self) -> str:
        """A digest of this rank's weights."""
        return hashlib.sha256(b"".join(part.weights.tobytes() for part in self.parts)).hexdigest()[:16]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--schedule",
        default="pp=4,micro=8",
        help="tp=N,pp=N,dp=N,micro=N[,kind=1f1b|gpipe|interleaved][,chunks=N]: tp * pp * dp ranks",
    )
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--layers", type=int, default=2, help="of a chunk")
    parser.add_argument("--hidden", type=int, default=128, help="width of a layer, a multiple of tp")
    parser.add_argument("--batch", type=int, default=32, help="samples of a micro-batch")
    parser.add_argument(
        "--pairs", type=int, metavar="SEED", help="one iteration of two isn't recorded: for what recording costs"
    )
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    try:
        schedule = parse(options.schedule)
        faults = [fault(text, schedule) for text in options.fault]
        if schedule.size != world.size:
            raise FaultError(f"{schedule} is for {schedule.size} ranks, and there are {world.size}")
        if options.hidden % schedule.tp:
            raise FaultError(f"--hidden {options.hidden} is no multiple of tp={schedule.tp}")
    except ManapyError as error:
        if world.rank == 0:
            print(f"pipeline.py: {error}", file=sys.stderr)
        sys.exit(2)
    trainer = Trainer(schedule, faults, options.layers, options.hidden, options.batch)
    recorded = [True] * options.iterations
    if options.pairs is not None:
        recorded = [
            one
            for first in np.random.default_rng(options.pairs).random(-(-options.iterations // 2)) < 0.5
            for one in (bool(first), not first)
        ][: options.iterations]
    for iteration in range(options.iterations):
        MPI.Pcontrol(int(recorded[iteration]))
        began = time.perf_counter()
        trainer.run()
        if world.rank == 0:
            print(
                f"iteration {iteration} took {time.perf_counter() - began:.6f} s at "
                f"{time.time():.6f}{'' if recorded[iteration] else ', not recorded'}",
                flush=True,
            )
    MPI.Pcontrol(1)
    if world.rank == 0:
        print(f"weights {trainer.digest()}", flush=True)


if __name__ == "__main__":
    main()
