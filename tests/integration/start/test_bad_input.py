"""Bad input: each time one clear line, a non-zero exit code, no damage, and no process left hanging."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import images
import pytest
from compiling import SHARED, build
from jobs import BIN, PATIENCE, Job, launch, manapy, run
from phases import STANDING, is_one_line

from manapy.ckpt.store import image
from waiting import until_gone

WORDS = {
    "--background": "auto or off",
    "--compress": "auto, on or off",
    "--on-failover": "continue or checkpoint",
    "--shift": "auto, off or require",
}
SOLVER = ("--n", "64", "--steps", "3000", "--every", "20", "--pause", "0.03", "--out", "field.npy")
HELD = 1500  # the step in which it waits until a test lets it end


def begin_checkpoint(job: Job) -> subprocess.Popen[str]:
    """Start `manapy checkpoint`, and don't wait for it."""
    return subprocess.Popen(
        [str(BIN / "manapy"), "checkpoint", str(job.dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def manapy_lines(text: str) -> list[str]:
    """The lines that manapy's own programs have printed."""
    return [line for line in text.splitlines() if re.match(r"(\[.*\] )?manapy", line)]


@pytest.fixture
def checkpointed(make_job: Callable[..., Job]) -> Job:
    """A 2-rank job that was checkpointed and killed."""
    job = make_job(2)
    job.hold(HELD)
    job.start_python("steps/heat2d.py", *SOLVER)
    job.wait_for("step 400 ")
    job.checkpoint()
    job.kill()
    return job


@pytest.fixture
def running(make_job: Callable[..., Job]) -> Job:
    """A running 2-rank job."""
    job = make_job(2)
    job.hold(HELD)
    job.start_python("steps/heat2d.py", *SOLVER)
    job.wait_for("step 200 ")
    return job


def refused(job: Job, text: str, *options: str) -> None:
    """Both ways to restart refuse the latest checkpoint. `manapy restart` does so before it starts mpirun."""
    witness = job.where / "mpirun"
    witness.write_text('#!/bin/sh\ntouch "$(dirname "$0")/started"\n')
    witness.chmod(0o755)
    done = manapy("restart", job.dir, "--mpirun", witness, *options)
    assert done.returncode == 1, done
    assert re.search(text, done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not (job.where / "started").exists(), "mpirun was started"


def refused_by_ranks(job: Job, text: str, ranks: int = 2) -> None:
    """mpirun -n RANKS manapy-restart fails with one line that gives the reason (mpirun adds its own lines)."""
    job.restart(ranks=ranks)
    assert job.wait() != 0
    assert any(re.search(text, line) for line in manapy_lines(job.output())), job.output()


def test_wrong_rank_count(checkpointed: Job) -> None:
    refused(checkpointed, r"has 2 ranks.* 3", "-n", "3")
    refused_by_ranks(checkpointed, "has 2 ranks, but 3 were started", ranks=3)
    checkpointed.restart().finish()


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "swapped"])
def test_damaged_image(checkpointed: Job, damage: str) -> None:
    victim = checkpointed.dir / "latest" / "rank-00001.img"
    whole = victim.read_bytes()
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        victim.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        images.flip(victim, len(whole) // 3)
    else:
        shutil.copyfile(checkpointed.dir / "latest" / "rank-00000.img", victim)
    if damage != "flipped":  # the ranks look at the content
        refused(checkpointed, "rank-00001.img")
    assert manapy("verify", checkpointed.dir).returncode == 1
    refused_by_ranks(checkpointed, "rank-00001.img")
    victim.write_bytes(whole)
    checkpointed.restart().finish()


def test_image_that_its_job_has_not_written(checkpointed: Job) -> None:
    """Every checksum is right; or everything is, except for the owner.

    Then a copy of the checkpoint alone, without the secret, and with it.
    """
    victim = checkpointed.dir / "latest" / "rank-00001.img"
    whole = victim.read_bytes()
    images.forge(victim)
    refused(checkpointed, "not the image that the manifest names")
    refused_by_ranks(checkpointed, "rank-00001.img: changed after its job had written it")
    victim.write_bytes(whole)
    if os.geteuid() == 0:
        for path in (victim, victim.parent.resolve()):
            os.chown(path, 65533, 65533)
            refused(checkpointed, "belongs to another user")
            refused_by_ranks(checkpointed, "belongs to another user")
            os.chown(path, 0, 0)
    alone = shutil.copytree(victim.parent, checkpointed.where / "alone")
    checkpointed.restart(alone)
    assert checkpointed.wait() != 0 and "without the job's secret" in checkpointed.output()
    shutil.copy(checkpointed.dir / "secret", alone)
    checkpointed.restart(alone).finish()


def test_cpu_without_recorded_features(checkpointed: Job) -> None:
    for path in (checkpointed.dir / "latest").glob("rank-*.img"):
        data = bytearray(path.read_bytes())
        header = image.HeaderStruct.from_buffer_copy(data)
        for i in range(len(header.cpu_features)):
            header.cpu_features[i] |= 0xFFFFFFFF
        images.finish(header, data, (checkpointed.dir / "secret").read_bytes())
        path.write_bytes(data)
    refused_by_ranks(checkpointed, r"(?i)cpu")


def test_unknown_program(tmp_path: Path) -> None:
    done = launch("no-such-program", cwd=tmp_path)
    assert done.returncode != 0
    assert "cannot run 'no-such-program': no such program" in done.stderr + done.stdout
    assert not list(tmp_path.glob("manapy-*")), "a job directory was left behind"


def test_session_after_finalize(tmp_path: Path) -> None:
    """MPICH could do this, and manapy can't: the error goes to the error handler that the call gets, and the program
    goes on."""
    program = (
        "from mpi4py import MPI\nMPI.Finalize()\ntry: MPI.Session.Init(errhandler=MPI.ERRORS_RETURN)\n"
        "except MPI.Exception as e: print(f'{e.error_class == MPI.ERR_OTHER}\\n', end='')"
    )
    done = launch("--dir", tmp_path / "job", sys.executable, "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n", ""), done


def test_no_mpi_found(tmp_path: Path) -> None:
    done = launch("--mpi", tmp_path / "nowhere", sys.executable, "-c", "from mpi4py import MPI", cwd=tmp_path)
    assert done.returncode != 0
    assert f"no MPI library at {tmp_path / 'nowhere'}" in done.stderr + done.stdout


def test_mpi_of_another_family(tmp_path: Path) -> None:
    """Its ranks would not find each other under MPICH's mpirun."""
    text = "int ompi_mpi_comm_world;\nint MPI_Init(int *c, char ***v) { (void)c; (void)v; return 0; }\n"
    library = build(tmp_path / "libmpi.so.40", text, *SHARED)
    done = launch("--mpi", library, sys.executable, "-c", "from mpi4py import MPI", cwd=tmp_path)
    assert done.returncode != 0
    assert re.search(r"is Open MPI: each rank would become a job of its own.*libmpi\.so\.40", done.stderr + done.stdout)


def test_unwritable_job_directory(tmp_path: Path) -> None:
    done = launch("--dir", "/proc/nowhere", "/bin/true", cwd=tmp_path)
    assert done.returncode != 0
    assert "cannot make the job directory /proc/nowhere" in done.stderr + done.stdout


def test_full_disk(make_job: Callable[..., Job], small_disk: Path) -> None:
    job = make_job(2)
    job.where = small_disk
    job.hold(HELD)
    job.start_python("steps/heat2d.py", *SOLVER)
    job.wait_for("step 200 ")
    filler = small_disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - (2 << 20)))
    done = manapy("checkpoint", job.dir)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and is_one_line(done.stderr), done.stderr
    assert not list(job.dir.glob("tmp-*")) and not list(job.dir.glob("ckpt-*"))
    filler.unlink()
    job.finish()


def written(pid: int) -> int:
    """The number of bytes that a process has written so far."""
    return int(re.search(r"^wchar: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)[1])


def test_one_full_disk_stops_the_others_no_longer(make_job: Callable[..., Job]) -> None:
    """Rank 1's image can't be written. Rank 0, which has much to write, is released before it has written
    everything."""
    job = make_job(2)
    job.start_python("moments/quota.py", options=(*STANDING, "--dirty", "off"))
    job.wait_for("ready")
    rank0 = job.pids()[0]
    before = written(rank0)
    job.checkpoint()
    whole = written(rank0) - before
    (job.where / "limit").touch()
    job.wait_for("limited")
    before = written(rank0)
    done = manapy("checkpoint", job.dir)
    assert done.returncode == 1 and "rank 1: cannot write the image: File too large" in done.stderr, done.stderr
    (job.where / "unlimit").touch()
    job.wait_for("unlimited")  # the program runs again: rank 0 writes nothing more
    assert written(rank0) - before < 0.9 * whole
    job.checkpoint()
    (job.where / "end").touch()
    job.finish()


def test_stale_job_file(checkpointed: Job) -> None:
    done = manapy("checkpoint", checkpointed.dir)
    assert done.returncode == 1
    assert re.search("(?i)not running|ended|no longer|died", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1
    checkpointed.restart().finish()


def test_wrong_secret(running: Job) -> None:
    secret = running.dir / "secret"
    good = secret.read_bytes()
    secret.write_bytes(bytes(32))
    done = manapy("checkpoint", running.dir)
    assert done.returncode == 1
    assert "secret" in done.stderr and len(done.stderr.splitlines()) == 1
    secret.write_bytes(good)
    running.checkpoint()
    running.finish()


def test_secret_is_private(running: Job) -> None:
    assert (running.dir / "secret").stat().st_mode & 0o777 == 0o600
    record = json.loads((running.dir / "job.json").read_text())
    assert record["host"] == "127.0.0.1"


@pytest.mark.parametrize("victim", [0, 1])
def test_dead_rank_leaves_nobody_hanging(running: Job, victim: int) -> None:
    first = running.checkpoint()
    pids = running.pids()
    os.kill(pids[victim], signal.SIGKILL)
    assert running.wait() != 0
    until_gone(pids)
    assert (running.dir / "latest").resolve() == first
    running.restart().finish()


def test_rank_dies_during_checkpoint(running: Job) -> None:
    first = running.checkpoint()
    pids = running.pids()
    os.kill(pids[1], signal.SIGSTOP)
    command = begin_checkpoint(running)
    running.wait_for(lambda _: running.status()["phase"] != "idle")
    os.kill(pids[1], signal.SIGKILL)
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 1 and errors.strip()
    assert running.wait() != 0
    assert (running.dir / "latest").resolve() == first
    running.restart().finish()


def test_two_checkpoints_at_once(running: Job) -> None:
    commands = [begin_checkpoint(running) for _ in range(2)]
    for command in commands:
        output, errors = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, errors
        assert manapy("verify", output.strip()).returncode == 0
    running.finish()


def test_directory_of_a_live_job(running: Job, tmp_path: Path) -> None:
    done = launch("--dir", running.dir, "/bin/true", cwd=tmp_path)
    assert done.returncode != 0 and "is still running" in done.stderr + done.stdout
    running.finish()


@pytest.mark.parametrize("command", ["manapy-launch", "manapy-restart"])
@pytest.mark.parametrize("option", WORDS)
def test_other_words(command: str, option: str) -> None:
    done = run([BIN / command, option, "maybe", "x"])
    assert done.returncode == 2
    assert done.stderr == f"{command}: {option} needs {WORDS[option]}, not maybe (see --help)\n"
