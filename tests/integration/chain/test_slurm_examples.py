"""The batch scripts of examples/, unchanged, as chains in a real Slurm: they go on after a requeue."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from histories import events_in
from jobs import manapy
from slurm import Cluster
from waiting import until

pytestmark = pytest.mark.slurm

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def with_fortran(where: Path, path: str) -> str:
    """PATH in which mpifort is that of Debian's MPICH."""
    if not (compiler := shutil.which("mpifort.mpich")):
        pytest.skip("no mpifort.mpich (apt install libmpich-dev gfortran)")
    where.mkdir()
    (where / "mpifort").symlink_to(compiler)
    return f"{where}:{path}"


@pytest.mark.parametrize("language", ["mpi4py", "c", "fortran"])
def test_a_batch_script(cluster: Cluster, tmp_path: Path, language: str) -> None:
    """Each program has work for hours. (Four ranks with PyTorch would need minutes to start on two processors.)"""
    folder, env = tmp_path / language, dict(cluster.env)
    if language == "fortran":
        env["PATH"] = with_fortran(tmp_path / "bin", env["PATH"])
    shutil.copytree(EXAMPLES / language, folder)
    options = ["--dir", "chain", "--interval", "1s", "--poll", "1s"]
    done = manapy("slurm", "chain", *options, "job.sh", env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()

    def saved_in(attempt: int) -> bool:
        return any(event["attempt"] == attempt for event in events_in(folder / "chain", "checkpoint"))

    def report() -> str:
        output = folder / "out.txt"
        printed = output.read_text(errors="replace") if output.exists() else ""
        return "\n".join([str(events_in(folder / "chain")), printed, cluster.report(int(job))])

    try:
        until(lambda: saved_in(1), report)
        cluster.command("scontrol", "requeue", job)
        until(lambda: saved_in(2), report)
        assert [event["verdict"] for event in events_in(folder / "chain", "step")] == ["new", "resume"], report()
    finally:
        cluster.command("scancel", job)
        cluster.wait_idle()
