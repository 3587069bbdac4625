"""Memory that ranks of one host share without MPI is shared again after a restart."""

from __future__ import annotations

import contextlib
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import emulated
import pytest
from compiling import Programs, build
from emulated import NODES, inside
from jobs import PROGRAMS, Job, oks
from manapy.bench.shared.cluster import Cluster
from phases import BESIDE, STANDING, answer, request
from restarts import restart_twice
from solver import MIDDLE, after
from waiting import until

pytestmark = pytest.mark.mpi


@pytest.fixture
def program(c_program: Programs) -> Path:
    return c_program(PROGRAMS / "mpi/shared_by_ranks.c")


@pytest.fixture
def many(c_program: Programs) -> Path:
    return c_program(PROGRAMS / "mpi/many_memory_files.c")


def new_files(job: Job) -> list[str]:
    """Mappings of the files that a restart has made, which keep no name."""
    return [
        line for pid in job.pids() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/.manapy-" in line
    ]


@pytest.mark.parametrize("options", [STANDING, BESIDE, ()], ids=["standing", "beside", "incremental"])
def test_two_restarts(make_job: Callable[..., Job], program: Path, options: tuple[str, ...]) -> None:
    job = make_job(3)
    job.start(program, "go", options=options)
    restart_twice(job)
    assert oks(job.finish()) == 1, job.output()


@pytest.mark.parametrize("kind", ["0", "1", "3"], ids=["System V", "deleted", "named"])
def test_ranks_on_other_hosts(make_job: Callable[..., Job], nodes: Cluster, program: Path, kind: str) -> None:
    """They could not share it. It must not become the memory of one rank each without a word."""
    together, apart = (emulated.mpirun(NODES[0], hosts) for hosts in (f"{NODES[0]}:2", f"{NODES[0]}:1,{NODES[1]}:1"))
    job = make_job(2, mpirun=together, inside=inside(NODES[0]), env={"UCX_TLS": "tcp,self"})
    job.start(program, "go", kind)
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    job.mpirun = apart
    job.restart()
    assert job.wait() != 0
    assert "with other ranks of its host" in job.output()
    job.mpirun = together
    job.restart()
    job.wait_until_it_runs()
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def test_checkpoint_before_a_restart_has_ended(make_job: Callable[..., Job], program: Path, tmp_path: Path) -> None:
    """Another rank gives its files their names late. A checkpoint waits for it, and all threads are in it."""
    late = tmp_path / "late"
    library = build(tmp_path / "late.so", PROGRAMS / "moments/late_commit.c", "-shared", "-fPIC", "-ldl")
    job = make_job(2, env={"LD_PRELOAD": str(library), "LATE_COMMIT": str(late)})
    job.start(program, "go")
    job.wait_for("ready")
    job.checkpoint()
    job.kill()
    late.touch()
    job.restart()
    job.wait_until_it_runs()
    asked = request(job)
    until(lambda: "stopping" in str(job.status()) or asked.poll() is not None, "the checkpoint")
    late.unlink()
    assert answer(asked)[0] == 0
    job.kill()
    job.restart()
    job.wait_until_it_runs()
    until(lambda: [line[-10:] for line in new_files(job)] == 6 * [" (deleted)"], lambda: f"no names: {new_files(job)}")
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """The soft limit is the usual one; the hard one allows more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("needs a hard limit of 4096 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_many_files(make_job: Callable[..., Job], many: Path) -> None:
    """A restart needs a descriptor for each."""
    job = make_job(2)
    job.start(many, "go", "2600")
    job.wait_for("ready")
    restart_twice(job)
    assert oks(job.finish()) == 1, job.output()


def test_more_files_than_descriptors(make_job: Callable[..., Job], many: Path) -> None:
    """No checkpoint is made that this host could not restart."""
    job = make_job(1)
    job.start("sh", "-c", 'ulimit -n 1500; exec "$@"', "sh", many, "go", "1600")
    job.wait_for("ready")
    code, _, errors = answer(request(job))
    assert code != 0 and "in 1600 files without a name" in errors and "(ulimit -Hn) is 1500" in errors, errors
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def test_a_program_that_shares_nothing_looks_at_no_other_process(job: Job) -> None:
    """A checkpoint would take longer with each rank of the host: the MPI library itself shares memory between them."""
    job.hold(MIDDLE)
    job.start_solver()
    job.wait_for(after(40))
    job.checkpoint()
    alone = fewest_reads(job)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.callback(stack.enter_context(subprocess.Popen(["sleep", "infinity"])).kill)
        assert fewest_reads(job) < alone + 100


def fewest_reads(job: Job) -> int:
    """The read system calls of rank 0 in a checkpoint: the fewest of three, because a busy machine adds some."""

    def once() -> int:
        before = reads(job)
        job.checkpoint()
        return reads(job) - before

    return min(once() for _ in range(3))


def reads(job: Job) -> int:
    """The read system calls of rank 0 until now."""
    (count,) = re.findall(r"syscr: (\d+)", Path(f"/proc/{job.pids()[0]}/io").read_text())
    return int(count)
