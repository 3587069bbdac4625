"""States of sharded training: saved on 4 ranks, loaded on other numbers of ranks and by other strategies; what must be
refused; and checkpoints that training doesn't notice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, PROGRAMS, Job
from test_fcdp import PROGRAM, results, train

from manapy.fcdp.engine.strategy import STRATEGIES

Make = Callable[..., Job]


def run(make_job: Make, ranks: int, per_node: int, what: str, directory: Path, *strategies: str) -> Job:
    return make_job(ranks).spawn(
        [
            BIN / "mpirun",
            "-n",
            str(ranks),
            sys.executable,
            PROGRAMS / "fcdp/fcdp_state.py",
            "--nodes-of",
            str(per_node),
            what,
            directory,
            *strategies,
        ]
    )


ERRORS = {  # for each thing that must be refused, by name: the errors of the two ranks; DIR is the directory of states
    "missing": ["StateError: DIR/missing/shard-00001-of-00002.safetensors: No such file or directory"] * 2,
    "foreign": ["StateError: DIR/foreign/index.json: not the index of a sharded state ('format')"] * 2,
    "text": [
        "StateError: DIR/text/index.json: not the index of a sharded state (Expecting ',' delimiter: line 1 column 6 "
        "(char 5))"
    ]
    * 2,
    "later": ["StateError: DIR/later/index.json: format 2, this manapy reads format 1"] * 2,
    "hole": ["StateError: DIR/hole/index.json: damaged: the pieces of 'parameter/first.weight' are not all of it"] * 2,
    "without-optimizer": ["StateError: DIR/without-optimizer: there is no state of an optimizer"] * 2,
    "other-optimizer": ["StateError: the optimizer's state isn't one of Adam"] * 2,
    "other-generator": ["StateError: DIR/other-generator: generator 'own' is a MT19937 there, a PCG64 here"] * 2,
    "more-ranks": ["StateError: DIR/more-ranks/index.json: damaged: the generators are not those of 3 ranks"] * 2,
    "three-ranks": [
        "StateError: DIR/three-ranks: generator 'own' was in different states on 3 ranks, so there is none for 2: "
        "load without it"
    ]
    * 2,
    "nowhere": ["StateError: DIR/nowhere/index.json: No such file or directory"] * 2,
    "adapter": [
        "StateError: DIR/adapter: there is no parameter 'first.weight' (it was saved with trainable=True: without "
        "frozen parameters)"
    ]
    * 2,
    "buffer": ["StateError: DIR/good: buffer 'examples' is int64 of shape (1, 2) there, int64 of shape (2,) here"] * 2,
    "generator": ["StateError: DIR/good: there is no generator 'other'"] * 2,
    "exists": ["StateError: DIR/good exists already", "StateError: rank 0: DIR/good exists already"],
    "differs": [
        "StateError: DIR/differs: extra, the optimizer's scalars or the generators' names are not the same on ranks "
        "0 and 1"
    ]
    * 2,
    "two-names": ["StateError: two parameters of the model are called 'weight'"] * 2,
    "within": ["OrderError: a step has begun, and its gradients are not part of a state: save and load after updated()"]
    * 2,
    "moments": ["StateError: the optimizer's 'first' of unit 'last' has shape (3,), the values have (88,)"] * 2,
    "wider": [
        "StateError: DIR/good: parameter 'first.weight' is float32 of shape (24, 33) there, float32 of shape (24, "
        "34) here"
    ]
    * 2,
    "without-adapters": [
        "StateError: DIR/good: state of another model: parameter 'first.adapter.down' is not in this model"
    ]
    * 2,
}
ERRORS_IN_PART = {
    "truncated": "StateError: DIR/truncated/shard-00001-of-00002.safetensors has 100 bytes instead of ",
    "no-file": "StateError: DIR/good/index.json: Error while deserializing header",
    "export": "DIR/nowhere/tmp-file-",
}
ERRORS_OF_THE_LAST = {  # the other ranks report it with the number of the last rank
    "other-content": "shard-00001-of-00002.safetensors: Error while deserializing header",
    "no-room": "shard-00001-of-00002.safetensors: Error while serializing: I/O error: File too large",
    "no-package": (
        "states are written and read by the package safetensors, which is not installed (manapy's extra 'fcdp')"
    ),
    "not-json": "extra, or the optimizer's scalars, can't be written as JSON: set is no JSON",
}


def test_training_goes_on_on_any_ranks_by_any_strategy(make_job: Make, tmp_path: Path) -> None:
    first = results(run(make_job, 4, 2, "save", tmp_path, *STRATEGIES))
    assert len({loss for training in first for loss in training["losses"]}) > 1
    # bit by bit
    assert (
        results(run(make_job, 4, 2, "load", tmp_path, *(f"{strategy}:{strategy}" for strategy in STRATEGIES))) == first
    )
    for ranks, per_node, loads in (
        (4, 2, ["mics:fcdp:local", "fcdp:mics", "hpz:zero3"]),
        (4, 1, ["fcdp:mics"]),
        (3, 1, ["fcdp:zero3", "mics:mics", "zero3:hpz"]),
        (2, 2, ["zero3:mics", "fcdp:hpz_naive"]),
        (1, 1, ["mics:fcdp"]),
    ):
        for training in results(run(make_job, ranks, per_node, "load", tmp_path, *loads)):
            assert training["losses"] == pytest.approx(first[0]["losses"], rel=2e-6)
            assert training["examples"] == first[0]["examples"]


def test_every_rank_says_what_is_wrong_and_goes_on(make_job: Make, tmp_path: Path) -> None:
    errors, after, left = results(run(make_job, 2, 2, "refuse", tmp_path))
    for name, text in ERRORS_OF_THE_LAST.items():
        said = errors.pop(name)
        assert said[0].startswith("StateError: rank 1: ") and all(text in each for each in said), said
    for name, text in ERRORS_IN_PART.items():
        assert all(text in each for each in errors.pop(name))
    assert errors == ERRORS
    assert left == [] and not (tmp_path / "no-room").exists()
    (undisturbed,) = results(run(make_job, 2, 2, "load", tmp_path, "good:fcdp"))
    assert after["losses"] == undisturbed["losses"]


def test_an_error_that_nobody_catches_ends_the_job(make_job: Make, tmp_path: Path) -> None:
    run(make_job, 2, 2, "save", tmp_path, "fcdp").finish()
    job = run(make_job, 2, 1, "fail", tmp_path / "fcdp")
    assert job.wait() != 0
    error = (
        f"manapy.fcdp.errors.StateError: {tmp_path / 'fcdp'}: parameter 'first.weight' is float32 of shape (24, 33) "
        f"there, float32 of shape (24, 34) here\n"
    )
    assert job.output().count(error) == 2


def test_a_rank_that_fails_elsewhere_ends_the_save_of_the_others(make_job: Make, tmp_path: Path) -> None:
    job = run(make_job, 2, 2, "leave", tmp_path / "state")
    assert job.wait() != 0
    assert "manapy.fcdp.errors.RemoteError: rank 1 has failed: ZeroDivisionError: the program's own" in job.output()
    assert not [path.name for path in tmp_path.iterdir() if "state" in path.name]


def test_a_rank_that_is_killed_while_it_writes_publishes_nothing(make_job: Make, tmp_path: Path) -> None:
    job = run(make_job, 2, 2, "die", tmp_path / "state")
    assert job.wait() != 0
    assert [path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir() if "job" not in path.name] == ["tmp-state"]


def test_a_checkpoint_that_training_does_not_know_of(make_job: Make) -> None:
    """In the middle of an epoch, by the split process, possibly with half accumulated gradients. The loss curve
    continues bit by bit."""
    job = make_job(4).start_python(f"fcdp/{PROGRAM.name}", "--micro-batches", "2", "--until", "enough")
    job.wait_for("step 5\n")
    job.checkpoint()
    job.wait_for(beyond(job))
    job.kill()
    repeated = last_step(job.output())
    job.restart_by_command().wait_for(lambda text: last_step(text) > repeated + 5)
    (job.where / "enough").touch()
    (done,) = results(job)
    assert len(done["losses"]) > repeated + 5
    assert done == train(make_job, "--micro-batches", "2", "--steps", str(len(done["losses"])))


def last_step(text: str) -> int:
    return max((int(line.removeprefix("step ")) for line in text.splitlines() if line.startswith("step ")), default=-1)


def beyond(job: Job) -> Callable[[str], Any]:
    """A condition: a later step than now."""
    now = last_step(job.output())
    return lambda text: last_step(text) > now
