"""Runs layers on the engine: one micro-batch, in the order of calls that engine.py requires."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.engine import Engine
from ..engine.traffic import Phase
from ..engine.units import Unit
from .layers import Arrays, Layer, cross_entropy


def units_of(layers: Sequence[Layer]) -> list[Unit]:
    """All units, in the order of layers."""
    return [unit for layer in layers for unit in layer.units]


def initialise(engine: Engine, layers: Sequence[Layer], random: np.random.Generator) -> None:
    """Collective. Load the layers' initial values; `random` must be in the same state on all ranks."""
    for layer in layers:
        for unit, values in zip(layer.units, layer.initial(random), strict=True):
            engine.load(unit.name, values)


def micro_batch(engine: Engine, layers: Sequence[Layer], inputs: np.ndarray, labels: np.ndarray, scale: float) -> float:
    """Collective. Forward and backward pass over this rank's examples: inputs (batch, features), labels (batch,);
    returns scale times the sum of their losses.

    For the mean over the global batch, scale is one over the number of its examples, on all ranks and in all
    micro-batches of the step.
    """
    activations = inputs
    saved = []
    for layer in layers:
        parameters = _gather(engine, layer, Phase.FORWARD)
        activations, kept = layer.forward(parameters, activations)
        saved.append((kept, engine.hold(sum(array.nbytes for array in kept), "the activations of a layer")))
        _release(engine, layer)
    loss, slope = cross_entropy(activations, labels, scale)
    for layer in reversed(layers):
        kept, block = saved.pop()
        parameters = _gather(engine, layer, Phase.BACKWARD)
        trainable = [unit.name for unit in layer.units if unit.trainable]
        gradients: Arrays = {}
        for name in trainable:
            gradients.update(engine.gradients(name))
        slope = layer.backward(parameters, kept, slope, gradients)
        _release(engine, layer)
        for name in trainable:
            engine.reduce(name)
        block.free()
    engine.finish()
    return loss


def _gather(engine: Engine, layer: Layer, phase: Phase) -> Arrays:
    parameters: Arrays = {}
    for unit in layer.units:
        parameters.update(engine.gather(unit.name, phase))
    return parameters


def _release(engine: Engine, layer: Layer) -> None:
    for unit in layer.units:
        engine.release(unit.name)
