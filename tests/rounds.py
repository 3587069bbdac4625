"""How often random tests repeat what they do: not so often in an ordinary run, more often with --long."""

from __future__ import annotations

_long = False


def choose(long: bool) -> None:
    """Called before any test is collected: is this a run with --long?"""
    global _long
    _long = long


def rounds(usual: int, many: int) -> int:
    """The number of rounds: `usual`, or `many` with --long."""
    return many if _long else usual
