#!/usr/bin/env python3
"""Write docs/commands.md: every command and option, as the programs themselves define them.

    tools/reference.py            write the page
    tools/reference.py --check    exit code 1 if the page is out of date

The sources are the argparse parsers of manapy/cli and the usage texts of manapy-launch and manapy-restart in
lowerhalf/start/options/options.c. A unit test compares the page with them. argparse's own help is not used: its layout
depends on the Python version and on the terminal.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/commands.md"
USAGES = ROOT / "lowerhalf/start/options/options.c"
COLUMNS = 120

HEAD = """\
# Commands

Do not edit this page. `tools/reference.py` writes it from the programs' own option tables. `COMMAND --help` prints
the same texts.

- `JOB` names a job: by its directory, by its name from any directory (`manapy list --all` shows the names), by one of
  its checkpoints, or by its chain. If exactly one live job is in the working directory, you can leave it out.
- `CHECKPOINT` is a checkpoint's directory, `JOB/ckpt-N`, or a job: then its latest checkpoint. `manapy-restart` behind
  mpirun is the exception: it takes only paths.
- `CHAIN` is a chain's directory, its name from any directory, or a job of it.
- `GROUP` names programs that move RDMA traffic together. It is not a job: `manapy rdma run --group` gives the name.
- `--dir` is the directory of what a command makes, a job's or a chain's. The last part of it is the name.
- `--json` prints data instead of text.
- Exit codes: 0 done, 1 failed, 2 wrong usage. `manapy why`, `manapy run` and `manapy slurm guard` have more (see
  below).
- `TIME` is a number with a unit: `500ms`, `30s`, `10m`, `2h`.
- [configuration.md](configuration.md): how files set options.
"""


def page() -> str:
    """The whole page."""
    from manapy import cli

    parts = [HEAD, *_index(cli.GROUPS)]
    for name in ("launch", "restart"):
        parts += _usage(name)
    for name in cli.COMMANDS:
        parts += _command(cli.parser_of(name), 2, getattr(cli.module_of(name), "TAKES_MORE", ""))
    return "\n".join(parts)


def _index(groups: dict[str, dict[str, str]]) -> Iterator[str]:
    launch = {"manapy-launch": "run a program as one rank of a job; put it behind mpirun or srun"}
    launch |= {"manapy-restart": "continue one rank of a job; `manapy restart` starts it for all ranks"}
    yield "| | command | purpose |"
    yield "|---|---|---|"
    for title, group in groups.items():
        rows = (launch if title == "start" else {}) | {f"manapy {name}": summary for name, summary in group.items()}
        for name, summary in rows.items():
            anchor = f"{'mpirun-' * (name in launch)}{name}".replace(" ", "-")
            yield f"| {title} | [{name}](#{anchor}) | {summary} |"
            title = ""
    yield ""


# ---- the C programs


def c_text(variable: str) -> str:
    """A string constant of options.c: launch_usage or restart_usage."""
    found = re.search(rf"\b{variable}\[\] =\n(.*?);\n", USAGES.read_text(), re.S)
    if found is None:
        raise SystemExit(f"{USAGES}: no text {variable}")
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1])).replace("\\n", "\n").replace('\\"', '"')


def usage(name: str) -> tuple[str, list[list[str]]]:
    """The usage text of manapy-launch or manapy-restart: its first line, then options with their explanations, which
    may continue in lines that are indented further."""
    first, *lines = c_text(f"{name}_usage").splitlines()
    items: list[list[str]] = []
    for line in lines:
        if line.startswith("   "):
            items[-1][1] += " " + line.strip()
        else:
            name, _, explanation = line.strip().partition("  ")
            items.append([name, explanation.strip()])
    return first.removeprefix("usage: "), [[option, text.strip()] for option, text in items]


def _usage(name: str) -> Iterator[str]:
    first, items = usage(name)
    yield f"## mpirun manapy-{name}"  # not only its name: `manapy restart` has the anchor #manapy-restart
    yield ""
    yield f"    {first}"
    yield ""
    for option, explanation in items:
        yield from _item(option, explanation)
    yield ""


# ---- manapy COMMAND


def _command(parser: argparse.ArgumentParser, level: int, more: str) -> Iterator[str]:
    yield f"{'#' * level} {parser.prog}"
    yield ""
    yield from _description(parser.description or "")
    children = subcommands(parser)
    if not children:
        yield f"    {synopsis(parser, more)}"
        yield ""
    for action in shown(parser):
        yield from _item(name_of(action), help_of(parser, action))
    if shown(parser):
        yield ""
    yield from _description(parser.epilog or "")
    for child in children:
        yield from _command(child, level + 1, more_of(child, more))


def more_of(child: argparse.ArgumentParser, more: str) -> str:
    """Return what may follow '--' in a subcommand, if `more` may in the command."""
    from manapy.cli.shared import dashes

    return dashes.of_subcommand(child.prog.split()[-1], more)


def subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of the commands below one."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [child for action in found for child in action.choices.values()]


def shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments that people may know."""
    return [action for action in parser._actions if _is_shown(action)]


def _is_shown(action: argparse.Action) -> bool:
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help is not argparse.SUPPRESS


def synopsis(parser: argparse.ArgumentParser, more: str) -> str:
    """`manapy checkpoint [OPTIONS] [JOB]`, with the required options. more: what may follow '--'."""
    if parser.usage:
        words = [parser.usage]
    else:
        words = [parser.prog]
        known = shown(parser)
        words += [name_of(action) for action in known if action.option_strings and action.required]
        words += ["[OPTIONS]"] * any(action.option_strings and not action.required for action in known)
        words += [_positional(action) for action in known if not action.option_strings]
        words += [more] * bool(more)
    return " ".join(words)


def _positional(action: argparse.Action) -> str:
    name = _value(action)
    if action.nargs == "*":
        return f"[{name} ...]"
    return f"[{name}]" if action.nargs in ("?", argparse.REMAINDER) else name


def name_of(action: argparse.Action) -> str:
    """`--then continue|exit`, or the name of a positional argument."""
    if not action.option_strings:
        return _value(action)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if action.metavar:
        return str(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The explanation of an argument."""
    if not action.help:
        return "print JSON" if action.dest == "json" else ""
    return " ".join((action.help % {**vars(action), "prog": parser.prog}).split())


# ---- text


def _item(name: str, text: str) -> list[str]:
    return _wrapped(f"- `{name}`: {text}" if text else f"- `{name}`", indent="  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _description(text: str) -> Iterator[str]:
    """Prose is wrapped again. A paragraph with columns, or with indented lines, stays unchanged."""
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n")):
        if not paragraph.strip():
            continue
        if is_verbatim(paragraph):
            yield "```text"
            for line in textwrap.dedent(paragraph).splitlines():
                yield from _verbatim(line.rstrip())
            yield "```"
        else:
            yield from _wrapped(" ".join(paragraph.split()))
        yield ""


def is_verbatim(paragraph: str) -> bool:
    """Has it columns or indented lines?"""
    return re.search(r"^\s|\S {2,}\S", paragraph, re.M) is not None


def _verbatim(line: str) -> list[str]:
    """Break a line that is too long at the beginning of its last column."""
    if len(line) <= COLUMNS:
        return [line]
    left, _, right = line.rpartition("  ")
    if not left.strip():
        left, right = line, ""
    first = textwrap.wrap(left.rstrip(), COLUMNS, subsequent_indent="    ")
    return first + textwrap.wrap(right, COLUMNS, initial_indent="    ", subsequent_indent="    ")


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    text = page()
    if arguments == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
