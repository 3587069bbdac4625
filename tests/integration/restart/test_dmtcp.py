"""Programs written for DMTCP, under manapy-launch, alone, and, if it is installed, under dmtcp_launch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import STRICT, build
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy, oks
from rounds import rounds
from waiting import until


@pytest.fixture(scope="module")
def program(c_program: Callable[[Path], Path]) -> Path:
    return c_program(PROGRAMS / "dmtcp/dmtcp_api.c")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled without MPI, with which not every version of the original works."""
    return build(tmp_path_factory.mktemp("alone") / "alone", PROGRAMS / "dmtcp/dmtcp_api.c", *STRICT, "-DWITHOUT_MPI")


def run(where: Path, *command: str | Path) -> str:
    """The output of a command that ends with exit code 0."""
    done = subprocess.run(
        [str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd=where
    )
    assert done.returncode == 0, done
    return done.stdout


def returned(output: str) -> list[str]:
    """The values that `dmtcp_api alone` prints."""
    return [
        line for line in output.splitlines() if re.match("enabled|start:|disable|set|names|checkpoint|after:|ok", line)
    ]


CODES = [
    "enabled 1",
    "start: coordinator 4 peers 1 running 1, local 4 checkpoints 0 restarts 0, generation 0",
    "disable 1 1 enable 1 1",
    "set 4 4",
    "names 1 1 1",
]
WENT_ON = [
    "checkpoint 1",
    "after: coordinator 4 peers 1 running 1, local 4 checkpoints 1 restarts 0, generation 1",
    "ok",
]
CAME_BACK = [
    "checkpoint 2",
    "after: coordinator 4 peers 1 running 1, local 4 checkpoints 0 restarts 1, generation 1",
    "ok",
]


def test_without_an_engine(alone: Path, tmp_path: Path) -> None:
    absent = "coordinator 3 peers -1 running -1, local 3 checkpoints -1 restarts -1, generation 0"
    assert returned(run(tmp_path, alone, "alone")) == [
        "enabled 0",
        f"start: {absent}",
        "disable 3 3 enable 3 3",
        "set 3 3",
        "names 0 0 0",
        "checkpoint 3",
        f"after: {absent}",
        "ok",
    ]


@pytest.mark.parametrize("mpi", [True, False], ids=["MPI program", "no MPI program"])
def test_codes(program: Path, alone: Path, make_job: Callable[..., Job], mpi: bool) -> None:
    job = make_job(1)
    assert returned(job.start(program if mpi else alone, "alone").finish()) == CODES + WENT_ON
    assert returned(job.restart().finish()) == CAME_BACK


def test_codes_are_those_of_dmtcp(alone: Path, tmp_path: Path) -> None:
    """The same program under the original DMTCP."""
    if shutil.which("dmtcp_launch") is None:
        pytest.skip("no dmtcp_launch (DMTCP isn't installed)")
    engine = ["--new-coordinator", "--coord-port", "0"]
    assert returned(run(tmp_path, "dmtcp_launch", *engine, "--no-gzip", alone, "alone")) == CODES + WENT_ON
    assert returned(run(tmp_path, "dmtcp_restart", *engine, *tmp_path.glob("ckpt_*.dmtcp"))) == CAME_BACK


SENT = ["set 4 as given 1 there 0", "checkpoint 1", "set to given 1 image 1", "ok"]
SENT_BACK = ["checkpoint 2", "set to real path 1 image 1", "ok"]


def test_other_directory(alone: Path, make_job: Callable[..., Job]) -> None:
    job = make_job(1)
    assert returned(job.start(alone, "place", "elsewhere").finish()) == SENT
    assert [path.name for path in job.where.glob("elsewhere/*/ckpt-*")] == ["ckpt-000001"] and (
        job.where / "elsewhere"
    ).stat().st_mode & 0o777 == 0o700
    assert returned(job.restart().finish()) == SENT_BACK


def test_other_directory_with_dmtcp(alone: Path, tmp_path: Path) -> None:
    if shutil.which("dmtcp_launch") is None:
        pytest.skip("no dmtcp_launch (DMTCP isn't installed)")
    engine = ["--new-coordinator", "--coord-port", "0"]
    assert returned(run(tmp_path, "dmtcp_launch", *engine, "--no-gzip", alone, "place", "elsewhere")) == SENT
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700
    assert returned(run(tmp_path, "dmtcp_restart", *engine, *tmp_path.glob("elsewhere/ckpt_*.dmtcp"))) == SENT_BACK


def send(job: Job, directory: str | Path) -> None:
    """From now on the program sends its checkpoints to this directory."""
    file = job.where / "send.new"
    file.write_text(str(directory))
    file.rename(job.where / "send")
    job.wait_for(f"sent to {directory}: 4 {directory}\n")


def test_places(job: Job) -> None:
    """For every command, checkpoints in two directories form one sequence."""
    elsewhere = job.where / "else where"
    job.start_python("dmtcp/dmtcp_places.py")
    assert job.wait_for(lambda t: t.count("begins at") == 2).count(f"begins at {job.dir}\n") == 2
    first = job.checkpoint()
    send(job, "else where")
    second, third = job.checkpoint(), job.checkpoint()
    place = second.parent
    assert place.parent == elsewhere and third.parent == place
    assert [path.name for path in (first, second, third)] == ["ckpt-000001", "ckpt-000002", "ckpt-000003"]
    assert (
        job.status()["checkpoint_dir"] == str(place) == json.loads((job.dir / "job.json").read_text())["checkpoint_dir"]
    )
    assert job.status()["last_checkpoint"]["path"] == str(third)
    assert f"checkpoints go to {place}\n" in manapy("status", job.dir).stdout
    listed = json.loads(manapy("list", job.dir, "--json").stdout)
    assert [(row["path"], row["latest"]) for row in listed] == [
        (str(first), False),
        (str(second), False),
        (str(third), True),
    ]
    assert str(second) in manapy("list", job.dir).stdout
    assert json.loads(manapy("inspect", job.dir, "--json").stdout)["checkpoint"] == str(third)
    assert manapy("verify", job.dir).stdout.startswith(f"{third}: 2 images")
    job.kill()

    back = f"is back in {elsewhere} image {place}/ckpt-00000"
    job.restart_by_command()
    job.wait_for(lambda t: t.count(back) == 2)
    assert job.checkpoint() == place / "ckpt-000004"
    job.kill()
    job.restart(second)
    job.wait_for(lambda t: t.count(back) == 2)
    assert json.loads((job.dir / "job.json").read_text())["resumed_from"] == str(second)
    assert job.checkpoint() == place / "ckpt-000005"
    job.kill()
    job.restart(first)
    job.wait_for(lambda t: t.count(f"is back in {job.dir} image ") == 2)
    assert job.checkpoint() == job.dir / "ckpt-000006", "they go to where the one lies that it comes from"
    send(job, elsewhere)
    assert job.checkpoint() == place / "ckpt-000007"
    send(job, job.dir)
    assert job.checkpoint() == job.dir / "ckpt-000008"
    assert not [path for where in (job.dir, place) for path in where.glob("tmp-*")]

    assert manapy("verify", second).returncode == 0
    removed = manapy("prune", job.dir, "--keep", "2")
    assert removed.returncode == 0 and removed.stdout.count("deleted") == 6
    assert sorted(path.name for path in job.dir.glob("ckpt-*")) == ["ckpt-000007", "ckpt-000008"]
    assert sorted(path.name for path in place.iterdir()) == ["ckpt-000007", "latest", "manapy-job"]
    (job.where / "end").touch()
    assert oks(job.finish()) == 2
    (job.dir / "latest").unlink()
    shutil.rmtree(job.dir / "ckpt-000008")
    (job.where / "end").unlink()
    job.restart_by_command()
    job.wait_for(lambda t: t.count(f"{back}7/") == 2)
    (job.where / "end").touch()
    assert oks(job.finish()) == 2


def test_directory_that_cannot_be_used(job: Job) -> None:
    """The checkpoint fails with one line, before anything has stopped. The earlier checkpoints and the job are
    unchanged."""
    job.start_python("dmtcp/dmtcp_places.py")
    job.wait_for(lambda t: t.count("begins at") == 2)
    first = job.checkpoint()
    file = job.where / "file"
    file.write_text("a file")
    missing = job.where / "no" / "such"
    cases = [
        (file, f"cannot make {file}"),
        (missing, f"cannot make {missing}: No such file"),
        ("x" * 990, "too long"),
        ("", "not an absolute path"),
    ]
    for directory, why in cases:
        send(job, directory)
        done = manapy("checkpoint", job.dir)
        assert done.returncode == 1 and why in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert job.status()["last_checkpoint"]["path"] == str(first) and sorted(
            path.name for path in job.dir.glob("*-0*")
        ) == [first.name]
    assert file.read_text() == "a file" and manapy("verify", first).returncode == 0
    send(job, job.where / "good")
    assert job.checkpoint().parent.parent == job.where / "good"
    (job.where / "end").touch()
    assert oks(job.finish()) == 2


def test_jobs_that_share_a_directory(make_job: Callable[..., Job]) -> None:
    """The jobs, and the remains of one that was killed, don't affect each other."""
    jobs = [make_job(1), make_job(1)]
    shared = jobs[0].where / "shared"
    taken = []
    for job in jobs:
        job.start_python("dmtcp/dmtcp_places.py")
        job.wait_for("begins at")
        send(job, shared)
        taken.append(job.checkpoint())
    assert taken[0].name == taken[1].name == "ckpt-000001" and len(list(shared.iterdir())) == 2
    left = [path.parent / "tmp-000002-abcdef" for path in taken]
    for path in left:
        path.mkdir()
    jobs[0].kill()
    jobs[0].restart()
    jobs[0].wait_for("is back in")
    assert [path.exists() for path in left] == [False, True]
    for job in jobs:
        (job.where / "end").touch()
        assert "ok" in job.finish()


BINDINGS = """
from manapy import dmtcp as d
print(d.dmtcp_is_enabled(), d.dmtcp_disable_ckpt(), d.dmtcp_enable_ckpt(), \
d.dmtcp_set_ckpt_dir(d.dmtcp_get_ckpt_dir()), d.dmtcp_set_ckpt_dir(None))
print(d.dmtcp_get_ckpt_filename().startswith(d.dmtcp_get_ckpt_dir() + "/"), d.dmtcp_get_uniquepid_str().count("-"))
print(d.dmtcp_checkpoint(), *d.dmtcp_get_local_status(), *d.dmtcp_get_coordinator_status(), \
d.dmtcp_get_generation(), flush=True)
"""
BOUND = ["1 1 1 4 4", "True 2", "1 4 1 0 4 1 1 1"]


def test_bindings(make_job: Callable[..., Job]) -> None:
    job = make_job(1)
    assert job.start(sys.executable, "-u", "-c", BINDINGS).finish().splitlines() == BOUND
    assert job.restart().finish().splitlines() == ["2 4 0 1 4 1 1 1"]


def test_bindings_under_dmtcp(tmp_path: Path) -> None:
    if shutil.which("dmtcp_launch") is None:
        pytest.skip("no dmtcp_launch (DMTCP isn't installed)")
    assert (
        run(
            tmp_path,
            "dmtcp_launch",
            "--new-coordinator",
            "--coord-port",
            "0",
            "--no-gzip",
            sys.executable,
            "-u",
            "-c",
            BINDINGS,
        ).splitlines()[-3:]
        == BOUND
    )


EVENTS = ["one PRESUSPEND", "two PRESUSPEND", "one PRECHECKPOINT", "two PRECHECKPOINT"]
RUNNING = ["one RUNNING", "two RUNNING"]


def test_events(make_job: Callable[..., Job], tmp_path: Path) -> None:
    program = build(tmp_path / "events", PROGRAMS / "dmtcp/dmtcp_events.c", *STRICT)
    assert run(tmp_path, program) == "returned 3\n"
    job = make_job(1)
    first, *lines = job.start(program).finish().splitlines()
    assert first == "manapy: rank 0: the DMTCP plugin 'three' gets no events: it is for another DMTCP"
    assert lines == [*EVENTS, "two RESUME", "one RESUME", *RUNNING, "returned 1"]
    assert job.restart().finish().splitlines() == ["two RESTART", "one RESTART", *RUNNING, "returned 2"]


def test_checkpoint_of_all_ranks(program: Path, job: Job) -> None:
    job.start(program, "checkpoint", job.where)
    text = job.wait_for(lambda t: t.count("checkpointed:") == 2)
    assert (
        text.count("checkpointed: coordinator 4 peers 2 running 1, local 4 checkpoints 1 restarts 0, generation 1") == 2
    ), text
    job.kill()
    for restarts in (1, 2):  # both restarts from the same checkpoint
        text = job.restart(job.dir / "ckpt-000001").finish()
        assert (
            text.count("restarted: coordinator 4 peers 2 running 1, local 4 checkpoints 0 restarts 1, generation 1")
            == 2
        ), (restarts, text)
        assert oks(text) == 2
    assert len(list(job.dir.glob("ckpt-*"))) == 1


def test_in_python(job: Job) -> None:
    job.start_python("dmtcp/dmtcp_api.py")
    text = job.wait_for(lambda t: t.count("got 1, generation 2") == 2)
    assert text.count("preload None") == 2
    assert text.count("the checkpoint that the program requested has failed: cannot make /nowhere/at/all: ") == 1
    job.kill()
    assert job.restart().finish().count("got 2, generation 2") == 2


def test_preload_of_the_user_stays(job: Job) -> None:
    job.env["LD_PRELOAD"] = "libm.so.6 libutil.so.1"
    child = "subprocess.run(['sh', '-c', 'echo $LD_PRELOAD'], capture_output=True, text=True).stdout"
    script = (
        f"import ctypes, os, subprocess; ctypes.CDLL(None).dmtcp_is_enabled(); print(os.environ['LD_PRELOAD'], {child})"
    )
    assert (
        job.start(sys.executable, "-c", script).finish().count("libm.so.6 libutil.so.1 libm.so.6 libutil.so.1\n") == 2
    )


def test_sanitized_program_starts(make_job: Callable[..., Job]) -> None:
    """AddressSanitizer requires to be the first library. It is, but the program gets none of its functions."""
    job = make_job(1)
    body = 'puts(dmtcp_is_enabled ? "functions" : "none"); return 0;'
    text = f"#include <stdio.h>\n__attribute__((weak)) int dmtcp_is_enabled(void);\nint main(void) {{ {body} }}\n"
    assert job.start(build(job.where / "sanitized", text, "-fsanitize=address")).finish() == "none\n"


def test_request_waits_while_disabled(program: Path, job: Job) -> None:
    files = job.where / "files"
    files.mkdir()
    job.start(program, "disabled", files)
    job.wait_for("disabled")
    request = subprocess.Popen(
        [BIN / "manapy", "checkpoint", job.dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = "waiting for rank 0: checkpoints are disabled by the program"
        until(lambda: job.status()["waiting"] == [line], line)
        (files / "one").touch()
        job.wait_for("still disabled")
        assert job.status()["waiting"] == [line]
        assert request.poll() is None and not list(job.dir.glob("ckpt-*"))
        assert request.stderr is not None
        said = request.stderr.readline()
        (files / "two").touch()
        out, err = request.communicate(timeout=PATIENCE)
        assert request.returncode == 0, err
        assert line in said
    finally:
        request.kill()
    assert Path(out.strip()) == job.dir / "ckpt-000001"
    (files / "three").touch()
    assert oks(job.finish()) == 2


def test_no_checkpoint_between_disable_and_enable(program: Path, make_job: Callable[..., Job]) -> None:
    """The program checks the generation. A rank that waits, with checkpoints disabled, for a stopped rank is taken into
    account."""
    job = make_job(3)
    job.start(program, "regions", job.where)
    job.wait_for("step 100")
    for _ in range(rounds(2, 5)):
        job.checkpoint()
    job.kill()
    job.restart()
    job.wait_for("step ")
    job.checkpoint()
    (job.where / "end").touch()
    assert oks(job.finish()) == 3
