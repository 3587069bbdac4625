"""Benchmarks: what manapy costs, against the same thing without it. The programs that are measured are in osu_bench/.

Jobs are in folders by what is measured: calls (and whole programs), checkpoints, rdma (SHIFT), trace (the analyzer),
fcdp (sharded training). jobs.py lists them; shared/ has what they share."""

from .jobs import FCDP_JOBS, JOBS, SHIFT_JOBS, TRACE_JOBS, measure
from .shared.commands import Setting
from .shared.guest import Guest
from .shared.samples import Row

__all__ = ["FCDP_JOBS", "JOBS", "SHIFT_JOBS", "TRACE_JOBS", "Guest", "Row", "Setting", "measure"]
