"""The options of a training, and their part in a saved state. No MPI, no PyTorch.

1. A state keeps Training, so that a run that continues it need not give these options again. Run may differ each time:
   any number of ranks and any strategy can continue.
2. A base provides a model and its values. A resumed state provides all of Training, the step and the losses so far.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.errors import UsageError
from ..errors import StateError
from ..state import state_index

KIND = "manapy fcdp train"  # in what the state keeps for the program
SHAPE = ("layers", "hidden", "heads", "context")


@dataclass(frozen=True)
class Training:
    """layers to context: the GPT's shape; lora: rank of adapters, 0 to train all; batch: sequences of a step, on all
    ranks together; rate: of learning."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    context: int = 128
    lora: int = 0
    batch: int = 16
    rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise UsageError(f"--heads must divide --hidden: {self.heads} does not divide {self.hidden}")

    @property
    def shape(self) -> dict[str, int]:
        """The model's arguments."""
        return {name: getattr(self, name) for name in SHAPE}


@dataclass(frozen=True)
class Run:
    """steps: in all, those of a resumed state included; device_memory: bytes; text: None for Python's own; base,
    resume, save: states; out: where the result is written."""

    steps: int = 100
    strategy: str = "fcdp"
    tau: float = 0.0
    micro_batches: int = 1
    device_memory: int | None = None
    ranks_per_node: int | None = None
    text: Path | None = None
    base: Path | None = None
    resume: Path | None = None
    save: Path | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.base and self.resume:
            raise UsageError("--base begins a training, --resume continues one: give only one of them")
        if self.tau and self.device_memory is None:
            raise UsageError("--tau is a share of --device-memory, which is not given")


@dataclass(frozen=True)
class Saved:
    """What a state keeps beside tensors. text: the digest of what was learned."""

    training: Training
    step: int
    text: str
    losses: list[float]

    def extra(self) -> dict[str, Any]:
        """Return the record for save()."""
        return {"kind": KIND, **asdict(self)}


def saved(directory: Path) -> Saved:
    """Return what a state of `manapy fcdp train` contains beside tensors. Raises StateError."""
    extra = state_index.read(directory).extra
    try:
        if extra["kind"] != KIND:
            raise KeyError
        return Saved(
            Training(**extra["training"]),
            int(extra["step"]),
            str(extra["text"]),
            [float(loss) for loss in extra["losses"]],
        )
    except (KeyError, TypeError, ValueError):
        raise StateError(f"{directory} is not a state of `{KIND}`") from None


def settle(given: Mapping[str, Any], run: Run) -> tuple[Training, Saved | None]:
    """Determine Training from the given options and the base or resumed state; and the resumed state. Raises
    UsageError, StateError.
    """
    if run.base:
        base = saved(run.base).training
        if base.lora:
            raise UsageError(f"{run.base} has adapters (--lora {base.lora}): a base must be a whole model")
        return Training(
            **_same(base.shape, given, run.base), **{name: value for name, value in given.items() if name not in SHAPE}
        ), None
    if run.resume:
        before = saved(run.resume)
        if before.step >= run.steps:
            raise UsageError(f"{run.resume} is at step {before.step}: --steps, {run.steps}, must be more")
        _same({**before.training.shape, "lora": before.training.lora}, given, run.resume)
        return Training(**{**asdict(before.training), **given}), before
    if given.get("lora"):
        raise UsageError(f"--lora needs the model to adapt: --base DIR, written by `{KIND} --save DIR`")
    return Training(**given), None


def _same(there: dict[str, int], given: Mapping[str, Any], where: Path) -> dict[str, int]:
    """Return the values of the state. Raises UsageError with the first difference."""
    for name, value in there.items():
        if given.get(name, value) != value:
            raise UsageError(f"{where} holds another model: --{name} {value} there, {given[name]} here")
    return there


def check_targets(run: Run) -> None:
    """Check that results can be written, before hours of training. Raises StateError, OSError."""
    if run.save:
        if run.save.exists():
            raise StateError(f"{run.save} exists already")
        if importlib.util.find_spec("safetensors") is None:
            raise StateError(
                "states are written and read by the package safetensors, which is not installed (manapy's extra 'fcdp')"
            )
    for directory in filter(None, (run.out, run.save and run.save.parent)):
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
