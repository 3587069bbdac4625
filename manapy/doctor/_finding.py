"""One result of a check."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """OK: good. NOTE: works, but know this. BAD: manapy or the checkpoint won't work."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, and what it means or what to do."""

    subject: str
    level: Level
    text: str
