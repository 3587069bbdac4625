"""Pictures like the papers' figures, from the rows of a run: 5 to 9 of the collective clock paper (calls/apps.py), 9 of
SHIFT's (manapy/rdma/guard.py), 7 and 9 of MegaTrace's (manapy/trace/README.md), 2 and 5 to 9 of FCDP's
(manapy/fcdp/README.md). The modules of the jobs draw figures over time. Needs matplotlib."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import peer_plots
from .samples import CLOCK, MANAPY, NATIVE, RECORDED, SHIFT, TWO_PHASE, VARIANTS, Estimate, Row

COLORS = {NATIVE: "#7f7f7f", TWO_PHASE: "#d95f02", CLOCK: "#1b6ca8", SHIFT: "#1b6ca8", RECORDED: "#1b6ca8"}
LABELS = {
    NATIVE: "native",
    TWO_PHASE: "two-phase commit",
    CLOCK: "collective clock",
    SHIFT: "SHIFT",
    RECORDED: "with the recorder",
}
CALLS = (
    ("control", "control verbs, Soft-RoCE in a virtual machine"),
    ("verbs", "data verbs, over a provider that does nothing"),
)


def available() -> bool:
    """Is matplotlib installed?"""
    return importlib.util.find_spec("matplotlib") is not None


def draw(rows: Sequence[Row], where: Path, title: str) -> None:
    """Draw every figure for which there are enough rows."""
    import matplotlib as mpl

    mpl.use("Agg")
    for name, figure in FIGURES.items():
        chosen = figure(rows)
        if chosen is not None:
            chosen.suptitle(title, fontsize=7, x=0.01, ha="left", color="#666666")
            chosen.savefig(where / f"{name}.png", dpi=150, bbox_inches="tight")


def _overhead(rows: Sequence[Row]) -> Any:
    """The collective clock paper's Figure 5: run-time overhead of collectives in %."""
    panels = [(_of(rows, job), title) for job, title in (("blocking", "blocking"), ("nonblocking", "nonblocking"))]
    panels = [(chosen, title) for chosen, title in panels if chosen]
    if not panels:
        return None
    figure, axes = _axes(len(panels), width=12)
    for axis, (chosen, title) in zip(axes, panels, strict=True):
        _bars(axis, chosen, [TWO_PHASE, CLOCK], lambda row, variant: _scaled(row.ratio(variant), 100, -100))
        axis.set_yscale("symlog", linthresh=10)
        axis.set(title=title, ylabel="run-time overhead over native, %")
    return figure


def _ways(rows: Sequence[Row]) -> Any:
    """Ways to write and to read images, one panel for each figure."""
    chosen = _of(rows, "images")
    if not chosen:
        return None
    panels = list(dict.fromkeys(row.name.partition(": ")[2] for row in chosen))
    figure, axes = _axes(len(panels), width=14)
    for axis, panel in zip(axes, panels, strict=True):
        found = [row for row in chosen if row.name.partition(": ")[2] == panel]
        names = [row.name.partition(": ")[0] for row in found]
        _bars(axis, found, [NATIVE, CLOCK], lambda row, variant: row.value(variant), names)
        axis.set(
            title=panel, ylabel=found[0].unit + (f" (gray: {found[0].baseline})" if NATIVE in found[0].samples else "")
        )
        axis.legend().remove()
    return figure


def _overlap(rows: Sequence[Row]) -> Any:
    """The collective clock paper's Figure 6: overlap of communication and computation in %."""
    chosen = _of(rows, "overlap")
    if not chosen:
        return None
    figure, (axis,) = _axes(1, width=12)
    _bars(axis, chosen, [NATIVE, CLOCK], lambda row, variant: row.value(variant))
    axis.set(ylabel="overlap, %", ylim=(0, 105))
    return figure


def _run_time(rows: Sequence[Row]) -> Any:
    """The collective clock paper's Figure 7: run time of the stand-ins."""
    chosen = [row for row in _of(rows, "apps") if row.unit == "s"]
    if not chosen:
        return None
    figure, (axis,) = _axes(1, width=8)
    _bars(
        axis,
        chosen,
        VARIANTS,
        lambda row, variant: row.value(variant),
        names=[row.name.partition(",")[0] for row in chosen],
    )
    axis.set(ylabel="run time, s")
    return figure


def _scaling(rows: Sequence[Row]) -> Any:
    """The collective clock paper's Figure 8: overhead over the number of ranks."""
    chosen = _of(rows, "scaling")
    if not chosen:
        return None
    figure, (axis,) = _axes(1, width=6)
    names = [row.name.partition(", ")[2] for row in chosen]
    _bars(axis, chosen, [TWO_PHASE, CLOCK], lambda row, variant: _scaled(row.ratio(variant), 100, -100), names=names)
    axis.set(ylabel="run-time overhead over native, %")
    return figure


def _images(rows: Sequence[Row]) -> Any:
    """The collective clock paper's Figure 9: checkpoint and restart time over image size."""
    chosen = _of(rows, "sizes")
    if not chosen:
        return None
    figure, axes = _axes(2, width=10)
    for axis, what in zip(axes, ("checkpoint", "restart"), strict=True):
        for variant in (TWO_PHASE, CLOCK):
            points = [
                (_megabytes(row), value)
                for row in chosen
                if row.name.endswith(what) and (value := row.value(variant)) is not None
            ]
            if points:
                x, values = [p[0] for p in points], [p[1] for p in points]
                axis.errorbar(
                    x,
                    [e.median for e in values],
                    yerr=_errors(values),
                    color=COLORS[variant],
                    label=LABELS[variant],
                    marker="o",
                    capsize=3,
                )
        axis.set(title=what, xlabel="data of all ranks, MB", ylabel="s", ylim=(0, None))
        axis.legend(frameon=False)
    return figure


def _control_verbs(rows: Sequence[Row]) -> Any:
    """SHIFT's Figure 9: execution time of control verbs, and of data verbs over a provider that does nothing."""
    panels = [
        ([row for row in _of(rows, job) if row.unit == "ns" and not re.search(r"slowest|\(min\)", row.name)], title)
        for job, title in CALLS
    ]
    panels = [(chosen, title) for chosen, title in panels if chosen]
    if not panels:
        return None
    figure, axes = _axes(len(panels), width=12)
    for axis, (chosen, title) in zip(axes, panels, strict=True):
        _bars(axis, chosen, [NATIVE, SHIFT], lambda row, variant: row.value(variant))
        axis.set(title=title, ylabel="ns", yscale="log")
    return figure


def _fallback(rows: Sequence[Row]) -> Any:
    """The steps of a fallback, stacked, for each number of queue pairs."""
    steps = ("fence", "drain", "copy", "answer", "replay")
    found = {tuple(row.name.split(": ", 1)): row for row in _of(rows, "fallback")}
    names = list(dict.fromkeys(name for name, step in found if step in steps))
    if not names:
        return None
    figure, (axis,) = _axes(1, width=6)
    for x, name in enumerate(names):
        height = 0.0
        for i, step in enumerate(steps):
            value = found[name, step].value(SHIFT)
            median = value.median if value is not None else 0.0
            axis.bar(x, median, 0.5, bottom=height, color=f"C{i}", label=step if x == 0 else None)
            height += median
    axis.set_xticks(range(len(names)), names)
    axis.set(ylabel="ms from the error (medians of steps, emulated)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    return figure


def _effectiveness(rows: Sequence[Row]) -> Any:
    """MegaTrace's Figure 7: F1 of all methods."""
    panels = [row for row in rows if row.job in ("hangs", "slowdowns") and row.name == "F1" and row.samples]
    if not panels:
        return None
    figure, axes = _axes(len(panels), width=8)
    for axis, row in zip(axes, panels, strict=True):
        for x, method in enumerate(row.samples):
            value = row.value(method)
            assert value is not None
            axis.bar(x, value.median, 0.6, color=COLORS[CLOCK] if method == MANAPY else "#bbbbbb")
            axis.text(x, value.median + 1, f"{value.median:.0f}", ha="center", fontsize=8)
        axis.set_xticks(range(len(row.samples)), list(row.samples))
        axis.set(title=row.job, ylabel="F1, %", ylim=(0, 110))
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _recorders(rows: Sequence[Row]) -> Any:
    """MegaTrace's Figure 9: the time that recorders add to an iteration of a training loop."""
    chosen = [row for row in _of(rows, "overhead") if row.baseline == NATIVE and row.ratio(RECORDED) is not None]
    if not chosen:
        return None
    schedules = list(dict.fromkeys(row.name.partition(": ")[0] for row in chosen))
    figure, axes = _axes(len(schedules), width=10)
    for axis, schedule in zip(axes, schedules, strict=True):
        its = [row for row in chosen if row.name.startswith(f"{schedule}: ")]
        _bars(
            axis,
            its,
            [RECORDED],
            lambda row, variant: _scaled(row.ratio(variant), 100, -100),
            names=[row.name.partition(": ")[2].partition(", ")[0] for row in its],
        )
        axis.tick_params(axis="x", rotation=30)
        axis.get_legend().remove()
        axis.set_yscale("symlog", linthresh=1)
        axis.set(title=schedule, ylabel="longer iteration than without, %")
    return figure


def _retention(rows: Sequence[Row]) -> Any:
    """FCDP's Figure 9: throughput over W / (bandwidth x computing), relative to the fastest link."""
    chosen = _of(rows, "fcdp-retention")
    steps = {row.name.partition(":")[0]: row for row in chosen if row.name.endswith(": a step")}
    loads = {
        row.name.partition(":")[0]: row.value("alone") for row in chosen if row.name.endswith("(bandwidth × computing)")
    }
    if len(steps) < 2:
        return None
    figure, (axis,) = _axes(1, width=6)
    for strategy in next(iter(steps.values())).samples:
        medians = [value.median for row in steps.values() if (value := row.value(strategy)) is not None]
        x = [load.median for load in loads.values() if load is not None]
        axis.plot(x, [100 * medians[0] / median for median in medians], marker="o", label=strategy)
    axis.set(
        xlabel="W / (bandwidth × time of computing)",
        ylabel="throughput of that on the fastest link, %",
        xscale="log",
        ylim=(0, None),
    )
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7)
    return figure


FIGURES: dict[str, Callable[[Sequence[Row]], Any]] = {
    "figure5-overhead": _overhead,
    "figure6-overlap": _overlap,
    "figure7-run-time": _run_time,
    "figure8-scaling": _scaling,
    "figure9-images": _images,
    "images": _ways,
    "figure9-verbs": _control_verbs,
    "fallback": _fallback,
    "figure7-f1": _effectiveness,
    "figure9-recorders": _recorders,
    "figure9-retention": _retention,
    **peer_plots.FIGURES,
}


def _axes(count: int, width: float) -> tuple[Any, list[Any]]:
    """Panels side by side; wide ones one above another. width: in inches."""
    import matplotlib.pyplot as plt

    rows, columns = (count, 1) if width > 10 else (1, count)
    figure, axes = plt.subplots(rows, columns, figsize=(width, 3.6 * rows), squeeze=False, layout="constrained")
    return figure, list(axes.flat)


def _bars(
    axis: Any,
    rows: Sequence[Row],
    variants: Sequence[str],
    value: Callable[[Row, str], Estimate | None],
    names: Sequence[str] | None = None,
) -> None:
    """One group of bars per row, with the 95 % interval, or the range of few samples; no variants without values."""
    variants = [variant for variant in variants if any(value(row, variant) is not None for row in rows)]
    width = 0.8 / max(len(variants), 1)
    for i, variant in enumerate(variants):
        points = [
            (n + (i - (len(variants) - 1) / 2) * width, e)
            for n, row in enumerate(rows)
            if (e := value(row, variant)) is not None
        ]
        if points:
            values = [e for _, e in points]
            look: dict[str, Any] = {
                "color": COLORS[variant],
                "label": LABELS[variant],
                "capsize": 2,
                "error_kw": {"lw": 0.8},
            }
            axis.bar([x for x, _ in points], [e.median for e in values], width, yerr=_errors(values), **look)
    slanted: dict[str, Any] = {"rotation": 60, "ha": "right"} if len(rows) > 8 else {}
    axis.set_xticks(range(len(rows)), names or [row.name for row in rows], fontsize=7, **slanted)
    axis.axhline(0, color="black", lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


def _of(rows: Sequence[Row], job: str) -> list[Row]:
    return [row for row in rows if row.job == job and row.samples]


def _megabytes(row: Row) -> int:
    found = re.match(r"(\d+) × (\d+) MB", row.name)
    assert found is not None
    return int(found[1]) * int(found[2])


def _scaled(e: Estimate | None, factor: float, offset: float) -> Estimate | None:
    if e is None:
        return None
    median, low, high = (value * factor + offset for value in (e.median, e.low, e.high))
    return Estimate(median, low, high, e.iqr * factor, e.count)


def _errors(values: Sequence[Estimate]) -> list[list[float]]:
    return [[e.median - e.low for e in values], [e.high - e.median for e in values]]
