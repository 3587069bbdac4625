"""The sentinel of an allocation with spare nodes: it runs on another node than the script. If the script's node is
lost, it ends the allocation, so that the next one continues the chain.

Invariants
 1. It ends the allocation only if Slurm has removed the script's node from the job.
 2. The end of the attempt is recorded first, because a chain ends if its job was cancelled without a record (batch.py).

Fact (tried with Slurm 22.05): if a job with --no-kill loses its first node, and with it the batch script, the job lasts
until its time limit, and nothing runs in it. A step runs beside others only with srun --overlap (Slurm 20.11).
"""

from __future__ import annotations

import math
import time

from . import policy, slurm
from .record import Chain


def watch(chain: Chain, job: str, first: str, period: float) -> None:
    """Wait until the job has lost its first node, then end it. Ask every ``period`` seconds."""
    while not _lost(job, first):
        time.sleep(period)
    policy.lost(chain)
    slurm.persistently(lambda: _end(chain, job), math.inf)  # this process ends with the job


def _end(chain: Chain, job: str) -> None:
    if chain.record["mode"] == "requeue" and slurm.show(job).get("Requeue") == "1":
        slurm.command("scontrol", "requeue", job)
    else:
        slurm.command("scancel", job)  # its successor waits for its end


def _lost(job: str, first: str) -> bool:
    try:
        nodes = slurm.present(job)
        return bool(nodes) and first not in nodes and slurm.show(job).get("JobState") == "RUNNING"
    except slurm.SlurmError:  # the controller does not answer for a while
        return False
