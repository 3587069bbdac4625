"""Benchmarks: what manapy costs, against the same thing without it. The programs that are measured are in
osu_bench/."""

from .commands import Setting
from .guest import Guest
from .jobs import FCDP_JOBS, JOBS, SHIFT_JOBS, TRACE_JOBS, measure
from .samples import Row

__all__ = ["FCDP_JOBS", "JOBS", "SHIFT_JOBS", "TRACE_JOBS", "Guest", "Row", "Setting", "measure"]
