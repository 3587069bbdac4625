"""The phases of a checkpoint, as STATUS names them."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """What a checkpoint is doing; the value is for people."""

    IDLE = "idle"
    CHECK = "checking"
    CLOCK = "waiting for a safe moment"
    CALL = "running callbacks"
    STOP = "stopping"
    DRAIN = "draining messages"
    WRITE = "writing"
    CAPTURE = "capturing"
    SAVE = "saving"  # beside the running ranks
    PUBLISH = "publishing"
    RESUME = "resuming"
