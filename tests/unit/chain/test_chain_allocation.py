"""What an allocation says of its state and of the end of an attempt, with commands in place of Slurm's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, at, line
from manapy.chain.attempt import Outcome
from manapy.chain.slurm import Allocation

CRASHED = Outcome("crashed", 1, "rank 1 died on n1", "n1")
ENDED = Outcome("finished", 143)  # as a script that SIGTERM has ended


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


@pytest.mark.parametrize(("ends_in", "how"), [(3600, "crashed"), (1, "expired")])
def test_crash_near_the_time_limit(slurm: FakeSlurm, ends_in: float, how: str) -> None:
    """Slurm's SIGTERM has ended mpiexec: nothing is started again in this allocation."""
    slurm.job(EndTime=at(time.time() + ends_in))
    allocation = Allocation(None, 60)
    allocation.look()
    assert allocation.judge(CRASHED).how == how
    allocation.on_signal(signal.SIGTERM)
    assert allocation.judge(CRASHED).how == ("taken" if how == "crashed" else how)


def test_crash_in_a_preemption(slurm: FakeSlurm) -> None:
    """Its grace time may be over: the job did not get the time that it was promised."""
    slurm.job(EndTime=at(time.time() + 1), PreemptTime=at(time.time()))
    allocation = Allocation(None, 60)
    allocation.look()
    assert allocation.judge(CRASHED).how == "taken"


@pytest.mark.parametrize(
    ("ends_in", "state", "how"),
    [
        (3600, {}, "taken"),
        (3600, {"JobState": "COMPLETING", "Restarts": "1"}, "taken"),
        (1, {}, "expired"),
    ],
)
def test_script_that_slurm_ends(slurm: FakeSlurm, ends_in: float, state: dict[str, str], how: str) -> None:
    """While no job of it runs: SIGTERM goes to all processes of the allocation."""
    slurm.job(EndTime=at(time.time() + ends_in))
    allocation = Allocation(None, 60)
    allocation.look()
    slurm.job(EndTime=at(time.time() + ends_in), **state)
    allocation.on_signal(signal.SIGTERM)
    assert allocation.judge(ENDED).how == how
    assert allocation.judge(Outcome("finished")).how == "finished"


@pytest.mark.parametrize(("ends_in", "node"), [(3600, "allocated"), (1, "allocated"), (3600, "draining")])
def test_script_that_ends_by_itself(slurm: FakeSlurm, ends_in: float, node: str) -> None:
    """With whatever exit code: Slurm has sent no signal."""
    slurm.answer("sinfo", f"echo n1 {node}")
    slurm.job(EndTime=at(time.time() + ends_in))
    allocation = Allocation(None, 60)
    allocation.look()
    assert allocation.judge(ENDED) == ENDED


def test_the_end_of_the_budget_kills_nothing(slurm: FakeSlurm) -> None:
    ends = int(time.time()) + 3600
    slurm.job(EndTime=at(ends))
    look = Allocation(ends - 1800.0, 60).look()
    assert (look.deadline, look.killed) == (ends - 1800.0, ends)


def test_time_to_save_after_scancel(slurm: FakeSlurm) -> None:
    """Slurm kills the job only after KillWait, although its EndTime is over."""
    slurm.job(EndTime=at(time.time() + 3600))
    allocation = Allocation(None, 60)
    killed = allocation.look().killed
    slurm.job(EndTime=at(time.time()), JobState="COMPLETING")
    assert allocation.look().killed == killed


@pytest.mark.parametrize("wrong", [0, -60, 60])
@pytest.mark.parametrize(
    ("limit", "ended", "cancelled"),
    [(None, 100, True), (3600, 100, True), (100, 101, False), (110, 100, True), (3600, None, True), (50, None, False)],
)
def test_scancel_long_after_the_last_look(
    slurm: FakeSlurm,
    monkeypatch: pytest.MonkeyPatch,
    limit: float | None,
    ended: float | None,
    cancelled: bool,
    wrong: float,
) -> None:
    """A job without a time limit (EndTime is NONE) never ends on time. Slurm's time of the end counts, however wrong
    the clock of this node is, unless it is unknown."""
    now = time.time()
    slurm.job(EndTime="NONE" if limit is None else at(now + limit))
    allocation = Allocation(None, 60)
    allocation.look()
    slurm.job(JobState="COMPLETING", EndTime="Unknown" if ended is None else at(now + ended))
    monkeypatch.setattr(time, "time", lambda: now + 100 + (wrong if ended is not None else 0))
    assert allocation.cancelled() == cancelled


def test_crash_while_slurm_has_not_answered_yet(slurm: FakeSlurm) -> None:
    slurm.job(fails=100)
    allocation = Allocation(None, 60)
    allocation.look()
    assert allocation.judge(CRASHED) == CRASHED and not allocation.cancelled()


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Summer time there."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("deadline", [1792888200, 1792891800])
def test_hour_that_comes_twice(slurm: FakeSlurm, berlin: None, deadline: int) -> None:
    """At the end of summer time, both are 02:30."""
    assert time.strftime("%d %H:%M", time.localtime(deadline)) == "25 02:30"
    shown = line(EndTime="@" * 19)
    slurm.answer("squeue", f"echo '{shown}' | sed \"s/@@*/$(date -d @{deadline} +%FT%T)/\"")
    assert Allocation(None, 60).look().deadline == deadline


def test_steps_whose_srun_is_gone_are_ended(slurm: FakeSlurm) -> None:
    """Not the step of a user who looks at the job, with an srun here or on another host."""
    with subprocess.Popen(["true"]) as gone:
        pass
    here = socket.gethostname()
    sruns = {"batch": "(null):0", "0": f"{here}:{gone.pid}", "1": f"{here}:{os.getpid()}", "2": f"other:{gone.pid}"}
    shown = [f"StepId=17.{step} UserId=0 Name=a SrunHost:Pid={srun}" for step, srun in sruns.items()]
    slurm.answer("scontrol", f"printf '{chr(10).join(shown)}'")
    Allocation(None, 60).end_remains()
    assert slurm.calls("scancel") == ["scancel 17.0"]
    slurm.answer(
        "scancel", "echo 'scancel: error: Kill job error on job step id 17: Invalid job id specified' >&2; exit 1"
    )
    Allocation(None, 60).end_remains()  # it has ended since
