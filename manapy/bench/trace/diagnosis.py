"""How well hung and slow ranks are found, compared with the truth of simulated training jobs: the experiments E1 to E5
of the MegaTrace paper's section V, and false alarms.

Every run has a seed of its own, made from --seed and its number. Thresholds are the program's own
(manapy/trace/slow/monitor.py, manapy/trace/hang/outside.py, comparators.py): none is fitted to these seeds.

The position of a fault is drawn uniformly. Extra work is log-uniform from 50 ms to 30 s, in strata. In every second run
messages are synchronous. An iteration is slow if its performance is below 90 % of the same iteration without the fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...trace.hang import hang
from ...trace.model import stages
from ...trace.model.graph import Timing, graph_of
from ...trace.model.iterations import Iteration, iterations
from ...trace.model.schedule import Schedule, ScheduleBlock, parse
from ...trace.model.verdict import Cause, Phase, State, Verdict
from ...trace.slow import slow
from ..shared import plots
from ..shared.commands import Setting
from ..shared.samples import MANAPY, Row, Rows
from . import comparators
from .simulate import Fault, Kind, Model, Run, positions, simulate, snapshot

SCHEDULES = (
    "tp=2,pp=4,dp=2,micro=8",
    "tp=2,pp=4,dp=2,micro=8,kind=gpipe",
    "tp=2,pp=2,dp=4,micro=8,kind=interleaved",
    "tp=4,pp=4,dp=1,micro=8",
)
RUNS = 300  # faulty runs, and the same number of healthy ones
SHORTEST, LONGEST = 0.05, 30.0  # seconds of extra work
LATER = 6.0  # seconds after a fault by which a hang must be found
HANGS = (Kind.SKIP_RECV, Kind.SPIN, Kind.STOP, Kind.SLEEP, Kind.DROP)
STUCK = (
    State.HUNG,
    State.LATE,
)  # the paper calls both a hang: nobody can tell that a spinning rank won't continue
PERFORMANCE = 0.9
# seconds, from the paper's Figure 8, optimised
PAPER = {64: 0.001, 128: 0.002, 256: 0.004, 512: 0.008, 1024: 0.015, 2048: 0.036, 4096: 0.066}
BATCH = 250  # number of healthy iterations computed together


@dataclass
class Score:
    """A confusion table, and how often rank, place and cause were right among the correct findings."""

    true_positive: int = 0
    false_positive: int = 0
    false_negative: int = 0
    true_negative: int = 0
    right: dict[str, int] = field(default_factory=dict)

    def add(self, truth: bool, found: bool, **right: bool) -> None:
        """Add one run."""
        if truth and found:
            self.true_positive += 1
            for name, yes in right.items():
                self.right[name] = self.right.get(name, 0) + yes
        elif truth:
            self.false_negative += 1
        elif found:
            self.false_positive += 1
        else:
            self.true_negative += 1

    @property
    def precision(self) -> float:
        """Correct findings / all findings."""
        found = self.true_positive + self.false_positive
        return self.true_positive / found if found else 1.0

    @property
    def recall(self) -> float:
        """Correct findings / all faults."""
        there = self.true_positive + self.false_negative
        return self.true_positive / there if there else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        return 2 * self.true_positive / max(2 * self.true_positive + self.false_positive + self.false_negative, 1)

    def rows(self, rows: Rows, variant: str, goals: dict[str, str]) -> None:
        """The score as rows of a table."""
        for name, value in (("F1", self.f1), ("precision", self.precision), ("recall", self.recall)):
            rows.add(name, "%", variant, 0, 100 * value, goals.get(name, ""))
        for name in ("true_positive", "false_positive", "false_negative", "true_negative"):
            rows.add(name.replace("_", " "), "", variant, 0, getattr(self, name))
        for name, count in self.right.items():
            rows.add(f"{name} right", "%", variant, 0, 100 * count / max(self.true_positive, 1), goals.get(name, ""))


# ---- E1: hangs


def hangs(setting: Setting) -> list[Row]:
    """E1: jobs that hang, and the same number of healthy jobs, inspected while they run."""
    count = max(len(HANGS), round(RUNS * setting.scale))
    scores = {name: Score() for name in (MANAPY, *comparators.HANGS)}
    latency: list[float] = []
    wrong: list[str] = []
    for number in range(2 * count):
        setting.progress(number / (2 * count), f"run {number}")
        rng = np.random.default_rng((setting.seed, 1, number))
        model = Model(parse(str(rng.choice(SCHEDULES))), iterations=6, layers=2, synchronous=number % 2 == 1)
        fault = draw(rng, model, HANGS[number % len(HANGS)]) if number < count else None
        run = simulate(model, [fault] if fault else [], int(rng.integers(1 << 30)))
        assert run.trace is not None
        begun = int(run.trace.events["enter"].min())
        stuck = _stuck(run)
        now = stuck + int(LATER * 1e9) if fault else int(rng.uniform(begun + 1e8, run.trace.now))
        trace = snapshot(run.trace, now)
        found = [v for v in hang.verdicts(trace, labels=_labels(trace, model.schedule)) if v.state in STUCK]
        right = _right(run, fault, found) if fault and found else {}
        scores[MANAPY].add(fault is not None, bool(found), **right)
        if fault and not all(right.values()) or bool(found) != (fault is not None):
            wrong.append(f"run {number}: {model.schedule}; {fault}; {found[0].sentence if found else 'nothing found'}")
        if fault and found:
            latency.append(_latency(run, stuck))
        for name, rule in comparators.HANGS.items():
            rank = rule(trace)
            scores[name].add(
                fault is not None, rank is not None, **({"rank": rank in _ranks(run, fault)} if fault else {})
            )
    rows = Rows("hangs")
    goals = {"F1": "100 %", "rank": "≥ 99 %", "place": "≥ 99 %", "cause": "≥ 99 %"}
    for name, score in scores.items():
        score.rows(rows, name, goals)
    for number, seconds in enumerate(latency):
        rows.add("from standstill to verdict", "s", MANAPY, number, seconds)
    keep(setting.pictures / "hangs-wrong.txt", wrong)
    return rows.all()


def draw(
    rng: np.random.Generator, model: Model, kind: Kind, iteration: int | None = None, seconds: float = 0.0
) -> Fault:
    """A fault at a random place: stage, replica, shard, micro-batch, direction and, if it can be chosen, phase are
    uniform."""
    schedule = model.schedule
    backward = bool(rng.integers(2))
    work = Phase.BACKWARD if backward else Phase.FORWARD
    phase = Phase.TRANSFER if kind in (Kind.SKIP_RECV, Kind.DROP) or rng.integers(3) == 2 else work
    if kind is Kind.SKIP_RECV:
        places = [
            (s, b.chunk, b.micro)
            for s in range(schedule.pp)
            for b in schedule.blocks_of(s)
            if b.backward == backward and schedule.source(s, b) is not None
        ]
    else:
        places = positions(schedule, phase, backward)
    stage, chunk, micro = places[int(rng.integers(len(places)))]
    rank = int(rng.choice(schedule.ranks[stage].ravel()))
    when = int(rng.integers(1, model.iterations)) if iteration is None else iteration
    return Fault(kind, rank, when, micro, phase, backward, chunk, int(rng.integers(model.layers)), seconds)


def _labels(trace: object, schedule: Schedule) -> stages.Labels | None:
    try:
        return stages.label(trace, schedule)  # type: ignore[arg-type]
    except stages.ScheduleError:
        return None


def _stuck(run: Run) -> int:
    """The time of the faulty rank's last action, ns."""
    assert run.trace is not None
    events = run.trace.events
    if not run.faults:
        return 0
    own = events[events["rank"] == run.faults[0].rank]
    return int(max(own["enter"].max(), own["exit"].max()))


def _latency(run: Run, stuck: int) -> float:
    """Seconds from the standstill to the first moment at which it is found; with a precision of 1/16 s."""
    assert run.trace is not None
    low, high = 0.0, LATER
    while high - low > 1 / 16:
        middle = (low + high) / 2
        trace = snapshot(run.trace, stuck + int(middle * 1e9))
        if any(v.state in STUCK for v in hang.verdicts(trace, labels=_labels(trace, run.model.schedule))):
            high = middle
        else:
            low = middle
    return high


def _ranks(run: Run, fault: Fault) -> set[int]:
    """The ranks that may be suspected: both ends if the fault is in a link."""
    schedule = run.model.schedule
    stage, replica, shard = schedule.places[fault.rank].tolist()
    target = (
        schedule.target(stage, ScheduleBlock(fault.backward, fault.chunk, fault.micro))
        if fault.kind is Kind.DROP
        else None
    )
    return {fault.rank} if target is None else {fault.rank, int(schedule.ranks[target[0], replica, shard])}


def _right(run: Run, fault: Fault, found: Sequence[Verdict]) -> dict[str, bool]:
    verdict = found[0]
    stage = int(run.model.schedule.places[fault.rank, 0])
    place = (verdict.phase, verdict.iteration, verdict.micro) == (fault.phase, fault.iteration, fault.micro) and (
        fault.kind is Kind.DROP or verdict.stage == stage
    )
    return {"rank": verdict.rank in _ranks(run, fault), "place": place, "cause": verdict.cause is fault.cause}


# ---- E2: slowdowns


@dataclass(frozen=True)
class Slowdown:
    """One run of E2: the measurement, and the truth: the performance of the iteration, and the seconds that it lost."""

    run: Run
    fault: Fault | None
    measured: list[Iteration]
    performance: float
    cost: float

    @property
    def truth(self) -> bool:
        """Is the iteration slow?"""
        return self.performance < PERFORMANCE


def slowdowns(setting: Setting) -> list[Row]:
    """E2: one block of one iteration has extra work."""
    scores = {name: Score() for name in (MANAPY, *comparators.SLOWDOWNS)}
    rows = Rows("slowdowns")
    wrong: list[str] = []
    count = max(len(HANGS), round(RUNS * setting.scale))
    for number, one in enumerate(_runs(setting, count, count)):
        assert one.run.trace is not None
        found = [v for v in slow.verdicts(one.run.trace, one.run.model.schedule) if v.state is State.SLOW]
        right = {}
        if one.fault and found:
            first, fault = found[0], one.fault
            stage = int(one.run.model.schedule.places[fault.rank, 0])
            place = (first.phase, first.iteration, first.micro, first.stage) == (
                fault.phase,
                fault.iteration,
                fault.micro,
                stage,
            )
            right = {"rank": first.rank == fault.rank, "place": place, "cause": first.cause is Cause.COMPUTE}
            if one.truth and first.cost_ns:
                rows.add(
                    "counterfactual cost off a replay",
                    "%",
                    MANAPY,
                    number,
                    100 * abs(first.cost_ns * 1e-9 / one.cost - 1),
                    "≤ 5 %",
                )
        scores[MANAPY].add(one.truth, bool(found), **right)
        if bool(found) != one.truth or one.truth and not all(right.values()):
            wrong.append(
                f"run {number}: {one.run.model.schedule}; {one.fault}; performance {one.performance:.3f}; "
                f"{found[0].sentence if found else 'nothing found'}"
            )
        history = comparators.History.of(one.run.model.schedule, [i.timing for i in one.measured[1:4]])
        for name, rule in comparators.SLOWDOWNS.items():
            said = [rule(history, i.timing, i.seconds) for i in one.measured[4:]]
            rank = next((rank for rank in said if rank is not None), None)
            scores[name].add(one.truth, rank is not None, **({"rank": rank == one.fault.rank} if one.fault else {}))
    goals = {"F1": "≥ 98 %", "rank": "≥ 99 %", "place": "≥ 99 %", "cause": "≥ 99 %"}
    for name, score in scores.items():
        score.rows(rows, name, goals)
    keep(setting.pictures / "slowdowns-wrong.txt", wrong)
    return rows.all()


def _runs(setting: Setting, faulty: int, healthy: int) -> Iterator[Slowdown]:
    for number in range(faulty + healthy):
        setting.progress(number / (faulty + healthy), f"run {number}")
        rng = np.random.default_rng((setting.seed, 2, number))
        model = Model(parse(str(rng.choice(SCHEDULES))), iterations=7, layers=2, synchronous=number % 2 == 1)
        share = (number + rng.random()) / faulty  # strata of equal width in the logarithm
        fault = draw(rng, model, Kind.COMPUTE, 5, SHORTEST * (LONGEST / SHORTEST) ** share) if number < faulty else None
        seed = int(rng.integers(1 << 30))
        run = simulate(model, [fault] if fault else [], seed)
        without = simulate(model, (), seed, events=False)
        assert run.trace is not None
        measured = list(iterations(stages.label(run.trace, model.schedule)))
        yield Slowdown(
            run, fault, measured, float(without.lengths[5] / run.lengths[5]), float(run.lengths[5] - without.lengths[5])
        )


# ---- E3: where


def locations(setting: Setting) -> list[Row]:
    """E3: the same extra work at places with no, some and much slack (the paper's Figure 12)."""
    model = Model(parse(SCHEDULES[0]), iterations=7, layers=2)
    schedule = model.schedule
    graph = graph_of(schedule)
    healthy = simulate(model, (), setting.seed, events=False)
    slack = graph.slack(healthy.timings[5])[:, 0]
    order = np.argsort(slack)
    chosen = [int(order[0]), int(np.abs(slack - slack.max() / 2).argmin()), int(order[-1])]
    rows = Rows("locations")
    curves = []
    extra = np.geomspace(0.02, 2.0, max(5, round(16 * min(setting.scale, 1))))
    for i, vertex in enumerate(chosen):
        stage, place = divmod(vertex, schedule.blocks)
        block = schedule.blocks_of(stage)[place]
        phase = Phase.BACKWARD if block.backward else Phase.FORWARD
        name = f"{phase.value} of micro-batch {block.micro} on stage {stage}, slack {slack[vertex] * 1e3:.0f} ms"
        points = []
        for k, seconds in enumerate(extra.tolist()):
            setting.progress((i + k / len(extra)) / len(chosen), name)
            run = simulate(
                model,
                [Fault(Kind.COMPUTE, int(schedule.ranks[stage, 0, 0]), 5, block.micro, phase, seconds=seconds)],
                setting.seed,
            )
            assert run.trace is not None
            found = any(v.state is State.SLOW for v in slow.verdicts(run.trace, schedule))
            points.append((seconds, float(healthy.lengths[5] / run.lengths[5]), found))
        curves.append((name, points))
        tolerated = [seconds for seconds, performance, _ in points if performance >= PERFORMANCE]
        rows.add(f"{name}: extra work that costs less than 10 %", "s", MANAPY, 0, max(tolerated, default=0.0))
        agree = sum(found == (performance < PERFORMANCE) for _, performance, found in points)
        rows.add(f"{name}: verdict as the performance is", "%", MANAPY, 0, 100 * agree / len(points))
    _draw(setting.pictures / "figure12-locations.png", lambda axis: _draw_locations(axis, curves))
    return rows.all()


# ---- E4: thresholds


def thresholds(setting: Setting) -> list[Row]:
    """E4: precision and recall over both thresholds (the paper's Figure 13)."""
    rows = Rows("thresholds")
    nodes: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0)
    performances: Sequence[float] = (0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
    if setting.scale < 1:
        nodes, performances = nodes[::3], performances[::3]
    count = max(4, round(RUNS / 3 * setting.scale))
    runs = list(_runs(setting, count, count))
    table = np.zeros((2, len(nodes), len(performances)))
    for i, node in enumerate(nodes):
        for j, performance in enumerate(performances):
            score = Score()
            for one in runs:
                usable = [it for it in one.measured if not it.first]
                monitor = slow.Monitor(one.run.model.schedule, slow.Limits(performance, node))
                monitor.prime([it.timing for it in usable], [it.seconds for it in usable])
                found = [f for it in usable for f in monitor.feed([it.number], it.timing, np.array([it.seconds]))]
                score.add(one.truth, bool(found))
            table[:, i, j] = score.recall, score.precision
            if node in (0.5, 1.0) or performance == PERFORMANCE:
                rows.add(f"m = {node:.0%}, performance {performance:.2f}: F1", "%", MANAPY, 0, 100 * score.f1)
    _draw(
        setting.pictures / "figure13-recall.png",
        lambda axis: _draw_table(axis, table[0], nodes, performances, "recall"),
    )
    _draw(
        setting.pictures / "figure13-precision.png",
        lambda axis: _draw_table(axis, table[1], nodes, performances, "precision"),
    )
    return rows.all()


# ---- E5: scaling


def scaling(setting: Setting) -> list[Row]:
    """E5: from one iteration's recorded calls to a verdict, on one processor, without pruning (the paper's Figure 8: 66
    ms for 4096 ranks, with pruning)."""
    rows = Rows("analysis")
    curve = []
    sizes = [64, 128, 256, 512, 1024, 2048, 4096, 65536] if setting.scale >= 1 else [64, 512]
    for i, ranks in enumerate(sizes):
        setting.progress(i / len(sizes), f"{ranks} ranks")
        schedule = parse(f"tp=2,pp=4,dp={ranks // 8},micro=8")
        model = Model(schedule, iterations=1, layers=2)
        fault = Fault(Kind.COMPUTE, ranks // 2, 0, 3, Phase.BACKWARD, seconds=1.0)
        healthy, faulty = simulate(model, (), setting.seed), simulate(model, [fault], setting.seed)
        for name, run in (("healthy", healthy), ("slow", faulty)):
            assert run.trace is not None
            for number in range(5 if ranks <= 4096 else 2):
                monitor = slow.Monitor(schedule)
                monitor.prime(healthy.timings, healthy.lengths.tolist())
                begin, used = time.perf_counter(), time.thread_time()
                (measured,) = iterations(stages.label(run.trace, schedule))
                found = monitor.feed([0], measured.timing, np.array([measured.seconds]))
                seconds, used = time.perf_counter() - begin, time.thread_time() - used
                if bool(found) != (name == "slow") or found and found[0].rank != fault.rank:
                    rows.fail(f"{ranks} ranks, a {name} iteration", set(), MANAPY, f"the verdict is wrong: {found}")
                    continue
                rows.add(
                    f"{ranks} ranks, a {name} iteration",
                    "ms",
                    MANAPY,
                    number,
                    seconds * 1e3,
                    "≤ 50 ms" if ranks == 4096 else "",
                )
                rows.add(f"{ranks} ranks, a {name} iteration: processor time", "ms", MANAPY, number, used * 1e3)
                if number and name == "slow":
                    curve.append((ranks, seconds))
        del healthy, faulty, run
    _draw(setting.pictures / "figure8-analysis.png", lambda axis: _draw_scaling(axis, curve))
    return rows.all()


# ---- false alarms


def alarms(setting: Setting) -> list[Row]:
    """Healthy iterations, 10^6 of them: any finding is a false alarm. Timings go directly into the monitor, without
    being converted from calls."""
    count = max(BATCH, round(1_000_000 * setting.scale) // BATCH * BATCH)
    model = Model(parse(SCHEDULES[0]), layers=2)
    graph = graph_of(model.schedule)
    monitor = slow.Monitor(model.schedule)
    rng = np.random.default_rng((setting.seed, 6))
    chips = 1 + model.chips * rng.standard_normal(model.schedule.ranks.shape)
    first, lengths = _healthy(model, rng, chips)
    parts = [first.replicas(list(range(i * model.schedule.dp, (i + 1) * model.schedule.dp))) for i in range(16)]
    monitor.prime(parts, lengths[:16].tolist())
    found: list[slow.Finding] = []
    slowest = 0.0
    for number in range(0, count, BATCH):
        setting.progress(number / count, f"iteration {number}")
        timing, lengths = _healthy(model, rng, chips)
        slowest = max(slowest, float(lengths.max() / np.median(lengths)))
        found += monitor.feed(list(range(number, number + BATCH)), timing, lengths)
    assert graph.count
    rows = Rows("alarms")
    rows.add("healthy iterations", "", MANAPY, 0, count)
    rows.add("false alarms", "", MANAPY, 0, len(found) + len(monitor.unexplained), "0 in 10⁶")
    rows.add("slowest one against the median", "%", MANAPY, 0, 100 * slowest)
    return rows.all()


def _healthy(model: Model, rng: np.random.Generator, chips: np.ndarray) -> tuple[Timing, np.ndarray]:
    """BATCH iterations, arranged along the replicas, and their lengths."""
    schedule = model.schedule
    graph = graph_of(schedule)
    replicas = BATCH * schedule.dp
    backward = np.array([block.backward for stage in range(schedule.pp) for block in schedule.blocks_of(stage)])
    whole = np.where(backward, model.backward, model.forward) / model.layers

    def vary(*size: int) -> np.ndarray:
        return 1 + model.noise * rng.standard_normal(size, dtype=np.float32)

    work = np.repeat(np.tile(chips, (1, BATCH, 1)), graph.blocks, axis=0)[:, None]
    compute = np.concatenate(
        [
            whole[:, None, None, None] * vary(graph.count, model.layers, replicas, schedule.tp) * work,
            np.full((graph.count, 1, replicas, schedule.tp), 20e-6),
        ],
        axis=1,
    )
    collective = (model.latency + model.partial / model.bandwidth) * vary(graph.count, model.layers, replicas)
    transfer = (
        (model.latency + model.activation / model.bandwidth)
        * vary(graph.count, replicas, schedule.tp)
        * (graph.source >= 0)[:, None, None]
    )
    ready = np.broadcast_to(
        np.tile(chips, (1, BATCH, 1)) * model.optimizer, (schedule.pp, replicas, schedule.tp)
    ).copy()
    closing = model.closing * vary(schedule.pp, replicas, schedule.tp)
    reduce = np.full((schedule.pp, schedule.tp), model.latency + model.gradient / model.bandwidth)
    timing = Timing(
        compute,
        collective,
        transfer,
        np.zeros_like(transfer),
        np.zeros_like(transfer),
        ready,
        closing,
        reduce,
        4 * model.latency,
    )
    return timing, graph.replica_ends(timing).reshape(BATCH, schedule.dp).max(axis=1)


# ---- pictures


def keep(path: Path, lines: Sequence[str]) -> None:
    """Keep the failures for later inspection."""
    if lines:
        path.write_text("\n".join(lines) + "\n")


def _draw(path: Path, draw_: Callable[..., None]) -> None:
    if not plots.available():
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    draw_(axis)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_locations(axis, curves) -> None:
    for i, (name, points) in enumerate(curves):
        seconds, performance, found = zip(*points, strict=True)
        axis.plot(seconds, performance, color=f"C{i}", label=name)
        axis.plot(
            [s for s, f in zip(seconds, found, strict=True) if f],
            [p for p, f in zip(performance, found, strict=True) if f],
            "o",
            color=f"C{i}",
            ms=4,
        )
    axis.axhline(PERFORMANCE, color="#888888", lw=0.8, ls="--")
    axis.set(xscale="log", xlabel="extra work, s (dots: found slow)", ylabel="performance of the iteration")
    axis.legend(frameon=False, fontsize=6)


def _draw_table(axis, table: np.ndarray, nodes: Sequence[float], performances: Sequence[float], what: str) -> None:
    shown = axis.imshow(table, vmin=0, vmax=1, cmap="viridis", aspect="auto", origin="lower")
    axis.set_xticks(range(len(performances)), [f"{p:.2f}" for p in performances])
    axis.set_yticks(range(len(nodes)), [f"{n:.0%}" for n in nodes])
    for i, j in np.ndindex(table.shape):
        axis.text(
            j,
            i,
            f"{table[i, j]:.2f}",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if table[i, j] < 0.6 else "black",
        )
    axis.set(
        xlabel="performance below which an iteration is slow",
        ylabel="m: a block's excess over its expected time",
        title=what,
    )
    axis.figure.colorbar(shown)


def _draw_scaling(axis, curve: Sequence[tuple[int, float]]) -> None:
    sizes = sorted({ranks for ranks, _ in curve})
    axis.plot(
        sizes,
        [float(np.median([s for r, s in curve if r == ranks])) for ranks in sizes],
        "o-",
        color="#1b6ca8",
        label="here, not pruned",
    )
    axis.plot(list(PAPER), list(PAPER.values()), "s--", color="#7f7f7f", label="MegaTrace's figure, pruned")
    axis.set(xscale="log", yscale="log", xlabel="ranks", ylabel="s for one slow iteration")
    axis.legend(frameon=False)
