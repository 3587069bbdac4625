"""Checkpoints at any moment of a job with all kinds of traffic, and deaths of any process during a checkpoint."""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job, manapy
from phases import PHASES, Request, answer, is_one_line, reach, request, request_until, restart_after
from rounds import rounds

ENV = {"OPENBLAS_NUM_THREADS": "1"}
PAUSE = "0.05"
SEED, STEPS = 100, 80  # the same in most tests, so that they share the native runs
TOO_LATE = re.compile(r"finishing|has ended|not running|no longer running|connection to the coordinator is lost")


@functools.cache
def native(seed: int, ranks: int, steps: int, program: str = "stress.py") -> str:
    """The last line of a program without manapy."""
    command = [BIN / "mpirun", "-n", str(ranks), sys.executable, PROGRAMS / "steps" / program, str(seed), str(steps)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env={**os.environ, **ENV}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def stress(
    job: Job, seed: int, steps: int, program: str = "stress.py", options: Sequence[str] = (), more: Sequence[str] = ()
) -> Job:
    arguments = (str(seed), str(steps), "--pause", PAUSE, *more)
    return job.start_python(f"steps/{program}", *arguments, options=["--keep", "2", *options])


def in_output(job: Job, line: str) -> bool:
    """Has any run printed it? (What a run prints just before SIGKILL may be lost, or come with the run before.)"""
    return any(line in job.output(run).splitlines() for run in range(len(job.runs)))


def ended(job: Job) -> bool:
    return job.process is None or job.process.poll() is not None


# ---- all kinds of traffic


@pytest.mark.parametrize(
    ("ranks", "program"), [(3, "stress.py"), (4, "stress.py"), (3, "threads.py"), (4, "inter_stress.py")]
)
def test_and_go_on(make_job: Callable[..., Job], ranks: int, program: str) -> None:
    goes_on(make_job(ranks, env=ENV), SEED, STEPS, program)


def goes_on(job: Job, seed: int, steps: int, program: str) -> None:
    """Checkpoints don't change a program's result."""
    go = job.hold(steps - 20)
    stress(job, seed, steps, program)
    checkpoints(job, go, random.Random(job.ranks))
    assert in_output(job, native(seed, job.ranks, steps, program)), job.report()


def checkpoints(job: Job, go: Path, generator: random.Random) -> None:
    """From the very start to the end: three checkpoints, and as many more as there is time for after the job may
    end."""
    job.wait_for(lambda _: (job.dir / "job.json").exists())
    published = 0
    while not ended(job):
        code, _, errors = answer(request(job))
        published += code == 0
        assert code == 0 or TOO_LATE.search(errors), errors
        if published == 3:
            go.touch()
        time.sleep(generator.random() * 0.4)
    assert published >= 3


def test_twice_at_once(make_job: Callable[..., Job]) -> None:
    job = make_job(3, env=ENV)
    go = job.hold(STEPS - 20)
    stress(job, SEED, STEPS)
    job.wait_for(lambda _: (job.dir / "job.json").exists())
    pairs = 0
    while not ended(job):
        answers = [answer(r) for r in [request(job), request(job)]]
        for code, path, errors in answers:
            assert (code == 0 and path) or TOO_LATE.search(errors), errors
        pairs += all(code == 0 for code, _, _ in answers)
        if pairs == 2:
            go.touch()
    assert pairs >= 2
    assert in_output(job, native(SEED, 3, STEPS)), job.report()


def generations(
    job: Job,
    seed: int,
    steps: int,
    wanted: int,
    program: str = "stress.py",
    options: Sequence[str] = (),
    more: Sequence[str] = (),
) -> None:
    """Checkpoint, kill and restart repeatedly, from the very start."""
    go = job.hold(steps - 20)
    stress(job, seed, steps, program, options, more)
    job.wait_for(lambda _: (job.dir / "job.json").exists())
    kills(job, go, seed, wanted)


def kills(job: Job, go: Path, seed: int, wanted: int, options: Sequence[str] = (), each: int = 1) -> None:
    """The same for a job that has been started and is held. options: of the restarts; each: checkpoints before each
    kill."""
    generator, done = random.Random(seed), 0
    while done < wanted:
        time.sleep(generator.random() * 0.4)
        for _ in range(each):
            code, _, errors = answer(request(job))
            if code:
                break
        if code:
            assert TOO_LATE.search(errors) and not ended(job), job.report()
            continue
        job.kill()
        job.restart(options=options)
        done += 1
    go.touch()
    job.finish()


@pytest.mark.parametrize(
    ("ranks", "program"),
    [
        pytest.param(2, "stress.py", marks=pytest.mark.slow),
        (4, "stress.py"),
        (2, "threads.py"),
        (3, "threads.py"),
        (4, "inter_stress.py"),
    ],
)
def test_and_restart(make_job: Callable[..., Job], ranks: int, program: str) -> None:
    job = make_job(ranks, env=ENV)
    generations(job, SEED, STEPS, rounds(2, 4), program)
    assert in_output(job, native(SEED, ranks, STEPS, program)), job.report()


def test_at_once_after_a_restart(make_job: Callable[..., Job]) -> None:
    """A request before the restart has its coordinator is told that the job doesn't run. The coordinator of the killed
    ranks, if it still exists, takes no checkpoint."""
    job = make_job(2, env=ENV)
    job.hold(100)
    stress(job, 125, 120)
    job.wait_for("step 10")
    job.checkpoint()
    for k in range(rounds(2, 4)):
        job.kill()
        job.restart()
        deadline = time.monotonic() + PATIENCE
        while (asked := answer(request(job)))[0]:
            assert re.search(r"not running|no longer running|rank \d+ died", asked[2]), asked
            assert not ended(job) and time.monotonic() < deadline, job.report()
        assert asked[1].endswith(f"ckpt-{k + 2:06d}")


@pytest.mark.parametrize(("background", "way"), [("off", "hash"), ("auto", "hash"), ("off", "auto"), ("auto", "auto")])
def test_and_restart_from_increments(make_job: Callable[..., Job], background: str, way: str) -> None:
    """With `auto` the kernel finds what has changed, where it can."""
    job = make_job(3, env=ENV)
    options = ["--dirty", way, "--full-every", "4", "--background", background]
    go = job.hold(STEPS - 20)
    stress(job, SEED, STEPS, options=options)
    job.wait_for("step 10")
    kills(job, go, SEED, rounds(2, 8), options, each=3)
    assert in_output(job, native(SEED, 3, STEPS)), job.report()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_generations(make_job: Callable[..., Job]) -> None:
    ranks, seed, steps = 3, 133, 500
    job = make_job(ranks, env=ENV)
    generations(job, seed, steps, 15)
    assert in_output(job, native(seed, ranks, steps)), job.report()


# ---- ranks that must go on first


def start_edges(job: Job, kind: str) -> tuple[Path, Path]:
    """Start edges.py in a situation. Returns the file that ends it, and the file without which the job doesn't end."""
    go, end = job.where / "go", job.where / "end"
    job.start_python("moments/edges.py", kind, str(go), str(end))
    job.wait_for("ok" if kind == "leave" else f"in {kind}")
    return go, end


def end_and_restart(job: Job, *files: Path) -> None:
    """Kill the job, restart it, and let it end."""
    job.kill()
    for file in files:
        file.touch()
    job.restart().finish()
    assert in_output(job, "ok")


def taken(job: Job, asked: Request, go: Path, end: Path) -> None:
    """The requested checkpoint is taken when the program goes on, and the job restarts from it."""
    go.touch()
    code, _, errors = answer(asked)
    assert code == 0, errors
    end_and_restart(job, end)


@pytest.mark.parametrize("kind", ["chain", "crossed", "anysource", "polling", "threads"])
def test_who_is_needed_goes_on(make_job: Callable[..., Job], kind: str) -> None:
    job = make_job(2 if kind == "threads" else 4, env=ENV)  # with more ranks, the idle ones would pull the others on
    go, end = start_edges(job, kind)
    for _ in range(3):
        job.checkpoint()
    assert "parked ranks to go on" not in (job.dir / "coordinator.log").read_text(), "a stall time-out was needed"
    end_and_restart(job, go, end)


def test_who_computes_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(2, env=ENV)
    go, end = start_edges(job, "compute")
    pattern = r"rank 0 has computed for \d+ s; rank 1 waits for it on communicator"
    asked = request_until(job, lambda: any(re.search(pattern, line) for line in job.status()["waiting"]))
    taken(job, asked, go, end)


def test_wrong_calls_in_the_middle(make_job: Callable[..., Job]) -> None:
    """Each wrong call is counted, reported and retracted. The checkpoint begins again until rank 0 reaches the other
    ranks."""
    job = make_job(3, env=ENV)
    go, end = start_edges(job, "wrong")
    asked = request_until(job, lambda: "failed on its arguments" in (job.dir / "coordinator.log").read_text())
    taken(job, asked, go, end)


def has_loaded_mpi(pid: int | None) -> bool:
    """Has it loaded the real library? That is a moment before its MPI_Init is called. None: the rank isn't known
    yet."""
    return pid is not None and any(
        "/libmpi.so" in line and "/upper/" not in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
    )


def test_some_ranks_are_in_init(make_job: Callable[..., Job]) -> None:
    job = make_job(3, env=ENV)
    go, end = start_edges(job, "late")
    job.wait_for(lambda _: has_loaded_mpi(job.status()["ranks"][0]["pid"]))
    asked = request_until(job, lambda: job.status()["phase"] == "waiting for a safe moment")
    taken(job, asked, go, end)


def test_some_ranks_have_left(make_job: Callable[..., Job]) -> None:
    job = make_job(3, env=ENV)
    go, _ = start_edges(job, "leave")
    for more in (True, True, False):
        if not more:
            go.touch()
        code, _, errors = answer(request(job))
        assert code == 0 or TOO_LATE.search(errors), errors
        assert len(errors.splitlines()) <= 1, errors
    job.finish()


# ---- processes that die meanwhile

LONGER = 200  # steps of a job that lives through all phases


def goes_on_without_coordinator(job: Job) -> None:
    """One line says that the coordinator is lost, and nothing else happens to the job. The job is no longer held."""
    steps = job.output().count("step ")
    job.wait_for(lambda text: "the coordinator is lost" in text and text.count("step ") > steps)
    lines = [line for line in job.output().splitlines() if line.startswith("manapy")]
    assert lines == ["manapy: rank 0: the coordinator is lost; the job goes on, but can't be checkpointed any more"]


def ends_as_natively(job: Job) -> None:
    assert native(SEED, 3, LONGER) in job.finish().splitlines(), job.report()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", PHASES, ids=["standing", "beside"])
def test_coordinator_dies(make_job: Callable[..., Job], options: Sequence[str]) -> None:
    """In each phase of a checkpoint."""
    job = make_job(3, env=ENV)
    go = job.hold(LONGER - 20)
    stress(job, SEED, LONGER, options=options)
    job.wait_for("step 10")
    for phase in PHASES[tuple(options)]:
        asked, status, last = reach(job, phase)
        os.kill(int(status["pid"]), signal.SIGKILL)
        code, path, errors = answer(asked)
        assert code == 0 or is_one_line(errors), errors
        go.touch()
        goes_on_without_coordinator(job)
        if phase not in ("publishing", "resuming"):
            assert (job.dir / "latest").resolve() == last
        if phase == PHASES[tuple(options)][-1]:
            ends_as_natively(job)
        job.end()
        go.unlink()
        restart_after(job, status, options)
    go.touch()
    ends_as_natively(job)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", PHASES, ids=["standing", "beside"])
def test_rank_dies(make_job: Callable[..., Job], options: Sequence[str]) -> None:
    """In each phase of a checkpoint."""
    job = make_job(3, env=ENV)
    go = job.hold(LONGER - 20)
    stress(job, SEED, LONGER, options=options)
    job.wait_for("step 10")
    for phase in PHASES[tuple(options)]:
        asked, status, last = reach(job, phase)
        os.kill(int(status["ranks"][1]["pid"]), signal.SIGKILL)
        code, path, errors = answer(asked)
        # mpirun ends the others: the coordinator may see one of them end before rank 1
        assert code == 0 or re.search("rank [012] (died|is lost)", errors), errors
        assert job.wait() != 0
        latest = (job.dir / "latest").resolve()
        assert latest == (Path(path) if code == 0 else last) or phase in ("publishing", "resuming")
        restart_after(job, status, options)
    go.touch()
    ends_as_natively(job)


# ---- places where nothing can be written


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """mount(*options) on a new directory; it is unmounted after the test."""
    places: list[Path] = []

    def mount(*options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", *options, str(place)], capture_output=True).returncode:
            pytest.skip("mounting needs root")
        places.append(place)
        return place

    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "-l", str(place)], check=True)


def fails_with_one_line(job: Job, text: str, last: Path) -> None:
    before: dict[str, Any] = {p.name: p.stat().st_size for p in last.iterdir()}
    code, _, errors = answer(request(job))
    assert code == 1 and text in errors and is_one_line(errors), errors
    assert (job.dir / "latest").resolve() == last.resolve()
    assert {p.name: p.stat().st_size for p in last.iterdir()} == before
    assert manapy("verify", last).returncode == 0
    assert not list(job.dir.glob("tmp-*"))


def on_small_file_system(make_job: Callable[..., Job], mounted: Callable[..., Path]) -> tuple[Job, Path, Path]:
    """A job with a file system of its own, the file that lets it end, and its first checkpoint."""
    job = make_job(2, env=ENV)
    job.where = mounted("-t", "tmpfs", "-o", "size=150m", "manapy-test")
    go = job.hold(STEPS - 20)
    stress(job, SEED, STEPS)
    job.wait_for("step 10")
    return job, go, job.checkpoint()


def test_full_disk_keeps_the_last_checkpoint(make_job: Callable[..., Job], mounted: Callable[..., Path]) -> None:
    job, go, last = on_small_file_system(make_job, mounted)
    filler = job.where / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(job.where).free - (3 << 20)))
    fails_with_one_line(job, "No space left on device", last)
    fails_with_one_line(job, "No space left on device", last)
    filler.unlink()
    job.checkpoint()
    job.kill()
    go.touch()
    job.restart().finish()
    assert in_output(job, native(SEED, 2, STEPS)), job.report()
    assert not list(job.dir.glob("tmp-*"))


def test_directory_becomes_unwritable(make_job: Callable[..., Job], mounted: Callable[..., Path]) -> None:
    job, go, last = on_small_file_system(make_job, mounted)
    subprocess.run(["mount", "--bind", str(job.dir), str(job.dir)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(job.dir)], check=True)
        fails_with_one_line(job, "Read-only file system", last)
    finally:
        subprocess.run(["umount", "-l", str(job.dir)], check=True)
    job.checkpoint()
    go.touch()
    job.finish()
    assert in_output(job, native(SEED, 2, STEPS))
