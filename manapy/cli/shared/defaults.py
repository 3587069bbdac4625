"""Gives the options of a command the defaults that configuration files set (configuration.py).

Invariants
 1. A text in a file goes through the option's own type, as on the command line. It is read only if nothing with higher
    precedence replaces it.
 2. A key that the command does not have is an error in any file, whatever the command line says.
 3. A file of the working directory may come with data of another person. It must not decide which programs run when a
    user only looks at such data, and must not turn a check off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence

from ...core.errors import UsageError
from .arguments import Renamed
from .configuration import File, Setting

# Invariant 3; for manapy-restart: lowerhalf/start/options/options.c
NOT_IN_JOBS_FILES = {"address", "imb", "mpi", "mpirun", "probe", "rsh", "run", "unsigned"}
OTHERS = {"launch"}  # tables of programs that read them themselves


class _Pending:
    """A setting that replaces the default of an option until the command line has been read."""

    def __init__(self, action: argparse.Action, setting: Setting) -> None:
        self.action = action
        self.setting = setting
        self.normally = action.default

    def __str__(self) -> str:
        return self.setting.text  # in help texts

    def read(self, parser: argparse.ArgumentParser) -> object:
        """The value of the option. Raises UsageError."""
        if self.action.nargs == 0:
            return self.setting.text == "true"
        try:
            value = parser._get_value(self.action, self.setting.text)
            parser._check_value(self.action, value)
        except argparse.ArgumentError as error:
            raise self.setting.wrong(error.message) from None
        return value


def add_opposites(parser: argparse.ArgumentParser) -> None:
    """--no-x for each flag --x, and --x for --no-x: a person can turn off what a file has turned on."""
    for below in parsers(parser, "").values():
        for action in list(below._actions):
            if isinstance(action, argparse._StoreTrueAction):
                name = action.option_strings[-1]
                opposite = f"--{name[5:]}" if name.startswith("--no-") else f"--no-{name[2:]}"
                if opposite not in below._option_string_actions:
                    below.add_argument(opposite, dest=action.dest, action="store_false", help=argparse.SUPPRESS)


def parsers(parser: argparse.ArgumentParser, table: str) -> dict[str, argparse.ArgumentParser]:
    """The parser of a command and those of its subcommands, by the names of their tables."""
    found = {table: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found |= parsers(below, f"{table}.{name}")
    return found


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options that files may set, by their keys."""
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    shown = [action for action in shown if not isinstance(action, argparse._HelpAction)]
    return {name[2:]: action for action in shown for name in action.option_strings if name.startswith("--")}


def apply(
    parser: argparse.ArgumentParser, command: str, files: Sequence[File], commands: Collection[str]
) -> list[tuple[argparse.ArgumentParser, _Pending]]:
    """Replace defaults; the result is for `settle`. commands: all that may have tables. Raises UsageError."""
    tables = parsers(parser, command)
    pending: dict[tuple[str, str], tuple[argparse.ArgumentParser, _Pending]] = {}
    for file in files:
        for table in file.tables:
            first = table.partition(".")[0]
            if first not in {*commands, *OTHERS} or (first == command and table not in tables):
                raise UsageError(f"{file.path}: [{table}]: no such command")
        for setting in file.settings:
            if setting.table in tables:
                below = tables[setting.table]
                pending[setting.table, setting.key] = below, _Pending(_action(below, setting), setting)
    for _, found in pending.values():
        found.action.default = found
        found.action.required = False
    return list(pending.values())


def _action(parser: argparse.ArgumentParser, setting: Setting) -> argparse.Action:
    action = options_of(parser).get(setting.key)
    old = parser._option_string_actions.get(f"--{setting.key}")
    if isinstance(old, Renamed):
        action = old.new
        now = action.option_strings[0][2:]
        print(f"{setting.file}: [{setting.table}] {setting.key} is called {now} now", file=sys.stderr)
    if action is None:
        raise setting.wrong("no such option")
    if setting.is_jobs and setting.key in NOT_IN_JOBS_FILES and action.choices is None:
        raise setting.wrong("not allowed in a file of the working directory, because it decides what runs")
    if setting.is_truth != (action.nargs == 0):
        needs = "needs true or false" if action.nargs == 0 else "needs a text or a number"
        raise setting.wrong(f"{needs}, not {setting.text}")
    return action


def settle(
    options: argparse.Namespace, pending: Sequence[tuple[argparse.ArgumentParser, _Pending]]
) -> dict[str, Setting]:
    """After the command line has been read: the values of the options that it does not have. Returns what the files
    have set, by option. Raises UsageError."""
    used = {}
    for parser, found in pending:
        name = found.action.dest
        if getattr(options, name, None) is not found:
            continue
        rivals = _rivals(parser, found)
        if any(getattr(options, rival.dest) is not rival.default for rival in rivals):  # on the command line
            setattr(options, name, found.normally)
            continue
        for rival in rivals:
            if isinstance(rival.default, _Pending):
                raise found.setting.wrong(f"not allowed with {rival.default.setting.key}")
        setattr(options, name, found.read(parser))
        used[f"--{found.setting.key}"] = found.setting
    return used


def _rivals(parser: argparse.ArgumentParser, found: _Pending) -> list[argparse.Action]:
    """The options that exclude this one."""
    groups = [group._group_actions for group in parser._mutually_exclusive_groups]
    return [rival for group in groups if found.action in group for rival in group if rival is not found.action]
