"""Benchmarks: what manapy costs, against the same thing without it. The programs that are measured are in osu_bench/."""

from .commands import Setting
from .jobs import JOBS, measure
from .samples import Row

__all__ = ["JOBS", "Row", "Setting", "measure"]
