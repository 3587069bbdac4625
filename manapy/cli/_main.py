"""The command line: `manapy COMMAND`.

There is one module per command, with `add_arguments(parser)` and `run(options, out) -> exit code`. TAKES_MORE, if the
module has it, is the usage of what may follow '--'. The module is in the folder of the command's group; hidden/ has the
commands without a group. Only the module of the requested command is imported, so that `manapy status` starts fast.
Nothing outside this package prints or exits. Errors arrive here as exceptions (manapy/core/errors.py draws their tree)
and become one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage. `manapy why`, `manapy run` and `manapy slurm guard` have more.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from types import ModuleType

from ..core.records import TYPE_CHECKING

if TYPE_CHECKING:
    from .shared.configuration import Setting

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

GROUPS = {  # in the order of the help text; each is a folder
    "start": {
        "restart": "continue a job from a checkpoint",
        "run": "run a job to its end; restart it after each crash and hang",
        "slurm": "run a job through as many Slurm allocations as it needs",
    },
    "save": {
        "checkpoint": "take a checkpoint of a running job",
        "stop": "end a job, with a final checkpoint",
        "list": "list jobs and checkpoints",
        "inspect": "show what a checkpoint contains",
        "verify": "check every byte of a checkpoint",
        "drop": "exclude a checkpoint from automatic restarts",
        "prune": "delete all but the newest checkpoints",
    },
    "watch": {
        "status": "show what a job's ranks do and which ranks wait",
        "why": "report why a job is stuck or slow",
        "trace": "record the MPI calls of programs, and show or export the recording",
        "history": "show what a chain of allocations has done, as a table and a picture",
    },
    "move": {"rdma": "move RDMA traffic to another network card when a card fails"},
    "train": {"fcdp": "train sharded models; parameters cross the network once per step"},
    "measure": {
        "doctor": "check whether this machine and a program can be checkpointed",
        "bench": "measure what manapy costs on this machine",
    },
    "setup": {
        "config": "show the options that configuration files set",
        "completion": "print a script that completes manapy in a shell",
        "clean": "remove recordings of ended jobs",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
HIDDEN = {  # the module of `_step` is hidden/step.py
    "_coordinator": "the process that drives a job's checkpoints (started by manapy-launch)",
    "_node": "the agent of a node of a job (started by manapy-launch)",
    "_sentinel": "ends a Slurm job that has lost its first node (started by manapy slurm)",
    "_step": "tells a manapy-launch in a chain what to do (started by manapy-launch)",
    "_watch": "watches a job of a chain (started by manapy run and manapy slurm)",
    "_collect": "sends what one host of a job knows to `manapy why` on another host",
    "_fold": "makes full images of incremental ones beside a running job (started by the agent of a host)",
    "_shift": "backup RNICs and an agent for the MPI of one rank (started by manapy-launch)",
}
NEW_OBJECTS = 50_000  # between two collections of garbage
AT_END = {"atexit", "threading"}  # modules whose users have something to do when the interpreter ends
# Variables that MPICH, Intel MPI, Open MPI and Slurm set for each rank.
RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def program() -> int:
    """The process `manapy`; returns its exit code.

    The garbage collector looks at new objects less often than usual, and not at its end: imports make many objects,
    which all live as long as the process. This saves a tenth of the processor time of a command, and a quarter of a
    coordinator's. Nor does a command free its modules one by one at its end, which takes 2 ms.
    """
    gc.set_threshold(NEW_OBJECTS)
    try:
        code = main()
    finally:
        gc.freeze()
    if not AT_END & sys.modules.keys():
        with suppress(OSError):  # else the interpreter tries again, and reports it
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(code)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in {**COMMANDS, **HIDDEN}:
        return _usage(arguments)
    module = module_of(arguments[0])
    with _voice(module):
        return _command(module, arguments)


def module_of(name: str) -> ModuleType:
    """The module of a command, imported now."""
    folder = next((title for title, group in GROUPS.items() if name in group), "hidden")
    return importlib.import_module(f".{folder}.{name.removeprefix('_')}", __package__)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse makes one to check each option, and would import shutil for the width of the terminal: 2 ms."""

    def __init__(self, prog: str) -> None:
        columns = 80
        with suppress(ValueError, OSError):  # no terminal
            columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size().columns
        super().__init__(prog, width=columns - 2)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    from .shared import dashes

    module = module_of(name)
    parser = argparse.ArgumentParser(prog=f"manapy {name}", description=module.__doc__, formatter_class=_Formatter)
    module.add_arguments(parser)
    if more := getattr(module, "TAKES_MORE", None):
        dashes.show(parser, more)
    return parser


def _command(module: ModuleType, arguments: list[str]) -> int:
    from ..core.errors import UsageError

    before, after = _split(arguments[1:])
    try:
        options = _options(arguments[0], before)
    except SystemExit as stop:  # argparse has printed; --help is 0, an error 2
        return int(stop.code or 0)
    except UsageError as error:
        print(f"manapy {arguments[0]}: {error}", file=sys.stderr)
        return EXIT_USAGE
    if after and not getattr(module, "TAKES_MORE", False):
        print(f"manapy {arguments[0]}: nothing may follow '--'", file=sys.stderr)
        return EXIT_USAGE
    options.after = after
    return _run(module, options)


def _options(name: str, words: list[str]) -> argparse.Namespace:
    """The options of a command, from its words, or else from configuration files. `settings` has what the latter set.
    Raises UsageError."""
    from .shared import configuration, dashes, defaults

    parser = parser_of(name)
    wants_files = name in COMMANDS and not {"-h", "--help"} & set(words)
    defaults.add_opposites(parser)
    pending = defaults.apply(parser, name, configuration.files() if wants_files else [], COMMANDS)
    options = dashes.parse(parser, words, getattr(module_of(name), "TAKES_MORE", ""))
    options.settings = defaults.settle(options, pending)
    return options


@contextmanager
def _voice(module: object) -> Iterator[None]:
    """Silence all ranks except rank 0 if all ranks of a job run the command.

    The launcher's variables give the rank. They are there before MPI is initialized, and without MPI.
    """
    ranks = (os.environ[name] for name in RANK if name in os.environ)
    if not getattr(module, "ALL_RANKS", False) or next(ranks, "0") == "0":
        yield
        return
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        yield


def _run(module: object, options: argparse.Namespace) -> int:
    from ..core.errors import ManapyError, UsageError, why
    from .shared.output import Output

    out = Output(json=getattr(options, "json", False))
    try:
        return int(module.run(options, out))  # type: ignore[attr-defined]
    except UsageError as error:
        out.error(f"{error}{_sources(str(error), options.settings)}")
        return EXIT_USAGE
    except ManapyError as error:
        out.error(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush fails, too
        return EXIT_FAILED
    except OSError as error:
        out.error(why(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        out.error("interrupted")
        return EXIT_FAILED


def _sources(error: str, settings: dict[str, Setting]) -> str:
    """Return which files set the options that an error names. Some errors say it themselves."""
    named = [setting for option, setting in settings.items() if option in error.split()]
    return "".join(f" ({setting.file} sets {setting.key})" for setting in named if str(setting.file) not in error)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first '--'."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _usage(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("--version", "-V"):
        from .. import __version__

        print(f"manapy {__version__}")
        return EXIT_DONE
    lines = [
        "usage: manapy COMMAND ...",
        "",
        "Keeps MPI jobs alive: checkpoint and restart of unmodified MPI programs.",
        "",
    ]
    lines += ["  mpirun -n 4 manapy-launch PROG ARGS   start a job", ""]
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<11} {summary}" for name, summary in group.items()), ""]
    lines += [
        "'manapy COMMAND --help' explains a command. Exit codes: 0 done, 1 failed, 2 wrong usage; some have more."
    ]
    asked = bool(arguments) and arguments[0] in ("--help", "-h", "help")
    if arguments and not asked:
        lines = [f"manapy: no command '{arguments[0]}' ('manapy --help' lists them)"]
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    return EXIT_DONE if asked else EXIT_USAGE
