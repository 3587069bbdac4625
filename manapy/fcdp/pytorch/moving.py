"""Moves arrays from the layout of one division of a model into units to the layout of another division.

It moves unit by unit, with the engine's messages for state; a rank holds all ranks' data of one unit at a time. This is
rare (requires_grad has changed), so the code is simple rather than economical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from ..engine.collective_errors import Ranks
from ..engine.unit_state import Part
from ..state.state_index import Span, spans

Arrays = dict[str, np.ndarray]


def moved(
    ranks: Ranks, before: Iterable[Part], kept: Callable[[str], Arrays], wanted: Mapping[str, Span | None]
) -> Iterator[tuple[str, Arrays]]:
    """Collective. Yields, for each parameter of the old units, its name, and the elements of each of its arrays that
    this rank has now.

    kept: for a parameter, arrays of the elements that this rank had (empty if it had none); wanted: by parameter, the
    elements that it has now.
    """
    for part in before:
        had = {span.parameter: span for span in spans(part.unit, part.start, part.start + part.values.size)}
        told = ranks.allgather(
            {name: (had[name].start if name in had else 0, kept(name)) for name, _ in part.unit.parameters}
        )
        for name, _ in part.unit.parameters:
            yield name, _assembled([theirs[name] for theirs in told], wanted[name])


def _assembled(told: Iterable[tuple[int, Arrays]], span: Span | None) -> Arrays:
    """told: for each rank, the index of its first element in the parameter, and the arrays of its elements."""
    begin, end = (span.start, span.stop) if span else (0, 0)
    found: Arrays = {}
    for start, arrays in told:
        for kind, array in arrays.items():
            target = found.setdefault(kind, np.zeros(end - begin, array.dtype))
            first, last = max(start, begin), min(start + array.size, end)
            if first < last:
                target[first - begin : last - begin] = array[first - start : last - start]
    return found
