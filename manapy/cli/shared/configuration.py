"""Configuration files: defaults of options, in one table per command.

    /etc/manapy.toml                                    the site's
    manapy.toml in $XDG_CONFIG_HOME or ~/.config        the user's: replaces the site's options
    manapy.toml in the working directory                the job's: replaces both

`[why]` is for `manapy why`, `[trace.record]` for `manapy trace record`, `[launch]` for manapy-launch. A key is an
option without its dashes. MANAPY_CONFIG=off in the environment turns all files off.

Invariants
 1. Each line of a file is empty, a comment, [table] or key = value. A value is true, false, a number or a string in one
    line. manapy-launch and manapy-restart read this part of TOML, too (lowerhalf/start/options/config.c), and both
    readers refuse the rest of it.
 2. Nothing is taken from a file that another user can have written, and nothing blocks (a pipe of that name).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import UsageError, why
from ...core.records import NamedTuple

SITE = Path("/etc/manapy.toml")
NAME = "manapy.toml"
LARGEST = 65536  # bytes; BYTES_MAX of config.c

_WRONG_ENTRY = (
    'not key = value, where a value is "text" (with no escapes but \\" and \\\\), \'text\', a number, true or false'
)


class Setting(NamedTuple):
    """An option that a file sets. text: as on the command line, "true" or "false" if is_truth."""

    file: Path
    table: str
    key: str
    text: str
    is_truth: bool
    is_jobs: bool

    def wrong(self, reason: str) -> UsageError:
        """An error of this setting."""
        return UsageError(f"{self.file}: [{self.table}] {self.key}: {reason}")


class File(NamedTuple):
    """A file that exists. tables: the names of its tables, such as "trace.record"."""

    path: Path
    tables: tuple[str, ...]
    settings: tuple[Setting, ...]


def places() -> dict[str, Path]:
    """Where files may be, the one with the lowest precedence first, by the name of the place."""
    found = {"site": SITE}
    home = os.environ.get("HOME", "")
    if (config := os.environ.get("XDG_CONFIG_HOME", "")).startswith("/"):
        found["user"] = Path(config, NAME)
    elif home.startswith("/"):
        found["user"] = Path(home, ".config", NAME)
    return {**found, "job": Path(NAME)}


def files() -> list[File]:
    """The files that exist, the one with the lowest precedence first. Raises UsageError if one of them cannot be
    used."""
    if (how := os.environ.get("MANAPY_CONFIG", "")) == "off":
        return []
    if how:
        raise UsageError(f"MANAPY_CONFIG may only be off, not {how}")
    return [file for place, path in places().items() if (file := read(path, place == "job")) is not None]


def read(path: Path, is_jobs: bool = False) -> File | None:
    """A file; None if there is none. Raises UsageError with one line that names it."""
    data = _bytes(path)
    if data is None:
        return None
    import tomllib  # imported here: most users have no files

    try:
        text = data.decode()
        _check_lines(path, text)
        content = tomllib.loads(text, parse_float=str)
    except ValueError as error:  # TOML, or UTF-8
        raise UsageError(f"{path}: {error}") from None
    tables, settings = [], []
    for key, value in content.items():
        if not isinstance(value, dict):
            raise UsageError(f"{path}: {key} stands before the first [table]")
        for table, entries in _tables(key, value):
            tables.append(table)
            for name, found in entries.items():
                truth = isinstance(found, bool)
                settings.append(Setting(path, table, name, str(found).lower() if truth else str(found), truth, is_jobs))
    return File(path, tuple(tables), tuple(settings))


def _check_lines(path: Path, text: str) -> None:
    """Invariant 1."""
    key = "[A-Za-z0-9_-]+"
    string = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\["\\])*"' + r"|'[^'\x00-\x08\x0a-\x1f\x7f]*'"
    value = rf"(?:{string}|true|false|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)"
    end = r"[ \t]*(?:#[^\x00-\x08\x0a-\x1f\x7f]*)?\r?"
    table = re.compile(rf"[ \t]*\[[ \t]*{key}(?:[ \t]*\.[ \t]*{key})*[ \t]*\]{end}")
    entry = re.compile(rf"[ \t]*(?:{key}[ \t]*=[ \t]*{value})?{end}")
    if "\0" in text:
        raise UsageError(f"{path}: not a text")
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip(" \t").startswith("["):
            if not table.fullmatch(line):
                raise UsageError(f"{path}: line {number}: not a [table]")
        elif not entry.fullmatch(line):
            raise UsageError(f"{path}: line {number}: {_WRONG_ENTRY}")


def _tables(name: str, content: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """A table and those below it: their own entries."""
    yield name, {key: value for key, value in content.items() if not isinstance(value, dict)}
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _tables(f"{name}.{key}", value)


def _bytes(path: Path) -> bytes | None:
    """Invariant 2."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            from ...ckpt.store import own

            state = os.fstat(stream.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise UsageError(f"{path}: not a file")
            if complaint := own.complaint_of(path, state):
                raise UsageError(complaint)
            data = stream.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        if _is_hidden(path):
            return None
        raise UsageError(why(error, path)) from error
    except IsADirectoryError:
        raise UsageError(f"{path}: not a file") from None
    except OSError as error:
        raise UsageError(why(error, path)) from error
    if len(data) > LARGEST:
        raise UsageError(f"{path}: more than 64 kB")
    return data


def _is_hidden(path: Path) -> bool:
    """Is it in a folder that we may not enter? None of our files is there: after su, $HOME may be another user's."""
    try:
        path.stat()
    except PermissionError:
        return True
    return False
