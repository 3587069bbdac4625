"""The command line.

This file only imports names. The module of the command `list` would hide the builtin from code in this file.
"""

from ._main import COMMANDS, EXIT_DONE, EXIT_FAILED, EXIT_USAGE, GROUPS, HIDDEN, main

__all__ = ["COMMANDS", "EXIT_DONE", "EXIT_FAILED", "EXIT_USAGE", "GROUPS", "HIDDEN", "main"]
