"""Layers in numpy, with their forward and backward passes written out: the front end of the core, and what tests train.

A layer names its units. The caller passes their parameters as one dictionary, and arrays of zeros for the gradients of
the trainable ones. Activations are (batch, features), float32. No MPI here, and nothing of the engine.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..engine.units import Unit

Arrays = dict[str, np.ndarray]


class Layer(Protocol):
    """units: of its parameters, may be empty."""

    units: tuple[Unit, ...]

    def initial(self, random: np.random.Generator) -> list[Arrays]:
        """Values of each unit."""

    def forward(self, parameters: Arrays, inputs: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Outputs, and what backward() needs."""

    def backward(self, parameters: Arrays, saved: list[np.ndarray], slope: np.ndarray, gradients: Arrays) -> np.ndarray:
        """slope: of the loss by the outputs; adds to gradients, returns the slope by the inputs."""


class Dense:
    """inputs @ weight + bias."""

    def __init__(self, name: str, inputs: int, outputs: int) -> None:
        self.units = (Unit(name, (("weight", (inputs, outputs)), ("bias", (outputs,)))),)

    def initial(self, random: np.random.Generator) -> list[Arrays]:
        """Normal weights that keep the variance."""
        return [_normal(self.units[0], random)]

    def forward(self, parameters: Arrays, inputs: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """See Layer."""
        return inputs @ parameters["weight"] + parameters["bias"], [inputs]

    def backward(self, parameters: Arrays, saved: list[np.ndarray], slope: np.ndarray, gradients: Arrays) -> np.ndarray:
        """See Layer."""
        gradients["weight"] += saved[0].T @ slope
        gradients["bias"] += slope.sum(axis=0)
        return slope @ parameters["weight"].T


class Adapted:
    """A frozen Dense and a trainable product of two thin matrices beside it (LoRA: Hu et al. 2021): inputs @ (weight +
    down @ up) + bias."""

    def __init__(self, name: str, inputs: int, outputs: int, rank: int) -> None:
        base = Unit(name, (("weight", (inputs, outputs)), ("bias", (outputs,))), trainable=False)
        self.units = (base, Unit(f"{name}.adapter", (("down", (inputs, rank)), ("up", (rank, outputs)))))

    def initial(self, random: np.random.Generator) -> list[Arrays]:
        """The adapter begins as zero: `up` is zero."""
        adapter = _normal(self.units[1], random)
        adapter["up"][:] = 0
        return [_normal(self.units[0], random), adapter]

    def forward(self, parameters: Arrays, inputs: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """See Layer."""
        thin = inputs @ parameters["down"]
        return inputs @ parameters["weight"] + parameters["bias"] + thin @ parameters["up"], [inputs, thin]

    def backward(self, parameters: Arrays, saved: list[np.ndarray], slope: np.ndarray, gradients: Arrays) -> np.ndarray:
        """See Layer."""
        inputs, thin = saved
        thin_slope = slope @ parameters["up"].T
        gradients["up"] += thin.T @ slope
        gradients["down"] += inputs.T @ thin_slope
        return slope @ parameters["weight"].T + thin_slope @ parameters["down"].T


class Tanh:
    """Without parameters."""

    units: tuple[Unit, ...] = ()

    def initial(self, random: np.random.Generator) -> list[Arrays]:
        """Nothing."""
        return []

    def forward(self, parameters: Arrays, inputs: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """See Layer."""
        outputs = np.tanh(inputs)
        return outputs, [outputs]

    def backward(self, parameters: Arrays, saved: list[np.ndarray], slope: np.ndarray, gradients: Arrays) -> np.ndarray:
        """See Layer."""
        return slope * (1 - saved[0] ** 2)


def cross_entropy(logits: np.ndarray, labels: np.ndarray, scale: float) -> tuple[float, np.ndarray]:
    """scale times the sum over the batch of the cross entropy of softmax(logits) (batch, classes) and labels (batch,);
    and its slope by the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    probabilities = np.exp(shifted)
    total = probabilities.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float((np.log(total[:, 0]) - shifted[rows, labels]).sum()) * scale
    slope = probabilities / total
    slope[rows, labels] -= 1
    return loss, slope * np.float32(scale)


def _normal(unit: Unit, random: np.random.Generator) -> Arrays:
    """Matrices normal with variance 1 / inputs, vectors zero."""
    return {
        name: (random.standard_normal(shape) / np.sqrt(shape[0]) if len(shape) > 1 else np.zeros(shape)).astype(
            np.float32
        )
        for name, shape in unit.parameters
    }
