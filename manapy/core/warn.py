"""Warnings for a program that calls manapy where the call has no effect. Programs import this module, so it imports
nothing heavy."""

from __future__ import annotations


def warn(text: str, callers: int = 1) -> None:
    """A RuntimeWarning at the line of the program that called manapy, `callers` functions above the one that warns."""
    import warnings

    warnings.warn(f"manapy: {text}", RuntimeWarning, stacklevel=2 + callers)


def not_launched(what: str) -> None:
    """Nothing happened, because manapy-launch did not start this process."""
    warn(f"{what}: this process does not run under manapy-launch", callers=2)
