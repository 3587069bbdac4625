"""One result of a check."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """OK: good. NOTE: works, with a restriction. BAD: manapy or a checkpoint will fail."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """The subject of a check, its level, and a text that says what was found and what to do."""

    subject: str
    level: Level
    text: str
