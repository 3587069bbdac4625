"""Jobs that Slurm starts on several of its nodes, by `srun --mpi=pmi2` and by `mpiexec -bootstrap slurm`. They run, are
checkpointed and killed, restart under the same launcher or another one, and end as natively."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job
from slurm import Cluster
from waiting import until_gone

pytestmark = pytest.mark.slurm

NODES = 2
SRUN = ["srun", "--mpi=pmi2"]
HYDRA = [BIN / "mpiexec", "-bootstrap", "slurm"]
RING = ("steps/p2p_ring.py", "250", "--pause", "0.01")


@pytest.fixture
def allocation(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Environment of commands inside an allocation of four tasks on two nodes."""
    with cluster.allocation(NODES) as environment:
        yield environment


@pytest.fixture
def slurm_job(make_job: Callable[..., Job], allocation: dict[str, str]) -> Callable[[Sequence[str | Path]], Job]:
    """Makes jobs of four ranks under a launcher, in the allocation."""
    return lambda launcher: make_job(4, mpirun=launcher, env=allocation)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed run of the ring with four ranks."""
    job = Job(tmp_path_factory.mktemp("undisturbed"), 4).start_python(RING[0], RING[1])
    try:
        return last(job.finish())
    finally:
        job.end()


def last(output: str) -> str:
    """The last line that rank 0 printed, without Slurm's own lines."""
    return [line for line in output.splitlines() if not line.startswith(("srun:", "slurmstepd"))][-1]


def start_ring(job: Job, descriptor: int = 9) -> Job:
    """Start the ring, which has this descriptor. It waits before its last steps until it is released."""
    job.hold(int(RING[1]) - 10)
    job.start("bash", "-c", f'exec "$@" {descriptor}< /dev/null', "bash", sys.executable, PROGRAMS / RING[0], *RING[1:])
    job.wait_for("step 10\n")
    return job


def end_ring(job: Job) -> str:
    """Release the ring; its last line."""
    (job.where / "go").touch()
    return last(job.finish())


def hosts(job: Job) -> set[str]:
    """Slurm's names of the nodes where the job's ranks are, by their environment."""
    found = set()
    for pid in job.pids():
        entries = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        found |= {entry.split("=")[1] for entry in entries if entry.startswith("SLURMD_NODENAME=")}
    return found


def test_the_cluster_runs_jobs_requeues_them_and_loses_nodes(cluster: Cluster) -> None:
    """The facts on which the other tests rely."""
    job = cluster.submit(
        'srun -n 2 bash -c "echo rank \\$SLURM_PROCID on \\$SLURMD_NODENAME restarts ${SLURM_RESTART_COUNT:-0}; '
        'sleep 3600"',
        "--nodes=2",
        "--ntasks=2",
    )
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


@pytest.mark.parametrize(
    "first, then",
    [(SRUN, SRUN), (HYDRA, HYDRA), (SRUN, HYDRA), (HYDRA, SRUN)],
    ids=["srun", "hydra", "srun-hydra", "hydra-srun"],
)
def test_checkpoint_and_restart(
    slurm_job: Callable[..., Job], undisturbed: str, first: list[str | Path], then: list[str | Path]
) -> None:
    job = start_ring(slurm_job(first))
    assert len(hosts(job)) == NODES
    job.checkpoint()
    job.wait_for(lambda text: text.count("step") > 4)  # it goes on
    job.kill()
    job.mpirun = then
    job.restart()
    job.wait_until_it_runs()
    assert len(hosts(job)) == NODES
    job.checkpoint()  # of a restarted job, too
    assert end_ring(job) == undisturbed


def test_restart_by_command(slurm_job: Callable[..., Job], undisturbed: str) -> None:
    """A job that srun has started is restarted under srun, inside the allocation. manapy's own descriptors have to make
    way for one of the program, also that of the process manager."""
    job = start_ring(slurm_job(SRUN), descriptor=300)
    job.checkpoint("--then", "exit")
    job.wait()
    assert json.loads((job.dir / "latest" / "manifest.json").read_text())["mpirun"] == "srun --mpi=pmi2"
    job.restart_by_command("--", "--label")
    assert end_ring(job) == f"0: {undisturbed}"  # srun has labelled it


def test_restart_by_command_under_another_launcher(slurm_job: Callable[..., Job], undisturbed: str) -> None:
    job = start_ring(slurm_job(HYDRA))
    job.checkpoint()
    job.kill()
    job.restart_by_command("--mpirun", "srun --mpi=pmi2 --label")
    assert end_ring(job) == f"0: {undisturbed}"


def natively_and_here(job: Job, *program: str | Path) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the same program under srun without manapy, and as a job. Returns how the first one ended, and the second
    one's exit code."""
    env = {**os.environ, **job.env, "LD_LIBRARY_PATH": str(BIN.parent / "lib")}
    command = [*map(str, SRUN), "-n", "4", *map(str, program)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE), job.start(
        *program
    ).wait()


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code(slurm_job: Callable[..., Job], code: int) -> None:
    """All ranks leave with a code after MPI_Finalize."""
    job = slurm_job(SRUN)
    (job.where / "leave.py").write_text(
        f"from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nMPI.Finalize()\nraise SystemExit({code})\n"
    )
    native, here = natively_and_here(job, BIN / "python", job.where / "leave.py")
    assert (native.returncode, here) == (code, code), job.report()


def test_abort(slurm_job: Callable[..., Job]) -> None:
    """The other ranks die, no rank waits, and the message is printed. The exit code is Slurm's: mostly 137 (SIGKILL),
    natively as well as here; 0 was also seen."""
    job = slurm_job(SRUN)
    (job.where / "abort.py").write_text(
        "from mpi4py import MPI\nc = MPI.COMM_WORLD\nif c.rank == 1: c.Abort(7)\nc.Barrier()\n"
    )
    native, here = natively_and_here(job, BIN / "python", job.where / "abort.py")
    assert {native.returncode, here} <= {0, 128 + signal.SIGKILL}, job.report()
    assert "Abort(7)" in native.stderr and "Abort(7)" in job.output()


def test_a_rank_dies(slurm_job: Callable[..., Job]) -> None:
    """With srun --kill-on-bad-exit the other ranks end, too, as natively. The checkpoint taken before remains."""
    job = start_ring(slurm_job([*SRUN, "--kill-on-bad-exit"]))
    job.checkpoint()
    os.kill(job.pids()[3], signal.SIGKILL)
    # the exit code of the dead rank, or of one that Slurm ended
    assert job.wait() in (128 + signal.SIGKILL, 128 + signal.SIGTERM), job.report()
    assert (job.dir / "latest").exists()


def test_program_that_never_calls_mpi(slurm_job: Callable[..., Job]) -> None:
    job = slurm_job(SRUN)
    assert job.start("/bin/sh", "-c", "echo here $SLURM_PROCID").finish().count("here") == 4
    job = slurm_job(SRUN)
    assert job.start("/bin/sh", "-c", "exit $((SLURM_PROCID * 2))").wait() == 6


def test_ranks_that_exec(slurm_job: Callable[..., Job], undisturbed: str) -> None:
    """A script execs the program: the second lower half connects to the same process manager."""
    job = slurm_job(SRUN)
    job.hold(int(RING[1]) - 10)
    job.start("/bin/sh", "-c", f'exec {BIN / "python"} "$@"', "sh", PROGRAMS / RING[0], *RING[1:])
    job.wait_for("step 10\n")
    job.checkpoint()
    assert end_ring(job) == undisturbed


def test_shared_memory_of_a_killed_step_of_the_same_name(
    slurm_job: Callable[..., Job], allocation: dict[str, str], undisturbed: str
) -> None:
    """A requeued job has the same number again and begins with step 0, as before it was killed. Without a precaution
    MPICH would join the dead ranks' memory."""
    name = 2166136261
    for byte in f"{allocation['SLURM_JOB_ID']}.0".encode():
        name = (name ^ byte) * 16777619 % 2**32
    left = Path(f"/dev/shm/mpich_shm_{name:x}_0")
    left.write_bytes(bytes(1 << 20))
    try:
        assert last(slurm_job(SRUN).start_python(*RING).finish()) == undisturbed
        assert not left.exists()  # it was removed, and another one had its place
    finally:
        left.unlink(missing_ok=True)


def test_srun_without_pmi_says_what_to_do(slurm_job: Callable[..., Job]) -> None:
    job = slurm_job(["srun", "--mpi=none"])
    assert job.start_python(*RING).wait() == 1
    lines = [line for line in job.output().splitlines() if line.startswith("manapy-launch:")]
    assert lines and set(lines) == {
        "manapy-launch: srun has started this job without PMI: use srun --mpi=pmi2 (or mpiexec)"
    }
    assert not job.dir.exists()


def test_one_rank_in_a_batch_script(cluster: Cluster) -> None:
    """Beside srun's steps a script may run a program of one rank, however many tasks the allocation has."""
    job = cluster.submit(
        "manapy-launch python -c 'from mpi4py import MPI; print(MPI.COMM_WORLD.size, \"rank\")'",
        f"--nodes={NODES}",
        "--ntasks=4",
    )
    assert "1 rank" in cluster.finish(job)


def test_coordinator_ignores_what_schedulers_send(slurm_job: Callable[..., Job], undisturbed: str) -> None:
    """Slurm signals every process of a step, where it finds them by cgroup. The next checkpoint needs the
    coordinator."""
    job = start_ring(slurm_job(SRUN))
    coordinator = job.status()["pid"]
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP):
        os.kill(coordinator, number)
    job.checkpoint()
    assert end_ring(job) == undisturbed


def test_nothing_remains_of_a_step(cluster: Cluster, slurm_job: Callable[..., Job], undisturbed: str) -> None:
    """Slurm calls a step finished although the coordinator is in its own session. The coordinator ends by itself."""
    job = start_ring(slurm_job(SRUN))
    coordinator = int(job.status()["pid"])
    assert end_ring(job) == undisturbed
    until_gone([coordinator])
    assert json.loads((job.dir / "job.json").read_text())["state"] == "done"
