"""Checks of the machine and of a program: can they be checkpointed, and what prevents it?

Every check returns findings; manapy.cli prints them.
"""

from . import report
from ._finding import Finding, Level
from ._program import check_program
from ._system import check_system

__all__ = ["Finding", "Level", "check_program", "check_system", "report"]
