"""Show which options configuration files set, and which value each option has.

    /etc/manapy.toml                                    the site's file
    manapy.toml in $XDG_CONFIG_HOME or ~/.config        the user's file: replaces the site's options
    manapy.toml in the working directory                the job's file: replaces both

The command line replaces all files. A table has the name of a command, and a key is an option without its
dashes:

    [launch]
    compress = "auto"

    [trace.record]
    limit = "5GB"

docs/configuration.md has the rules. MANAPY_CONFIG=off in the environment turns all files off.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from ..shared import configuration, configured, defaults
from ..shared.output import Output


@dataclass(frozen=True)
class Row:
    """An option; its value as text; file: empty if no file sets it."""

    table: str
    option: str
    value: str
    file: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "command",
        nargs="?",
        metavar="COMMAND",
        help="show all options of one command, such as why, trace or launch (default: what files set, of all commands)",
    )
    parser.add_argument("--all", action="store_true", help="show all options of all commands")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Read the files, check all of them, and print."""
    from .. import COMMANDS
    from ...core.errors import UsageError

    names = {*COMMANDS, *defaults.OTHERS}
    if options.command is not None and options.command not in names:
        raise UsageError(f"no command '{options.command}': {', '.join(sorted(names))}")
    files = configuration.files()
    rows = [row for name in sorted(names) for row in _rows(name, files)]
    if options.command is not None:
        rows = [row for row in rows if row.table.partition(".")[0] == options.command]
    elif not options.all:
        rows = [row for row in rows if row.file]
    read = {file.path for file in files}
    places = [
        {"place": place, "file": str(path), "read": path in read} for place, path in configuration.places().items()
    ]
    out.data({"files": places, "options": [asdict(row) for row in rows]})
    out.table(("place", "file", ""), [(p["place"], p["file"], "read" if p["read"] else "not there") for p in places])
    if rows:
        out.line("")
        shown = [(f"[{row.table}]", row.option, row.value, row.file or "default") for row in rows]
        out.table(("table", "option", "value", "from"), shown)
    return 0


def _rows(name: str, files: Sequence[configuration.File]) -> Iterator[Row]:
    """The options of a command. Raises UsageError if a file sets them wrongly."""
    from .. import COMMANDS, parser_of
    from ...core import installation

    said = set()
    if program := installation.executable(f"manapy-{name}"):
        for key, value, file in configured.ask(program):
            said.add(key)
            yield Row(name, key, value, file)
    if name not in COMMANDS:
        return
    parser = parser_of(name)
    pending = {id(found.action): found for _, found in defaults.apply(parser, name, files, COMMANDS)}
    for table, below in defaults.parsers(parser, name).items():
        for key, action in defaults.options_of(below).items():
            found = pending.get(id(action))
            if found is not None:
                found.read(below)  # it may be wrong
            if key not in said:
                value = _text(action.default) if found is None else found.setting.text
                yield Row(table, key, value, "" if found is None else str(found.setting.file))


def _text(default: object) -> str:
    """A default as on the command line."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list | tuple):
        return ",".join(map(str, default))
    return "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
