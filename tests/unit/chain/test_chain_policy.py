"""Whether another attempt is allowed, for typical histories."""

from __future__ import annotations

import images
import pytest
from histories import History
from manapy.chain import policy
from manapy.chain.policy import Limits
from manapy.chain.record import Chain
from manapy.ckpt.store import publish
from manapy.ckpt.store.levels import Levels


def step(history: History, number: int, verdict: str = "new", state: str | None = None, **job: object) -> None:
    where = history.job(number, state, **job) if state else history.chain.dir / f"step-{number:03d}"
    history.note(
        "step", step=number, argv=["solver", str(number)], ranks=2, dir=str(where), verdict=verdict, path="", code=0
    )


class Clock:
    """Events at chosen times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_nothing_against_a_new_chain(history: History) -> None:
    assert policy.refusal(history.chain, Limits(restarts=0, budget=1.0, crashes=1, stuck=1)) == ""
    assert policy.lost(history.chain) is None
    assert policy.used(history.chain) == 0


def test_restarts(history: History) -> None:
    limits = Limits(restarts=1)
    history.attempt("crashed", checkpoints=1)
    assert policy.refusal(history.chain, limits) == ""
    history.attempt("left", checkpoints=1)
    assert policy.refusal(history.chain, limits) == "it was restarted 1 times, the maximum (--max-restarts 1)"
    assert policy.refusal(history.chain, Limits(restarts=None)) == ""
    assert policy.refusal(history.chain, Limits(restarts=2)) == ""


def test_crashes_in_a_row(history: History) -> None:
    for _ in range(2):
        history.attempt("crashed", checkpoints=1, reason="rank 1 died on here")
        assert policy.refusal(history.chain, Limits()) == ""
    history.attempt("left", checkpoints=1)
    for _ in range(2):
        history.attempt("crashed", checkpoints=1, reason="rank 0 died on there")
        assert policy.refusal(history.chain, Limits()) == "", "a good attempt in between"
    history.attempt("crashed", checkpoints=1, reason="rank 0 died on there")
    assert (
        policy.refusal(history.chain, Limits())
        == "it crashed 3 times in a row (--max-crashes 3); last reason: rank 0 died on there"
    )
    assert policy.refusal(history.chain, Limits(crashes=4)) == ""
    assert policy.failures_in_a_row(history.chain) == 3
    history.attempt("crashed", checkpoints=2, reason="rank 0 died on there")
    assert policy.failures_in_a_row(history.chain) == 0
    assert policy.refusal(history.chain, Limits()) == "", "it came past the place of the last crash"


def test_crashes_after_checkpoints_of_others(history: History) -> None:
    """Those of the coordinator (--interval), the program and the user count as much as those of the chain."""
    for attempt in range(3):
        history.begin()
        where = history.job(1, "failed", first_failure={"rank": 1, "host": "here", "code": None})
        history.step(where)
        for number in (0, 1) if attempt < 2 else ():
            images.checkpoint(where, 1, 2 * attempt + number)
        history.end("crashed")
    assert history.chain.events("checkpoint") == []
    assert policy.failures_in_a_row(history.chain) == 1
    assert policy.refusal(history.chain, Limits()) == ""


def test_no_progress(history: History) -> None:
    history.attempt("left")
    assert policy.refusal(history.chain, Limits()) == ""
    history.attempt("left", reason="the allocation ends")
    assert (
        policy.refusal(history.chain, Limits())
        == "no progress in 2 attempts in a row: no checkpoint was taken and no step ended (the allocation ends)"
    )
    history.attempt("left", checkpoints=1)
    assert policy.refusal(history.chain, Limits()) == ""
    history.attempt("lost")
    assert policy.refusal(history.chain, Limits()) == ""
    history.attempt("lost")
    assert policy.refusal(history.chain, Limits()).startswith("no progress")


@pytest.mark.parametrize(
    ("flush", "shared", "further"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_checkpoints_on_local_storage(history: History, flush: bool, shared: bool, further: bool) -> None:
    """An allocation takes them with it, unless they are copied to the job directory."""
    for attempt in range(2):
        history.begin()
        where = history.job(1, "checkpointed")
        history.step(where)
        path = images.checkpoint(where, 1, attempt + 1)
        publish.relevel(path, Levels("/nvme", shared), bytes(32), flush=flush)
        history.checkpoint(path=str(path))
        history.end("left")
    assert all(policy.came_further(history.chain, attempt) == further for attempt in (1, 2))
    why = policy.refusal(history.chain, Limits())
    assert ("no checkpoint was copied to the job directory and no step ended" in why) != further
    history.begin()
    history.step(where)
    images.checkpoint(where, 1, 3)
    history.end("crashed")
    assert policy.refusal(history.chain, Limits()) == ""


def test_stops_of_the_user(history: History) -> None:
    """They say nothing of the program."""
    for _ in range(3):
        history.attempt("stopped")
    assert policy.refusal(history.chain, Limits()) == ""


def test_a_finished_step_is_progress(history: History) -> None:
    for _ in range(2):
        history.begin()
        step(history, 1, state="done", code=0)
        history.end("crashed")
    assert policy.refusal(history.chain, Limits()) == ""
    history.chain.append("attempt", 3, id="", nodes=[], deadline=None)
    for attempt in (3, 4):
        if attempt == 4:
            history.begin()
        step(history, 1, verdict="done", state="done", code=0)
        history.end("left")
    assert policy.refusal(history.chain, Limits()).startswith("no progress"), "that it had finished earlier is none"


def test_crashes_without_progress(history: History) -> None:
    """Only the limit on crashes counts: the causes may be outside."""
    for _ in range(4):
        history.attempt("crashed")
    assert policy.refusal(history.chain, Limits(crashes=5)) == ""
    assert "crashed 4 times in a row" in policy.refusal(history.chain, Limits(crashes=4))


def test_budget(history: History, clock: Clock) -> None:
    history.begin()
    clock.now = 1010
    history.checkpoint()
    history.end("crashed")
    clock.now = 2000  # it waited, and waiting costs nothing
    history.begin()
    clock.now = 2005
    assert policy.used(history.chain) == 15
    assert policy.refusal(history.chain, Limits(budget=16)) == ""
    assert (
        policy.refusal(history.chain, Limits(budget=15))
        == "its attempts took 15 s together, the whole budget (--budget)"
    )


def test_what_comes_after_the_end_costs_nothing(history: History, clock: Clock) -> None:
    history.begin()
    clock.now = 1010
    history.end("left")
    clock.now = 5000
    history.note("note", text="--force")
    history.note("stopped", reason="")
    assert policy.used(history.chain) == 10


def test_attempts_that_were_killed_while_they_were_saved(history: History, clock: Clock) -> None:
    """After SIGTERM and KillWait, each before its first checkpoint: they did not get the promised time."""
    for _ in range(3):
        history.begin()
        clock.now += 60
        history.note("ending", reason="Slurm sent SIGTERM")
        clock.now += 9000
        end = policy.lost(history.chain)
        assert end is not None and end["how"] == "taken"
        assert end["reason"] == "Slurm sent SIGTERM, and it was killed before it was saved"
    assert policy.refusal(history.chain, Limits()) == ""
    assert policy.used(history.chain) == 3 * 60


def test_a_lost_attempt(history: History, clock: Clock) -> None:
    """It is noted once. Its duration ends when it was last known to live, not when its end was noticed."""
    history.begin()
    clock.now = 1060
    history.checkpoint()
    clock.now = 9000
    assert policy.used(history.chain) == 8000, "it may still run"
    end = policy.lost(history.chain)
    assert end is not None and end["how"] == "lost" and "killed" in end["reason"]
    assert policy.lost(history.chain) is None
    assert policy.used(history.chain) == 60
    history.begin()
    clock.now = 9007
    assert policy.used(history.chain) == 67
    assert policy.used(history.chain, now=9010) == 70


def test_an_attempt_that_nobody_noted_the_end_of(history: History, clock: Clock) -> None:
    history.begin()
    clock.now = 1030
    step(history, 1)
    clock.now = 4000
    history.begin()
    assert policy.span(history.chain, 1) == (1000, 1030)


def test_unfinished(history: History) -> None:
    history.begin()
    step(history, 1, state="done", code=3)
    step(history, 2, state="running")
    assert policy.unfinished(history.chain, 1) == "", "begun in this attempt: it fails of its own will"
    history.end("left")
    history.begin()
    assert policy.unfinished(history.chain, 2) == "step 2"
    history.job(2, "failed", first_failure={"rank": 1, "host": "a", "code": 5}, code=5)
    assert policy.unfinished(history.chain, 2) == ""


def test_histories_are_only_read(history: History) -> None:
    history.attempt("left", checkpoints=1)
    before = (history.chain.dir / "history.jsonl").read_bytes()
    policy.refusal(Chain(history.chain.dir, {}), Limits(0, 0.0, 1, 1))
    assert (history.chain.dir / "history.jsonl").read_bytes() == before
