"""Sharded training (FCDP: Fully Cached Data Parallel).

    manapy fcdp advise --params 30B --nodes 4 --gpus 8 --bandwidth 10G   compute traffic, memory and time per strategy
    mpirun -n 4 manapy fcdp train                                        train a small GPT and measure it

advise uses closed forms (manapy/fcdp/costs.py). It runs and measures nothing. Bandwidths may be in bits, as for
networks (10G is 10 Gbit/s), or in bytes, as for buses (32GB/s).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...core.units import size
from ..shared import arguments, quantities
from ..shared.output import Output
from . import fcdp_train

if TYPE_CHECKING:
    from ...fcdp.advice import Job, Option

ALL_RANKS = True  # run train
PCIE = 32e9  # bytes/s of PCIe 4.0 x16, as in the paper's Table II


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its commands."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="advise|train")
    _add_advise(
        commands.add_parser(
            "advise",
            help="compare the strategies, and recommend one",
            description=(
                "Print the bytes, memory and time of a step for each strategy, and recommend one. The exit code is 1 "
                "if none fits."
            ),
        )
    )
    about = "train a small GPT on all ranks"
    fcdp_train.add_arguments(
        commands.add_parser(
            "train",
            help=about,
            description=fcdp_train.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )


def _add_advise(parser: argparse.ArgumentParser) -> None:
    def add(name: str, metavar: str | None, kind: Any, text: str, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, type=kind, help=text, **more)

    _add_cluster(add)
    _add_model(add, parser)
    _add_step(add)
    parser.add_argument(
        "--local-weights", action="store_true", help="fcdp: every node reads frozen parameters from its own disk"
    )
    parser.add_argument("--json", action="store_true")


def _add_cluster(add: Callable[..., None]) -> None:
    add("--params", "N", quantities.count, "number of the model's parameters, such as 30B or 350M", required=True)
    add("--nodes", "N", arguments.positive, "number of nodes", required=True)
    add("--gpus", "G", arguments.positive, "number of devices per node", required=True)
    add(
        "--bandwidth",
        "B",
        quantities.bandwidth,
        "bandwidth of each node's network, in each direction, such as 10G",
        required=True,
    )
    add(
        "--intra-bandwidth",
        "B",
        quantities.bandwidth,
        "bandwidth between devices of a node (default 32GB/s: PCIe 4.0 x16)",
        default=PCIE,
    )
    add(
        "--host-bandwidth",
        "B",
        quantities.bandwidth,
        "bandwidth between a device and the host's memory (default 32GB/s)",
        default=PCIE,
    )


def _add_model(add: Callable[..., None], parser: argparse.ArgumentParser) -> None:
    from ...fcdp.costs import PRECISIONS

    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--trainable",
        metavar="SHARE|N",
        type=_trainable,
        help="share or number of the parameters that are trained: 1%%, 0.01, or 15M (default: all)",
    )
    what.add_argument(
        "--lora",
        metavar="RANK",
        type=arguments.positive,
        help="train adapters of this rank beside the four attention projections; needs --layers and --hidden",
    )
    add(
        "--layers",
        "L",
        arguments.positive,
        "number of blocks; each is one unit. Without this option the memory of gathered parameters is not counted",
    )
    add("--hidden", "H", arguments.positive, "size of the model's hidden states")
    add(
        "--dtype",
        None,
        str,
        (
            "mixed: bf16 or fp16 with fp32 master weights; gradients are reduced in the same type, or in fp32 (default "
            "mixed)"
        ),
        choices=tuple(PRECISIONS),
        default="mixed",
    )


def _add_step(add: Callable[..., None]) -> None:
    from ...fcdp.costs import COLLECTIVES

    add(
        "--micro-batches",
        "K",
        arguments.positive,
        "forward and backward passes per step of the optimizer (default 1)",
        default=1,
    )
    add("--batch", "N", arguments.positive, "samples per micro-batch on one device (default 1)", default=1)
    add("--activations", "SIZE", quantities.size, "memory of one sample on a device (default: not counted)", default=0)
    add(
        "--device-memory",
        "SIZE",
        quantities.size,
        "memory of one device; shows which strategies fit and how large tau can be",
    )
    add("--host-memory", "SIZE", quantities.size, "memory of one node that caches may use")
    add(
        "--tau",
        "T",
        quantities.fraction,
        "keep parameters on the device while less than this share of its memory is in use (default 0: never)",
        default=0.0,
    )
    add("--compute", "TIME", arguments.seconds, "computing time of a step, such as 900ms")
    add(
        "--tflops",
        "T",
        quantities.count,
        "instead of --compute: what one device really achieves, in TFLOP/s; needs --tokens",
    )
    add("--tokens", "N", quantities.count, "tokens per step, on all devices together")
    add(
        "--overlap",
        "SHARE",
        quantities.fraction,
        "overlap of computation and transfers: 0 none (upper bound of the time), 1 complete (lower bound) (default 0)",
        default=0.0,
    )
    add(
        "--collective",
        None,
        str,
        "how strategies other than manapy's gather and reduce over all ranks (default ring)",
        choices=COLLECTIVES,
        default="ring",
    )


def run(options: argparse.Namespace, out: Output) -> int:
    """The command that was named."""
    return {"advise": _advise, "train": fcdp_train.run}[options.what](options, out)


def _advise(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import UsageError
    from ...fcdp import advice
    from ...fcdp.costs import PEERS

    job = _job(options)
    try:
        found = advice.assess(job)
    except ValueError as error:
        raise UsageError(str(error)) from None
    said = advice.advise(job, found)
    out.data(
        {
            "job": asdict(job),
            "strategies": [{**asdict(option), "as": PEERS[option.strategy]} for option in found],
            "advice": asdict(said),
        }
    )
    _show(job, found, options, out)
    if said.strategy is None:
        out.error(said.reason)
        return 1
    out.line(f"\n{said.reason}")
    safe = next(option for option in found if option.strategy == "fcdp").largest_tau
    if safe is not None and job.tau > safe:
        out.note(f"manapy fcdp: above a tau of {safe:.2f}, kept parameters may have to make room for activations again")
    return 0


def _trainable(text: str) -> float:
    """A share, as a number of at most 1, or a number of parameters."""
    if text.endswith("%"):
        return quantities.fraction(text)
    return quantities.count(text)


def _job(options: argparse.Namespace) -> Job:
    from ...core.errors import UsageError
    from ...fcdp.advice import Job
    from ...fcdp.costs import PRECISIONS, Links, flops

    trainable, frozen = options.params, 0.0
    if options.lora:
        if not (options.layers and options.hidden):
            raise UsageError("--lora needs --layers and --hidden")
        if options.lora > options.hidden:
            raise UsageError(f"--lora {options.lora} is larger than --hidden {options.hidden}")
        trainable, frozen = float(4 * 2 * options.lora * options.hidden * options.layers), options.params
    elif options.trainable is not None:
        trainable = options.trainable * (options.params if options.trainable <= 1 else 1)
        if trainable > options.params:
            raise UsageError(f"--trainable {options.trainable:g} is more than --params {options.params:g}")
        frozen = options.params - trainable
    if options.compute is not None and (options.tflops or options.tokens):
        raise UsageError("--compute cannot be combined with --tflops and --tokens")
    if bool(options.tflops) != bool(options.tokens):
        raise UsageError("--tflops and --tokens need each other")
    compute = options.compute or 0.0
    if options.tflops:
        compute = flops(trainable, frozen, options.tokens) / (options.tflops * 1e12 * options.nodes * options.gpus)
    return Job(
        nodes=options.nodes, gpus=options.gpus, trainable=trainable, frozen=frozen, precision=PRECISIONS[options.dtype],
        links=Links(options.bandwidth, options.intra_bandwidth, options.host_bandwidth),
        micro_batches=options.micro_batches, batch=options.batch,
        unit=options.params / options.layers if options.layers else 0, activations=options.activations, compute=compute,
        overlap=options.overlap,
        collective=options.collective, device=options.device_memory, host=options.host_memory, tau=options.tau,
        local_weights=options.local_weights,
    )  # fmt: skip


def _show(job: Job, found: list[Option], options: argparse.Namespace, out: Output) -> None:
    out.table(
        ("strategy", "forward", "backward", "reduce", "step", "first step", "within node", "to and from host", "as"),
        [_traffic(option) for option in found],
        title="Bytes that a node sends over the network, by phase and per step; bytes inside the node",
    )
    out.line("")
    known = "computation and transfers" if job.compute else "transfers only (no --compute)"
    columns = ("strategy", "device", "host", "fits", "largest batch", "largest tau", "network alone", "step")
    # Columns without any value are left out.
    rows = [_needs(option) for option in found]
    shown = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    if job.device is None and job.host is None:
        shown.remove(columns.index("fits"))
    title = f"Memory of a device and a host; time of a step: {known}, overlap {job.overlap:g}"
    out.table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows], title=title)


def _traffic(option: Option) -> tuple[str, ...]:
    from ...fcdp.costs import PEERS

    phases, total = option.phases, option.phases.total
    values = (
        phases.forward.inter,
        phases.backward.inter,
        phases.reduce.inter,
        total.inter,
        option.first,
        total.intra,
        total.host,
    )
    return option.strategy, *map(size, values), PEERS[option.strategy]


def _needs(option: Option) -> tuple[str, ...]:
    def known(value: Any, text: str) -> str:
        return "" if value is None else text

    return (
        option.strategy, size(option.device), size(option.memory.host), "no" if option.lacks else "yes",
        known(option.largest_batch, str(option.largest_batch)),
        known(option.largest_tau, f"{option.largest_tau or 0:.2f}"), f"{option.time.inter:.3g} s",
        f"{option.step:.3g} s",
    )  # fmt: skip
