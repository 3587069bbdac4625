"""Times of sharded training on emulated nodes: paths (the FCDP paper's Table III), with and without the cache on the
device (Figures 5 to 8), over bandwidth (Figure 9), and the traffic on the network over time (Figure 10).

All ranks share this machine's processors, and devices are its memory: ratios are meaningful, seconds aren't.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..shared import cluster, plots
from ..shared.commands import Command, Setting, records
from ..shared.samples import CLOCK, FCDP, Row, Rows

NODES, RANKS = 2, 2  # RANKS of each node
# names of sharded_times.py: computing alone; fcdp that keeps gathered data on the device
ALONE, CACHED = "alone", "fcdp-tau"
MODELS = {"lora": "LoRA", "full": "full"}
PATHS = {"host": "from the host's memory", "node": "from the ranks of the node", "network": "from all nodes"}
SLOW = 100e6  # bits per second
RATES = (1e9, 316e6, 100e6, 31.6e6, 10e6)
SAMPLE = 0.02  # seconds


def link(bits: float) -> str:
    """A rate as text, for example 1 Gb/s."""
    return f"{bits / 1e9:g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:g} Mb/s"


def _program(setting: Setting, *options: str) -> Command:
    return [setting.tools.python, setting.tools.sources / "fcdp" / "sharded_times.py", *options]


# ---- Table III


def paths(setting: Setting) -> list[Row]:
    """Rates in GB/s at which a unit arrives on each device: copied from the node's window, gathered in the node,
    gathered over the network."""
    rows = Rows("fcdp-paths")
    size, rounds = ("64", setting.rounds) if setting.scale >= 1 else ("4", 1)
    rates = (1e9, SLOW) if setting.scale >= 1 else (1e9,)
    with cluster.cluster(setting.tools, NODES) as nodes:
        for number, rate in enumerate(rates):
            setting.progress(number / len(rates), link(rate))
            nodes.shape(rate)
            chosen = list(PATHS) if number == 0 else ["network"]
            options = ["paths", "--bytes", str(int(size) << 20), "--rounds", str(min(rounds, 3)), "--paths", *chosen]
            for record in records(nodes.run(setting, RANKS, _program(setting, *options))):
                where = f"{PATHS[record['path']]}{f', {link(rate)}' if record['path'] == 'network' else ''}"
                rows.add(f"{size} MB {where}", "GB/s", FCDP, record["round"], record["bytes"] / record["seconds"] / 1e9)
    first, *others = rows.all()
    for row in others:
        theirs, ours = row.value(FCDP), first.value(FCDP)
        assert theirs is not None and ours is not None
        rows.add(
            f"time {row.name.partition(' MB ')[2]}, against the host's memory",
            "×",
            FCDP,
            0,
            ours.median / theirs.median,
            "paper: 1.5 (100 Gb/s) to 110 (1 Gb/s)",
        )
    return rows.all()


# ---- Figures 5 to 8


def overlap(setting: Setting) -> list[Row]:
    """Times of a step over a slow link, compared with computing alone; LoRA with few and with many samples per step."""
    rows = Rows("fcdp-overlap")
    size = (
        ["--hidden", "1024", "--layers", "4", "--rank", "4"]
        if setting.scale >= 1
        else ["--hidden", "128", "--layers", "2", "--rank", "4"]
    )
    variants = (ALONE, CACHED, "fcdp", "zero3", "hpz", "hpz_naive", "mics")
    # models, samples and rounds of each job
    trainings = (
        (
            (["lora"], 192, setting.rounds),
            (["lora"], 768, setting.rounds),
            (["full"], 192, (setting.rounds + 1) // 2),
        )
        if setting.scale >= 1
        else ((["lora", "full"], 16, setting.rounds),)
    )
    with cluster.cluster(setting.tools, NODES) as nodes:
        nodes.shape(SLOW)
        for number, (models, batch, rounds) in enumerate(trainings):
            setting.progress(number / len(trainings), f"{batch} samples")
            for record in _steps(setting, nodes, models, variants, [*size, "--batch", str(batch)], rounds):
                name = f"{MODELS[record['model']]}, {batch} samples"
                rows.add(f"{name}, {link(SLOW)}: a step", "s", record["variant"], record["round"], record["seconds"])
    for row in list(rows.all()):
        name = row.name.removesuffix(": a step")
        for number, variant in itertools.product(row.samples[ALONE], variants[1:]):
            goal = f"{CACHED}: ≤ 10 %" if name.startswith("LoRA") else ""
            rows.add(
                f"{name}: longer than computing alone",
                "%",
                variant,
                number,
                100 * (row.samples[variant][number] / row.samples[ALONE][number] - 1),
                goal,
            )
            paper = "paper: 6.2, with the cache 6.8" if name.startswith("LoRA") else "paper: 1.4"
            rows.add(
                f"{name}: samples a second, against zero3",
                "×",
                variant,
                number,
                row.samples["zero3"][number] / row.samples[variant][number],
                paper,
            )
    return rows.all()


def _steps(
    setting: Setting,
    nodes: cluster.Cluster,
    models: Sequence[str],
    variants: Sequence[str],
    size: Sequence[str],
    rounds: int,
) -> list[dict[str, Any]]:
    options = ["steps", "--models", *models, "--variants", *variants, "--rounds", str(rounds), *size]
    return records(nodes.run(setting, RANKS, _program(setting, *options)))


# ---- Figure 9


def retention(setting: Setting) -> list[Row]:
    """LoRA over ever slower links, so that W / (bandwidth × computing) grows a hundredfold; throughput relative to the
    fastest link."""
    rows = Rows("fcdp-retention")
    size = (
        ["--hidden", "768", "--layers", "4", "--rank", "1", "--batch", "512"]
        if setting.scale >= 1
        else ["--hidden", "128", "--layers", "2", "--rank", "4", "--batch", "16"]
    )
    rates = RATES if setting.scale >= 1 else (RATES[0], RATES[2])
    variants = (ALONE, CACHED, "fcdp", "zero3", "hpz", "hpz_naive", "mics")
    weights = 0
    with cluster.cluster(setting.tools, NODES) as nodes:
        for number, rate in enumerate(rates):
            setting.progress(number / len(rates), link(rate))
            nodes.shape(rate)
            for record in _steps(setting, nodes, ["lora"], variants, size, min(setting.rounds, 3)):
                weights = record["weights"]
                rows.add(f"{link(rate)}: a step", "s", record["variant"], record["round"], record["seconds"])
    steps = {rate: rows.row(f"{link(rate)}: a step", "s") for rate in rates}
    for rate in rates:
        rows.add(
            f"{link(rate)}: W : (bandwidth × computing)",
            "×",
            ALONE,
            0,
            weights * 8 / rate / _median(steps[rate], ALONE),
        )
    fastest, slowest = steps[rates[0]], steps[rates[-1]]
    for variant in variants:
        kept = 100 * _median(fastest, variant) / _median(slowest, variant)
        rows.add(
            f"throughput kept from {link(rates[0])} to {link(rates[-1])}",
            "%",
            variant,
            0,
            kept,
            "paper: FCDP 86 to 91 %, ZeRO-3 1.6 %, ZeRO++ 2.6 %",
        )
        ratio = _median(slowest, "zero3") / _median(slowest, variant)
        rows.add(
            f"{link(rates[-1])}: samples a second, against zero3",
            "×",
            variant,
            0,
            ratio,
            "paper: FCDP 100, 51 against ZeRO++",
        )
    return rows.all()


def _median(row: Row, variant: str) -> float:
    return statistics.median(row.samples[variant].values())


# ---- Figure 10


@dataclass
class Trace:
    """The network traffic of one training. times: seconds since its first step began; rates: for each time, MB/s that
    the first node has sent since the previous time; phases: [seconds, what], with "step" at the beginning of each
    step."""

    strategy: str
    times: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    phases: list[tuple[float, str]] = field(default_factory=list)

    def chosen(self, name: str) -> list[float]:
        """Rates in the forward passes, or from the beginning of the backward pass on ("backward"), of all steps except
        the first."""
        return [rate for moment, rate in zip(self.times, self.rates, strict=True) if self._part(moment) == name]

    def _part(self, moment: float) -> str | None:
        starts = [begin for begin, what in self.phases if what == "step"]
        before = [
            (begin, what) for begin, what in self.phases if begin <= moment and what in ("step", "backward", "end")
        ]
        if len(starts) < 2 or moment < starts[1] or before[-1][1] == "end":
            return None
        return "backward" if before[-1][1] == "backward" else "forward"


def timeline(setting: Setting) -> list[Row]:
    """Some steps of LoRA for each strategy: bytes at the first node's interface, every 20 ms (timeline.csv,
    figure10-network.png)."""
    rows = Rows("fcdp-timeline")
    size = (
        ["--hidden", "1024", "--layers", "4", "--rank", "16", "--batch", "64"]
        if setting.scale >= 1
        else ["--hidden", "256", "--layers", "2", "--rank", "16"]
    )
    strategies = ("zero3", "hpz_naive", "fcdp") if setting.scale < 1 else ("zero3", "hpz_naive", "hpz", "mics", "fcdp")
    with cluster.cluster(setting.tools, NODES) as nodes:
        nodes.shape(2 * SLOW)
        with _sampled(nodes) as samples:
            said = records(nodes.run(setting, RANKS, _program(setting, "trace", "--strategies", *strategies, *size)))
    traces = [traced(record["strategy"], samples, record["moments"]) for record in said]
    for trace in traces:
        for name, title in (("forward", "forward pass"), ("backward", "backward pass and gradients")):
            chosen = trace.chosen(name)
            rows.add(
                f"LoRA, {link(2 * SLOW)}: most in the {title}", "MB/s", trace.strategy, 0, max(chosen, default=0.0)
            )
        between = [rate for rates in (trace.chosen("forward"), trace.chosen("backward")) for rate in rates]
        rows.add(
            f"LoRA, {link(2 * SLOW)}: mean over steps but the first",
            "MB/s",
            trace.strategy,
            0,
            statistics.fmean(between) if between else 0.0,
        )
    with (setting.pictures / "timeline.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("strategy", "seconds", "MB/s"))
        writer.writerows(
            (trace.strategy, f"{moment:.4f}", f"{rate:.3f}")
            for trace in traces
            for moment, rate in zip(trace.times, trace.rates, strict=True)
        )
    if plots.available():
        draw(traces, setting.pictures / "figure10-network.png", f"LoRA on 2 × 2 ranks, {link(2 * SLOW)}, emulated")
    return rows.all()


@contextmanager
def _sampled(nodes: cluster.Cluster) -> Iterator[list[tuple[float, int]]]:
    """Times and the bytes that the first node has sent until then, sampled while the context is open."""
    samples: list[tuple[float, int]] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(SAMPLE):
            samples.append((time.monotonic(), nodes.sent()[0]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def traced(strategy: str, samples: Sequence[tuple[float, int]], moments: Sequence[tuple[float, str]]) -> Trace:
    """Return the rates from the first step to the end."""
    origin, end = moments[0][0], moments[-1][0]
    trace = Trace(strategy, phases=[(moment - origin, what) for moment, what in moments])
    for (before, count), (moment, later) in itertools.pairwise(samples):
        if origin <= before and moment <= end:
            trace.times.append(moment - origin)
            trace.rates.append((later - count) / (moment - before) / 1e6)
    return trace


def draw(traces: Sequence[Trace], path: Path, title: str) -> None:
    """FCDP's Figure 10: traffic of a node over time, a panel for each strategy; forward passes are shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(traces), 1, figsize=(8, 1.6 * len(traces)), squeeze=False, sharey=True, layout="constrained"
    )
    for (axis,), trace in zip(axes, traces, strict=True):
        axis.fill_between(trace.times, trace.rates, step="pre", color=plots.COLORS[CLOCK], lw=0)
        begin = 0.0
        for moment, what in trace.phases:
            if what == "step":
                axis.axvline(moment, color="black", lw=0.6)
            elif what == "forward":
                begin = moment
            elif what == "backward" and begin:
                axis.axvspan(begin, moment, color="#eeeeee", zorder=0)
                begin = 0.0
        axis.set_title(trace.strategy, fontsize=8, loc="left")
        axis.set_ylabel("MB/s")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlabel("s; lines: steps begin; shaded: forward passes")
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
