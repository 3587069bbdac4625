"""Memory of sharded training: the largest batch that fits on a device (the FCDP paper's Tables V and VI), and the
memory that a host needs.

Some results come from runs: models with the proportions of the paper's, 16 times narrower, on nodes that the engine
emulates, on devices that are limits on memory. Others come from the closed forms for the paper's own models, because
the paper doesn't state their activations.
"""

from __future__ import annotations

from typing import Any

from ...fcdp import costs
from ..shared.commands import BenchError, Command, Setting, records
from ..shared.samples import FCDP, Row, Rows

STRATEGIES = ("fcdp", "zero3", "hpz", "mics")
RANKS = 2  # per emulated node
# Name: blocks, hidden size, heads (Table IV). The vocabulary is always 50257.
MODELS = {
    "GPT-10B": (40, 4800, 40),
    "GPT-15B": (40, 5760, 45),
    "GPT-20B": (40, 6656, 52),
    "GPT-25B": (39, 7168, 56),
    "GPT-30B": (40, 7936, 62),
}
VOCABULARY = 50257
PAPER = {  # nodes: batches of ZeRO-3 and FCDP, and of ZeRO++
    2: {"GPT-10B": (256, 128), "GPT-15B": (128, 128), "GPT-20B": (128, 64), "GPT-25B": (64, 32), "GPT-30B": (64, 0)},
    4: {
        "GPT-10B": (512, 512),
        "GPT-15B": (512, 256),
        "GPT-20B": (256, 256),
        "GPT-25B": (256, 256),
        "GPT-30B": (256, 128),
    },
}
A40 = 48e9  # bytes
# tokens of a sample. The paper doesn't state them; with this number ZeRO-3's and FCDP's batches are the paper's in all
# ten cases
TOKENS = 224
NARROWER, LAYERS = 16, 8  # of the models that are run
# bytes of a device for each parameter of the widest model that is run on 2 nodes: as tight as an A40 is for GPT-30B
BUDGET = 7.0


def memory(setting: Setting) -> list[Row]:
    """Largest batches, and host memory."""
    rows = Rows("fcdp-memory")
    quick = setting.scale < 1
    names = list(MODELS)[-1:] if quick else list(MODELS)
    widest = MODELS["GPT-30B"][1] // NARROWER
    budget = int(BUDGET * LAYERS * widest * (widest + 1))
    for part, nodes in enumerate((2,) if quick else PAPER):
        setting.progress(part / 3, f"largest batches on {nodes} nodes")
        widths = {MODELS[name][1] // NARROWER: name for name in names}
        options = [
            "batch",
            "--widths",
            *map(str, widths),
            "--layers",
            str(LAYERS),
            "--budget",
            str(budget * 2 // nodes),
        ]
        try:
            # fcdp first; separate runs, which have only their start in common
            for strategies in [STRATEGIES] if quick else [[strategy] for strategy in STRATEGIES]:
                for record in records(_run(setting, nodes * RANKS, [*options, "--strategies", *strategies])):
                    strategy = record["strategy"]
                    row = (
                        f"largest batch, {widths[record['hidden']]} {NARROWER} times narrower, {nodes} nodes × {RANKS}"
                    )
                    rows.add(row, "", strategy, 0, record["batch"], "fcdp = zero3 ≥ hpz")
                    check(rows.row(row, ""))
        except BenchError as error:
            rows.fail(f"largest batch, {nodes} nodes", set(), FCDP, str(error))
    add_forms(rows)
    setting.progress(2 / 3, "host memory")
    size = ["--hidden", "512", "--layers", "16", "--looks", "8"] if quick else ["--hidden", "1024", "--layers", "48"]
    _host(rows, setting, size, together=quick)
    return rows.all()


def check(row: Row) -> None:
    """fcdp fits the same batches as zero3, the others no larger ones."""
    batch = {strategy: samples[0] for strategy, samples in row.samples.items()}
    for strategy, value in batch.items():
        if value > batch[FCDP] or (strategy == "zero3" and value != batch[FCDP]):
            row.failures[strategy] = f"{value:.0f} samples, fcdp takes {batch[FCDP]:.0f}"


def add_forms(rows: Rows) -> None:
    """Tables V and VI by the closed forms."""
    for nodes, paper in PAPER.items():
        for name, (base, zero_pp) in paper.items():
            row = f"largest batch, {name}, {nodes} nodes × 8 A40, by the closed forms"
            for strategy in STRATEGIES:
                rows.add(
                    row,
                    "",
                    strategy,
                    0,
                    largest(strategy, nodes, name),
                    f"paper: {base}, {base}, ZeRO++ {zero_pp or 'none'}",
                )


def largest(strategy: str, nodes: int, name: str) -> int:
    """Samples on all devices. Activations as in Korthikanti et al., arXiv 2205.05198, section 4.1: s h (34 + 5 a s / h)
    bytes for each block, nothing recomputed."""
    layers, hidden, heads = MODELS[name]
    parameters = 12 * layers * hidden**2 + 2 * VOCABULARY * hidden
    needed = costs.memory(strategy, nodes, 8, parameters, 0, costs.PRECISIONS["mixed"], unit=parameters / layers)
    return costs.largest_batch(A40, needed, layers * TOKENS * hidden * (34 + 5 * heads * TOKENS / hidden)) * nodes * 8


def _host(rows: Rows, setting: Setting, size: list[str], *, together: bool) -> None:
    """Memory of a node's ranks while they train. fcdp needs more than zero3: the window and, with several
    micro-batches, the node's sum of gradients. together: all trainings in one run, which starts once."""
    trainings, strategies = [("lora", 1), ("full", 1), ("full", 2)], [FCDP, "zero3"]
    names = [f"{model},{micro_batches}" for model, micro_batches in trainings]
    runs = [(names, strategies)] if together else [([name], [one]) for name in names for one in strategies]
    seen: dict[tuple[str, int], dict[str, Any]] = {training: {} for training in trainings}
    for chosen, by in runs:
        options = ["host", "--trainings", *chosen, "--strategies", *by, "--rank", "4", *size]
        try:
            for record in records(_run(setting, 2 * RANKS, options)):
                seen[record["model"], record["micro_batches"]][record["strategy"]] = record
        except BenchError as error:
            rows.fail(f"host memory, {', '.join(chosen)}", set(), by[0], str(error))
    for (model, micro_batches), of in seen.items():
        _add_host(rows, f"{'LoRA' if model == 'lora' else model}, k={micro_batches}", micro_batches, of)


def _add_host(rows: Rows, title: str, micro_batches: int, of: dict[str, dict[str, Any]]) -> None:
    """The rows of one training. of: what sharded_memory.py printed about it, by strategy."""
    for strategy, record in of.items():
        rows.add(f"{title}: memory of a node's ranks (PSS), at most", "MB", strategy, 0, record["pss"] / 1e6)
    if len(of) < 2:
        return  # a run has failed
    trainable, frozen = of[FCDP]["trainable"], of[FCDP]["frozen"]
    weights = trainable + frozen
    form = costs.memory(FCDP, 2, RANKS, trainable / 4, frozen / 4, costs.PRECISIONS["fp32"], micro_batches).host
    rows.add(f"{title}: the node's window", "W", FCDP, 0, of[FCDP]["window"] / weights, "1: one copy of W")
    goal = f"{form / weights:.2f}: W{' and the sum of gradients' if micro_batches > 1 else ''}"
    rows.add(f"{title}: beyond zero3's", "W", FCDP, 0, (of[FCDP]["pss"] - of["zero3"]["pss"]) / weights, goal)


def _run(setting: Setting, ranks: int, options: list[str]) -> str:
    program: Command = [
        setting.tools.python,
        setting.tools.sources / "fcdp" / "sharded_memory.py",
        *options,
        "--ranks-per-node",
        str(RANKS),
    ]
    return setting.run(["env", "OPENBLAS_NUM_THREADS=1", *setting.native(ranks, *program)])
