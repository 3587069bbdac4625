"""The training job in three directions (osu_bench/trace/pipeline.py). It gives the same results however it is run, it
breaks as requested, and the verdicts on it are right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import verdicts
from jobs import BIN, PATIENCE, Job, manapy

from manapy.trace.capture import rings
from manapy.trace.model.events import Op

PIPELINE = BIN.parent / "lib" / "manapy" / "osu_bench" / "trace" / "pipeline.py"
THREADS = {"OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture
def traced(tmp_path: Path, trace_root: Path) -> Iterator[Callable[..., Job]]:
    """Return a function that starts the job under `manapy trace run`."""
    started: list[Job] = []

    def start(ranks: int, *arguments: str) -> Job:
        job = Job(tmp_path, ranks, env=THREADS)
        started.append(job)
        return job.spawn(
            [
                BIN / "manapy",
                "trace",
                "run",
                "--name",
                tmp_path / "traced",
                "--",
                BIN / "mpirun",
                "-n",
                str(ranks),
                sys.executable,
                PIPELINE,
                *arguments,
            ]
        )

    yield start
    for job in started:
        assert job.process is not None
        if job.process.poll() is None:
            for folder in trace_root.glob("manapy-trace-*/traced-*"):
                for rank in rings.read(folder).ranks.values():
                    os.kill(rank.pid, signal.SIGCONT)
            job.process.terminate()
            job.process.wait(PATIENCE)


@pytest.mark.parametrize(
    "schedule", ["tp=2,pp=2,micro=4", "pp=2,dp=2,micro=3,kind=gpipe", "pp=2,dp=2,micro=4,kind=interleaved,chunks=2"]
)
def test_it_trains_as_a_whole(
    schedule: str, tmp_path: Path, traced: Callable[..., Job], make_job: Callable[..., Job]
) -> None:
    """The weights are the same natively, recorded, and as a split process."""
    arguments = ["--schedule", schedule, "--iterations", "3", "--hidden", "32"]
    recorded = traced(4, *arguments).finish()
    launched = make_job(4, env=THREADS).start(sys.executable, PIPELINE, *arguments).finish()
    digests = {text[text.index("weights ") :].split()[1] for text in (recorded, launched)}
    assert len(digests) == 1
    trace = rings.read(next((tmp_path / "traces").glob("manapy-trace-*/traced-*")))
    ops = trace.events["op"]
    assert (ops == Op.SSEND).sum() == (ops == Op.RECV).sum() == (ops == Op.WAIT).sum() > 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "skip-recv:rank=2,iteration=2,micro=1,phase=forward",
            ("rank 2", "never called MPI_Recv from rank 1", "micro-batch 1 in iteration 2"),
        ),
        ("stop:rank=1,iteration=2,micro=2,phase=backward", ("rank 1", "is stopped")),
        ("sleep:rank=1,iteration=2,micro=2,phase=backward", ("rank 1", "backward of micro-batch 2 in iteration 2")),
    ],
)
def test_what_is_said_of_a_broken_one(
    fault: str, said: tuple[str, ...], tmp_path: Path, traced: Callable[..., Job]
) -> None:
    job = traced(4, "--schedule", "pp=4,micro=4", "--iterations", "5", "--hidden", "32", "--fault", fault)
    job.wait_for("fault ")

    def found(_: str) -> bool:
        nonlocal done
        done = manapy("why", tmp_path / "traced", "--schedule", "pp=4,micro=4")
        return done.returncode == 4

    done = subprocess.CompletedProcess([], 0, "", "")
    job.wait_for(found)
    assert all(text in done.stdout.splitlines()[0] for text in said), done.stdout


@pytest.mark.parametrize("given", [True, False])
def test_who_was_slow(given: bool, tmp_path: Path, traced: Callable[..., Job]) -> None:
    """One block takes three seconds longer, and an iteration normally takes a small part of that. Tested with the given
    schedule, and with the one that is found in the calls."""
    schedule = "tp=2,pp=2,micro=4"
    traced(
        4,
        "--schedule",
        schedule,
        "--iterations",
        "30",
        "--hidden",
        "32",
        "--fault",
        "compute:rank=3,iteration=15,micro=2,phase=backward,seconds=3",
    ).finish()
    done = manapy("why", tmp_path / "traced", *(["--schedule", schedule] if given else []))
    first = done.stdout.splitlines()[0]
    assert done.returncode == 3 and "rank 3" in first and "slow in backward of micro-batch 2, iteration 15" in first, (
        done.stdout
    )


def test_a_rank_that_shares_its_processor_is_said_to_be_starved_while_it_is_watched(
    tmp_path: Path, traced: Callable[..., Job]
) -> None:
    """Its work, and the transfers to and from it, are slow only for this reason. Whatever else runs on this machine, no
    rank is called stuck, or slow for another reason. It may be late: while it starts the busy processes, they take the
    processor from it."""
    plan = "pp=2,micro=8"
    job = traced(
        2,
        "--schedule",
        plan,
        "--iterations",
        "100000",
        "--hidden",
        "256",
        "--fault",
        verdicts.starve(1),
    )
    job.wait_for("fault ")
    with verdicts.watched(tmp_path / "said", "--schedule", plan, tmp_path / "traced") as told:
        job.wait_for(lambda _: any(verdict["rank"] == 1 and verdict["state"] != "late" for verdict in told()))
    judged = {(verdict["state"], verdict["cause"]) for verdict in told() if verdict["state"] != "late"}
    assert judged == {("slow", "starved processor")}, told()


@pytest.mark.parametrize("recorder", ["profiler", "straggler"])
def test_other_recorders_change_nothing(recorder: str) -> None:
    """A single process ends with the same weights."""
    arguments = ["--schedule", "micro=2", "--iterations", "2", "--hidden", "16"]
    alone, with_it = (
        subprocess.run(
            [sys.executable, *program, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            check=True,
        ).stdout.splitlines()
        for program in ([PIPELINE], [PIPELINE.with_name("recorders.py"), recorder])
    )
    assert with_it[-1] == alone[-1] and alone[-1].startswith("weights ")
    assert sum(line.startswith("straggler: rank 0 took") for line in with_it) == (2 if recorder == "straggler" else 0)


def test_no_such_recorder() -> None:
    done = subprocess.run(
        [sys.executable, PIPELINE.with_name("recorders.py"), "magic"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2 and done.stderr == "recorders.py: no recorder 'magic' (there are profiler, straggler)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schedule", "pp=2,micro=4"], "there are 1"),
        (["--schedule", "pp=0"], "not a positive number"),
        (["--schedule", "micro=2", "--fault", "burn:rank=0"], "no fault 'burn'"),
        (["--schedule", "micro=2", "--fault", "skip-recv:rank=0"], "receives nothing"),
        (["--schedule", "micro=2", "--fault", "spin:rank=1"], "can't be"),
        (["--schedule", "micro=2", "--fault", "spin:rank=x"], "invalid literal"),
        (["--schedule", "micro=2", "--fault", "compute:rank=0"], "needs seconds"),
        (["--schedule", "micro=2", "--fault", "stop:rank=0,phase=transfer"], "sends nothing"),
        (["--schedule", "micro=2", "--fault", "stop:rank=0,micro=7"], "an iteration has micro=0...1"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, PIPELINE, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
