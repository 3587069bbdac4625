"""The metrics of `manapy trace serve`, as families of prometheus-client.

Names and units follow openmetrics.io 1.0: base units, `_total` for counters.

Invariants
 1. A job of more than EACH ranks has no time series for single ranks: counters are sums for each host, and metrics that
    describe a single rank are left out. Only standing verdicts name ranks there.
 2. Every answer has each family, if necessary without samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from ...trace.model.verdict import State

if TYPE_CHECKING:
    from ...trace.live.rank_rows import Row
    from ...trace.live.totals import Totals
    from ...trace.model.efficiency import Efficiency
    from ...trace.model.verdict import Verdict

EACH = 1024  # ranks


@dataclass(frozen=True)
class JobSample:
    """What the newest look has found.

    moment: when it ended; seconds of the monotonic clock, as are those of `standing`.
    number: of the look, from 1 on.
    state: of the job, by the verdicts of this look.
    standing: the findings that stand, each with the moment since when.
    verdicts: how many different ones there were since the first look, by state and cause.
    iteration: seconds, if a schedule is known.
    efficiency: None if it is not known.
    """

    moment: float
    number: int
    recording: str
    state: State
    rows: list[Row]
    totals: Totals
    standing: list[tuple[Verdict, float]]
    verdicts: Counter[tuple[str, str]]
    iteration: float | None
    efficiency: Efficiency | None


class Saved(NamedTuple):
    """What is known of a job's checkpoints.

    id: of the job.
    published: how many there were; kept: how many are there now.
    time, bytes: of the newest one; time in seconds since the epoch. None without one.
    stood: seconds for which the job was paused for the last one; None: not known.
    states: number of ranks in each state, as in `manapy status`.
    """

    id: str
    published: int
    kept: int
    time: float | None
    bytes: int | None
    stood: float | None
    states: dict[str, int]


def families(look: JobSample, saved: Saved | None, moment: float, now: float) -> Iterator[Any]:
    """Yield all metrics. saved: None for a job without checkpoints. moment: seconds of the monotonic clock; now: since
    the epoch."""
    names = {"recording": look.recording} | ({"id": saved.id} if saved is not None else {})
    yield InfoMetricFamily("manapy_job", "The job.", names)
    states = [((state.value,), float(state is look.state)) for state in State]
    yield _gauge("job_state", "1 for the job's state, by the newest look.", states, "state")
    yield _gauge("job_ranks", "Ranks of the job.", [((), len(look.rows))])
    yield _counter("looks", "Looks at the job.", [((), look.number)])
    yield _gauge("look_age_seconds", "Age of the newest look.", [((), max(moment - look.moment, 0.0))])
    yield from _ranks(look.rows)
    yield from _counters(look)
    text = "Median length of the newest iterations, if a schedule is known."
    yield _gauge("iteration_seconds", text, [((), look.iteration)])
    yield from _efficiency(look.efficiency)
    yield from _verdicts(look, moment)
    yield from _checkpoints(saved, now)


def _ranks(rows: list[Row]) -> Iterator[Any]:
    """Yield the metrics of what each rank does now."""
    counts = Counter((row.host, row.state.value) for row in rows)
    yield _gauge("ranks", "Ranks in each state, as in `manapy trace top`.", list(counts.items()), "host", "state")
    each = [(row, (str(row.rank), row.host)) for row in rows] if len(rows) <= EACH else []
    states = [((*labels, row.state.value), 1) for row, labels in each]
    yield _gauge("rank_state", "1 for the rank's state.", states, "rank", "host", "state")
    since = [(labels, None if row.since_ns is None else row.since_ns * 1e-9) for row, labels in each]
    yield _gauge("rank_state_seconds", "For how long the rank has been in it, at least.", since, "rank", "host")
    awaited = [(labels, row.awaited_by) for row, labels in each]
    yield _gauge("rank_awaited_by", "Ranks that wait for the rank.", awaited, "rank", "host")
    mostly = [(labels, row.mostly_for) for row, labels in each]
    text = "The number of the rank for which it waited longest between the last two looks."
    yield _gauge("rank_mostly_waits_for", text, mostly, "rank", "host")


def _counters(look: JobSample) -> Iterator[Any]:
    """Yield the counters of each rank, or host."""
    totals, lost = look.totals, "Records of calls that were overwritten before a look read them."
    sent, waited = "Bytes given to sends and collectives in", "Time for which the rank waited for others in MPI, in"
    caused = "Time for which others waited for the rank, added up, in"
    observed = "the observed time"
    for name, text, sums in (
        ("mpi_calls", "MPI calls, counted by their records.", totals.calls),
        ("mpi_sent_bytes", f"{sent} {observed}.", totals.sent),
        ("mpi_wait_seconds", f"{waited} {observed}.", totals.waited),
        ("mpi_caused_wait_seconds", f"{caused} {observed}.", totals.caused),
        ("mpi_observed_seconds", "The observed time: time of which all records were read.", totals.observed),
        ("trace_lost_records", lost, totals.lost),
        ("shift_failovers", "Switches of queue pairs to another device.", totals.failovers),
    ):
        yield _counter(name, text, _by_rank(look.rows, sums.tolist()), "rank", "host")


def _by_rank(rows: list[Row], sums: Sequence[float]) -> list[tuple[tuple[str, ...], float]]:
    """Invariant 1."""
    if len(rows) <= EACH:
        return [((str(row.rank), row.host), sums[row.rank]) for row in rows]
    hosts: Counter[str] = Counter()
    for row in rows:
        hosts[row.host] += sums[row.rank]  # type: ignore[assignment]
    return [(("", host), value) for host, value in hosts.items()]


def _efficiency(known: Efficiency | None) -> Iterator[Any]:
    for name, text in (
        ("parallel", "Mean useful time of ranks / time: the product of the two others (POP)."),
        ("load_balance", "Mean useful time of ranks / longest useful time of a rank (POP)."),
        ("communication", "Longest useful time of a rank / time (POP)."),
    ):
        yield _gauge(f"{name}_efficiency_ratio", text, [((), getattr(known, name, None))])


def _verdicts(look: JobSample, moment: float) -> Iterator[Any]:
    stands: dict[tuple[str, ...], float] = {}
    for verdict, since in look.standing:
        labels = verdict.state.value, verdict.cause.value, "" if verdict.rank is None else str(verdict.rank)
        stands[labels] = max(stands.get(labels, 0.0), moment - since)
    text = "For how long a verdict (hung or late) stands; empty rank: it names none."
    yield _gauge("verdict_seconds", text, list(stands.items()), "state", "cause", "rank")
    text = "Different verdicts since the first look."
    yield _counter("verdicts", text, list(look.verdicts.items()), "state", "cause")


def _checkpoints(saved: Saved | None, now: float) -> Iterator[Any]:
    def known(name: str) -> list[tuple[tuple[str, ...], float | None]]:
        return [((), getattr(saved, name))] if saved is not None else []

    yield _counter("checkpoints", "Checkpoints that were published.", known("published"))
    yield _gauge("checkpoints_kept", "Checkpoints that are there now.", known("kept"))
    age = max(now - saved.time, 0.0) if saved is not None and saved.time is not None else None
    yield _gauge("checkpoint_age_seconds", "Age of the newest checkpoint.", [((), age)])
    yield _gauge("checkpoint_bytes", "Size of the newest checkpoint.", known("bytes"))
    yield _gauge("checkpoint_stood_seconds", "For how long the job was paused for its last checkpoint.", known("stood"))
    states = [((state,), count) for state, count in saved.states.items()] if saved is not None else []
    yield _gauge("coordinator_ranks", "Ranks in each state, as in `manapy status`.", states, "state")


Samples = Any  # pairs of label values and a value; None: nothing is known


def _gauge(name: str, text: str, samples: Samples, *labels: str) -> Any:
    return _filled(GaugeMetricFamily(f"manapy_{name}", text, labels=labels, unit=_unit(name)), samples)


def _counter(name: str, text: str, samples: Samples, *labels: str) -> Any:
    return _filled(CounterMetricFamily(f"manapy_{name}", text, labels=labels, unit=_unit(name)), samples)


def _filled(family: Any, samples: Samples) -> Any:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _unit(name: str) -> str:
    last = name.rpartition("_")[2]
    return last if last in ("seconds", "bytes", "ratio") else ""
