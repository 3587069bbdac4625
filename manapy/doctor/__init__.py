"""Checks of the machine and of a program: can it be checkpointed, and what would stand in the way?

Every check gives findings; printing them is the business of manapy.cli.
"""

from ._finding import Finding, Level
from ._program import check_program
from ._system import check_system

__all__ = ["Finding", "Level", "check_program", "check_system"]
