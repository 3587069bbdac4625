"""The ranks of a step check a checkpoint before they continue it: drivers/rank.c with real images, the real `manapy
_step`, and a process manager played here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import images
import pytest
from histories import History
from test_rank import Process
from test_rendezvous import Pmi, coordinator, run  # noqa: F401 (fixtures)

RANKS = 3


class Step:
    """A step of a chain that has taken three checkpoints in one attempt; another attempt has begun."""

    def __init__(self, directory: Path, start: Callable[..., list[Process]], program: Path) -> None:
        self.history = History(directory)
        self.where = self.history.chain.dir / "step-001"
        self.where.mkdir()
        self._start, self._program = start, program

    def image(self, number: int, rank: int) -> Path:
        return self.where / f"ckpt-{number:06d}" / f"rank-{rank:05d}.img"

    def begin(self, *options: str) -> None:
        """The attempt in which the step, with these options, has taken its checkpoints; then another one begins."""
        self.options = options
        self.history.begin()
        self.history.step(self.where, argv=[str(self._program), *options], ranks=RANKS)
        for seed in range(3):
            images.checkpoint(self.where, RANKS, seed)
        self.again()

    def again(self) -> None:
        """One more attempt begins."""
        self.history.end("crashed")
        self.history.begin()

    def ask(self, pmi: Pmi | None = None) -> list[Process]:
        """Start its ranks."""
        environment = {"MANAPY_CHAIN": str(self.history.chain.dir)}
        return self._start(*self.options, size=RANKS, pmi=pmi or Pmi(RANKS), env=environment)

    def damage(self, number: int, rank: int) -> None:
        images.flip(self.image(number, rank), 5000)

    def skipped(self) -> list[tuple[str, str]]:
        """The name and the reason of each checkpoint that the history has as damaged."""
        return [(Path(event["path"]).name, event["reason"]) for event in self.history.chain.events("skipped")]


@pytest.fixture
def step(tmp_path: Path, run: Callable[..., list[Process]], driver: Callable[[str], Path]) -> Step:  # noqa: F811
    return Step(tmp_path / "chain", run, driver("rank"))


def lines_of(rank: Process) -> list[str]:
    """What a rank prints until it has found its job, and the first word of that line."""
    lines = [rank.expect("")]
    while not lines[-1].startswith(("joined", "(end)")):
        lines.append(rank.expect(""))
    return [*lines[:-1], lines[-1].split(" ")[0]]


def resumed(step: Step, ranks: list[Process], number: int) -> None:
    """Each rank has checked its own images, and no others, newest first, and goes on from this checkpoint."""
    for i, rank in enumerate(ranks):
        checks = [f"checks {step.image(n, i)}" for n in range(3, number - 1, -1)]
        assert lines_of(rank) == [*checks, f"resumes {step.image(number, i).parent}", "joined"]
    (last,) = step.history.chain.steps(step.history.chain.attempts())
    assert (last["verdict"], last["path"]) == ("resume", str(step.image(number, 0).parent))


def test_whole(step: Step) -> None:
    step.begin()
    resumed(step, step.ask(), 3)
    assert step.skipped() == []


@pytest.mark.parametrize("rank", range(RANKS))
def test_damage_of_one_image(step: Step, rank: int) -> None:
    """All ranks learn of it, and the same processes go on from the next older checkpoint."""
    step.begin()
    step.damage(3, rank)
    ranks = step.ask()
    resumed(step, ranks, 2)
    ((name, reason),) = step.skipped()
    assert name == "ckpt-000003" and reason.startswith(f"{step.image(3, rank)}: damaged: ")
    for other in ranks:
        other.kill()
    said = ranks[0].process.stderr.read()
    assert re.fullmatch(r"manapy: .*/ckpt-000003 is damaged \(.*\) and is not used\n", said)
    assert [other.process.stderr.read() for other in ranks[1:]] == ["", ""]


def test_damage_of_two_images(step: Step) -> None:
    """The checkpoint is reported once, with the reason of the lowest rank. Values of the process manager are short."""
    step.begin()
    step.damage(3, 1)
    step.damage(3, 2)
    resumed(step, step.ask(Pmi(RANKS, value_max=256)), 2)
    ((name, reason),) = step.skipped()
    assert name == "ckpt-000003" and str(step.image(3, 1)) in reason


def test_damage_of_two_checkpoints(step: Step) -> None:
    """Another rank finds the damage of the older one. The next attempt checks again and reports nothing twice."""
    step.begin()
    step.damage(3, 1)
    step.damage(2, 2)
    for _ in range(2):
        ranks = step.ask()
        resumed(step, ranks, 1)
        for rank in ranks:
            rank.kill()
        step.again()
    assert [name for name, _ in step.skipped()] == ["ckpt-000003", "ckpt-000002"]


def test_all_are_damaged(step: Step) -> None:
    step.begin()
    for number in (1, 2, 3):
        step.damage(number, number - 1)
    ranks = step.ask()
    for i, rank in enumerate(ranks):
        assert lines_of(rank) == [*(f"checks {step.image(n, i)}" for n in (3, 2, 1)), "joined"]
    ranks[0].kill()
    said = ranks[0].process.stderr.read().splitlines()
    assert len(said) == 4
    assert said[-1].endswith("no undamaged checkpoint is left: the program starts from the beginning")
    assert step.history.chain.steps(2)[0]["verdict"] == "new" and (step.where / "job.json").exists()


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("gone", "the image is missing"), ("short", "truncated or extended"), ("eio", "cannot read: Input/output error")],
)
def test_image_that_cannot_be_read(step: Step, trouble: str, reason: str) -> None:
    """Rank 0 has still seen its header."""
    step.begin("--trouble", "1", trouble)
    ranks = step.ask()
    if trouble != "eio":
        resumed(step, ranks, 2)
        assert [name for name, _ in step.skipped()] == ["ckpt-000003"]
    else:  # rank 1 cannot read any image
        assert lines_of(ranks[1])[-1] == "joined"
        assert [name for name, _ in step.skipped()] == ["ckpt-000003", "ckpt-000002", "ckpt-000001"]
    assert reason in step.skipped()[0][1]


def test_death_of_a_rank_that_checks(step: Step) -> None:
    """Nothing has begun: there is no job, and nothing is recorded as damaged. The next attempt takes the same
    checkpoint."""
    step.begin("--trouble", "1", "stuck")
    ranks = step.ask()
    for rank in ranks:
        rank.expect("checks ")
    ranks[1].kill()
    for rank in ranks:
        assert rank.process.poll() is None or rank is ranks[1], "the others wait; the process manager ends them"
        rank.kill()
    assert not (step.where / "job.json").exists() and step.skipped() == []
    step.again()
    ranks = step.ask()
    ranks[0].expect(f"checks {step.image(3, 0)}")


def test_no_other_process_reads_an_image(step: Step) -> None:
    """The command that decides reads only the headers: damage behind them goes unnoticed without the ranks."""
    step.begin()
    step.damage(3, 1)
    from manapy.chain import steps

    argv = step.history.chain.events("step")[0]["argv"]
    verdict = steps.decide(step.history.chain, argv, RANKS, None, pytest.fail)
    assert verdict.path == step.image(3, 0).parent
