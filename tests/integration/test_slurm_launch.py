"""Jobs that Slurm starts, on several of its nodes."""

from __future__ import annotations

import pytest
from slurm import Cluster

pytestmark = pytest.mark.slurm


def test_the_cluster_runs_jobs_requeues_them_and_loses_nodes(cluster: Cluster) -> None:
    """What the other tests rest on."""
    job = cluster.submit('srun -n 2 bash -c "echo rank \\$SLURM_PROCID on \\$SLURMD_NODENAME restarts ${SLURM_RESTART_COUNT:-0}; sleep 3600"', "--nodes=2", "--ntasks=2")
    cluster.wait_for_output(job, lambda text: text.count("restarts 0") == 2)
    lost = cluster.show(job)["BatchHost"]
    cluster.lose(lost)
    assert not cluster.processes(node=lost)
    text = cluster.wait_for_output(job, lambda text: text.count("restarts 1") == 2)
    assert not any(f"on {lost} restarts 1" in line for line in text.splitlines()), "the lost node is used"
    cluster.cancel(job)
    cluster.wait_for(job, "CANCELLED")
    cluster.bring_back(lost)
    cluster.wait_idle()
