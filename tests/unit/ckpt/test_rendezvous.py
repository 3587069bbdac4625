"""How ranks find each other and start the coordinator: drivers/rank.c with a process manager played here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from manapy.ckpt.store import job
from test_rank import PATIENCE, Process
from waiting import until


class Pmi:
    """PMI-1 as hydra implements it, for `size` ranks."""

    def __init__(self, size: int, local: int | None = None, value_max: int = 1024) -> None:
        self.size, self.local, self.value_max = size, size if local is None else local, value_max
        self.store: dict[str, str] = {}
        self.finalized: list[int] = []
        self.lines: list[str] = []
        self.may_get = threading.Event()  # until then `get` is not answered
        self.may_get.set()
        self._barrier = threading.Barrier(size)

    def environment(self, rank: int, fd: int) -> dict[str, str]:
        return {
            "PMI_FD": str(fd),
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(self.size),
            "MPI_LOCALNRANKS": str(self.local),
        }

    def serve(self, rank: int, end: socket.socket) -> None:
        # in a test of ranks that end early, or are killed while they are answered
        gone = contextlib.suppress(threading.BrokenBarrierError, ConnectionError)
        with gone, end, end.makefile("rw") as stream:
            for line in stream:
                self.lines.append(line)
                fields = dict(part.partition("=")[::2] for part in line.split())
                stream.write(self._answer(rank, fields) + "\n")
                stream.flush()

    def _answer(self, rank: int, fields: dict[str, str]) -> str:
        match fields["cmd"]:
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return f"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={self.value_max} rc=0"
            case "get_my_kvsname":
                return "cmd=my_kvsname rc=0 kvsname=kvs_1_0_2_host"
            case "put":
                assert len(fields["value"]) < self.value_max and fields["key"] not in self.store
                self.store[fields["key"]] = fields["value"]
                return "cmd=put_result rc=0"
            case "barrier_in":
                self._barrier.wait(PATIENCE)
                return "cmd=barrier_out tag=0"
            case "get":
                assert self.may_get.wait(PATIENCE)
                return f"cmd=get_result rc=0 value={self.store[fields['key']]}"
            case "finalize":
                self.finalized.append(rank)
                return "cmd=finalize_ack rc=0"
        raise AssertionError(fields)


@pytest.fixture
def coordinator(tmp_path: Path, root: Path) -> Path:
    """The program that an installation has beside the launcher."""
    script = tmp_path / "manapy"
    script.write_text(
        f"#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -c 'import sys; from manapy.cli import main; "
        f'sys.exit(main())\' "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def run(tmp_path: Path, coordinator: Path, driver: Callable[[str], Path]) -> Iterator[Callable[..., list[Process]]]:
    """Starts a job of `size` ranks in tmp_path/where."""
    processes: list[Process] = []
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "SLURM_", "OMPI_", "PMIX_"))}

    def start(
        *options: str | Path,
        size: int = 2,
        pmi: Pmi | None = None,
        env: dict[str, str] | None = None,
        cwd: Path = tmp_path,
    ) -> list[Process]:
        started = []
        for rank in range(size):
            environment = {**clean, "MANAPY_COMMAND": str(coordinator), **(env or {})}
            keep = []
            if pmi is not None:
                ours, theirs = socket.socketpair()
                threading.Thread(target=pmi.serve, args=(rank, ours), daemon=True).start()
                environment |= pmi.environment(rank, theirs.fileno())
                keep = [theirs.fileno()]
            started.append(Process([str(driver("rank")), *map(str, options)], env=environment, cwd=cwd, pass_fds=keep))
            if pmi is not None:
                theirs.close()
        processes.extend(started)
        return started

    yield start
    for process in processes:
        process.kill()


def joined(process: Process) -> dict[str, str]:
    """What the rank has found."""
    names = ("rank", "size", "local", "host", "port", "dir", "pmi", "fd")
    return dict(zip(names, process.expect("joined ").split(" ")[1:], strict=True))


def coordinator_of(directory: Path) -> int:
    """The process id of the coordinator, from the file that it has written."""
    return int(until(lambda: job.read(directory).record["pid"], (directory / "coordinator.log").read_text))


def gone(directory: Path) -> job.Job:
    """Wait until the coordinator has ended; the job's last record."""

    def ended() -> job.Job | None:
        found = job.read(directory)
        return found if found.record["pid"] and not Path(f"/proc/{found.record['pid']}").exists() else None

    found: job.Job = until(ended, (directory / "coordinator.log").read_text)
    return found


def failed(process: Process) -> str:
    """Wait until the rank fails; its message."""
    assert process.process.wait(PATIENCE) == 1
    return process.process.stderr.read()


def test_alone(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    (process,) = run(size=1)
    found = joined(process)
    directory = Path(found["dir"])
    assert directory.parent == tmp_path and re.fullmatch(r"manapy-[0-9a-z]{10}", directory.name)
    assert (found["rank"], found["size"], found["host"], found["fd"]) == ("0", "1", "127.0.0.1", "-")
    assert stat.S_IMODE((directory / "secret").stat().st_mode) == 0o600 and (directory / "secret").stat().st_size == 32
    process.order("init")
    assert process.end() == 0
    last = gone(directory)
    assert last.state in ("done", "ended") and last.ranks == 1 and last.argv[0].endswith("/rank")


def test_two_ranks(run: Callable[..., list[Process]]) -> None:
    pmi = Pmi(2)
    ranks = run(size=2, pmi=pmi)
    found = [joined(r) for r in ranks]
    assert (
        [f["rank"] for f in found] == ["0", "1"]
        and found[0]["dir"] == found[1]["dir"]
        and found[0]["port"] == found[1]["port"]
    )
    assert all(int(f["fd"]) >= 512 for f in found)
    directory = Path(found[0]["dir"])
    read = job.read(directory)
    from manapy.ckpt import command

    path = command.checkpoint(read)
    assert path == directory / "ckpt-000001" and sorted(p.name for p in path.iterdir()) == [
        "manifest.json",
        "rank-00000.img",
        "rank-00001.img",
    ]
    status = command.status(read)
    assert [r["pid"] for r in status["ranks"]] == [r.process.pid for r in ranks]
    assert ranks[1].end() == 0
    assert pmi.finalized == [1], "a rank that ends without MPI must not look crashed"
    assert ranks[0].end() == 0
    assert gone(directory).state == "done"


def test_coordinator_has_nothing_of_the_rank(run: Callable[..., list[Process]]) -> None:
    pmi = Pmi(1)
    (process,) = run(size=1, pmi=pmi)
    directory = Path(joined(process)["dir"])
    pid = coordinator_of(directory)
    links = {os.readlink(f"/proc/{process.process.pid}/fd/{fd}") for fd in (0, 1, 2)} | {
        os.readlink(f"/proc/{process.process.pid}/fd/512")
    }
    theirs = {os.readlink(p) for p in Path(f"/proc/{pid}/fd").iterdir()}
    assert not links & theirs and str(directory / "lock") in theirs
    assert os.getsid(pid) != os.getsid(process.process.pid)
    process.end()


def test_long_path_and_small_values(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ("ä b=%" * 40)
    deep.mkdir(parents=True)
    ranks = run("--dir", deep / "job", size=2, pmi=Pmi(2, value_max=256))
    directory = deep / "job"
    for rank in ranks:
        assert rank.expect("joined").split(" ", 6)[6].startswith(str(directory))
    for rank in ranks:
        rank.end()


def test_several_jobs_at_once(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    jobs = [run(size=1)[0] for _ in range(5)]
    assert len({joined(p)["dir"] for p in jobs}) == 5
    for process in jobs:
        process.end()


def test_directory_of_a_live_job_is_refused(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    first = run("--dir", "job", size=1)[0]
    joined(first)
    pmi = Pmi(2)
    second, other = run("--dir", "job", size=2, pmi=pmi)
    assert re.fullmatch(rf"rank: the job in {tmp_path}/job is still running; .*\n", failed(second))
    assert failed(other) == "", "only rank 0 says it"
    (tmp_path / "job/ckpt-000001").mkdir()
    (again,) = run("--resume", tmp_path / "job/ckpt-000001", size=1)
    assert failed(again).endswith("(manapy stop " + str(tmp_path / "job") + ")\n"), "a restart has no --dir"
    first.end()
    gone(tmp_path / "job")
    third = run("--dir", "job", size=1)[0]
    joined(third)
    third.end()


def test_no_rank_ends_while_another_reads_why(run: Callable[..., list[Process]]) -> None:
    """Hydra would break down, and could lose what rank 0 has said."""
    first = run("--dir", "job", size=1)[0]
    joined(first)
    pmi = Pmi(2)
    pmi.may_get.clear()
    second, other = run("--dir", "job", size=2, pmi=pmi)
    assert "is still running" in second.process.stderr.readline()
    until(lambda: sum("barrier_in" in line for line in pmi.lines) == 3, lambda: str(pmi.lines))
    assert second.process.poll() is None and other.process.poll() is None
    pmi.may_get.set()
    assert failed(second) == failed(other) == ""
    first.end()


def test_lock_whose_holder_does_not_answer(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    """Its coordinator is stopped. A file server that keeps the lock of a crashed host looks alike."""
    first = run("--dir", "job", size=1)[0]
    directory = Path(joined(first)["dir"])
    pid = coordinator_of(directory)
    os.kill(pid, signal.SIGSTOP)
    try:
        said = failed(run("--dir", "job", size=1)[0])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert said == (
        f"manapy-launch: the job in {directory} does not answer, but its lock is held; waiting up to 17 s\n"
        f"rank: the job in {directory} does not answer, but its lock is held: end its coordinator (process {pid} on "
        f"{socket.gethostname()}), or remove {directory}/lock if that host has crashed, or name another directory with "
        "--dir\n"
    )
    first.end()


def test_lock_whose_holder_answers_late(run: Callable[..., list[Process]]) -> None:
    """Its coordinator goes on, notices that its rank was killed, and ends: the next job only has to wait."""
    first = run("--dir", "job", size=1)[0]
    pid = coordinator_of(Path(joined(first)["dir"]))
    os.kill(pid, signal.SIGSTOP)
    try:
        first.process.send_signal(signal.SIGKILL)
        second = run("--dir", "job", size=1)[0]
        assert second.process.stderr.readline().endswith("its lock is held; waiting up to 17 s\n")
    finally:
        os.kill(pid, signal.SIGCONT)
    joined(second)
    second.end()


def test_killed_job_can_be_taken_over_at_once(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    first = run("--dir", "job", size=1)[0]
    coordinator_of(Path(joined(first)["dir"]))
    first.process.send_signal(signal.SIGKILL)
    second = run("--dir", "job", size=1)[0]
    joined(second)
    second.end()


def test_restart_goes_on_in_the_job_directory(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    from manapy.ckpt import command

    first = run(size=1)[0]
    directory = Path(joined(first)["dir"])
    path = command.checkpoint(job.read(directory))
    first.kill()
    second = run("--resume", path, "--generation", "1", "--expect", "1", size=1)[0]
    assert joined(second)["dir"] == str(directory)
    second.start("ready")
    second.expect("go")
    assert command.checkpoint(job.read(directory)).name == "ckpt-000002"
    second.end()
    assert gone(directory).record["resumed_from"] == str(path)


def test_checkpoint_that_was_moved_gets_a_new_job(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "ckpt-000001"
    moved.mkdir(parents=True)
    (process,) = run("--resume", moved, size=1)
    assert Path(joined(process)["dir"]).name.startswith("manapy-")
    assert os.listdir(moved.parent) == ["ckpt-000001"]
    process.kill()


def test_wrong_rank_count(run: Callable[..., list[Process]]) -> None:
    ranks = run("--expect", "3", size=2, pmi=Pmi(2))
    assert failed(ranks[0]) == "rank: the checkpoint has 3 ranks, but 2 were started: use mpirun -n 3\n"
    assert failed(ranks[1]) == ""


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "file/job"])
def test_bad_directory(run: Callable[..., list[Process]], tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    text = failed(run("--dir", place, size=1)[0])
    assert text.startswith("rank: cannot ") and place in text and text.count("\n") == 1


def test_no_coordinator_to_start(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    text = failed(run(size=1, env={"MANAPY_COMMAND": str(tmp_path / "missing")})[0])
    assert text.startswith("rank: cannot start the coordinator") and text.count("\n") == 1


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"PMIX_RANK": "0"}, "Open MPI's launcher has started this job without PMIx"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "use srun --mpi=pmi2"),
        ({"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "0"}, "use srun --mpi=pmi2"),
        ({"PMI_FD": "5", "PMI_RANK": "3", "PMI_SIZE": "2"}, "contradict each other"),
        ({"PMI_FD": "77", "PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_FD=77 is closed"),
        ({"PMI_PORT": "host:4711", "PMI_ID": "0"}, "gives this rank no PMI_FD"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "gives this rank no PMI_FD"),
    ],
)
def test_other_process_managers(run: Callable[..., list[Process]], env: dict[str, str], text: str) -> None:
    assert text in failed(run(size=1, env=env)[0])


def test_several_hosts_use_the_hosts_address(run: Callable[..., list[Process]]) -> None:
    """One rank of two is on this host: the socket must not be bound to loopback."""
    listed = subprocess.run(["ip", "-4", "-o", "addr", "show", "up"], capture_output=True, text=True).stdout
    if not re.search(r"inet (?!127\.)", listed):
        pytest.skip("this machine has loopback only")
    ranks = run(size=2, pmi=Pmi(2, local=1))
    found = joined(ranks[0])
    assert not found["host"].startswith("127.") and found["host"] != "0.0.0.0"
    joined(ranks[1])
    for rank in ranks:
        rank.end()


def test_coordinator_outlives_no_rank(run: Callable[..., list[Process]]) -> None:
    (process,) = run(size=1)
    directory = Path(joined(process)["dir"])
    process.kill()
    assert gone(directory).state in ("failed", "ended")


def test_record(run: Callable[..., list[Process]], tmp_path: Path) -> None:
    (process,) = run('a "b"\n', size=1)
    directory = Path(joined(process)["dir"])
    process.end()
    gone(directory)
    record = json.loads((directory / "job.json").read_text())
    assert (
        record["argv"][1] == 'a "b"\n'
        and record["cwd"] == str(tmp_path)
        and record["manapy"]
        and record["rank0_pid"] == process.process.pid
    )
