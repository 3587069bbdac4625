"""What may follow '--' on the command line: for usage lines, and for the error if the '--' is missing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...core.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


def of_subcommand(name: str, more: str) -> str:
    """What may follow '--' behind a subcommand, if `more` (TAKES_MORE) may behind its command."""
    return more if name in ("run", "guard") else ""


def show(parser: argparse.ArgumentParser, more: str) -> None:
    """Add it to the usage lines of a parser, or of its subcommands. argparse never sees what follows '--'."""
    children = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for choices in children:
        for name, child in choices.items():
            show(child, of_subcommand(name, more))
    if more and not children:
        parser.formatter_class = _with(parser.formatter_class, more)


def parse(parser: argparse.ArgumentParser, words: Sequence[str], more: str) -> argparse.Namespace:
    """What parser.parse_args(words) returns. If there are too many words, the error says where '--' belongs."""
    options, unknown = parser.parse_known_args(words)
    if unknown:
        name = getattr(options, "what", None)
        more, prog = (more, parser.prog) if name is None else (of_subcommand(name, more), f"{parser.prog} {name}")
        hint = f" (is '--' missing? {prog} ... {more[1:-1] if more[0] == '[' else more})" if more else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options


def _with(base: Any, more: str) -> Any:
    class Formatter(base):
        def _format_usage(self, *arguments: Any) -> str:
            return f"{super()._format_usage(*arguments).rstrip()} {more}\n\n"

    return Formatter
