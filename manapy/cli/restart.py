"""Continue a job from a checkpoint: check all images, then become `mpirun -n N OPTIONS manapy-restart CHECKPOINT`.

What stands after '--' goes to mpirun. mpirun is the one given by --mpirun, else what the job was started with if it is
still there, else the one beside manapy, else the one on PATH. It may be a command with options: a job that srun has
started goes on under `srun --mpi=pmi2`. The exit code is the job's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import _arguments
from ._output import Output

if TYPE_CHECKING:
    from ..ckpt.publish import Manifest

TAKES_MORE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    _arguments.add_checkpoint(parser)
    parser.add_argument("--mpirun", metavar="COMMAND", help="the mpirun to use, or e.g. 'srun --mpi=pmi2'")
    parser.add_argument("-n", dest="ranks", metavar="N", type=_arguments.positive, help="fail if the checkpoint doesn't hold N ranks")
    passed_on = {
        "--mpi": "the real MPI",
        "--interval": "time between automatic checkpoints",
        "--keep": "checkpoints to keep",
        "--shift": "auto, off or require",
        "--on-failover": "continue or checkpoint",
    }
    for option, text in passed_on.items():
        parser.add_argument(option, metavar=option[2:].upper(), help=f"{text}, as for manapy-launch")


def run(options: argparse.Namespace, out: Output) -> int:
    """Check, then replace this process by mpirun."""
    from .. import _install
    from ..ckpt import publish
    from ..ckpt.errors import ManapyError
    from ._checking import check

    path = publish.resolve(options.checkpoint)
    manifest = publish.read_manifest(path)
    ranks = len(manifest.ranks)
    if options.ranks not in (None, ranks):
        raise ManapyError(f"{path} holds {ranks} ranks: it can't be restarted with {options.ranks}")
    restart = _install.executable("manapy-restart")
    if restart is None:
        raise ManapyError("manapy-restart is missing: this manapy is not installed completely")
    mpirun = find_mpirun(options.mpirun, manifest)
    if problems := check(path, manifest, out):
        more = f" (and {len(problems) - 1} more: manapy verify {path})" if len(problems) > 1 else ""
        raise ManapyError(problems[0] + more)
    command = [*mpirun, "-n", str(ranks), *options.after, str(restart)]
    for option in ("mpi", "interval", "keep", "shift", "on_failover"):
        if (value := getattr(options, option)) is not None:
            command += [f"--{option.replace('_', '-')}", value]
    sys.stdout.flush()
    os.execv(mpirun[0], [*command, str(path)])


def find_mpirun(option: str | None, manifest: Manifest) -> list[str]:
    """The absolute path of an executable and its options, by the rules above; ManapyError if there is none."""
    from ..ckpt.errors import ManapyError

    if option is not None:
        if (command := _command(option)) is None:
            raise ManapyError(f"{option}: no such program")
        return command
    beside = Path(sys.argv[0]).resolve().parent / "mpirun"
    for candidate in (manifest.mpirun, str(beside), str(Path(sys.executable).parent / "mpirun"), shutil.which("mpirun"), shutil.which("mpiexec")):
        if candidate and (command := _command(candidate)):
            return command
    raise ManapyError("no mpirun found: give it with --mpirun PATH")


def _command(text: str) -> list[str] | None:
    """A program's path or name, blanks and all, or a command line whose first word is one; None if there is no such program."""
    with contextlib.suppress(ValueError):  # a quotation that doesn't end
        for words in ([text], shlex.split(text)):
            if words and (found := shutil.which(words[0])):
                return [os.path.abspath(found), *words[1:]]
    return None
