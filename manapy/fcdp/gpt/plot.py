"""The loss of a training as a picture. Needs matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training import Result


def available() -> bool:
    """Is matplotlib installed?"""
    return importlib.util.find_spec("matplotlib") is not None


def draw(done: Result, file: Path) -> None:
    """Loss by step, and that of the validation before and after. Raises OSError."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4.5))
    axis.plot(range(1, len(done.losses) + 1), done.losses, color="#1b6ca8", linewidth=1, label="training")
    axis.plot([done.first, len(done.losses)], done.validation, "o--", color="#d95f02", label="validation")
    if done.first:
        axis.axvline(done.first, color="#7f7f7f", linewidth=0.8, linestyle=":", label="resumed")
    what = f"adapters of rank {done.training.lora}" if done.training.lora else "all parameters"
    axis.set(
        xlabel="step",
        ylabel="loss, nats per byte",
        title=f"{what}, {done.run.strategy} on {done.nodes} x {done.ranks_per_node} ranks; {done.text}",
    )
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(file, dpi=150, bbox_inches="tight")
    plt.close(figure)
