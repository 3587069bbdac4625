"""Chains of allocations in a real Slurm: a job longer than its allocations, lost nodes, damaged checkpoints,
preemption."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import events_in
from jobs import BIN, PATIENCE, PROGRAMS, JobError, manapy
from manapy.chain import slurm
from manapy.ckpt import command
from manapy.ckpt.store.job import read
from slurm import Cluster, no_cgroups
from solver import in_c
from waiting import until

pytestmark = pytest.mark.slurm

SRUN = "srun --mpi=pmi2"
HYDRA = "mpiexec -bootstrap slurm -n 4"
STEPS = 400  # eight residuals
LAST = STEPS - 50


def solver_options(out: Path, pause: float, steps: int = STEPS) -> list[str]:
    """Those of the solver: `pause` seconds for every 50 steps."""
    return ["--n", "64", "--steps", str(steps), "--pause", str(pause), "--out", str(out)]


def heat(out: Path, pause: float, steps: int = STEPS) -> list[str]:
    """The command of the solver, for manapy-launch."""
    return [str(in_c()), *solver_options(out, pause, steps)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], np.ndarray]:
    """The native result of four ranks after so many steps."""
    found: dict[int, np.ndarray] = {}

    def result(steps: int = STEPS) -> np.ndarray:
        if steps not in found:
            out = tmp_path_factory.mktemp("undisturbed") / "field.npy"
            program = [sys.executable, PROGRAMS / "steps/heat2d.py", *solver_options(out, 0, steps)]
            subprocess.run([BIN / "mpirun", "-n", "4", *program], check=True, capture_output=True, timeout=PATIENCE)
            found[steps] = np.load(out)
        return found[steps]

    return result


@dataclass
class Chain:
    """A submitted chain."""

    cluster: Cluster
    dir: Path
    job: int

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events of its history."""
        return events_in(self.dir, kind)

    def wait_for(self, what: Callable[[], object], timeout: float = PATIENCE) -> None:
        """Wait until a condition holds. Raises JobError with all available information if it doesn't, or if the chain
        ends before."""
        deadline = time.monotonic() + timeout
        while not what():
            over = any(event["event"] in ("finished", "stopped") for event in self.events()[-1:])
            if (over and not what()) or time.monotonic() > deadline:
                raise JobError(f"{'the chain is over' if over else f'{timeout:.0f} s'} without it\n{self.report()}")
            time.sleep(0.1)

    def wait_for_events(self, kind: str, count: int, timeout: float = PATIENCE) -> None:
        """Wait until there are so many events of a kind."""
        self.wait_for(lambda: len(self.events(kind)) >= count, timeout)

    def finish(self, timeout: float = PATIENCE) -> None:
        """Let the solver make its last steps, and wait until the chain has finished with exit code 0."""
        (self.dir.parent / "go").touch()
        self.wait_for_events("finished", 1, timeout)
        if self.events("finished")[0]["code"]:
            raise JobError(f"it has failed\n{self.report()}")

    def output(self) -> str:
        """The output of all its jobs."""
        return "".join(file.read_text(errors="replace") for file in sorted(self.dir.parent.glob("*.out")))

    def report(self) -> str:
        """All available information."""
        lines = [json.dumps(event) for event in self.events()]
        return "\n".join(["--- history", *lines, "--- output", self.output()[-4000:], self.cluster.report(self.job)])


def submitted(
    where: Path, on: Cluster, body: str, sbatch: str = "--time=5", options: tuple[str, ...] = (), last: int = LAST
) -> Chain:
    """Submit a chain with manapy slurm chain; its files are in the new folder `where`. The solver waits in step `last`
    for Chain.finish(): Slurm's commands may take longer than all of its work."""
    where.mkdir()
    script = where / "job.sh"
    hold = f'export STEPS_HOLD="{last} {where}/go"'
    script.write_text(f"#!/bin/bash\n#SBATCH --nodes=2 --ntasks=4 --output={where}/%j.out\n{hold}\n{body}\n")
    settings = ["--dir", where / "chain", "--poll", "1s", f"--sbatch={sbatch}", *options]
    done = manapy("slurm", "chain", *settings, script, env=on.env, cwd=where)
    assert done.returncode == 0, done.stderr
    return Chain(on, where / "chain", int(done.stdout))


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Chain]]:
    """Submits chains. Jobs that are left at the end are cancelled."""
    made: list[Chain] = []

    def chain(*arguments: Any, on: Cluster = cluster, **options: Any) -> Chain:
        made.append(submitted(tmp_path / f"chain-{len(made)}", on, *arguments, **options))
        return made[-1]

    yield chain
    for one in made:
        for job in {one.job, *(int(event["id"]) for event in one.events("successor"))}:
            one.cluster.command("scancel", str(job))
        one.cluster.wait_idle()


def body(launcher: str, out: Path, pause: float, steps: int = STEPS) -> str:
    """One step, and a command after it that records that it was reached."""
    return f"{launcher} manapy-launch {shlex.join(heat(out, pause, steps))} || exit $?\necho after >> {out}.after"


def check(chain: Chain, out: Path, expected: np.ndarray) -> None:
    """The result equals the undisturbed one bit for bit. What follows the step ran once, after it."""
    assert np.array_equal(np.load(out), expected), chain.report()
    assert Path(f"{out}.after").read_text() == "after\n", chain.report()


MANY_STEPS = 2000  # 40 residuals of 3 seconds: two allocations of a minute are too short


@pytest.fixture(scope="module")
def long_chains(make_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> list[Chain]:
    """Two minutes of work in allocations of one, by requeues under srun and by dependent jobs under Hydra. They have a
    cluster of their own, and go on during the other tests of this file."""
    cluster, where = make_cluster(nodes=3), tmp_path_factory.mktemp("long")
    ways: list[tuple[str, str, tuple[str, ...]]] = [("srun", SRUN, ()), ("hydra", HYDRA, ("--mode", "chain"))]
    return [
        submitted(where / name, cluster, body(launcher, where / f"{name}.npy", 3, MANY_STEPS), "--time=1", options, 0)
        for name, launcher, options in ways
    ]


def test_work_longer_than_an_allocation_begins(long_chains: list[Chain]) -> None:
    for chain in long_chains:
        chain.wait_for_events("attempt", 1)


@pytest.mark.parametrize("which", ["first", "other"])
def test_a_node_is_lost(
    cluster: Cluster, submit: Callable[..., Chain], undisturbed: Callable[[int], np.ndarray], tmp_path: Path, which: str
) -> None:
    out = tmp_path / "field.npy"
    chain = submit(body(SRUN, out, 1), options=("--interval", "2s"))
    chain.wait_for_events("checkpoint", 2)
    shown = cluster.show(chain.job)
    names = [name for name in cluster.names if name in expand(cluster, shown["NodeList"])]
    lost = shown["BatchHost"] if which == "first" else next(name for name in names if name != shown["BatchHost"])
    cluster.lose(lost)
    try:
        chain.finish()
        check(chain, out, undisturbed(STEPS))
        assert any(event["verdict"] == "resume" for event in chain.events("step")), chain.report()
        assert lost not in expand(cluster, chain.events("attempt")[-1]["nodes"][0]), "the lost node is used"
    finally:
        cluster.bring_back(lost)


def expand(cluster: Cluster, nodes: str) -> list[str]:
    """The names in a list like n[1-2]."""
    return cluster.command("scontrol", "show", "hostnames", nodes).split()


def test_a_damaged_checkpoint_is_skipped(
    cluster: Cluster, submit: Callable[..., Chain], undisturbed: Callable[[int], np.ndarray], tmp_path: Path
) -> None:
    out = tmp_path / "field.npy"
    chain = submit(body(SRUN, out, 1), options=("--interval", "1s"))
    chain.wait_for_events("checkpoint", 2)
    cluster.command("scontrol", "requeuehold", str(chain.job))
    cluster.wait_for(chain.job, lambda shown: shown["JobState"] == "PENDING")
    newest = sorted((chain.dir / "step-001").glob("ckpt-*"))[-1]
    image = newest / "rank-00002.img"
    with image.open("r+b") as stream:
        stream.seek(image.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    cluster.command("scontrol", "release", str(chain.job))
    chain.finish()
    check(chain, out, undisturbed(STEPS))
    (skipped,) = chain.events("skipped")
    assert skipped["path"] == str(newest) and "rank-00002.img" in skipped["reason"]
    resumed = [event["path"] for event in chain.events("step") if event["verdict"] == "resume"]
    assert resumed[0] == str(newest) > resumed[1], "rank 2 finds the damage, and the step asks again"
    assert chain.output().count(f"{newest} is damaged") == 1


def test_a_full_disk(submit: Callable[..., Chain], undisturbed: Callable[[int], np.ndarray], tmp_path: Path) -> None:
    """A message reports the failed checkpoint; the checkpoint before it stays and is good."""
    disk, out = tmp_path / "disk", tmp_path / "field.npy"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200m", "manapy-test", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        launch = (
            f"{SRUN} manapy-launch --dir {disk}/job {shlex.join(heat(out, 1))} || exit $?\necho after >> {out}.after"
        )
        chain = submit(launch, options=("--interval", "1s"))
        chain.wait_for_events("checkpoint", 1)
        # Unbuffered: closing it would write, and fail, once more.
        with (disk / "ballast").open("wb", buffering=0) as stream, pytest.raises(OSError):
            while True:
                stream.write(bytes(1 << 16))
        before = chain.events("checkpoint")
        chain.wait_for_events("failed", 1)
        assert "No space left" in chain.events("failed")[0]["reason"]
        chain.finish()
        check(chain, out, undisturbed(STEPS))
        assert "the checkpoint failed" in chain.output()
        verified = manapy("verify", before[-1]["path"])
        assert verified.returncode == 0, verified.stderr
        assert not list((disk / "job").glob("tmp-*"))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_an_allocation_too_short_for_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=3\ntrue\n")
    before = cluster.command("squeue", "--noheader", "--states=all")
    done = manapy(
        "slurm", "chain", "--dir", tmp_path / "chain", "--checkpoint-time", "2m", script, env=cluster.env, cwd=tmp_path
    )
    assert done.returncode == 1
    assert (
        done.stderr.startswith("manapy: an allocation of 180 s is too short for even one checkpoint")
        and done.stderr.count("\n") == 1
    )
    queued = [line for line in cluster.command("squeue", "--noheader").splitlines() if line not in before]
    assert not queued and not (tmp_path / "chain").exists()


@pytest.mark.parametrize("what", ["drained", "rebooted"])
def test_freed_nodes_are_left(
    cluster: Cluster, submit: Callable[..., Chain], undisturbed: Callable[[int], np.ndarray], tmp_path: Path, what: str
) -> None:
    """A node is drained for maintenance, or is to be rebooted: the job is saved at once, and goes on elsewhere."""
    out = tmp_path / "field.npy"
    chain = submit(body(HYDRA, out, 1))
    chain.wait_for(lambda: "step 100 " in chain.output())
    freed = expand(cluster, chain.events("attempt")[0]["nodes"][0])[1]
    if what == "drained":
        cluster.command("scontrol", "update", f"NodeName={freed}", "State=DRAIN", "Reason=maintenance")
    else:
        cluster.command("scontrol", "reboot", "ASAP", "nextstate=resume", "reason=maintenance", freed)
    try:
        chain.wait_for_events("end", 1)
        first = chain.events("end")[0]
        assert first["how"] == "yielded" and freed in first["reason"], chain.report()
        if what == "rebooted":
            cluster.reboot(freed)
        chain.finish()
        check(chain, out, undisturbed(STEPS))
        assert [event["verdict"] for event in chain.events("step")] == ["new", "resume"], chain.report()
        if what == "drained":
            assert freed not in expand(cluster, chain.events("attempt")[-1]["nodes"][0])
    finally:
        if what == "drained":
            cluster.command("scontrol", "update", f"NodeName={freed}", "State=RESUME")


def test_preemption(
    make_cluster: Callable[..., Cluster],
    submit: Callable[..., Chain],
    undisturbed: Callable[[int], np.ndarray],
    tmp_path: Path,
) -> None:
    """A job of higher priority takes the nodes. The running job is saved in its grace time, and goes on afterwards."""
    partitions = [
        "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 DefaultTime=10",
        "PartitionName=high Nodes=ALL PriorityTier=2 DefaultTime=10",
    ]
    settings = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    cluster = make_cluster(nodes=2, settings=settings, partitions=partitions)
    out = tmp_path / "field.npy"
    chain = submit(body(SRUN, out, 1), on=cluster)
    chain.wait_for(lambda: "step 100 " in chain.output())
    urgent = cluster.submit("sleep 1", "--partition=high", "--nodes=2", "--exclusive")
    cluster.finish(urgent)
    chain.finish()
    check(chain, out, undisturbed(STEPS))
    assert chain.events("end")[0]["how"] == "yielded", chain.report()
    assert any(event["verdict"] == "resume" for event in chain.events("step"))


def test_scancel_ends_the_chain(cluster: Cluster, submit: Callable[..., Chain], tmp_path: Path) -> None:
    chain = submit(body(SRUN, tmp_path / "field.npy", 1), options=("--mode", "chain"))
    chain.wait_for(lambda: "step 100 " in chain.output())
    cluster.cancel(chain.job)
    cluster.wait_for(chain.job, "CANCELLED")
    chain.wait_for_events("stopped", 1)
    (successor,) = chain.events("successor")
    assert cluster.show(int(successor["id"]))["JobState"] == "CANCELLED"


@pytest.mark.parametrize("mode", ["requeue", "chain"])
def test_stopped_by_the_user(
    cluster: Cluster,
    submit: Callable[..., Chain],
    undisturbed: Callable[[int], np.ndarray],
    tmp_path: Path,
    mode: str,
) -> None:
    """The program exits with 0, but the job does not, and none follows. The command that manapy says continues it."""
    out = tmp_path / "field.npy"
    chain = submit(body(SRUN, out, 1), options=("--mode", mode))
    chain.wait_for(lambda: "step 100 " in chain.output())
    assert manapy("stop", chain.dir, env=cluster.env).returncode == 0
    cluster.wait_for(chain.job, "FAILED")
    assert cluster.show(chain.job)["ExitCode"] == "75:0" and not chain.events("finished")
    successors = chain.events("successor")
    assert len(successors) == (mode == "chain")
    assert all(cluster.show(int(event["id"]))["JobState"] == "CANCELLED" for event in successors)
    (stopped,) = chain.events("stopped")
    assert f"continue: {stopped['again']}\n" in chain.output()
    chain.job = int(cluster.command(*shlex.split(stopped["again"])).split()[-1])
    until(lambda: chain.events("attempt")[1:], chain.report)
    chain.finish()
    assert [event["verdict"] for event in chain.events("step")] == ["new", "resume"], chain.report()
    assert np.array_equal(np.load(out), undisturbed(STEPS)), chain.report()


@pytest.mark.parametrize("nodes", [3, 4])
def test_cause_of_a_hang_is_excluded(
    make_cluster: Callable[..., Cluster], submit: Callable[..., Chain], tmp_path: Path, nodes: int
) -> None:
    """From the requeued job; the node that the user has excluded remains so. Three nodes would be too few."""
    cluster = make_cluster(nodes=nodes, own_hostnames=True)
    users = cluster.command("sinfo", "--noheader", "--Node", "--format=%N").split()[0]
    chain = submit(
        body(SRUN, tmp_path / "field.npy", 1),
        on=cluster,
        sbatch=f"--time=5 --exclude={users}",
        options=("--patience", "2s"),
    )
    chain.wait_for(lambda: "step 100 " in chain.output())
    stopped = command.status(read(chain.dir / "step-001"))["ranks"][3]
    os.kill(stopped["pid"], signal.SIGSTOP)
    chain.wait_for_events("excluded", 1)
    shown = ("squeue", "--noheader", "--states=all", f"--jobs={chain.job}", "--format=%x")
    excluded = {users, stopped["host"]} if nodes == 4 else {users}
    until(lambda: {*expand(cluster, cluster.command(*shown).strip())} == excluded, chain.report)
    if nodes == 3:
        chain.wait_for(
            lambda: f"cannot exclude {stopped['host']} from job {chain.job} (only 1 of the" in chain.output()
        )


def test_what_slurm_says_of_a_job(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is understood, whatever the user has written into the job's name. So is which job waits for it."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.env[name])
    lie = "x JobState=CANCELLED EndTime=2001-01-01T00:00:00 Restarts=9 Requeue=0 TimeLimit=00:00:01"
    job = cluster.command(
        "sbatch",
        "--parsable",
        "--requeue",
        f"--job-name={lie}",
        f"--comment={lie}",
        "--time=70",
        "--output=/dev/null",
        "--wrap=trap '' TERM; sleep 600",
    ).strip()
    until(lambda: slurm.show(job)["JobState"] == "RUNNING", "the job's start")
    said = slurm.show(job)
    assert (said["JobState"], said["Restarts"], said["Requeue"], slurm.seconds(said["TimeLimit"])) == (
        "RUNNING",
        "0",
        "1",
        4200,
    )
    assert (
        abs((slurm._epoch(said["EndTime"]) or 0) - time.time() - 4200) < 120
        and slurm._epoch(said.get("PreemptTime", "")) is None
    )
    assert not slurm.was_cancelled(job)
    script = tmp_path / "a name.sh"
    script.write_text("#!/bin/sh\n")
    after = slurm.submit_after(job, script, ["--output=/dev/null"])
    assert slurm._queued_after(job, script) == [after] and slurm._queued_after(after, script) == []
    cluster.command("scancel", job, after)
    until(lambda: slurm.show(job)["JobState"] != "RUNNING", "the last seconds of the job")
    assert abs((slurm._epoch(slurm.show(job)["EndTime"]) or 0) - time.time()) < 120
    until(lambda: slurm.was_cancelled(job), "the end of the job")
    with pytest.raises(slurm.SlurmError):
        slurm.show("999999")


def test_exit_code(cluster: Cluster, submit: Callable[..., Chain]) -> None:
    """The exit code of the script is the job's exit code, and no further job follows."""
    chain = submit(f'{SRUN} manapy-launch {sys.executable} -c "from mpi4py import MPI" || exit 9\nexit 3')
    cluster.wait_for(chain.job, "FAILED")
    assert cluster.show(chain.job)["ExitCode"] == "3:0"
    assert chain.events("finished")[0]["code"] == 3 and len(chain.events("attempt")) == 1


def test_no_progress(cluster: Cluster, submit: Callable[..., Chain]) -> None:
    """A program that crashes at every start isn't started for ever."""
    chain = submit(
        f'{SRUN} manapy-launch {sys.executable} -c "from mpi4py import MPI; import os, signal; os.kill(os.getpid(), '
        f'signal.SIGKILL)"'
    )
    cluster.wait_for(chain.job, "FAILED")
    assert cluster.show(chain.job)["ExitCode"] == "75:0"
    assert "it crashed 3 times in a row" in chain.events("stopped")[0]["reason"], chain.report()
    assert "giving up: it crashed 3 times in a row" in chain.output()
    again = shlex.split(chain.events("stopped")[0]["again"])
    assert again[-1] == "--force"
    cluster.wait_for(int(cluster.command(*again).split()[-1]), "FAILED")
    assert len(chain.events("attempt")) == 4, chain.report()


@pytest.fixture(scope="module")
def strict_cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two nodes that no process escapes: when the last task of a step on a node ends, all processes of the step there
    end, including manapy's coordinator."""
    if reason := no_cgroups():
        pytest.skip(reason)
    return make_cluster(nodes=2, settings={"ProctrackType": "proctrack/cgroup"})


@pytest.mark.parametrize("launcher", [SRUN, HYDRA], ids=["srun", "mpiexec"])
@pytest.mark.parametrize("code", [0, 7])
def test_end_of_the_first_node(strict_cluster: Cluster, submit: Callable[..., Chain], launcher: str, code: int) -> None:
    """Its tasks end long before the others. The end of the step is known all the same, and nothing runs twice."""
    program = (
        f"from mpi4py import MPI; import time; r = MPI.COMM_WORLD.rank; print('runs', flush=True); MPI.Finalize(); "
        f"time.sleep(r // 2 * 4); raise SystemExit({code})"
    )
    chain = submit(
        f'{launcher} manapy-launch {sys.executable} -c "{program}"', "--time=5 --ntasks-per-node=2", on=strict_cluster
    )
    chain.wait_for_events("finished", 1)
    assert [(event["how"], event["code"]) for event in chain.events("end")] == [("finished", code)], chain.report()
    assert chain.output().count("runs") == 4, chain.report()


def test_allocations_of_a_strict_cluster(
    strict_cluster: Cluster, submit: Callable[..., Chain], undisturbed: Callable[[int], np.ndarray], tmp_path: Path
) -> None:
    """The job is saved, ended and continued as on other clusters; also when Slurm takes its nodes by force."""
    out = tmp_path / "field.npy"
    chain = submit(body(SRUN, out, 1), options=("--interval", "1s"), on=strict_cluster)
    chain.wait_for_events("checkpoint", 2)
    strict_cluster.command("scontrol", "requeue", str(chain.job))
    chain.wait_for_events("attempt", 2)
    chain.finish()
    check(chain, out, undisturbed(STEPS))
    assert [event["verdict"] for event in chain.events("step")] == ["new", "resume"], chain.report()
    assert not list((chain.dir / "step-001").glob("tmp-*"))


def test_two_lines_in_a_script(cluster: Cluster, undisturbed: Callable[[int], np.ndarray], tmp_path: Path) -> None:
    """Submitted with sbatch as a job array: each task is a separate chain. The last task, whose SLURM_JOB_ID is the
    array's, is requeued when the first has ended, which is nothing to that one."""
    line = f'[ "$MANAPY_CHAIN" ] || exec {BIN}/manapy slurm guard --dir {tmp_path}/chain --interval 1s -- "$0" "$@"'
    step = f"mpiexec -bootstrap slurm -n 2 manapy-launch {shlex.join(heat(Path('X'), 0.5))}".replace(
        " X", f" {tmp_path}/$SLURM_ARRAY_TASK_ID-$1.npy"
    ).replace(" 0.5", " $((2 * SLURM_ARRAY_TASK_ID - 2)).5")
    script = f"#SBATCH --requeue --open-mode=append\n#SBATCH --array=1-2 --ntasks=2 --nodes=1\n{line}\n{step}"
    file = tmp_path / "job.sh"
    file.write_text(f"#!/bin/bash\n{script}\n")
    job = cluster.command("sbatch", "--parsable", f"--output={tmp_path}/%a.out", file, "word").strip()
    until(
        lambda: all((tmp_path / "chain" / f"task-{task}" / "step-001" / "latest").exists() for task in (1, 2)),
        lambda: [(file, file.read_text()) for file in tmp_path.glob("*.out")],
    )
    cluster.wait_for(f"{job}_1", "COMPLETED")  # type: ignore[arg-type]
    cluster.command("scontrol", "requeue", f"{job}_2")
    cluster.wait_for(f"{job}_2", "COMPLETED")  # type: ignore[arg-type]
    fields = [np.load(tmp_path / f"{task}-word.npy") for task in (1, 2)]
    assert np.array_equal(fields[0], fields[1])
    assert [event["verdict"] for event in events_in(tmp_path / "chain/task-2", "step")] == ["new", "resume"]
    first, second = (events_in(tmp_path / f"chain/task-{task}", "attempt") for task in (1, 2))
    assert [event["id"] for event in first + second] == [f"{job}_1", f"{job}_2", f"{job}_2"]
    assert all(event["deadline"] > event["time"] for event in first + second)


@pytest.mark.slow
def test_ready_scripts(cluster: Cluster, undisturbed: Callable[[int], np.ndarray], root: Path, tmp_path: Path) -> None:
    """The scripts of tools/slurm, unchanged, all at once. Each is removed from its nodes once, by hand."""
    chains = []
    for name in ("srun", "mpiexec", "array"):
        where = tmp_path / name
        where.mkdir()
        program, array = heat(where / "field.npy", 3), name == "array"
        # That script adds the task's number as last argument.
        options, program = (["--array=50"], [*program, "--every"]) if array else ([], program)
        file = root / "tools" / "slurm" / f"{name}.sbatch"
        job = cluster.command(
            "sbatch",
            "--parsable",
            "--time=1",
            "--time-min=1",
            *options,
            f"--output={where}/%j.out",
            f"--chdir={where}",
            file,
            *program,
        ).strip()
        chains.append((name, Chain(cluster, where / f"manapy-chain-{job}" / ("task-50" if array else ""), int(job))))
    for name, chain in chains:
        chain.wait_for_events("checkpoint", 1)
        if name != "mpiexec":
            cluster.command("scontrol", "requeue", str(chain.job) if name == "srun" else f"{chain.job}_50")
    for name, chain in chains:
        chain.finish()
        assert np.array_equal(np.load(tmp_path / name / "field.npy"), undisturbed(STEPS)), chain.report()
        verdicts = [event["verdict"] for event in chain.events("step")]
        assert verdicts == (["new"] if name == "mpiexec" else ["new", "resume"]), chain.report()
    cluster.wait_idle()


def test_bad_input(cluster: Cluster, tmp_path: Path) -> None:
    good = tmp_path / "job.sh"
    good.write_text("#!/bin/bash\ntrue\n")
    text = tmp_path / "text"
    text.write_text("no script\n")
    cases = [
        (["slurm", "chain", tmp_path / "nothing.sh"], "nothing.sh: No such file"),
        (["slurm", "chain", text], "must begin with '#!'"),
        (
            ["slurm", "chain", "--sbatch=--nodes=99", good],
            "scontrol: slurm_suspend error: Requested partition configuration not available now|sbatch: Batch job "
            "submission failed",
        ),
        (["slurm", "chain", "--sbatch=--nonsense", good], "nonsense"),
        (["slurm", "chain", "--margin", "0.5", good], "--margin must be at least 1"),
        (["slurm", "guard"], "the script is missing"),
        (["slurm", "guard", "--", good], "not a Slurm batch job"),
    ]
    for arguments, expected in cases:
        done = manapy(*arguments, env=cluster.env, cwd=tmp_path)
        assert done.returncode in (1, 2) and any(part in done.stderr for part in expected.split("|")), (
            arguments,
            done.stderr,
        )
        assert done.stderr.count("\n") == 1, done.stderr
    assert not [path for path in tmp_path.glob("manapy-chain-2*")], "a chain that was not submitted is left"


def test_without_slurm(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    done = manapy("slurm", "chain", script, env={"PATH": str(BIN)}, cwd=tmp_path)
    assert done.returncode == 1 and "sbatch: no such program" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_work_longer_than_an_allocation_ends(
    long_chains: list[Chain], undisturbed: Callable[[int], np.ndarray]
) -> None:
    """The last test of this file, so that the work is done by now."""
    for chain in long_chains:
        chain.finish(600)
        check(chain, chain.dir.parent.with_suffix(".npy"), undisturbed(MANY_STEPS))
        ends = [event["how"] for event in chain.events("end")]
        assert len(ends) >= 3 and set(ends[:-1]) == {"left"} and ends[-1] == "finished", chain.report()
    requeued, dependent = long_chains
    assert {event["id"] for event in requeued.events("attempt")} == {str(requeued.job)}
    assert int(requeued.cluster.show(requeued.job)["Restarts"]) >= 2
    ids = [event["id"] for event in dependent.events("attempt")]
    assert len(set(ids)) == len(ids)
    assert [event["id"] for event in dependent.events("successor")][:-1] == ids[1:]
    last = dependent.events("successor")[-1]["id"]
    assert dependent.cluster.show(int(last))["JobState"] == "CANCELLED", "a successor of a finished chain waits"
    table = manapy("history", requeued.dir)
    assert (
        table.returncode == 0
        and table.stdout.count("left") >= 2
        and (requeued.dir / "history.png").stat().st_size > 1000
    )
