"""A rank that is a tree of processes: it is saved as a whole, and comes back as a whole."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job, JobError, manapy, oks
from restarts import refused, restart, restart_twice
from waiting import until

INNER = """#!/bin/sh
me=$$
$1 go
code=$?
[ $me = $$ ] && echo inner: same process
exit $code
"""
OUTER = """#!/bin/bash
exec 7< "$0"
export WHAT=solver
prepare() { date > prepared.$PMI_RANK; }
prepare
./inner.sh "$1" 7<&-
code=$?
read -r line <&7
echo "$WHAT ended with $code, $line"
ls inner.sh | sed s/inner/INNER/
exit $((code + 3))
"""
PYTHON = """
import os, subprocess, sys
mine = os.getpid()
child = subprocess.Popen(sys.argv[1:])
known = child.pid
assert child.wait() == 0 and child.pid == known and os.getpid() == mine
print("python: saw the end of its child")
sys.exit(subprocess.call(["sh", "-c", "exit 4"]))
"""


@pytest.fixture
def wide(c_program: Callable[[Path], Path]) -> str:
    return str(c_program(PROGRAMS / "native/wide.c"))


def through_two_restarts(job: Job, *command: str, options: Sequence[str] = ()) -> str:
    """Start it, kill and restart it twice, and let it end; the output of its last run."""
    job.start(*command, options=options)
    restart_twice(job)
    job.wait()
    return job.output()


WRAPPERS = {
    "time": (["/usr/bin/time", "-f", "time: ended with %x"], "time: ended with 0"),
    "time of bash": (["bash", "-c", 'time "$0" "$@"; echo "time: ended with $?"'], "time: ended with 0"),
    "numactl": (["numactl", "--localalloc"], "ok"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapper(job: Job, wide: str, wrapper: str) -> None:
    command, line = WRAPPERS[wrapper]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    output = through_two_restarts(job, *command, wide, "go")
    assert oks(output) == 1 and line in output, output


def test_a_tracer_in_the_rank(make_job: Callable[..., Job], wide: str) -> None:
    """It could not be halted before what it traces. A tracer from outside prevents nothing."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    job = make_job(1)
    trace = ["strace", "-f", "-e", "trace=none", "-o", "trace"]
    job.start("bash", "-c", f"{' '.join(trace)} {wide} go; echo goes on")
    refused(job, r"process \d+ is traced by process \d+ of the same rank")


def test_a_debugger_in_the_rank(make_job: Callable[..., Job]) -> None:
    """It would wait for the exec of its child, and that one for the debugger."""
    traced = "import ctypes, os; assert ctypes.CDLL(None, use_errno=True).ptrace(0, 0, 0, 0) == -1; "
    job = make_job(1).start(sys.executable, "-c", traced + "print(os.strerror(ctypes.get_errno()))")
    assert job.wait() == 0
    output = job.output()
    assert "a debugger cannot start a program inside manapy-launch; " in output
    assert "Operation not permitted\n" in output


def test_scripts_that_go_on_after_the_solver(job: Job, wide: str) -> None:
    for name, text in (("outer.sh", OUTER), ("inner.sh", INNER)):
        (job.where / name).write_text(text)
        (job.where / name).chmod(0o755)
    output = through_two_restarts(job, "./outer.sh", wide)
    assert job.process is not None and job.process.returncode == 3, output
    assert oks(output) == 1, output
    for line in ("inner: same process", "solver ended with 0, #!/bin/bash", "INNER.sh"):
        assert output.count(line) == 2, output
    until(lambda: (job.record()["state"], job.record().get("code")) == ("done", 3), "the record of the job's end")


@pytest.mark.parametrize("ways", ["", "--background auto --dirty auto --compress on"], ids=["plain", "all ways"])
def test_python_that_waits_for_its_child(job: Job, wide: str, ways: str) -> None:
    output = through_two_restarts(job, sys.executable, "-c", PYTHON, wide, "go", options=ways.split())
    assert job.process is not None and job.process.returncode == 4, output
    assert output.count("python: saw the end of its child") == 2 and oks(output) == 1, output


MANY_FILES = """
import os, subprocess, time
from mpi4py import MPI
os.dup2(os.open(os.devnull, os.O_RDONLY), 300)  # manapy's own descriptors have to make way for it
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print(subprocess.check_output(["echo", "a child"], text=True), end="", flush=True)
"""


def test_many_open_files_and_a_child_after_the_restart(job: Job) -> None:
    job.start("sh", "-c", '"$@"; echo behind', "sh", sys.executable, "-c", MANY_FILES)
    restart_twice(job)
    (job.where / "go").touch()
    lines = job.finish().splitlines()
    assert lines.count("a child") == lines.count("behind") == 2, lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_child_of_another_user(make_job: Callable[..., Job]) -> None:
    """It cannot read the job's secret. It is no part of the rank, and runs all the same."""
    code = "from mpi4py import MPI; import subprocess, sys; sys.exit(subprocess.call(['setpriv', *sys.argv[1:]]))"
    job = make_job(1)
    job.start(sys.executable, "-c", code, "--reuid=65533", "--clear-groups", "sh", "-c", "id -u; exit 5")
    job.wait()
    assert job.output().splitlines()[-1] == "65533" and job.process and job.process.returncode == 5, job.output()


def sessions(job: Job) -> list[bool]:
    """Does each rank's MPI process have a session of its own, and with it a group?"""
    pids = [rank["pid"] for rank in job.status()["ranks"]]
    return [os.getsid(pid) == os.getpgid(pid) == pid for pid in pids]


@pytest.mark.parametrize("starter", [["timeout", "100"], ["setsid", "-w"]], ids=["group and timer", "session"])
def test_groups_and_sessions(job: Job, wide: str, starter: list[str]) -> None:
    job.start(*starter, wide, "go")
    job.wait_for("ready")
    assert sessions(job) == [starter[0] == "setsid"] * 2
    for _ in range(2):
        job.checkpoint()
        restart(job)
        assert sessions(job) == [starter[0] == "setsid"] * 2
    (job.where / "go").touch()
    assert oks(job.finish()) == 1


def kernel() -> tuple[int, ...]:
    return tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of process ids")
@pytest.mark.skipif(kernel() < (6, 14), reason="all namespaces of process ids have one limit (Linux before 6.14)")
def test_process_ids_that_do_not_exist_at_the_restart(job: Job, wide: str) -> None:
    """Ids end before those of the checkpoint. The processes of the rank keep theirs."""
    ids = 400
    job.start("bash", "-c", f'sleep 1000 & child=$!; {wide} go; kill $child; wait $child; echo "child: $?"')
    job.wait_for("ready")
    assert min(job.pids()) > ids
    job.checkpoint()
    job.kill()
    limit = f'echo {ids} > /proc/sys/kernel/pid_max && cat /proc/sys/kernel/pid_max && exec "$@"'
    job.mpirun = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", limit, "sh", BIN / "mpirun"]
    job.restart()
    (job.where / "go").touch()
    output = job.finish()
    assert output.count("child: 143") == 2 and f"{ids}\n" in output and oks(output) == 1, output


def test_open_files_that_a_script_shares_with_the_solver(job: Job, wide: str) -> None:
    """One offset for both: what the script writes comes behind what the solver has written."""
    script = f"exec > log.$PMI_RANK 2>&1; echo before; {wide} go; echo after; read one; read two; echo $one $two"
    (job.where / "input").write_text("first\nsecond\nthird\n")
    job.start("bash", "-c", f"exec < input; read zero; {script}")
    log = job.where / "log.0"
    until(lambda: log.exists() and "ready" in log.read_text(), "the start of the solver")
    for _ in range(2):
        job.checkpoint()
        restart(job)
    (job.where / "go").touch()
    job.finish()
    lines = log.read_text().splitlines()
    assert (lines[0], lines[-3:]) == ("before", ["ok", "after", "second third"]), lines
    assert (job.where / "log.1").read_text().splitlines() == ["before", "after", "second third"]


def test_pipes_between_processes(job: Job, wide: str) -> None:
    """A filter behind the solver, and one that has what the solver does not read before its end."""
    (job.where / "numbers").write_text("".join(f"{i}\n" for i in range(1000)))
    command = f"cat numbers | sh -c '{wide} go; sort -n | tail -1' | sed -u s/ok/okay/ | tee seen.$PMI_RANK"
    job.start("bash", "-c", command)
    job.wait_for("ready")
    for _ in range(2):
        job.checkpoint()
        restart(job)
    (job.where / "go").touch()
    output = job.finish()
    assert output.count("okay") == 1 and output.count("999") == 2, output
    assert "okay" in (job.where / "seen.0").read_text()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("(sleep 1000 & echo $! > sleeper); {wide} go; kill $(cat sleeper)", "has lost its parent"),
        ("(kill -STOP $BASHPID) & {wide} go; kill -CONT $!", "which was forked without exec, does not answer"),
    ],
    ids=["daemon", "stopped fork"],
)
def test_what_cannot_be_saved_is_refused(make_job: Callable[..., Job], wide: str, command: str, reason: str) -> None:
    job = make_job(1)
    job.start("bash", "-c", command.format(wide=wide) + "; echo goes on", options=["--child-grace", "0.2"])
    refused(job, reason)


def test_images_of_a_tree_belong_together(make_job: Callable[..., Job], wide: str) -> None:
    job = make_job(1)
    job.start("sh", "-c", f"{wide} go; true")
    job.wait_for("ready")
    checkpoint = job.checkpoint()
    companion = checkpoint / "rank-00000.1.img"
    good = companion.read_bytes()
    assert companion.stat().st_mode & 0o777 == 0o600
    assert manapy("verify", checkpoint).returncode == 0
    shown = manapy("inspect", checkpoint).stdout
    assert "rank 0, 2 processes:" in shown and " wide (MPI process): " in shown and "sh: 1 thread, image " in shown
    job.kill()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    companion.write_bytes(damaged)
    said = manapy("verify", checkpoint)
    assert said.returncode != 0 and "rank-00000.1.img" in said.stdout + said.stderr
    companion.unlink()
    job.restart(checkpoint)
    assert job.wait() != 0
    assert "rank-00000.1.img: the image is missing" in job.output()


def test_local_storage_is_refused(make_job: Callable[..., Job], wide: str, tmp_path: Path) -> None:
    job = make_job(1)
    job.start("sh", "-c", f"{wide} go; true", options=["--local", tmp_path / "local"])
    job.wait_for("ready")
    with pytest.raises(JobError, match="cannot be saved to local storage"):
        job.checkpoint()
    (job.where / "go").touch()
    assert oks(job.finish()) == 1
