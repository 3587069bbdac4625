"""`manapy fcdp train`: a small GPT, trained in full and with adapters; resumed, refused, and checkpointed without
noticing it.

Importing PyTorch takes five seconds of processor time on each rank. So the ranks of two jobs run several commands each,
one after the other (programs/fcdp/train_commands.py). Their results are the fixtures on_four_ranks and on_two_ranks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job
from needed import need
from phases import STANDING
from terminal import Terminal

need("torch", "no PyTorch: pip install '.[torch]'")

Make = Callable[..., Job]
SMALL = ("--layers", "2", "--hidden", "32", "--heads", "2", "--context", "32", "--batch", "8")
HOW = ("--rate", "0.01", "--micro-batches", "2")
NODES = ("--ranks-per-node", "2")
STEPS, MORE = 40, 6  # of the base; of a training that goes on from it
CHECKPOINTED = (*SMALL, *HOW, "--steps", "80")


def train(job: Job, *options: str | Path) -> Job:
    return job.spawn([BIN / "mpirun", "-n", str(job.ranks), BIN / "manapy", "fcdp", "train", *options])


@dataclass
class Ended:
    """A command that all ranks have run: their exit codes and their outputs."""

    codes: tuple[int, ...]
    said: tuple[str, ...]

    def result(self) -> dict[str, Any]:
        """The output of --json, which is the only output."""
        assert set(self.codes) == {0} and not any(self.said[1:]), self
        return dict(json.loads(self.said[0]))


def several(job: Job, commands: dict[str, Sequence[str | Path]]) -> dict[str, Ended]:
    """`manapy fcdp train` with each of these options, by the same ranks."""
    words = json.dumps([["fcdp", "train", *map(str, options)] for options in commands.values()])
    program = [sys.executable, PROGRAMS / "fcdp/train_commands.py", words]
    (line,) = job.spawn([BIN / "mpirun", "-n", str(job.ranks), *program]).finish(2 * PATIENCE).splitlines()
    ended = [Ended(*zip(*ranks, strict=True)) for ranks in json.loads(line.removeprefix("RESULT"))]
    return dict(zip(commands, ended, strict=True))


def written(job: Job) -> dict[str, Any]:
    """The result that --out keeps."""
    return dict(json.loads((job.where / "out" / "result.json").read_text()))


@pytest.fixture(scope="module")
def four(make_shared_job: Make) -> Job:
    """The job of on_four_ranks."""
    return make_shared_job(4)


@pytest.fixture(scope="module")
def on_four_ranks(four: Job) -> dict[str, Ended]:
    steps = ("--steps", str(STEPS + MORE))
    return several(
        four,
        {
            "base": (*SMALL, *HOW, *NODES, "--steps", str(STEPS), "--save", "state", "--out", "out"),
            "adapters": (*NODES, "--base", "state", "--lora", "4", "--steps", "30", "--rate", "0.01", "--json"),
            "resumed": (*NODES, "--resume", "state", *steps, "--micro-batches", "2", "--json"),
            "at once": (*SMALL, *HOW, *NODES, *steps, "--json"),
        },
    )


@pytest.fixture(scope="module")
def base(on_four_ranks: dict[str, Ended], four: Job) -> dict[str, Any]:
    """The result of a training in full, which saves its state."""
    assert on_four_ranks["base"].codes == (0, 0, 0, 0), on_four_ranks["base"]
    return written(four)


@pytest.fixture(scope="module")
def state(base: dict[str, Any], four: Job) -> Path:
    """The state that it saved."""
    return four.where / "state"


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {  # when training has begun: options, exit code, error
    "not a directory": (("--out", "STATE/index.json"), 1, "manapy: STATE/index.json: File exists"),
    "too large": (("--hidden", "40000000", "--heads", "1"), 1, "manapy: the model can't be made: "),
    "too little memory": ((*SMALL, "--device-memory", "50kB"), 1, "manapy: unit 'blocks.0' needs "),
}


@pytest.fixture(scope="module")
def on_two_ranks(make_shared_job: Make, state: Path) -> dict[str, Ended]:
    resumed = ("--resume", state, "--steps", str(STEPS + MORE), "--strategy", "zero3", "--json")
    bad = {name: [o.replace("STATE", str(state)) for o in options] for name, (options, _, _) in REFUSED.items()}
    return several(make_shared_job(2), {**bad, "resumed": resumed, "undisturbed": (*CHECKPOINTED, "--json")})


def sent(done: dict[str, Any]) -> list[dict[str, int]]:
    """The bytes sent, by scope, in each step except the first."""
    return [
        {scope: sum(phase[scope] for phase in step.values()) for scope in ("inter", "intra")}
        for step in done["sent"][1:]
    ]


def computed(done: dict[str, Any]) -> dict[str, int]:
    return {
        scope: sum(done["form"][phase][scope] for phase in ("forward", "backward", "reduce"))
        for scope in ("inter", "intra")
    }


def test_in_full(base: dict[str, Any], on_four_ranks: dict[str, Ended], four: Job) -> None:
    assert base["validation"][1] < base["validation"][0] - 1
    assert (base["first"], len(base["losses"]), base["frozen"]) == (0, STEPS, 0)
    assert sent(base) == [computed(base)] * (STEPS - 1)
    # (N-1)/N (W + G)
    assert (
        computed(base)["inter"] == pytest.approx(4 * base["trainable"], rel=0.01)
        and base["host"] >= 4 * base["trainable"]
    )
    said, *others = on_four_ranks["base"].said
    lines = said.splitlines()
    assert not any(others)
    assert [line for line in lines if line.startswith("step ")] == [
        f"step {step}  loss {loss:.4f}" for step, loss in enumerate(base["losses"], 1)
    ]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("forward", "backward", "reduce"))}
    assert rows["backward"][:4] == ["0", "B", "0", "B"]
    assert all(row[:2] == row[2:4] and row[4:6] == row[6:] for row in rows.values()) and float(rows["forward"][0]) > 0
    assert (four.where / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_adapters(base: dict[str, Any], on_four_ranks: dict[str, Ended]) -> None:
    done = on_four_ranks["adapters"].result()
    assert done["training"]["hidden"] == 32 and done["frozen"] == base["trainable"] > 5 * done["trainable"] > 0
    assert done["validation"][1] < done["validation"][0] - 0.01
    assert sent(done) == [computed(done)] * 29
    assert computed(done)["inter"] == pytest.approx(4 * done["trainable"], rel=0.01)  # independent of what is frozen


def test_a_resumed_training_goes_on_bit_by_bit(
    base: dict[str, Any], on_four_ranks: dict[str, Ended], on_two_ranks: dict[str, Ended]
) -> None:
    resumed, at_once = (on_four_ranks[name].result() for name in ("resumed", "at once"))
    assert (resumed["first"], resumed["losses"][:STEPS]) == (STEPS, base["losses"])
    assert resumed["losses"] == at_once["losses"] and resumed["validation"][1] == at_once["validation"][1]
    elsewhere = on_two_ranks["resumed"].result()
    assert elsewhere["losses"] == pytest.approx(at_once["losses"], rel=1e-4)
    assert elsewhere["host"] == 0


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--strategy", "ddp"], 2, "argument --strategy: invalid choice: 'ddp'"),
        (["--tau", "0.5"], 2, "manapy: --tau is a share of --device-memory, which is not given"),
        (["--resume", "STATE", "--hidden", "64"], 2, "manapy: STATE holds another model: --hidden 32 there, 64 here"),
    ],
)
def test_bad_input(make_job: Make, state: Path, options: list[str], code: int, said: str) -> None:
    """One line, by one rank, and no traceback."""
    job = train(make_job(2), *(option.replace("STATE", str(state)) for option in options))
    assert job.wait() == code, job.output()
    lines = [line for line in job.output().splitlines() if not line.startswith("usage: ")]
    assert len(lines) == 1 and said.replace("STATE", str(state)) in lines[0], job.output()


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_that_training_notices(on_two_ranks: dict[str, Ended], state: Path, name: str) -> None:
    """The same. The ranks go on with other trainings afterwards."""
    _, code, said = REFUSED[name]
    ended = on_two_ranks[name]
    assert ended.codes == (code, code) and ended.said[1] == "", ended
    (line,) = ended.said[0].splitlines()
    assert said.replace("STATE", str(state)) in line


def test_without_pytorch(make_job: Make) -> None:
    program = "import sys; sys.modules['torch'] = None; from manapy.cli import main; sys.exit(main(['fcdp', 'train']))"
    job = make_job(2).spawn([BIN / "mpirun", "-n", "2", sys.executable, "-c", program])
    assert job.wait() == 1
    assert (
        job.output().startswith("manapy: manapy.fcdp.pytorch needs PyTorch")
        and "manapy's extra 'torch'" in job.output()
        and len(job.output().splitlines()) == 1
    )


def test_one_rank_without_pytorch(make_job: Make) -> None:
    """Rank 0, which is the only one that speaks, says it."""
    program = (
        "import os, sys; sys.modules.update({'torch': None} if os.environ['PMI_RANK'] == '1' else {}); "
        "from manapy.cli import main; sys.exit(main(['fcdp', 'train']))"
    )
    job = make_job(2).spawn([BIN / "mpirun", "-n", "2", sys.executable, "-c", program])
    assert job.wait() == 1
    (line,) = job.output().splitlines()
    assert line.startswith("manapy: rank 1: manapy.fcdp.pytorch needs PyTorch")


def test_a_checkpoint_that_training_does_not_know_of(make_job: Make, on_two_ranks: dict[str, Ended]) -> None:
    """PyTorch in the upper half: killed in the middle of the training and restarted, it ends with the losses of an
    undisturbed training."""
    undisturbed = on_two_ranks["undisturbed"].result()["losses"]
    training = (BIN / "manapy", "fcdp", "train", *CHECKPOINTED, "--out", "out")
    job = make_job(2).start(*training, options=STANDING)  # else it may have ended when the images are written
    job.wait_for("step 5 ")
    job.checkpoint()
    job.kill()
    assert last_step(job.output()) < len(undisturbed)
    job.restart_by_command().finish()
    assert written(job)["losses"] == undisturbed


def last_step(text: str) -> int:
    return max(int(line.split()[1]) for line in text.splitlines() if line.startswith("step ") and "loss" in line)


def test_a_bar_where_mpirun_has_a_terminal() -> None:
    """Ranks write to pipes of mpirun, which passes on what it reads."""
    terminal = Terminal(BIN / "mpirun", "-n", "2", BIN / "manapy", "fcdp", "train", *SMALL, "--steps", "3")
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert b"\xe2\x94\x81" in terminal.drawn and b"step 3, loss" in terminal.drawn  # rich's line
    assert not any(line.startswith("step ") for line in terminal.screen())
