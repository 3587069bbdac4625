"""Recommends a strategy for a training job: evaluates the closed forms (costs.py) for one job on one cluster, checks
what fits there, and gives a reason.

 1. Only strategies that manapy offers for training are recommended. The paper's variants (NAIVE) are computed for
    comparison.
 2. The fastest strategy that fits is recommended; if steps differ by less than CLOSE, the one with the least memory on
    a device.
 3. Nothing is guessed: if the memory of a device or host is not given, everything fits there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.units import size
from . import costs
from .costs import Links, Memory, Phases, Precision, Time
from .engine import strategy

CLOSE = 0.01
# the paper's variants; for each, another strategy sends no more and needs no more memory of a device
NAIVE = ("hpz_naive", "fcdp_sched", "fcdp_comm")


@dataclass(frozen=True)
class Job:
    """A training job and its cluster.

    trainable, frozen: numbers of parameters. unit: parameters of the largest unit. activations: bytes of one sample on
    one device; batch: samples of a micro-batch on one device. compute: seconds of a step. device, host: bytes of memory
    of one, None if unknown. tau: threshold of FCDP-Cache.
    """

    nodes: int
    gpus: int
    trainable: float
    frozen: float
    precision: Precision
    links: Links
    micro_batches: int = 1
    batch: int = 1
    unit: float = 0
    activations: float = 0
    compute: float = 0
    overlap: float = 0
    collective: str = "ring"
    device: float | None = None
    host: float | None = None
    tau: float = 0
    local_weights: bool = False


@dataclass(frozen=True)
class Option:
    """One strategy in this job. Sizes are in bytes; device: with activations and data that tau keeps there. lacks: the
    memory that is too small, "" if all fits. None: not known.

    first: total bytes that a node sends over the network in the first step. largest_batch: without data that tau keeps.
    largest_tau: for strategies with a cache, if unit and activations are known; otherwise it would be too large.
    """

    strategy: str
    phases: Phases
    first: float
    memory: Memory
    device: float
    lacks: str
    largest_batch: int | None
    largest_tau: float | None
    kept: float
    time: Time
    step: float


@dataclass(frozen=True)
class Advice:
    """The recommended strategy, None if none fits, and the reason in one sentence."""

    strategy: str | None
    reason: str


def assess(job: Job) -> list[Option]:
    """All strategies of costs.STRATEGIES in this job. Raises ValueError for invalid values."""
    if not 0 <= job.tau <= 1:
        raise ValueError(f"tau is between 0 and 1, not {job.tau:g}")
    if job.tau and job.device is None:
        raise ValueError("tau is a share of the device's memory, which is not given")
    return [_option(job, name) for name in costs.STRATEGIES]


def _option(job: Job, name: str) -> Option:
    needed = costs.memory(
        name, job.nodes, job.gpus, job.trainable, job.frozen, job.precision, job.micro_batches, unit=job.unit
    )
    activations = job.batch * job.activations
    weights = job.precision.parameter * (job.trainable + job.frozen)
    cached = name.startswith("fcdp")
    kept, most = 0.0, None
    if cached and job.device is not None:
        kept = costs.kept_share(job.device, needed, activations, job.tau, weights)
        most = costs.largest_tau(job.device, needed, activations) if job.unit and activations else None

    def sent(first: bool) -> Phases:
        sizes = (
            job.precision.parameter * job.trainable,
            job.precision.parameter * job.frozen,
            job.precision.reduced * job.trainable,
        )
        local = job.local_weights and name == "fcdp"
        return costs.bytes_per_node(
            name,
            job.nodes,
            job.gpus,
            *sizes,
            job.micro_batches,
            first=first,
            local_weights=local,
            kept=kept,
            collective=job.collective,
        )

    phases = sent(first=False)
    device = needed.device + activations + kept * weights
    lacks = []
    if job.device is not None and device > job.device:
        lacks.append(f"{size(device)} on a device with {size(job.device)}")
    if job.host is not None and needed.host > job.host:
        lacks.append(f"{size(needed.host)} on a host with {size(job.host)}")
    time = costs.time(phases.total, job.gpus, job.compute, job.links)
    return Option(
        name, phases, sent(first=True).total.inter, needed, device, " and ".join(lacks),
        None if job.device is None or not job.activations else costs.largest_batch(job.device, needed, job.activations),
        most, kept, time, time.step(job.overlap),
    )  # fmt: skip


def advise(job: Job, options: list[Option]) -> Advice:
    """The recommendation (invariants 1 and 2)."""
    offered = {
        option.strategy: option
        for option in options
        if option.strategy in strategy.STRATEGIES and option.strategy not in NAIVE
    }
    fitting = [option for option in offered.values() if not option.lacks]
    if not fitting:
        return Advice(None, _nothing_fits(job, offered["zero3"]))
    fastest = min(option.step for option in fitting)
    best = min((option for option in fitting if option.step <= fastest * (1 + CLOSE)), key=lambda option: option.device)
    return Advice(
        best.strategy, f"{best.strategy}: {_seconds(best.step)} a step" + "".join(_comparisons(best, offered))
    )


def _comparisons(best: Option, offered: dict[str, Option]) -> list[str]:
    """Half-sentences that compare with ZeRO-3, with an equally fast strategy, and with a faster one that does not
    fit."""
    said = []
    base = offered["zero3"]
    if best is not base:
        ratio = base.step / best.step
        if ratio > 1 + CLOSE:
            said.append(
                f", {ratio:.3g} times as fast as zero3, since a node sends {size(best.phases.total.inter)} instead of "
                f"{size(base.phases.total.inter)}"
            )
    for other in offered.values():
        if other is best:
            continue
        if other.lacks and other.step < best.step:
            said.append(f"; {other.strategy} would take {_seconds(other.step)} but needs {other.lacks}")
        elif not other.lacks and other.step <= best.step * (1 + CLOSE) and other.device > best.device:
            said.append(
                f"; {other.strategy} is as fast but needs {size(other.device)} on a device instead of "
                f"{size(best.device)}"
            )
        elif not other.lacks and other.strategy == "fcdp" and other.device < best.device:
            said.append(
                f"; fcdp takes {_seconds(other.step)} and needs {size(other.device)} on a device instead of "
                f"{size(best.device)}"
            )
    return said or [", and nothing that fits is faster"]


def _nothing_fits(job: Job, zero3: Option) -> str:
    """The reason if nothing fits. zero3 needs the least of a device and nothing of a host, so the device is too
    small."""
    assert job.device is not None
    said = f"nothing fits: even zero3 needs {size(zero3.device)} on a device with {size(job.device)}"
    anywhere = zero3.device - zero3.memory.states
    if anywhere >= job.device:
        return f"{said}, and {size(anywhere)} of that on any number of nodes"
    return f"{said}; on {math.ceil(zero3.memory.states * job.nodes / (job.device - anywhere))} nodes it would fit"


def _seconds(value: float) -> str:
    return f"{value:.3g} s"
