"""The documentation site: it builds without a warning, and what it says of commands and options is true."""

from __future__ import annotations

import argparse
import html
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import console
import docs_pages
import pytest
import reference
from manapy import cli

ROOT = docs_pages.ROOT
PAGES = [path.as_posix() for path in docs_pages.pages() if path.as_posix() != "docs/commands.md"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="no mkdocs-material (pip install '.[docs]')")
def test_it_builds_without_warnings(tmp_path: Path) -> None:
    """mkdocs warns of links and anchors that lead nowhere, and of pages without a place; a warning is an error."""
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(r"""<(?:script|img|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//""")
    assert not [page for page in pages if loaded.search(page.read_text())], "a page loads something from elsewhere"


def test_the_picture_of_the_demo_shows_what_it_prints() -> None:
    """A new one: tools/demo --terminal docs/pictures/demo.svg"""
    drawn = html.unescape(re.sub("<.*?>", "", (ROOT / "docs/pictures/demo.svg").read_text())).replace("\xa0", " ")
    printed = re.findall(r"(?:print|add_row)\(\s*f?\"([^\"{]+)", (ROOT / "tools/run_demo.py").read_text())
    wanted = [
        re.sub(r"\[/?\w*\]", "", text).strip() for text in printed if "left out" not in text and "failed:" not in text
    ]
    assert len(wanted) >= 15 and not [text for text in wanted if text not in drawn]


def options_of(call: list[str]) -> set[str]:
    """The options of manapy-launch or manapy-restart."""
    usage = reference.c_text(f"{call[0].removeprefix('manapy-')}_usage")
    return set(re.findall(r"--[a-z-]+", " ".join(re.findall(r"^  (--.*?)(?:  |$)", usage, re.M))))


def takes_value(option: str) -> bool:
    """Whether an option of these programs has a value."""
    return bool(re.search(rf"^  {option} [^ ]", reference.c_text("launch_usage"), re.M))


def check_ranks(call: list[str]) -> None:
    """A call of manapy-launch or manapy-restart: its options, up to the program."""
    known = options_of(call)
    words = iter(call[1:])
    for word in words:
        if not word.startswith("-"):
            return
        name, equals, _ = word.partition("=")
        assert name in known, f"{call[0]} has no option {name}"
        if takes_value(name) and not equals:
            next(words)


def check_command(call: list[str]) -> None:
    """A call of `manapy COMMAND`, by the command's own parser."""
    if call[1:] in (["--version"], ["--help"]) or call[1] in cli.HIDDEN or "--help" in call:
        return
    assert call[1] in cli.COMMANDS, f"manapy has no command {call[1]}"
    at = call.index("--") if "--" in call else len(call)
    try:
        parser(call[1]).parse_args(call[2:at])
    except SystemExit:
        raise AssertionError(f"wrong usage: {' '.join(call)}") from None
    assert at == len(call) or cli.module_of(call[1]).TAKES_MORE


def parser(command: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog=f"manapy {command}")
    cli.module_of(command).add_arguments(found)
    return found


def check(call: list[str]) -> None:
    (check_command if call[0] == "manapy" else check_ranks)(call)


@pytest.mark.parametrize("name", PAGES)
def test_command_lines(name: str) -> None:
    """Each line after `$`, also of a block that no test runs."""
    for line in re.findall(r"^(?:    )?\$ ((?:.*\\\n)*.*)", (ROOT / name).read_text(), re.M):
        for call in console.invocations(line.replace("\\\n", "")):
            check(call)


def known_to(command: argparse.ArgumentParser) -> Iterator[str]:
    """All options of a command and its subcommands."""
    for action in command._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from known_to(child)


@pytest.mark.parametrize("name", PAGES)
def test_commands_in_sentences(name: str) -> None:
    """`manapy COMMAND --option` in a sentence: arguments may be missing, but the names are right."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.M | re.S)
    for span in re.findall(r"`(manapy(?:-launch|-restart)? [^`]+)`", text):
        call = span.split()
        if call[0] != "manapy":
            options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(call)))
            assert options <= options_of(call), span
        elif call[1] not in cli.HIDDEN and call[1].isalpha() and call[1].islower():
            assert call[1] in cli.COMMANDS, span
            options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", span.partition(" -- ")[0]))
            assert options <= {*known_to(parser(call[1])), "--help"}, span


@pytest.mark.parametrize(
    "line",
    [
        "manapy nothing",
        "manapy checkpoint --nothing",
        "manapy list one two",
        "manapy stop -- more",
        "mpirun manapy-launch --nothing python",
        "mpirun manapy-launch --dir d --nothing python",
        "mpirun manapy-restart --wrong job",
    ],
)
def test_wrong_lines_are_found(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        for call in console.invocations(line):
            check(call)
