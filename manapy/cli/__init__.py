"""The command line: `manapy COMMAND`. Its commands are in folders, the groups of `manapy --help`."""

from ._main import COMMANDS, EXIT_DONE, EXIT_FAILED, EXIT_USAGE, GROUPS, HIDDEN, main, module_of, parser_of, program

__all__ = [
    "COMMANDS",
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_USAGE",
    "GROUPS",
    "HIDDEN",
    "main",
    "module_of",
    "parser_of",
    "program",
]
