"""Options in the Markdown files and scripts: those of command lines, also of examples without `$`, and those that stand
alone in a sentence. test_site.py checks whole calls."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import console
import docs_pages
import pytest
import reference
from manapy import cli
from manapy.cli.shared.arguments import Renamed

ROOT = docs_pages.ROOT
PAGES = sorted([*(ROOT / page for page in docs_pages.pages()), *(ROOT / "examples").rglob("*.md")])
SCRIPTS = sorted([*(ROOT / "examples").glob("*/job.sh"), *(ROOT / "tools/slurm").glob("*.sbatch")])
OF_OTHERS = {  # options of other programs, and what turns an option of manapy off
    *("--mem", "--distribution", "--signal", "--constraint", "--exclude"),  # Slurm
    *("--ckptdir", "--mca", "--pid", "--pause"),  # DMTCP, Open MPI, containers, programs of our tests
    *("--no-waits", "--trace"),
    "--results",  # tools of this repository
}
OPTION = re.compile(r"(?<![\w=-])--[a-z][a-z0-9-]*")  # not one for another program, as in --sbatch=--nodes=1


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a command and its subcommands that are not old names."""
    for action in parser._actions:
        if not isinstance(action, Renamed):
            yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from options_of(child)


def known(call: list[str]) -> set[str] | None:
    """The options of a call's command; None if it names none."""
    if call[0] != "manapy":
        return set(OPTION.findall(reference.c_text(f"{call[0].removeprefix('manapy-')}_usage")))
    if len(call) < 2 or call[1] not in cli.COMMANDS:
        return None
    parser, words = cli.parser_of(call[1]), call[2:]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            parser = action.choices[words[0]]
    return {*options_of(parser), "--help"}


def lines(path: Path) -> Iterator[str]:
    """The lines of a script, or those of a page that are indented or in fences: code. A backslash continues one."""
    text = path.read_text().replace("\\\n", " ")
    if path.suffix == ".md":
        fenced = re.findall(r"^ *```.*\n((?:.*\n)*?) *```$", text, re.M)
        yield from (line for block in fenced for line in block.splitlines())
        text = "\n".join(re.findall(r"^    .*", text, re.M))
    yield from text.splitlines()


def calls(path: Path) -> Iterator[list[str]]:
    for line in lines(path):
        try:
            yield from console.invocations(line.split("   ")[0] if line[:4].strip() else line.strip().split("   ")[0])
        except ValueError:  # a quotation that ends in another line
            continue


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_options_of_command_lines(path: Path) -> None:
    for call in calls(path):
        options = known(call)
        if options is None:
            continue
        own = call[: call.index("--")] if "--" in call else call
        if call[0] != "manapy":  # the program's own options follow it
            own = [word for word in own if word.startswith("--")][:1]
        wrong = {name for word in own for name in OPTION.findall(word) if word.startswith("--")} - options
        assert not wrong, f"{' '.join(call)}: {wrong}"


@pytest.fixture(scope="module")
def every() -> set[str]:
    """The options of all commands."""
    found = {option for name in cli.COMMANDS for option in options_of(cli.parser_of(name))}
    return found.union(*(OPTION.findall(reference.c_text(f"{name}_usage")) for name in ("launch", "restart")))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_stand_alone(path: Path, every: set[str]) -> None:
    """`--option` in a sentence is an option of some command; under a heading that names a command, one of this."""
    options = every | OF_OTHERS
    for line in re.sub(r"^ *```.*?```$", "", path.read_text(), flags=re.M | re.S).splitlines():
        if line.startswith("#"):
            command = re.search(r"`(manapy[^`]*)`", line)
            options = ((command and known(command[1].split())) or every) | OF_OTHERS
        wrong = {OPTION.findall(span)[0] for span in re.findall(r"`(--[a-z][^`]*)`", line)} - options
        assert not wrong, f"{line}: {wrong}"


def test_wrong_options_are_found(tmp_path: Path) -> None:
    """And the files have command lines at all."""
    page = tmp_path / "page.md"
    for line in ("    manapy trace run --mpi x -- prog", "```\nmpirun -n 2 manapy-launch --nothing x\n```"):
        page.write_text(f"# `manapy trace run`\n\n{line}\n")
        with pytest.raises(AssertionError):
            test_options_of_command_lines(page)
    page.write_text("# `manapy trace run`\n\nUse `--dir`.\n")
    with pytest.raises(AssertionError):
        test_options_that_stand_alone(page, {"--dir"})
    assert sum(len(list(calls(path))) for path in (*PAGES, *SCRIPTS)) > 100
