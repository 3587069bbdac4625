"""Paired samples and what is said about them.

Native and manapy runs alternate, so sample i of one and sample i of the other met the same mood of the machine: ratio and
difference are formed pair by pair, and their median and its 95 % bootstrap interval are reported, not the quotient of two means.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """Median, 95 % bootstrap interval of the median, and interquartile range."""

    median: float
    low: float
    high: float
    iqr: float


@dataclass
class Row:
    """One line of the result. unit: of all samples; goal: what the project aims at, in words; no baseline: only `manapy` is filled."""

    job: str
    name: str
    unit: str
    baseline: str = "native"
    goal: str = ""
    native: list[float] = field(default_factory=list)
    manapy: list[float] = field(default_factory=list)

    def add(self, native: float | None, manapy: float) -> None:
        """One pair of samples."""
        if native is not None:
            self.native.append(native)
        self.manapy.append(manapy)

    @property
    def difference(self) -> Estimate | None:
        """manapy minus baseline."""
        return estimate([m - n for n, m in self._pairs()])

    @property
    def ratio(self) -> Estimate | None:
        """manapy : baseline."""
        return estimate([m / n for n, m in self._pairs() if n > 0])

    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.native, self.manapy, strict=True)) if self.native else []


def estimate(values: list[float]) -> Estimate | None:
    """None without values."""
    if not values:
        return None
    data = np.asarray(values)
    generator = np.random.default_rng(1)
    medians = np.median(generator.choice(data, size=(RESAMPLES, len(data))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    q1, q3 = np.quantile(data, (0.25, 0.75))
    return Estimate(statistics.median(values), float(low), float(high), float(q3 - q1))
