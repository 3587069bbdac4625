"""Bytes that sharded training sends between nodes: measured at the interfaces of emulated nodes, compared with the
engine's own counters and the closed forms (the FCDP paper's Table VII).

If a count differs from the closed form by more than LIMIT, this is reported as a failure.
"""

from __future__ import annotations

from typing import Any

from ...fcdp.costs import Phases, Volume, bytes_per_node
from ...fcdp.engine.strategy import STRATEGIES
from ..shared import cluster
from ..shared.commands import BenchError, Command, Setting, records
from ..shared.samples import Row, Rows

NODES, RANKS = 2, 2  # RANKS of each node
LIMIT = 5.0  # %
MODELS = {"full": "full", "lora": "LoRA"}
# number of parameters; number of trainable parameters that fits the bytes of Table VII, which is 0.05 % and not the 1 %
# of section V-D; ranks of a node
GPT_30B, ADAPTERS, PAPER_RANKS = 31.03e9, 17e6, 8
MEASURED = ("fcdp", "zero3", "hpz_naive", "fcdp_sched", "fcdp_comm")
TABLE_VII = "paper: ZeRO++ and FCDP-Sched 49.3 %, FCDP-Comm 99.9 %"
PARTS = {
    "forward": "gathers for the forward pass",
    "backward": "gathers for the backward pass",
    "reduce": "gradients",
    "step": "a step in all",
    "first": "the first step",
}


def bytes_sent(setting: Setting) -> list[Row]:
    """Bytes that a node sends in a step and in the first step, by phase; for each strategy, model and number of
    micro-batches."""
    rows = Rows("fcdp-bytes")
    size = (
        ["--hidden", "1024", "--layers", "4", "--rank", "64"]
        if setting.scale >= 1
        else ["--hidden", "512", "--layers", "1", "--rank", "64", "--steps", "1"]
    )
    micro_batches = ("1", "2", "4") if setting.scale >= 1 else ("1", "2")
    program: Command = [
        setting.tools.python,
        setting.tools.sources / "fcdp" / "sharded.py",
        "bytes",
        *size,
        "--models",
        *MODELS,
        "--micro-batches",
        *micro_batches,
    ]
    with cluster.cluster(setting.tools, NODES) as nodes:
        # separate runs, which have only their start in common
        groups = [[strategy] for strategy in STRATEGIES] if setting.scale >= 1 else [list(STRATEGIES)]
        for number, strategies in enumerate(groups):
            setting.progress(number / len(groups), ", ".join(strategies))
            try:
                for record in records(nodes.run(setting, RANKS, [*program, "--strategies", *strategies])):
                    add(rows, record)
            except BenchError as error:
                rows.fail(", ".join(strategies), set(), strategies[0], str(error))
    return rows.all()


def add(rows: Rows, record: dict[str, Any]) -> None:
    """The rows of one training. record: what sharded.py printed about it."""
    strategy, trainable = record["strategy"], record["trainable"]
    label = f"{MODELS[record['model']]}, k={record['micro_batches']}"
    expected = form(record)
    for part, title in PARTS.items():
        rows.add(f"{label}: {title}", "MB", strategy, 0, record[part]["interface"] / 1e6)
    rows.add(f"{label}: a step by the closed form", "MB", strategy, 0, expected["step"] / 1e6)
    if record["model"] == "full":
        rows.add(f"{label}: a step, in W", "W", strategy, 0, record["step"]["interface"] / trainable, "fcdp: ≤ 1.02")
    else:
        least = 2 * (record["nodes"] - 1) / record["nodes"] * trainable
        rows.add(
            f"{label}: a step, in trainable bytes × 2(N−1)/N",
            "×",
            strategy,
            0,
            record["step"]["interface"] / least,
            "fcdp: ≤ 1.05",
        )
    for count, title in (("interface", "interfaces"), ("engine", "engine's counters")):
        name = f"{label}: {title} beside the closed form, at most"
        part, difference = farthest(record, expected, count)
        rows.add(name, "%", strategy, 0, difference, f"≤ {LIMIT:.0f} %")
        if difference > LIMIT:
            rows.row(name, "%").failures[strategy] = (
                f"{PARTS[part]}: {record[part][count] / 1e6:.3f} MB by the {title}, {expected[part] / 1e6:.3f} MB by "
                f"the closed form"
            )


def form(record: dict[str, Any]) -> dict[str, float]:
    """Bytes of each part by the closed form."""
    trainable, frozen, micro_batches = record["trainable"], record["frozen"], record["micro_batches"]

    def step(first: bool) -> Phases:
        return bytes_per_node(
            record["strategy"],
            record["nodes"],
            record["ranks"],
            trainable,
            frozen,
            trainable,
            micro_batches,
            first=first,
        )

    later = step(first=False)
    return {
        **{phase: getattr(later, phase).inter for phase in ("forward", "backward", "reduce")},
        "step": later.total.inter,
        "first": step(first=True).total.inter,
    }


def farthest(record: dict[str, Any], expected: dict[str, float], count: str) -> tuple[str, float]:
    """The part whose count differs most from the closed form, and the difference in % of a step (for the first step: of
    the first step)."""
    differences = {
        part: 100 * abs(record[part][count] - expected[part]) / expected["first" if part == "first" else "step"]
        for part in PARTS
    }
    return max(differences.items(), key=lambda item: item[1])


def reduction(setting: Setting) -> list[Row]:
    """Table VII: for GPT-30B by the closed forms; for a model with an equally small share of trainable parameters at
    the interfaces."""
    rows = Rows("fcdp-reduction")
    add_table(rows)
    size = ["--hidden", "2048", "--layers", "3"] if setting.scale >= 1 else ["--hidden", "512", "--layers", "2"]
    program: Command = [
        setting.tools.python,
        setting.tools.sources / "fcdp" / "sharded.py",
        "bytes",
        *size,
        "--rank",
        "1",
        "--models",
        "lora",
        "--strategies",
        *MEASURED,
    ]
    with cluster.cluster(setting.tools, NODES) as nodes:
        said = {record["strategy"]: record for record in records(nodes.run(setting, RANKS, program))}
    title = "LoRA of rank 1 on 2 × 2 ranks, at the interfaces"
    for strategy, record in said.items():
        rows.add(f"{title}: a step", "MB", strategy, 0, record["step"]["interface"] / 1e6)
        for name, sent in (
            (title, lambda one: one["step"]["interface"]),
            ("the same by the closed form", lambda one: form(one)["step"]),
        ):
            if strategy != "zero3":
                rows.add(
                    f"{name}: less than zero3",
                    "%",
                    strategy,
                    0,
                    100 * (1 - sent(record) / sent(said["zero3"])),
                    TABLE_VII,
                )
    return rows.all()


def add_table(rows: Rows) -> None:
    """Table VII by the closed forms, with the paper's conventions: rings of fp16; gradients reduced in fp32 and counted
    as part of the backward pass; the sum of both nodes in GiB."""
    steps = {
        strategy: bytes_per_node(
            strategy, NODES, PAPER_RANKS, 2 * ADAPTERS, 2 * GPT_30B, 4 * ADAPTERS, collective="ring"
        )
        for strategy in MEASURED
    }

    def gib(volume: Volume) -> float:
        return NODES * volume.inter / 2**30

    for strategy, step in steps.items():
        for name, volume in (
            ("forward", step.forward),
            ("backward", step.backward + step.reduce),
            ("in all", step.total),
        ):
            rows.add(f"GPT-30B on 2 × 8 ranks, by the closed forms: {name}", "GiB", strategy, 0, gib(volume))
        if strategy != "zero3":
            rows.add(
                "GPT-30B on 2 × 8 ranks, by the closed forms: less than zero3",
                "%",
                strategy,
                0,
                100 * (1 - gib(step.total) / gib(steps["zero3"].total)),
                TABLE_VII,
            )
