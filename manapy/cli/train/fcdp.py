"""Sharded training (FCDP: Fully Cached Data Parallel).

    manapy fcdp advise --params 30B --nodes 4 --gpus 8 --bandwidth 10G     what each strategy sends, needs and takes, and which to use
    mpirun -n 4 manapy fcdp train                                          a small GPT trained, with what was sent and needed

advise: all from closed forms (manapy/fcdp/costs.py): nothing is run or measured. Bandwidths with bits are as networks are sold, 10G = 10 Gbit/s; with bytes as buses are, 32GB/s.
"""

from __future__ import annotations

import argparse
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
    _add_advise(commands.add_parser("advise", help="which strategy, and why", description="Bytes per step, memory, and time of a step for each strategy, and which to use. Exit code 1 if none fits."))
    about = "train a small GPT on all ranks"
    fcdp_train.add_arguments(commands.add_parser("train", help=about, description=fcdp_train.DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter))


def _add_advise(parser: argparse.ArgumentParser) -> None:
    from ...fcdp.costs import COLLECTIVES, PRECISIONS

    def add(name: str, metavar: str | None, kind: Any, text: str, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, type=kind, help=text, **more)

    add("--params", "N", quantities.count, "parameters of the model, such as 30B or 350M", required=True)
    add("--nodes", "N", arguments.positive, "nodes", required=True)
    add("--gpus", "G", arguments.positive, "devices of each node", required=True)
    add("--bandwidth", "B", quantities.bandwidth, "of each node's network, each way, such as 10G", required=True)
    add("--intra-bandwidth", "B", quantities.bandwidth, "of a device to others of its node (default 32GB/s: PCIe 4.0 x16)", default=PCIE)
    add("--host-bandwidth", "B", quantities.bandwidth, "of a device to the host's memory (default likewise)", default=PCIE)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trainable", metavar="SHARE|N", type=_trainable, help="how many of the parameters are trained: 1%%, 0.01, or a number such as 15M (default: all)")
    what.add_argument("--lora", metavar="RANK", type=arguments.positive, help="train adapters of this rank beside the four attention projections; needs --layers and --hidden")
    add("--layers", "L", arguments.positive, "blocks, each a unit; without it, parameters that are whole for a moment are not counted as memory")
    add("--hidden", "H", arguments.positive, "size of the model's hidden states")
    add("--dtype", None, str, "mixed: bf16 or fp16 with fp32 master weights; reduced in the same, or in fp32 (default mixed)", choices=tuple(PRECISIONS), default="mixed")
    add("--micro-batches", "K", arguments.positive, "of a step: forward and backward passes before the optimizer's step (default 1)", default=1)
    add("--batch", "N", arguments.positive, "samples of a micro-batch on one device (default 1)", default=1)
    add("--activations", "SIZE", quantities.size, "memory of one sample on a device (default: not counted)", default=0)
    add("--device-memory", "SIZE", quantities.size, "of one device: which strategies fit, and how large tau can be")
    add("--host-memory", "SIZE", quantities.size, "of one node that caches may take")
    add("--tau", "T", quantities.fraction, "keep parameters on the device while less of its memory is in use (default 0: never)", default=0.0)
    add("--compute", "TIME", arguments.seconds, "computation of a step, such as 900ms")
    add("--tflops", "T", quantities.count, "instead: what one device really achieves, in TFLOP/s, with --tokens")
    add("--tokens", "N", quantities.count, "of a step, on all devices together")
    add("--overlap", "SHARE", quantities.fraction, "of computation and transfers: 0 one after the other, an upper bound; 1 all at once, a lower one (default 0)", default=0.0)
    add("--collective", None, str, "how those that aren't manapy's gather and reduce over all ranks (default ring)", choices=COLLECTIVES, default="ring")
    parser.add_argument("--local-weights", action="store_true", help="fcdp: every node reads frozen parameters from its own disk")
    parser.add_argument("--json", action="store_true")


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
    out.data({"job": asdict(job), "strategies": [{**asdict(option), "as": PEERS[option.strategy]} for option in found], "advice": asdict(said)})
    _show(job, found, options, out)
    if said.strategy is None:
        out.error(said.reason)
        return 1
    out.line(f"\n{said.reason}")
    safe = next(option for option in found if option.strategy == "fcdp").largest_tau
    if safe is not None and job.tau > safe:
        out.note(f"manapy fcdp: with a tau above {safe:.2f} parameters may be kept that must go again when activations need the room")
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
            raise UsageError(f"--lora {options.lora} is no low rank: --hidden is {options.hidden}")
        trainable, frozen = float(4 * 2 * options.lora * options.hidden * options.layers), options.params
    elif options.trainable is not None:
        trainable = options.trainable * (options.params if options.trainable <= 1 else 1)
        if trainable > options.params:
            raise UsageError(f"--trainable {options.trainable:g} is more than --params {options.params:g}")
        frozen = options.params - trainable
    if options.compute is not None and (options.tflops or options.tokens):
        raise UsageError("--compute, or --tflops and --tokens, not both")
    if bool(options.tflops) != bool(options.tokens):
        raise UsageError("--tflops and --tokens belong together")
    compute = options.compute or 0.0
    if options.tflops:
        compute = flops(trainable, frozen, options.tokens) / (options.tflops * 1e12 * options.nodes * options.gpus)
    return Job(
        nodes=options.nodes, gpus=options.gpus, trainable=trainable, frozen=frozen, precision=PRECISIONS[options.dtype],
        links=Links(options.bandwidth, options.intra_bandwidth, options.host_bandwidth), micro_batches=options.micro_batches, batch=options.batch,
        unit=options.params / options.layers if options.layers else 0, activations=options.activations, compute=compute, overlap=options.overlap,
        collective=options.collective, device=options.device_memory, host=options.host_memory, tau=options.tau, local_weights=options.local_weights,
    )  # fmt: skip


def _show(job: Job, found: list[Option], options: argparse.Namespace, out: Output) -> None:
    out.table(
        ("strategy", "forward", "backward", "reduce", "step", "first step", "within node", "to and from host", "as"),
        [_traffic(option) for option in found],
        title="Bytes a node sends over the network, by phase and in all; and inside",
    )
    out.line("")
    known = "computation and transfers" if job.compute else "transfers alone (no --compute)"
    columns = ("strategy", "device", "host", "fits", "largest batch", "largest tau", "network alone", "step")
    # A column in which nothing is known is left out.
    rows = [_needs(option) for option in found]
    shown = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    if job.device is None and job.host is None:
        shown.remove(columns.index("fits"))
    title = f"Memory of a device and a host; time of a step: {known}, overlap {job.overlap:g}"
    out.table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows], title=title)


def _traffic(option: Option) -> tuple[str, ...]:
    from ...fcdp.costs import PEERS

    phases, total = option.phases, option.phases.total
    values = (phases.forward.inter, phases.backward.inter, phases.reduce.inter, total.inter, option.first, total.intra, total.host)
    return option.strategy, *map(size, values), PEERS[option.strategy]


def _needs(option: Option) -> tuple[str, ...]:
    def known(value: Any, text: str) -> str:
        return "" if value is None else text

    return (
        option.strategy, size(option.device), size(option.memory.host), "no" if option.lacks else "yes", known(option.largest_batch, str(option.largest_batch)),
        known(option.largest_tau, f"{option.largest_tau or 0:.2f}"), f"{option.time.inter:.3g} s", f"{option.step:.3g} s",
    )  # fmt: skip
