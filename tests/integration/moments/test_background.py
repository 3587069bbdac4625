"""Checkpoints whose images are written beside the running program (--background auto), and what can happen meanwhile.

A test stops the writers with SIGSTOP as soon as they exist, so that it has the time that it needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from compiling import SHARED, STRICT, build
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy, oks
from manapy.ckpt import command
from manapy.ckpt.store import publish
from manapy.cli.shared import naming
from manapy.core.errors import CheckpointError, ManapyError
from manapy.core.proc import STATE, stat_fields
from manapy.core.processes import is_alive
from phases import BESIDE
from waiting import until

TRIES = 10


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor()
    yield pool
    pool.shutdown(wait=False)  # a thread that waits for a job ends with it, a moment later


def changing(job: Job, megabytes: int = 30) -> Job:
    job.start_python("moments/changing.py", str(megabytes), options=BESIDE)
    job.wait_for("step ")
    return job


def take(job: Job) -> command.CheckpointResult:
    return command.take(naming.job(str(job.dir)))


def published(job: Job) -> list[str]:
    return sorted(path.name for path in job.dir.glob("ckpt-*"))


def writers(ranks: list[int]) -> list[int]:
    """The processes that write images of these ranks."""
    found = []
    for pid in ranks:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in map(int, children.read_text().split()):
                    if Path(f"/proc/{child}/comm").read_text() == "manapy-writer\n":
                        found.append(child)
    return found


def stands(writer: int) -> bool:
    """Has SIGSTOP stopped it? False: it has ended."""

    def state() -> str:
        with contextlib.suppress(OSError):
            return stat_fields(Path(f"/proc/{writer}"))[STATE]
        return "X"

    until(lambda: state() in "TZX", f"the stop or the end of process {writer}")
    return state() == "T"


def stopped_writers(job: Job, aside: ThreadPoolExecutor) -> tuple[Future[command.CheckpointResult], list[int]]:
    """A checkpoint whose images aren't complete, and its writers, which stand still. A writer may end before this finds
    it. Then the next checkpoint is tried."""
    ranks = job.pids()
    for _ in range(TRIES):
        request = aside.submit(take, job)
        seen: set[int] = set()
        stopped: set[int] = set()
        while len(seen) < job.ranks and not request.done():
            new = set(writers(ranks)) - seen
            seen |= new
            for writer in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(writer, signal.SIGSTOP)
            stopped |= set(filter(stands, new))
            if stopped and job.status()["phase"] == "saving" and len(writers(ranks)) < job.ranks:
                break  # the others have ended
        if len(stopped) == job.ranks:
            until(lambda: job.status()["phase"] == "saving", job.report)
            return request, sorted(stopped)
        wake(list(stopped))
        request.result(PATIENCE)
    raise AssertionError(f"writers that end too early, {TRIES} times: {job.report()}")


def goes_on(job: Job) -> None:
    """The program does many more steps."""
    at = last_step(job)
    job.wait_for(lambda _: last_step(job) > at + 100)


def last_step(job: Job) -> int:
    return int(re.findall(r"step (\d+)\n", job.output())[-1])


def wake(stopped: list[int]) -> None:
    for writer in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(writer, signal.SIGCONT)


def ends_well(job: Job) -> None:
    (job.where / "end").touch()
    assert "ok" in job.finish().splitlines(), job.report()


def failure(request: Future[command.CheckpointResult]) -> str:
    with pytest.raises(ManapyError) as error:
        request.result(PATIENCE)
    return str(error.value)


def test_the_image_is_of_the_moment_of_capture(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    job = changing(make_job())
    request, stopped = stopped_writers(job, aside)
    before = published(job)
    goes_on(job)
    assert job.status()["waiting"] == ["saving (0 of 2 written)"]
    assert published(job) == before
    wake(stopped)
    taken = request.result(PATIENCE)
    assert re.fullmatch(r"the job was paused for \d+ ms; published after [0-9.]+ s", taken.remark)
    assert not writers(job.pids())
    job.kill()
    assert manapy("verify", job.dir).returncode == 0
    job.restart_by_command(*BESIDE)
    job.wait_until_it_runs()
    assert "the job was paused for" in take(job).remark
    ends_well(job)


def test_command_says_both_times(make_job: Callable[..., Job]) -> None:
    job = changing(make_job(1), 1)
    done = manapy("checkpoint", job.dir)
    assert done.stdout.strip() == str(job.dir / "ckpt-000001")
    assert re.search(r"the job was paused for \d+ ms; published after [0-9.]+ s\n", done.stderr)
    ends_well(job)


def test_two_requests(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    job = changing(make_job())
    first, stopped = stopped_writers(job, aside)
    second = aside.submit(take, job)
    wake(stopped)
    assert [request.result(PATIENCE).path.name for request in (first, second)] == published(job)[-2:]
    assert first.result().path != second.result().path
    ends_well(job)


def test_own_children(
    make_job: Callable[..., Job], aside: ThreadPoolExecutor, c_program: Callable[[Path], Path]
) -> None:
    """The program does not find the writer among its children, and no pipe of it stays open there."""
    job = make_job()
    job.start(c_program(PROGRAMS / "moments" / "own_children.c"), options=BESIDE)
    job.wait_for("step ")
    request, stopped = stopped_writers(job, aside)
    goes_on(job)
    wake(stopped)
    request.result(PATIENCE)
    job.kill()
    job.restart()
    job.wait_for("step ")
    ends_well(job)


def test_killed_writer(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    """The checkpoint fails, the job goes on, and its next images are written while it is paused."""
    job = changing(make_job())
    take(job)
    request, stopped = stopped_writers(job, aside)
    before = published(job)[-1]
    os.kill(stopped[0], signal.SIGKILL)
    assert re.fullmatch(r"rank [01]: the process that wrote the image .* was ended by signal 9 .*", failure(request))
    until(lambda: not any(map(is_alive, stopped)), "the writers' end")
    assert not list(job.dir.glob("tmp-*")) and (job.dir / "latest").resolve().name == before
    goes_on(job)
    assert take(job).remark.endswith("(written while the job was paused: an earlier writer was killed)")
    ends_well(job)


def test_killed_rank(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    """No checkpoint is published, the previous one is whole, and no writer stays."""
    job = changing(make_job())
    take(job)
    request, stopped = stopped_writers(job, aside)
    before = published(job)[-1]
    os.kill(job.pids()[1], signal.SIGKILL)
    assert "rank 1" in failure(request)
    until(lambda: not any(map(is_alive, stopped)), "the writers' end")
    job.wait()
    assert (job.dir / "latest").resolve().name == before and not list(job.dir.glob("tmp-*"))
    assert manapy("verify", job.dir / before).returncode == 0


def test_writer_dies_with_its_rank(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    """Although nobody kills it: mpirun's process of this host stands, and knows nothing of the rank's death."""
    job = changing(make_job(1))
    request, stopped = stopped_writers(job, aside)
    rank = job.pids()[0]
    proxy = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(proxy, signal.SIGSTOP)
    os.kill(rank, signal.SIGKILL)
    until(lambda: not any(map(is_alive, stopped)), "the writers' end")
    os.kill(proxy, signal.SIGCONT)
    failure(request)


def test_killed_coordinator(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    job = changing(make_job())
    request, stopped = stopped_writers(job, aside)
    before = published(job)
    os.kill(int(job.status()["pid"]), signal.SIGKILL)
    failure(request)
    until(lambda: not any(map(is_alive, stopped)), "the writers' end")
    job.wait_for("the coordinator is lost")
    ends_well(job)
    assert published(job) == before


def test_disk_full(make_job: Callable[..., Job]) -> None:
    """A rank may not write the whole image: one line, and the job goes on."""
    job = make_job()
    job.start_python("moments/quota.py", options=BESIDE)
    job.wait_for("ready")
    (job.where / "limit").touch()
    job.wait_for("limited")
    with pytest.raises(CheckpointError, match="rank 1: cannot write the image: File too large"):
        take(job)
    assert not list(job.dir.glob("tmp-*"))
    (job.where / "unlimit").touch()
    job.wait_for("unlimited")
    assert "ckpt-" in take(job).path.name
    (job.where / "end").touch()
    job.finish()


LOCKED = """
import ctypes, os, sys, time
import numpy as np
from mpi4py import MPI
numbers = np.ones(int(sys.argv[1]) << 17)
print("locked" if ctypes.CDLL(None).mlockall(2) == 0 else "refused", flush=True)  # MCL_FUTURE
while not os.path.exists(sys.argv[2]):
    numbers[:100] += 1
    time.sleep(0.01)
print("ok")
"""


def test_the_copy_of_changed_pages_is_not_locked(make_job: Callable[..., Job]) -> None:
    """A program has locked all memory that it will map. The copy, which is mapped as a whole, takes none for the pages
    that have not changed."""
    megabytes, job = 128, make_job(1)
    go = job.where / "go"
    job.start(sys.executable, "-c", LOCKED, str(megabytes), go, options=["--background", "auto", "--dirty", "auto"])
    if "refused" in job.wait_for(re.compile("locked|refused").search):
        pytest.skip("mlockall is refused (ulimit -l)")
    job.checkpoint()
    status = Path(f"/proc/{job.pids()[0]}/status")
    before = peak(status)
    job.checkpoint()
    assert publish.read_manifest(job.dir / "ckpt-000002").ranks[0].kept > megabytes << 19
    assert peak(status) - before < megabytes // 2
    go.touch()
    ends_well(job)


def peak(status: Path) -> int:
    """Megabytes that a process has had at most."""
    return int(re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.M)[1]) >> 10


FILE_IN_MEMORY = """
import os, sys, time
import numpy as np
from mpi4py import MPI
words = 1 << 21
np.arange(words, dtype=np.uint64).tofile("numbers")
numbers = np.memmap("numbers", dtype=np.uint64, mode="c")
numbers[:: 512 * 64] = 42
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
expected = np.arange(words, dtype=np.uint64)
expected[:: 512 * 64] = 42
print("ok" if np.array_equal(numbers, expected) else f"FAILED {np.count_nonzero(numbers != expected)}", flush=True)
"""


def test_copies_have_no_huge_pages(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """The copy of what has changed has only that: the rest of a huge page would be zeros, in place of the file's
    pages."""
    preload = build(tmp_path / "huge_pages.so", PROGRAMS / "moments/huge_pages.c", *SHARED, *STRICT)
    job = make_job(1, env={"LD_PRELOAD": str(preload)})
    job.start(sys.executable, "-c", FILE_IN_MEMORY, job.where / "go", options=(*BESIDE, "--dirty", "auto"))
    job.wait_for("ready")
    job.checkpoint()
    assert publish.read_manifest(job.checkpoint()).ranks[0].kept > 0
    job.kill()
    (job.where / "go").touch()
    job.env = {}
    job.restart()
    assert oks(job.finish()) == 1


def test_no_address_space_for_a_copy(make_job: Callable[..., Job]) -> None:
    """The image is written without one: by a process beside the program, or while it is paused."""
    program = (
        "import resource, sys, time; from mpi4py import MPI; block = bytearray(100 << 20); "
        "size = int(open('/proc/self/statm').read().split()[0]) * 4096 + (64 << 20); "
        "resource.setrlimit(resource.RLIMIT_AS, (size, size)); print('step 1', flush=True); time.sleep(600)"
    )
    job = make_job(1)
    job.start(sys.executable, "-c", program, options=(*BESIDE, "--dirty", "auto"))
    job.wait_for("step 1")
    for _ in range(3):
        job.checkpoint()
    assert published(job)[-1] == "ckpt-000003"
    job.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can replace /proc/meminfo")
def test_too_little_memory(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """The images are written while the job is paused, and the answer says why."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 16777216 kB\nMemAvailable: 4096 kB\n")
    writes_while_it_stands(make_job, {"/proc/meminfo": meminfo}, "the host has too little free memory for a copy")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can replace /sys/fs/cgroup")
@pytest.mark.parametrize("limited", ["innermost", "outermost"])
@pytest.mark.parametrize("version", [1, 2])
def test_too_little_memory_in_a_cgroup(
    make_job: Callable[..., Job], tmp_path: Path, version: int, limited: str
) -> None:
    """The files of the cgroups are the test's. Their paths are those of its own cgroup."""
    own = re.search(
        r":(?:\S+,)?memory(?:,\S+)?:(.*)" if version == 1 else r"0::(.*)", Path("/proc/self/cgroup").read_text()
    )
    if own is None:
        pytest.skip(f"no cgroup of version {version}")
    tree = tmp_path / "cgroup"
    root = tree / "memory" if version == 1 else tree
    innermost = root / own[1].strip("/")
    innermost.mkdir(parents=True)
    if version == 1:
        names, unlimited = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"), str(1 << 62)
    else:
        names, unlimited = ("memory.max", "memory.current", "inactive_file"), "max"
    for folder in (innermost, root):
        (folder / names[0]).write_text(f"{unlimited}\n")
        (folder / names[1]).write_text("97000000\n")
        (folder / "memory.stat").write_text(f"cache 5\n{names[2]} 4096\n")
    ((innermost if limited == "innermost" else root) / names[0]).write_text("100000000\n")
    reason = "the job's memory cgroup has too little room for a copy"
    writes_while_it_stands(make_job, {"/sys/fs/cgroup": tree}, reason)


def writes_while_it_stands(make_job: Callable[..., Job], files: dict[str, Path], reason: str) -> None:
    """A job whose ranks see these files in place of the system's. It says why."""
    mounts = " && ".join(f"mount --bind {path} {place}" for place, path in files.items())
    job = changing(make_job(mpirun=["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh", BIN / "mpirun"]))
    assert take(job).remark.endswith(f"(written while the job was paused: {reason})")
    assert reason in (job.dir / "coordinator.log").read_text()
    assert manapy("verify", job.dir).returncode == 0
    ends_well(job)


def test_program_ends_while_its_image_is_written(make_job: Callable[..., Job], aside: ThreadPoolExecutor) -> None:
    """Its end waits for the image."""
    job = changing(make_job())
    request, stopped = stopped_writers(job, aside)
    (job.where / "end").touch()
    job.wait_for("the program has ended; its checkpoint is still being written")
    assert not request.done() and all(map(is_alive, job.pids()))
    wake(stopped)
    assert request.result(PATIENCE).path.name == published(job)[-1]
    assert "ok" in job.finish().splitlines()
    assert manapy("verify", job.dir).returncode == 0
