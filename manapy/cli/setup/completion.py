"""Print a script that completes `manapy` on the command line of a shell.

    eval "$(manapy completion bash)"            bash: in ~/.bashrc
    manapy completion zsh > DIR/_manapy         zsh: DIR is a folder of $fpath
    manapy completion tcsh > FILE               tcsh: `source FILE` in ~/.tcshrc

It completes commands, options, their choices, and paths; names of jobs only as paths. Needs manapy's
extra completion.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType

from ..shared.output import Output

FOLDERS = {"DIR", "JOB", "CHECKPOINT", "CHAIN", "JOB|DIR", "JOB|GROUP"}  # a directory, or something that has a name
PATHS = {"FILE", "PATH", "PROG", "job.sh"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that reads the script")


def run(options: argparse.Namespace, out: Output) -> int:
    """Make the script from the parsers of all commands."""
    from ...core.errors import ManapyError

    try:
        import shtab
    except ImportError:
        raise ManapyError("the Python package shtab is missing (manapy's extra 'completion')") from None
    out.line(shtab.complete(whole(shtab), options.shell))
    return 0


def whole(shtab: ModuleType) -> argparse.ArgumentParser:
    """One parser of all commands, with what completes each argument."""
    from .. import COMMANDS, module_of
    from ..shared import defaults

    parser = argparse.ArgumentParser(prog="manapy")
    commands = parser.add_subparsers()
    for name, summary in COMMANDS.items():
        module_of(name).add_arguments(commands.add_parser(name, help=summary))
    for below in defaults.parsers(parser, "manapy").values():
        for action in below._actions:
            if action.metavar in FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in PATHS or action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser
