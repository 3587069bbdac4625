"""The cost of the clock with many ranks, compared with two-phase commit: messages and rounds, counted in the model.

`manapy bench --only messages` runs it.

Each row is one program on one number of ranks under one protocol, with one checkpoint requested in the middle of it.
Nothing in the model has a duration: these are counts, not times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .model import Simulator
from .programs import Coll, Op, Program, Recv, Send, Split
from .two_phase import TwoPhase

__all__ = ["PROGRAMS", "SIZES", "Row", "measure", "plot"]

SIZES = (16, 64, 256, 1024, 4096, 16_384, 100_000)
SEEDS = (1, 2, 3)  # of the scheduler; a row has the worst result
STEPS = 6  # number of steps of each program
SEEDS_LIMIT = 5_000  # ranks; larger jobs are measured with one seed

Builder = Callable[[int], Program]


@dataclass(frozen=True, slots=True)
class Row:
    """``control``: messages between coordinator and ranks for one checkpoint. ``rounds``: the longest chain of them,
    there and back. ``steady``: messages between ranks that the protocol adds to an undisturbed run, per rank and
    collective. ``steady_rounds``: how many of them follow one another. ``steps``: of the simulation, from the request
    to the safe state (cc only)."""

    program: str
    protocol: str
    ranks: int
    control: int
    rounds: int
    steady: float
    steady_rounds: int
    steps: int = 0

    @property
    def per_rank(self) -> float:
        return self.control / self.ranks


def world(ranks: int) -> Program:
    """Collectives of all ranks, one after the other."""
    ops: list[Op] = [Coll()] * STEPS
    return [ops] * ranks


def grid(ranks: int) -> Program:
    """Alternating collectives of rows and columns: a rank that is ahead in one delays the others."""
    width = next(w for w in range(int(ranks**0.5), 0, -1) if ranks % w == 0)
    rows = [tuple(range(i * width, (i + 1) * width)) for i in range(ranks // width)]
    columns = [tuple(range(i, ranks, width)) for i in range(width)]
    return [
        [
            Split("world", "row", rows[r // width]),
            Split("world", "column", columns[r % width]),
            *[Coll("row"), Coll("column")] * (STEPS // 2),
        ]
        for r in range(ranks)
    ]


def ring(ranks: int) -> Program:
    """Messages to the next rank, then a collective: ranks below target wait for messages of other ranks, in chains."""
    ops = [
        [
            op
            for k in range(STEPS // 2)
            for op in (Send((r + 1) % ranks, k, tag=k, sync=False), Recv((r - 1) % ranks, tag=k), Coll())
        ]
        for r in range(ranks)
    ]
    return ops


PROGRAMS: Mapping[str, Builder] = {"world": world, "grid": grid, "ring": ring}


def measure(
    sizes: Sequence[int] = SIZES,
    programs: Mapping[str, Builder] = PROGRAMS,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """One row for each program, size and protocol. ``progress`` gets a line about the next one; a size of 100 000 takes
    minutes."""
    rows = []
    for size in sizes:
        for name, builder in programs.items():
            progress(f"{name}, {size} ranks")
            program = builder(size)
            seeds = SEEDS if size < SEEDS_LIMIT else SEEDS[:1]
            rows.append(max((_clock(name, program, seed) for seed in seeds), key=lambda row: (row.control, row.rounds)))
            rows.append(
                max((_two_phase(name, program, seed) for seed in seeds), key=lambda row: (row.control, row.rounds))
            )
    return rows


def _clock(name: str, program: Program, seed: int) -> Row:
    middle = sum(map(len, program))  # about half of the steps: a collective takes two
    run = Simulator(program, seed=seed, requests=(middle,), patience=0, max_steps=1 << 62)
    run.run(until_checkpoint=True)
    (c,) = run.checkpoints
    if not c.converged:
        raise RuntimeError(f"{name}: the request came too late: {c.reason}")
    return Row(name, "cc", len(program), c.counters.sent + c.counters.received, c.rounds, 0.0, 0, c.steps)


def _two_phase(name: str, program: Program, seed: int) -> Row:
    collectives = sum(isinstance(op, (Coll, Split)) for ops in program for op in ops)
    cost = TwoPhase(program, seed=seed, after=collectives // 2).run()
    largest = max(len(op.members) if isinstance(op, Split) else len(program) for ops in program[:1] for op in ops)
    return Row(
        name,
        "2pc",
        len(program),
        cost.control,
        cost.rounds,
        cost.barrier_messages / cost.collectives,
        (largest - 1).bit_length(),
    )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Three panels over the number of ranks: control messages per rank, rounds, and the cost of an undisturbed
    collective. Needs matplotlib. The path's suffix determines the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[str, Callable[[Row], float]]] = [
        ("control messages per rank, one checkpoint", lambda row: row.per_rank),
        ("rounds to the safe state, one checkpoint", lambda row: row.rounds),
        ("added messages per rank and collective,\nundisturbed run", lambda row: row.steady),
    ]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 4.2), layout="constrained")
    for axis, (title, value) in zip(axes, panels, strict=True):
        for k, program in enumerate(dict.fromkeys(row.program for row in rows)):
            for protocol, style in (("cc", "o-"), ("2pc", "s--")):
                chosen = [row for row in rows if (row.program, row.protocol) == (program, protocol)]
                axis.plot(
                    [row.ranks for row in chosen],
                    [value(row) for row in chosen],
                    style,
                    color=f"C{k}",
                    label=f"{program}, {protocol}",
                    markersize=4,
                )
        axis.set(title=title, xlabel="ranks", xscale="log", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
