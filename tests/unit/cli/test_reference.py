"""docs/commands.md equals the output of tools/reference.py."""

from __future__ import annotations

import reference
from manapy import cli


def test_page_is_up_to_date() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run tools/reference.py"


def test_page_has_every_command_and_the_options_of_the_c_programs() -> None:
    text = reference.PAGE.read_text()
    assert all(f"\n## manapy {name}\n" in text for name in cli.COMMANDS)
    assert "- `--protocol cc|2pc`" in text and "- `--unsigned`" in text


def test_lines_fit_120_columns() -> None:
    assert [line for line in reference.page().splitlines() if len(line) > reference.COLUMNS] == []
