"""Closed forms of sharded data-parallel training: bytes sent, memory, time of a step. Pure functions: no MPI, no numpy,
no measurement.

N nodes of g devices, P = N g ranks; T, F, G bytes of trainable parameters, frozen parameters and gradients, W = T + F;
k micro-batches in a step.

 1. A volume is what all ranks of one node *send* in one step: over the network (inter), to ranks of the node (intra),
    and between devices and host memory (host, both directions). Every node sends the same. A sum over the cluster, as
    the paper's Table VII has it, is N times that.
 2. Shards are even: an engine that pads them sends up to P - 1 elements a unit more. Headers, barriers and clipping are
    not counted.
 3. On one node no form sends anything over the network.
 4. The coefficients of a collective are in all_gather() and reduce_scatter() only, and each strategy is one function of
    these.

Sources: the paper, "FCDP: Fully Cached Data Parallel for Communication-Avoiding Large-Scale Training", §II to §VI; for
MiCS, PVLDB 16(1), its two-hop gradient synchronisation; for hpZ, ZeRO++, arXiv 2306.10209, as DeepSpeed 0.19 does it.
Where the paper contradicts itself:

 - §VI-B puts the traffic of an all-gather at (N-1)/N W. Table VII was measured with rings, (P-1)/P W, and is the sum of
   both nodes in GiB.
 - The 50 % less traffic of §IV-C refers to the all-gathers; with the reduce-scatter it is 33 % (§VI-B). Table VII says
   49.3 %, because LoRA reduces almost nothing.
 - Table VII fits a trainable share of 0.05 %, not the 1 % of §V-D: "backward 0.1" is the reduce-scatter of the
   adapters' gradients in fp32.
 - §VI-B says that MiCS gathers over the network. Its groups are nodes, so nothing but gradients leaves a node (Table I
   and §VI-A of the same paper).
 - §VI-A gives ZeRO++ 2Ψ/g more than ZeRO-3, 4.1 GB for GPT-15B, and §III-B measures 6.86 GB. In Table V, at 4 samples a
   device, ZeRO++ runs out of memory with GPT-25B, which by §VI-A needs 31.0 GB and activations; ZeRO-3 doesn't with
   GPT-30B, which needs as much and larger activations.
 - The paper has no micro-batches. §IV-C marks the cache dirty after each backward pass: FCDP-Sched gathers in every
   micro-batch. Algorithm 1 marks parameters dirty after the optimizer's step: FCDP-Comm gathers once per step.
   Gradients are reduced after each backward pass (§IV-C). ZeRO++ as it is described gathers in every forward pass:
   `hpz_naive`.
 - Fig. 9 keeps 86.3 % of FCDP's throughput on the slowest network and 1.6 % of ZeRO-3's. With 6.8 times its throughput
   on the fastest (Figs. 7 and 8) that makes 367 times, not 100.
 - Fig. 5 has 8 samples a device on 16 devices, 128 in all, for each model; Table V ends at 64 for GPT-25B and GPT-30B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

COLLECTIVES = ("hierarchical", "ring", "pairwise", "gloo")


@dataclass(frozen=True)
class Volume:
    """Bytes that one node's ranks send (invariant 1)."""

    inter: float = 0
    intra: float = 0
    host: float = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.inter + other.inter, self.intra + other.intra, self.host + other.host)

    def __mul__(self, times: float) -> Volume:
        return Volume(self.inter * times, self.intra * times, self.host * times)


@dataclass(frozen=True)
class Phases:
    """A step's volumes: parameters for the forward passes, parameters for the backward passes, gradients."""

    forward: Volume
    backward: Volume
    reduce: Volume

    @property
    def total(self) -> Volume:
        """Their sum."""
        return self.forward + self.backward + self.reduce


def all_gather(size: float, nodes: int, gpus: int, collective: str) -> Volume:
    """The volume of an all-gather that leaves `size` bytes on each rank.

    hierarchical: each rank gathers its part between the nodes, then the node's ranks among themselves: the least that
    can cross the network. ring: one pass in order of rank; one of a node's g ranks sends to the next node. pairwise:
    each rank sends its shard to all others. gloo: PyTorch's library on CPUs; a ring.
    """
    ranks = nodes * gpus
    if collective == "hierarchical" or nodes == 1:
        return Volume(inter=(nodes - 1) * size / nodes, intra=(gpus - 1) * size)
    if collective == "pairwise":
        return Volume(inter=gpus * (nodes - 1) * size / nodes, intra=(gpus - 1) * size / nodes)
    return Volume(inter=(ranks - 1) * size / ranks, intra=(gpus - 1) * (ranks - 1) * size / ranks)


def reduce_scatter(size: float, nodes: int, gpus: int, collective: str) -> Volume:
    """The volume of a reduce-scatter of `size` bytes on each rank: that of an all-gather in reverse.

    gloo's is an all-reduce, with twice the volume.
    """
    return all_gather(size, nodes, gpus, collective) * (2 if collective == "gloo" else 1)


@dataclass(frozen=True)
class _Step:
    """One step, with the arguments of bytes_per_node()."""

    nodes: int
    gpus: int
    trainable: float
    frozen: float
    gradient: float
    micro_batches: int
    first: bool
    local_weights: bool
    kept: float
    collective: str

    @property
    def weights(self) -> float:
        """W, in bytes."""
        return self.trainable + self.frozen

    @property
    def fresh(self) -> float:
        """Bytes of parameters that a cache which knows of frozen ones lacks: T, and F too in the first step."""
        return self.trainable + (self.frozen if self.first else 0)

    def gather(self, size: float) -> Volume:
        """All ranks gather."""
        return all_gather(size, self.nodes, self.gpus, self.collective)

    def scatter(self) -> Volume:
        """All ranks reduce and scatter their gradients, in each micro-batch."""
        return reduce_scatter(self.gradient, self.nodes, self.gpus, self.collective) * self.micro_batches

    def inside(self, size: float) -> Volume:
        """The ranks of a node gather, or reduce and scatter, among themselves."""
        return all_gather(size, 1, self.gpus, "hierarchical")

    def load(self, size: float) -> Volume:
        """Each rank loads its part from the host's memory, then they gather (§IV-C)."""
        return self.inside(size) + Volume(host=size)


def _zero3(s: _Step) -> Phases:
    """Everything, in each pass (§II-A)."""
    every = s.gather(s.weights) * s.micro_batches
    return Phases(every, every, s.scatter())


def _hpz(s: _Step) -> Phases:
    """A second copy on the node's devices, which frozen parameters never leave and trainable ones with the optimizer's
    step."""
    return Phases(
        s.gather(s.fresh) + s.inside(s.micro_batches * s.weights - s.fresh),
        s.inside(s.micro_batches * s.weights),
        s.scatter(),
    )


def _hpz_naive(s: _Step) -> Phases:
    """A second copy which lives from the forward to the backward pass, of all parameters alike (§II-A, §VI-B)."""
    return Phases(s.gather(s.weights) * s.micro_batches, s.inside(s.micro_batches * s.weights), s.scatter())


def _mics(s: _Step) -> Phases:
    """Each node holds all: gradients are summed in the node, and in the last micro-batch by all-reduce over the nodes
    (MiCS' two hops)."""
    every = s.inside(s.micro_batches * s.weights)
    return Phases(
        every, every, s.inside(s.micro_batches * s.gradient) + Volume(inter=2 * (s.nodes - 1) * s.gradient / s.nodes)
    )


def _fcdp_sched(s: _Step) -> Phases:
    """The paper's scheduling alone (§IV-C): each forward pass gathers all parameters and stores them in the host's
    memory, from which the backward pass has them."""
    forward = (s.gather(s.weights) + Volume(host=s.weights)) * s.micro_batches
    return Phases(forward, s.load(s.micro_batches * s.weights) * (1 - s.kept), s.scatter())


def _fcdp_comm(s: _Step) -> Phases:
    """The paper's system (§IV-E, Algorithm 1): the first forward pass of a step does so with what an optimizer's step
    has changed; all else comes from the host's memory."""
    forward = s.gather(s.fresh) + Volume(host=s.fresh) + s.load(s.micro_batches * s.weights - s.fresh)
    return Phases(forward, s.load(s.micro_batches * s.weights) * (1 - s.kept), s.scatter())


def _fcdp(s: _Step) -> Phases:
    """manapy's strategy: host memory gathers from host memory, part by part. Gradients are summed in the node, in host
    memory, and cross the network with the last micro-batch.

    Over the network (N-1)/N (T + G), whatever k: the bound of an all-reduce.
    """
    fresh = s.trainable + (s.frozen if s.first and not s.local_weights else 0)
    passes = s.load(s.micro_batches * s.weights)
    # of the node's own shards; what comes from other nodes comes to the host
    refresh = Volume(inter=(s.nodes - 1) * fresh / s.nodes, host=fresh / s.nodes)
    partial = s.load(s.micro_batches * s.gradient)
    last = Volume(inter=(s.nodes - 1) * s.gradient / s.nodes, host=s.gradient / s.nodes)
    return Phases(refresh + passes, passes * (1 - s.kept), partial + last)


_FORMS: dict[str, Callable[[_Step], Phases]] = {
    "fcdp": _fcdp,
    "zero3": _zero3,
    "hpz": _hpz,
    "hpz_naive": _hpz_naive,
    "mics": _mics,
    "fcdp_sched": _fcdp_sched,
    "fcdp_comm": _fcdp_comm,
}
STRATEGIES = tuple(_FORMS)

PEERS = {
    "fcdp": "manapy",
    "zero3": "DeepSpeed ZeRO-3, FSDP2 reshard_after_forward=True",
    "hpz": "DeepSpeed zero_hpz_partition_size=g",
    "hpz_naive": "ZeRO++ in the paper, FSDP2 reshard_after_forward=g",
    # if it is told to leave out the all-reduce except for the last micro-batch: set_requires_all_reduce()
    "mics": "FSDP2 2-D mesh (HSDP)",
    "fcdp_sched": "FCDP-Sched in the paper",
    "fcdp_comm": "FCDP-Comm in the paper",
}
"""Who sends these bytes."""


def bytes_per_node(
    strategy: str,
    nodes: int,
    gpus: int,
    trainable: float,
    frozen: float,
    gradient: float,
    micro_batches: int = 1,
    *,
    first: bool = False,
    local_weights: bool = False,
    kept: float = 0.0,
    collective: str = "hierarchical",
) -> Phases:
    """What one node sends in one optimizer step of `micro_batches` micro-batches.

    gpus: ranks of a node. trainable, frozen: bytes of parameters as they are gathered. gradient: bytes of the trainable
    parameters' gradients as they are reduced. first: the first step, which also gathers the frozen parameters that
    are cached later. local_weights: every node reads these from its own disk (fcdp only). kept: share of the parameters
    that stay on the devices from the forward to the backward pass (FCDP-Cache, §IV-D; the fcdp strategies only).
    collective: of COLLECTIVES, used where all ranks gather or reduce; `fcdp` and `mics` have exchanges of their own.
    Raises ValueError for an unknown strategy or collective and for numbers that make no sense.
    """
    _check(strategy, nodes, gpus, trainable=trainable, frozen=frozen, gradient=gradient)
    if collective not in COLLECTIVES:
        raise ValueError(f"no collective '{collective}' (there are {', '.join(COLLECTIVES)})")
    if micro_batches < 1:
        raise ValueError(f"a step has at least 1 micro-batch, not {micro_batches}")
    if not 0 <= kept <= 1:
        raise ValueError(f"the share kept on devices is between 0 and 1, not {kept:g}")
    return _FORMS[strategy](
        _Step(nodes, gpus, trainable, frozen, gradient, micro_batches, first, local_weights, kept, collective)
    )


def _check(strategy: str, nodes: int, gpus: int, **sizes: float) -> None:
    if strategy not in _FORMS:
        raise ValueError(f"no strategy '{strategy}' (there are {', '.join(STRATEGIES)})")
    if nodes < 1 or gpus < 1:
        raise ValueError(f"at least 1 node with 1 device is needed, not {nodes} with {gpus}")
    for name, size in sizes.items():
        if not size >= 0:
            raise ValueError(f"{name} can't be {size:g}")


# ---- memory


@dataclass(frozen=True)
class Precision:
    """Bytes for each parameter: the parameter and its gradient on the device, the optimizer's states, and the gradient
    as it is reduced."""

    parameter: int
    gradient: int
    optimizer: int
    reduced: int


PRECISIONS = {
    "mixed": Precision(2, 2, 12, 2),
    "mixed-fp32-reduce": Precision(2, 2, 12, 4),
    "fp32": Precision(4, 4, 8, 4),
}
# mixed: bf16 or fp16, with an fp32 master copy and Adam's two moments, 16 bytes in all (ZeRO, arXiv 1910.02054, §3.1).
# fp32: Adam's two moments.


@dataclass(frozen=True)
class Memory:
    """Bytes: states that stay on one device, units that are there for a moment, and one host's memory."""

    states: float
    live: float
    host: float

    @property
    def device(self) -> float:
        """Bytes of one device, without activations."""
        return self.states + self.live


def memory(
    strategy: str,
    nodes: int,
    gpus: int,
    trainable: float,
    frozen: float,
    precision: Precision,
    micro_batches: int = 1,
    *,
    unit: float = 0,
) -> Memory:
    """Memory of one device and of one host (§VI-A), without activations and without memory that a library reserves.

    trainable, frozen: *numbers* of parameters. unit: parameters of the largest unit, of which two are on the device at
    a time, the one that computes and the one that is prefetched, and one full gradient. Raises ValueError as
    bytes_per_node().
    """
    _check(strategy, nodes, gpus, trainable=trainable, frozen=frozen, unit=unit)
    weights = precision.parameter * (trainable + frozen)
    states = weights + (precision.gradient + precision.optimizer) * trainable
    shared = states / gpus if strategy == "mics" else states / (nodes * gpus)
    second = weights / gpus if strategy in ("hpz", "hpz_naive") else 0
    host = weights if strategy.startswith("fcdp") else 0
    # the node's sum of gradients, which waits for the last one
    partial = precision.reduced * trainable if strategy == "fcdp" and micro_batches > 1 else 0
    return Memory(shared + second, unit * (2 * precision.parameter + precision.gradient), host + partial)


def largest_batch(device: float, needed: Memory, sample: float) -> int:
    """The largest batch on a device of `device` bytes, if each sample has `sample` bytes of activations.

    The batch is doubled until the device is full (§V-C); 0 if not even one sample fits.
    """
    batch = 1
    while needed.device + batch * sample <= device:
        batch *= 2
    return batch // 2


def largest_tau(device: float, needed: Memory, activations: float) -> float:
    """The largest threshold of FCDP-Cache (§IV-D) with which all kept units fit in any case; 0 if there is no room.

    Above it the paper's system may run out of memory; manapy's drops units again.

    A unit stays on the device if less than tau of it is in use after the unit's forward pass. In the worst case that
    happens while there are no activations yet: these, the live units, and the unit that was let in last must fit above
    the threshold. needed.live is no less than that unit.
    """
    return max(0.0, 1 - (activations + 2 * needed.live) / device)


def kept_share(device: float, needed: Memory, activations: float, tau: float, weights: float) -> float:
    """Share of the parameters, `weights` bytes in full, that stays on each device under threshold tau.

    Units are assumed to be equal: with each kept unit the device's use grows by its parameters and its part of the
    activations, from the states to tau of the device. Units that then do not fit beside all activations and the live
    units are dropped again.
    """
    let_in = (tau * device - needed.states) / (weights + activations)
    room = (device - needed.device - activations) / weights
    return min(1.0, max(0.0, min(let_in, room)))


# ---- time


@dataclass(frozen=True)
class Links:
    """Bytes per second: of a node's network, each way; of one device to its neighbours in the node; of one device to
    the host's memory."""

    inter: float
    intra: float
    host: float


@dataclass(frozen=True)
class Time:
    """Seconds of a step by resource, each alone."""

    compute: float
    inter: float
    intra: float
    host: float

    def step(self, overlap: float) -> float:
        """Seconds of the step. overlap 0: one after the other, an upper bound; 1: all at once, so that the slowest
        counts, a lower bound; linear between them."""
        parts = (self.compute, self.inter, self.intra, self.host)
        return sum(parts) - overlap * (sum(parts) - max(parts))


def time(volume: Volume, gpus: int, compute: float, links: Links) -> Time:
    """The time of a node's volume in one step. The devices of a node share the network; each has its own link to
    neighbours and host. Latency and contention are not included.
    """
    return Time(compute, volume.inter / links.inter, volume.intra / gpus / links.intra, volume.host / gpus / links.host)


def flops(trainable: float, frozen: float, tokens: float) -> float:
    """Operations of a step on `tokens` tokens: for each token and parameter 2 forward, 2 for the inputs' gradients, and
    2 more where there is a gradient of its own.

    The usual 6 N of Kaplan et al. (arXiv 2001.08361, §2.1): no attention, no recomputed activations. trainable, frozen:
    numbers of parameters.
    """
    return (6 * trainable + 4 * frozen) * tokens
