"""The critical path of one iteration, for a report: as a picture of the blocks of its replica, and as sums."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ...core.units import span
from ..model.graph import Step, Times, Timing, graph_of
from ..model.iterations import Iteration
from ..model.schedule import Schedule
from ..model.stages import Labels
from ..model.verdict import State, Verdict
from .heatmap import interrupted
from .markup import Time, note, plural, table

BLOCKS = 2_000  # largest number of blocks that are drawn; of more, the longest on the path are drawn
DEAREST = 8  # number of blocks in the table of those that exceed their usual work most
WIDTH, LEFT, ROW = 1200, 80, 26  # sizes in the picture


def section(labels: Labels, measured: Sequence[Iteration], verdicts: Sequence[Verdict]) -> str:
    """Return the section as HTML and SVG. measured: at least one."""
    worst, blamed = _worst(labels, measured, verdicts)
    found = _Path(
        labels.schedule, worst.timing, np.median([one.timing.compute.sum(axis=1) for one in measured], axis=0)
    )
    makespan, dp = found.times.makespan, labels.schedule.dp
    others = f", the only one of {plural(dp, 'replica')} that is drawn" if dp > 1 else ""
    left_out = (
        f" Of {found.graph.count:,} blocks only those on it are drawn, and of them the {BLOCKS:,} longest at most."
        if found.graph.count > BLOCKS
        else ""
    )
    dearest = sorted((found.work(step.vertex) for step in found.steps if step.whole), key=lambda row: row[2] - row[1])[
        :DEAREST
    ]
    return (
        f"<h2>Critical path of iteration {worst.number}, "
        f"{'which a verdict names' if blamed else 'the longest'}</h2>\n{found.picture()}"
        + note(
            f"Schedule {escape(str(labels.schedule))}; replica {found.replica}{others}. Numbers are micro-batches; "
            "blue is forward, green backward, dark what is on the"
            f" critical path: the iteration takes as long as that.{left_out}"
        )
        + table(
            ("on the critical path", "time", "share, %"),
            [(what, Time(t * 1e9), round(100 * t / makespan)) for what, t in found.sums()],
        )
        + table(("most expensive blocks on it, against the median of all iterations", "own work", "usually"), dearest)
    )


def _worst(labels: Labels, measured: Sequence[Iteration], verdicts: Sequence[Verdict]) -> tuple[Iteration, bool]:
    """Return the iteration that the gravest verdict on a slow iteration names, and True; or else the longest one, and
    False. The first iteration, and those that a checkpoint interrupted, are excluded if there are others."""
    stopped = interrupted(labels)
    fair = [one for one in measured if not one.first and one.number not in stopped] or list(measured)
    blamed = [
        one for verdict in verdicts if verdict.state is State.SLOW for one in fair if one.number == verdict.iteration
    ]
    return (blamed[0], True) if blamed else (max(fair, key=lambda one: one.seconds), False)


class _Path:
    """The critical path through one iteration. usual: own work of all blocks, [B, D, T], seconds."""

    def __init__(self, schedule: Schedule, timing: Timing, usual: np.ndarray) -> None:
        self.schedule, self.timing, self.usual = schedule, timing, usual
        self.graph = graph_of(schedule)
        self.times: Times = self.graph.times(timing)
        self.steps: list[Step] = self.graph.critical(timing, self.times)
        self.replica = self.steps[0].replica
        self._shards = {step.vertex: step.shard for step in self.steps if step.whole}
        self._own = timing.compute.sum(axis=1)
        self._scale = (WIDTH - LEFT - 10) / self.times.makespan

    def work(self, vertex: int) -> tuple[str, Time, Time]:
        """Return a block's name, its own work, and its usual work. If several ranks work on it together, it is the rank
        with most work."""
        shard = int(self._own[vertex, self.replica].argmax())
        stage, place = divmod(vertex, self.graph.blocks)
        block = self.schedule.blocks_of(stage)[place]
        chunk = f", chunk {block.chunk}" if self.schedule.chunks > 1 else ""
        rank = self.schedule.ranks[stage, self.replica, shard]
        name = (
            f"{'backward' if block.backward else 'forward'} of micro-batch {block.micro}{chunk} on rank {rank} (stage "
            f"{stage})"
        )
        return (
            name,
            Time(self._own[vertex, self.replica, shard] * 1e9),
            Time(self.usual[vertex, self.replica, shard] * 1e9),
        )

    def picture(self) -> str:
        """Return the picture as SVG: stages one below the other, time to the right."""
        if all_drawn := self.graph.count <= BLOCKS:
            vertices = list(range(self.graph.count))
        else:
            vertices = sorted(self._shards, key=lambda vertex: self._begin(vertex) - self._end(vertex))[:BLOCKS]
        shapes = [f'<text x="4" y="{stage * ROW + 17}">stage {stage}</text>' for stage in range(self.schedule.pp)]
        for vertex in vertices:
            shapes += self._block(vertex)
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            if all_drawn and before.stage != after.stage:
                ends = ((self._until(before), before.stage), (self._since(after), after.stage))
                shapes.append(
                    '<polyline points="{}"/>'.format(
                        " ".join(f"{self._x(t):.1f},{stage * ROW + ROW / 2:.1f}" for t, stage in ends)
                    )
                )
        height = self.schedule.pp * ROW + 4
        return (
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="critical '
            f'path">\n{chr(10).join(shapes)}\n</svg>\n'
        )

    def _block(self, vertex: int) -> list[str]:
        stage, place = divmod(vertex, self.graph.blocks)
        block = self.schedule.blocks_of(stage)[place]
        begin, length = self._begin(vertex), self._end(vertex) - self._begin(vertex)
        name, took, usually = self.work(vertex)
        kind = f"{'backward' if block.backward else 'forward'}{' on' if vertex in self._shards else ''}"
        left, top, wide = self._x(begin), stage * ROW, max(length * self._scale, 0.5)
        title = f"<title>{name}: {span(length * 1e9)}, own work {span(took)}, usually {span(usually)}</title>"
        shapes = [
            f'<rect class="{kind}" x="{left:.1f}" y="{top + 3}" width="{wide:.1f}" height="{ROW - 6}">{title}</rect>'
        ]
        if wide > 18:
            shapes.append(f'<text x="{left + wide / 2:.1f}" y="{top + 17}" text-anchor="middle">{block.micro}</text>')
        return shapes

    def sums(self) -> list[tuple[str, float]]:
        """Return the parts of the path, seconds. They add up to the iteration."""
        sums = dict.fromkeys(
            ("forward work", "backward work", "collectives of TP groups", "messages between stages", "sends"), 0.0
        )
        for step, after in zip(self.steps, [*self.steps[1:], None], strict=True):
            if step.whole:
                block = self.schedule.blocks_of(step.stage)[step.place]
                shared = float(self.timing.collective[step.vertex, :, self.replica].sum())
                sums["backward work" if block.backward else "forward work"] += (
                    self._end(step.vertex) - self._begin(step.vertex) - shared
                )
                sums["collectives of TP groups"] += shared
            if after is not None:
                between = self._since(after) - self._until(step)
                send = (
                    float(self.timing.send[step.vertex, self.replica, step.shard]) if after.stage == step.stage else 0.0
                )
                sums["sends"] += send
                sums["messages between stages"] += between - send
        first, last = self._since(self.steps[0]), self.times.makespan - self._until(self.steps[-1])
        found = [
            ("before the first block", first),
            *sums.items(),
            ("after the last block: gradient reduction and what belongs to it", last),
        ]
        return [(what, seconds) for what, seconds in found if seconds > 0]

    def _since(self, step: Step) -> float:
        """Return from when on the path is in this step, seconds."""
        times = self.times.begin if step.begins else self.times.end
        return float(times[step.vertex, self.replica, step.shard])

    def _until(self, step: Step) -> float:
        """Return until when the path is in this step, seconds."""
        times = self.times.end if step.ends else self.times.begin
        return float(times[step.vertex, self.replica, step.shard])

    def _begin(self, vertex: int) -> float:
        return float(self.times.begin[vertex, self.replica, self._shards.get(vertex, 0)])

    def _end(self, vertex: int) -> float:
        return float(self.times.end[vertex, self.replica, self._shards.get(vertex, 0)])

    def _x(self, seconds: float) -> float:
        return LEFT + seconds * self._scale
