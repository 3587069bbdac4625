"""Benchmarks: the cost of manapy, compared with the same program without it. The measured programs are in osu_bench/.

Jobs are in folders by what they measure: calls (and whole programs), checkpoints, rdma (SHIFT), trace (the analyzer),
fcdp (sharded training), loop (chains while faults happen). jobs.py lists them; shared/ has the code that they share."""

from .jobs import FCDP_JOBS, JOBS, LOOP_JOBS, SHIFT_JOBS, TRACE_JOBS, measure
from .shared.commands import Setting
from .shared.guest import Guest
from .shared.samples import Row

__all__ = ["FCDP_JOBS", "JOBS", "LOOP_JOBS", "SHIFT_JOBS", "TRACE_JOBS", "Guest", "Row", "Setting", "measure"]
