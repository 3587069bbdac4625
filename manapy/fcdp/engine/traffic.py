"""Counts the bytes that a rank sends, where they are sent, by phase, and by whether they leave the node.

Bytes of message data, without the envelopes of MPI or of the network. Within a node, reading from shared
memory counts as if the writer had sent it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Phase(IntEnum):
    """What bytes are sent for."""

    FORWARD = 0  # parameters for the forward pass, including the refresh of caches
    BACKWARD = 1  # parameters for the backward pass
    REDUCE = 2  # gradients
    CONTROL = 3  # norms, checksums of parameters, reports: some bytes per rank
    STATE = 4  # parameters that the program looks at between steps


class Scope(IntEnum):
    """How far bytes travel."""

    INTER = 0  # between nodes
    INTRA = 1  # within one


class Traffic:
    """bytes: int64 of shape (phases, scopes), since the last reset. Only the communication thread and, for shared
    memory, the caller's add; never both to one cell at once."""

    def __init__(self) -> None:
        self.bytes = np.zeros((len(Phase), len(Scope)), np.int64)

    def add(self, phase: Phase, scope: Scope, count: int) -> None:
        """Count bytes as sent."""
        self.bytes[phase, scope] += count


def table(counts: np.ndarray) -> dict[str, dict[str, int]]:
    """Counts of shape (phases, scopes) with names: {"forward": {"inter": ..., "intra": ...}, ...}."""
    return {phase.name.lower(): {scope.name.lower(): int(counts[phase, scope]) for scope in Scope} for phase in Phase}
