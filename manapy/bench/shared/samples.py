"""Samples of several variants of the same measurement, and statistics about them.

The runs of the variants alternate, so samples of the same round were taken under the same conditions of the machine.
Difference and ratio are formed round by round, and their median and its 95 % bootstrap interval are reported, not the
quotient of two means. Fewer than FEWEST samples have no such interval: even from the least to the greatest of five it
covers the median with 94 % only. Then the least and the greatest are reported as what they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NATIVE, TWO_PHASE, CLOCK = "native", "2pc", "cc"
VARIANTS = (NATIVE, TWO_PHASE, CLOCK)
UNTRACED = "untraced"  # CLOCK with --no-trace
RECORDED = "recorded"  # by `manapy trace run`; if recorders are compared: with the recorder of that row
SHIFT = "shift"  # manapy keeps RDMA traffic running; used instead of CLOCK
MANAPY = "manapy"  # if methods are compared: beside those of others
FCDP = "fcdp"  # if strategies of sharded training are compared: beside the others, under their names
RESAMPLES = 2000
FEWEST = 6  # samples of which a 95 % interval of the median can be given


@dataclass(frozen=True)
class Estimate:
    """Median of `count` samples, its 95 % bootstrap interval, and interquartile range. Of fewer than FEWEST samples
    low is the least and high the greatest."""

    median: float
    low: float
    high: float
    iqr: float
    count: int


@dataclass
class Row:
    """One line of a result.

    unit: of all samples; baseline: meaning of NATIVE, in words; goal: the project's goal, in words. samples: variant ->
    round -> value; failures: variant -> one line. A variant that was not measured is in neither.
    """

    job: str
    name: str
    unit: str
    baseline: str = "native"
    goal: str = ""
    samples: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def value(self, variant: str) -> Estimate | None:
        """Estimate of the samples themselves."""
        return estimate(list(self.samples.get(variant, {}).values()))

    def difference(self, variant: str) -> Estimate | None:
        """Estimate of variant minus baseline."""
        return estimate([sample - native for native, sample in self._pairs(variant)])

    def ratio(self, variant: str) -> Estimate | None:
        """Estimate of variant / baseline."""
        return estimate([sample / native for native, sample in self._pairs(variant) if native > 0])

    def _pairs(self, variant: str) -> list[tuple[float, float]]:
        native = self.samples.get(NATIVE, {})
        return [(native[r], value) for r, value in self.samples.get(variant, {}).items() if r in native]


class Rows:
    """The rows of one job, in the order in which they were first used."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._rows: dict[str, Row] = {}

    def row(self, name: str, unit: str, baseline: str = "native", goal: str = "") -> Row:
        """The row with this name; created if it doesn't exist."""
        return self._rows.setdefault(name, Row(self.job, name, unit, baseline, goal))

    def add(self, name: str, unit: str, variant: str, number: int, value: float, goal: str = "") -> None:
        """Add one sample, of round `number`."""
        self.row(name, unit, goal=goal).samples.setdefault(variant, {})[number] = value

    def fail(self, group: str, names: set[str], variant: str, why: str) -> None:
        """A run of `variant` that should have filled the rows `names` has failed. If there are no such rows yet, a row
        `group` reports it."""
        for row in [self._rows[name] for name in sorted(names)] or [self.row(group, "")]:
            row.failures[variant] = why

    def all(self) -> list[Row]:
        """Every row."""
        return list(self._rows.values())


def estimate(values: list[float]) -> Estimate | None:
    """None if there are no values."""
    if not values:
        return None
    import numpy as np

    data = np.asarray(values)
    if len(data) < FEWEST:
        low, high = data.min(), data.max()
    else:
        generator = np.random.default_rng(1)
        medians = np.median(generator.choice(data, size=(RESAMPLES, len(data))), axis=1)
        low, high = np.quantile(medians, (0.025, 0.975))
    q1, q3 = np.quantile(data, (0.25, 0.75))
    return Estimate(float(np.median(data)), float(low), float(high), float(q3 - q1), len(data))
