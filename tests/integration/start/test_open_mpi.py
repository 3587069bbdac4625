"""Programs that call no MPI, under the mpirun of Debian's Open MPI and `srun --mpi=pmix`, which speak PMIx: run,
checkpoint, kill, restart under the same mpirun or MPICH's, and end as natively. Those that call MPI:
mpi/test_under_other_mpis.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from compiling import build
from jobs import BIN, Job, manapy, run
from launchers import DEBIANS
from slurm import Cluster
from solver import residuals, residuals_of_all_runs
from waiting import until, until_gone

MPIRUN = DEBIANS
RANKS = 4
OVERSUBSCRIBED = (MPIRUN, "--oversubscribe")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
HYDRA = (BIN / "mpirun",)
COUNT = """
import os, sys, time
from pathlib import Path
total = 0
for step in range(1, 401):
    total = (total * 31 + step) % 1000003
    if step == 390:
        while not Path("go").exists():
            time.sleep(0.02)
    time.sleep(0.01)
    print(f"{sys.argv[1]} step {step}\\n", end="", flush=True)
print(f"{sys.argv[1]} total {total}\\n", end="", flush=True)
"""
TOTAL = 0
for _step in range(1, 401):
    TOTAL = (TOTAL * 31 + _step) % 1000003

pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason=f"no {MPIRUN} (apt install openmpi-bin)")


def mpirun(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A short run of Open MPI's mpirun with four ranks, to its end."""
    command = [*OVERSUBSCRIBED, "-n", str(RANKS), *arguments]
    return run(command, env={**os.environ, **ROOT, **(env or {})})


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that are manapy's, not mpirun's."""
    return [line for line in done.stderr.splitlines() if line.startswith("manapy")]


@pytest.fixture
def counting(make_job: Callable[..., Job]) -> Callable[[Sequence[str | Path]], Job]:
    """Starts COUNT on four ranks. They stay before the last steps until the file `go` is there."""

    def start(launcher: Sequence[str | Path], env: dict[str, str] = ROOT) -> Job:
        job = make_job(RANKS, mpirun=launcher, env=env)
        (job.where / "count.py").write_text(COUNT)
        shell = f"exec {sys.executable} count.py ${{PMIX_RANK:-$PMI_RANK}}"
        job.start("bash", "-c", shell)
        job.wait_for(lambda text: all(f"{rank} step 10\n" in text for rank in range(RANKS)))
        return job

    return start


def finish(job: Job) -> None:
    """Each rank ends with the right total."""
    (job.where / "go").touch()
    text = job.finish()
    assert sorted(re.findall(r"(\d) total (\d+)\n", text)) == [(str(rank), str(TOTAL)) for rank in range(RANKS)]


def test_run(tmp_path: Path) -> None:
    job = tmp_path / "job"
    done = mpirun(BIN / "manapy-launch", "--dir", job, "sh", "-c", 'echo "$PMIX_RANK of $OMPI_COMM_WORLD_SIZE"')
    assert (done.returncode, sorted(done.stdout.splitlines()), said(done)) == (0, [f"{r} of 4" for r in range(4)], [])


def test_checkpoint_kill_restart_by_command(counting: Callable[[Sequence[str | Path]], Job]) -> None:
    """`manapy restart` takes the same mpirun, allowed to do what the first one was."""
    job = counting(OVERSUBSCRIBED)
    assert [rank["rank"] for rank in job.status()["ranks"]] == list(range(RANKS))
    shown = manapy("status", job.dir)
    assert shown.returncode == 0 and "running, 4 ranks" in shown.stdout
    assert manapy("verify", job.checkpoint()).returncode == 0
    job.kill()
    job.env = {name: "" for name in ROOT}
    job.restart_by_command()
    job.wait_until_it_runs()
    assert Path(os.readlink(f"/proc/{job.process.pid}/exe")).name == "orterun"
    finish(job)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(OVERSUBSCRIBED, OVERSUBSCRIBED, id="open mpi"),
        pytest.param(OVERSUBSCRIBED, HYDRA, id="open mpi to mpich"),
        pytest.param(HYDRA, OVERSUBSCRIBED, id="mpich to open mpi"),
    ],
)
def test_restart_under(
    counting: Callable[[Sequence[str | Path]], Job], first: Sequence[str | Path], second: Sequence[str | Path]
) -> None:
    job = counting(first)
    job.checkpoint()
    job.kill()
    job.mpirun = second
    job.restart()
    job.wait_until_it_runs()
    job.checkpoint()  # of another generation
    finish(job)


def test_restart_by_command_under_the_other_mpirun(counting: Callable[[Sequence[str | Path]], Job]) -> None:
    job = counting(HYDRA)
    job.checkpoint()
    job.kill()
    job.restart_by_command("--mpirun", f"{MPIRUN} --oversubscribe")
    finish(job)


def test_c_program(make_job: Callable[..., Job]) -> None:
    job = make_job(RANKS, mpirun=OVERSUBSCRIBED, env=ROOT)
    text = '#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts("up"); fflush(stdout);\n'
    program = build(
        job.where / "program", text + 'while (access("go", F_OK)) usleep(1000);\nputs("down"); return 0; }\n'
    )
    job.start(program)
    job.wait_for(lambda text: text.count("up") == RANKS)
    job.checkpoint()
    job.kill()
    job.restart()
    (job.where / "go").touch()
    assert job.finish().count("down") == RANKS


def test_nothing_of_pmix_is_in_a_rank(counting: Callable[[Sequence[str | Path]], Job]) -> None:
    """No library, no child, no thread, and of sockets only those to the coordinator and to the agent, and both ends of
    the door (lowerhalf/tree)."""
    threads = []
    for launcher in (OVERSUBSCRIBED, HYDRA):
        job = counting(launcher)
        job.wait_until_it_runs()
        proc = Path(f"/proc/{job.pids()[1]}")
        assert "libpmix" not in (proc / "maps").read_text()
        assert (proc / "task" / proc.name / "children").read_text() == ""
        threads.append(len(list((proc / "task").iterdir())))
        if launcher == OVERSUBSCRIBED:
            assert [os.readlink(fd).partition(":")[0] for fd in (proc / "fd").iterdir()].count("socket") == 4
        finish(job)
    assert threads[0] == threads[1]


@pytest.mark.parametrize("code", [0, 3, 77])
def test_exit_code(tmp_path: Path, code: int) -> None:
    done = mpirun(BIN / "manapy-launch", "--dir", tmp_path / "job", "sh", "-c", f"exit {code}")
    native = mpirun("sh", "-c", f"exit {code}")
    assert done.returncode == native.returncode == code


def test_one_rank_dies(tmp_path: Path) -> None:
    """mpirun ends the others, as natively."""
    dying = '[ "$PMIX_RANK" = 1 ] && kill -KILL $$; exec sleep 100'
    done = mpirun(BIN / "manapy-launch", "--dir", tmp_path / "job", "bash", "-c", dying)
    native = mpirun("bash", "-c", dying)
    assert done.returncode == native.returncode == 128 + signal.SIGKILL


def test_rank_dies_without_its_mpirun(counting: Callable[[Sequence[str | Path]], Job]) -> None:
    """mpirun was killed before: the coordinator ends the job."""
    job = counting(OVERSUBSCRIBED)
    job.wait_until_it_runs()
    pids = job.pids()
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[0], signal.SIGKILL)
    until_gone(pids)


@pytest.mark.parametrize(
    ("library", "text"), [("/nowhere", "libpmix cannot be loaded: /nowhere"), ("libm.so.6", "is no usable libpmix")]
)
def test_no_libpmix(tmp_path: Path, library: str, text: str) -> None:
    """No rank waits for a PMIx server that nobody can ask; else mpirun would not end in time."""
    env = {"MANAPY_LIBPMIX": library, "MANAPY_PMIX_SECONDS": "3600"}
    done = mpirun(BIN / "manapy-launch", "--dir", tmp_path / "job", "true", env=env)
    (line,) = said(done)
    assert done.returncode == 1 and text in line


def test_mpirun_does_not_answer(tmp_path: Path) -> None:
    """It is stopped, so its rank writes messages into a file."""
    rank = 'kill -STOP $PPID; "$0" --dir job true 2> said; echo $? > code.new; mv code.new code'
    command = [*map(str, OVERSUBSCRIBED), "-n", "1", "sh", "-c", rank, str(BIN / "manapy-launch")]
    env = {**os.environ, **ROOT, "MANAPY_PMIX_SECONDS": "2"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL) as process:
        until((tmp_path / "code").exists, "the rank's end")
        process.kill()
    text = (tmp_path / "said").read_text()
    assert "its PMIx server does not answer within 2 s" in text and text.count("\n") == 1
    assert (tmp_path / "code").read_text() == "1\n"


def test_wrong_number_of_ranks(counting: Callable[[Sequence[str | Path]], Job]) -> None:
    job = counting(OVERSUBSCRIBED)
    job.checkpoint()
    job.kill()
    job.restart(ranks=3)
    assert job.wait() == 1
    words = "the checkpoint has 4 ranks, but 3 were started"
    assert 1 <= job.output().count(words) <= 3  # the others say it only if mpirun is slow to end the job


@pytest.fixture
def allocation(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Environment of commands inside an allocation of four tasks on one node. On two nodes that are one host Slurm's
    plugin cannot start ranks, natively either."""
    if "pmix" not in cluster.command("srun", "--mpi=list"):
        pytest.skip("Slurm has no plugin for PMIx")
    with cluster.allocation(nodes=1) as environment:
        yield environment


@pytest.mark.slurm
def test_srun_with_pmix(counting: Callable[..., Job], allocation: dict[str, str]) -> None:
    job = counting(("srun", "--mpi=pmix"), allocation)
    job.checkpoint()
    job.kill()
    job.restart_by_command()
    job.wait_until_it_runs()
    assert json.loads((job.dir / "job.json").read_text())["mpirun"] == "srun --mpi=pmix --kill-on-bad-exit"
    finish(job)


@pytest.mark.slurm
def test_srun_with_pmix_and_a_damaged_image(counting: Callable[..., Job], allocation: dict[str, str]) -> None:
    """srun itself does not end the other ranks, which would wait for ever."""
    job = counting(("srun", "--mpi=pmix"), allocation)
    checkpoint = job.checkpoint()
    job.kill()
    os.truncate(checkpoint / "rank-00002.img", 100)
    job.restart()
    assert job.wait() != 0
    assert job.output().count("rank-00002.img") == 1


@pytest.mark.slurm
def test_mpi_under_srun_with_pmix(make_job: Callable[..., Job], allocation: dict[str, str]) -> None:
    """An MPI program for MPICH's ABI, on Debian's Open MPI."""
    steps = ("--n", "64", "--steps", "200", "--every", "20")
    native = make_job(2)
    native.start_python("steps/heat2d.py", *steps)
    expected = residuals(native.finish())
    job = make_job(2, mpirun=("srun", "--mpi=pmix"), env=allocation)
    go = job.hold(180)
    job.start_python("steps/heat2d.py", *steps, "--pause", "0.005")
    job.wait_for("step 60 ")
    assert "libmpi.so.40" in json.loads((job.dir / "job.json").read_text())["mpi"]
    job.checkpoint()
    job.kill()
    job.restart_by_command()
    job.wait_until_it_runs()
    go.touch()
    job.finish()
    assert residuals_of_all_runs(job) == sorted(expected)
