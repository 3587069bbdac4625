"""Pictures of the jobs of fcdp/peers.py, like the FCDP paper's Figures 2 and 5 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .samples import FCDP, Row

JOBS = ("fcdp-fsdp2", "fcdp-deepspeed")
OURS = "#1b6ca8"
OTHERS = ("#d95f02", "#7f7f7f", "#66a61e", "#e7298a", "#a6761d")
AT_FULL_SPEED = "a step at full speed"
LINK = "#d95f02"  # for the time that a link adds


def sent(rows: Sequence[Row]) -> Any:
    """Bytes that a node sends in a step, relative to the parameters' bytes: a group of bars for each workload."""
    chosen = _ending(rows, JOBS, "sent by a node in a step")
    if not chosen:
        return None
    figure, ((axis,),) = _axes(1, 10)
    workloads = list(dict.fromkeys(_workload(row) for row in chosen))
    libraries = _libraries(chosen)
    width = 0.8 / len(libraries)
    for i, library in enumerate(libraries):
        values = [
            next((e.median for row in chosen if _workload(row) == workload and (e := row.value(library))), 0.0)
            for workload in workloads
        ]
        bars = axis.bar(
            [x + (i - (len(libraries) - 1) / 2) * width for x in range(len(workloads))],
            values,
            width,
            label=library,
            color=_color(i, library),
        )
        axis.bar_label(bars, [f"{value:.2g}" if value else "" for value in values], fontsize=6)
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set(ylabel="bytes sent by a node : bytes of parameters", yscale="log")
    axis.legend(frameon=False, fontsize=7)
    return figure


def where_time_goes(rows: Sequence[Row]) -> Any:
    """Figure 2: the time of a step without a slow link, and the time that a link adds; a row of panels for each job,
    with one micro-batch per step."""
    lines = [
        chosen for job in JOBS if (chosen := [row for row in rows if row.job == job and row.samples and _is_slow(row)])
    ]
    if not lines:
        return None
    figure, axes = _axes(max(map(len, lines)), 3.6, len(lines))
    for number, panels in enumerate(lines):
        for axis, row in zip(axes[number], panels, strict=False):
            base = next(
                other for other in rows if other.job == row.job and other.name == f"{_workload(row)}: {AT_FULL_SPEED}"
            )
            libraries = [library for library in row.samples if library in base.samples]
            whole, without = ([e.median for library in libraries if (e := its.value(library))] for its in (row, base))
            axis.bar(libraries, without, 0.6, color=OURS, label="without a slow link")
            axis.bar(
                libraries,
                [max(0.0, time - least) for time, least in zip(whole, without, strict=True)],
                0.6,
                bottom=without,
                color=LINK,
                label="added by the link",
            )
            axis.tick_params(axis="x", rotation=30, labelsize=7)
            axis.set_title(row.name, fontsize=8)
            axis.set(ylabel="s")
            axis.legend(frameon=False, fontsize=7)
        for axis in axes[number][len(panels) :]:
            axis.set_visible(False)
    return figure


def over_nodes(rows: Sequence[Row]) -> Any:
    """Figures 5 and 7: throughput over the number of nodes, all parameters and LoRA."""
    return _throughput(rows, "fcdp-nodes")


def over_batches(rows: Sequence[Row]) -> Any:
    """Figures 6 and 8: throughput over the batch of a rank."""
    return _throughput(rows, "fcdp-batches")


def _throughput(rows: Sequence[Row], job: str) -> Any:
    chosen = [row for row in rows if row.job == job and row.samples]
    if not chosen:
        return None
    workloads = list(dict.fromkeys(row.name.partition(",")[0] for row in chosen))
    figure, (axes,) = _axes(len(workloads), 4.5)
    for axis, workload in zip(axes, workloads, strict=True):
        its = [row for row in chosen if row.name.startswith(f"{workload},")]
        for i, library in enumerate(_libraries(its)):
            points = [(row.name.partition(", ")[2].partition(":")[0], e) for row in its if (e := row.value(library))]
            axis.plot(
                [label for label, _ in points],
                [e.median for _, e in points],
                marker="o",
                label=library,
                color=_color(i, library),
            )
        axis.set(title=workload, ylabel="sentences a second at 100 Mb/s", ylim=(0, None))
        axis.legend(frameon=False, fontsize=7)
    return figure


FIGURES = {
    "fcdp-sent": sent,
    "fcdp-figure2-time": where_time_goes,
    "fcdp-figures5-7-nodes": over_nodes,
    "fcdp-figures6-8-batches": over_batches,
}


def _axes(columns: int, width: float, lines: int = 1) -> tuple[Any, Any]:
    """A grid of panels, row by row. width: of each panel, in inches."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        lines, columns, figsize=(width * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _is_slow(row: Row) -> bool:
    return ": a step at " in row.name and not row.name.endswith(AT_FULL_SPEED) and "k=" not in row.name


def _ending(rows: Sequence[Row], jobs: Sequence[str], what: str) -> list[Row]:
    return [row for row in rows if row.job in jobs and row.name.endswith(f": {what}") and row.samples]


def _workload(row: Row) -> str:
    return row.name.partition(":")[0]


def _libraries(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(library for row in rows for library in row.samples))


def _color(number: int, library: str) -> str:
    return OURS if library == FCDP else OTHERS[(number - 1) % len(OTHERS)]
