#!/usr/bin/env python3
"""Write the manual pages: manapy.1, and one for each command, from the same texts as docs/commands.md.

    tools/manual.py FOLDER VERSION

The build runs it (CMakeLists.txt), so the pages are never out of date. It needs only Python's own library.
`manapy restart` and manapy-restart share a page. The macros are those of man(7).
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import reference


def pages() -> dict[str, list[str]]:
    """The body of each page, by its name."""
    from manapy import cli

    made = {"manapy": [*_overview(cli.GROUPS)]}
    for name, summary in cli.COMMANDS.items():
        more = getattr(cli.module_of(name), "TAKES_MORE", "")
        made[f"manapy-{name}"] = [*_name(f"manapy {name}", summary), *_command(cli.parser_of(name), more)]
    made["manapy-launch"] = [*_name("manapy-launch", "run a program as one rank of a job"), *_program("launch")]
    made["manapy-restart"] += [".SH THE PROGRAM MANAPY-RESTART", *_program("restart")]
    return made


def _name(name: str, summary: str) -> Iterator[str]:
    yield from (".SH NAME", rf"{_safe(name.replace(' ', '-'))} \- {_safe(summary)}")


def _overview(groups: dict[str, dict[str, str]]) -> Iterator[str]:
    yield from _name("manapy", "checkpoint and restart of unmodified MPI programs")
    yield from (".SH SYNOPSIS", ".B manapy", "COMMAND ...", ".SH COMMANDS")
    yield from (".TP", ".B mpirun \\-n N manapy\\-launch PROGRAM", r"start a job; see manapy\-launch(1)")
    for title, group in groups.items():
        yield f".SS {title}"
        for name, summary in group.items():
            yield from (".TP", rf".BR manapy\-{name} (1)", _safe(summary))
    yield from (".SH FILES", ".TP", ".I /etc/manapy.toml, ~/.config/manapy.toml, ./manapy.toml")
    yield r"options that a site, a user and a job set; see manapy\-config(1)"
    yield from (".SH EXIT STATUS", r"0 done, 1 failed, 2 wrong usage; manapy\-why(1) has its own codes")


def _program(name: str) -> Iterator[str]:
    """What a usage text of the C programs says."""
    first, items = reference.usage(name)
    yield from (".SH SYNOPSIS" if name == "launch" else ".SS Synopsis", _safe(first))
    yield ".SH OPTIONS" if name == "launch" else ".SS Options"
    for option, text in items:
        yield from _item(option, text)


def _command(parser: argparse.ArgumentParser, more: str) -> Iterator[str]:
    """The sections of a command; each of its subcommands has one."""
    below = reference.subcommands(parser)
    yield ".SH SYNOPSIS"
    yield _bold(f"{parser.prog} COMMAND ..." if below else reference.synopsis(parser, more))
    yield ".SH DESCRIPTION"
    yield from _prose(parser.description or "")
    yield from [".SH OPTIONS"] * (not below)
    yield from _arguments(parser)
    for child in below:
        yield f".SH {_safe(child.prog.upper())}"
        yield _bold(reference.synopsis(child, reference.more_of(child, more)))
        yield from _prose(child.description or "")
        yield from _arguments(child)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in reference.shown(parser):
        yield from _item(reference.name_of(action), reference.help_of(parser, action))
    yield from _prose(parser.epilog or "")


def _bold(text: str) -> str:
    return f".B {_safe(text)}"


def _item(name: str, text: str) -> Iterator[str]:
    yield from (".TP", _bold(name), _safe(text) or r"\&")


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; those with columns, or with indented lines, stay unchanged."""
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n")):
        if not paragraph.strip():
            continue
        yield ".PP"
        if reference.is_verbatim(paragraph):
            yield from (".nf", *map(_safe, textwrap.dedent(paragraph).splitlines()), ".fi")
        else:
            yield _safe(" ".join(paragraph.split()))


def _safe(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    text = text.replace("^", r"\(ha").replace("~", r"\(ti")
    text = "".join(letter if ord(letter) < 128 else rf"\[u{ord(letter):04X}]" for letter in text)
    return rf"\&{text}" if text.startswith(".") else text


def main(arguments: list[str]) -> int:
    folder, version = Path(arguments[0]), arguments[1]
    sys.path.insert(0, str(reference.ROOT))
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in pages().items():
        head = f'.TH "{name.upper()}" "1" "" "manapy {version}" "manapy"'
        tail = [".SH SEE ALSO", *([".BR manapy (1)"] if name != "manapy" else [r".BR manapy\-launch (1)"])]
        text = "\n".join([head, ".ad l", ".nh", *body, *tail, ""])
        (folder / f"{name}.1").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
