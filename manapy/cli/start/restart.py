"""Continue a job from a checkpoint.

The command checks the manifest, and the header of each image that this host sees. Then it replaces itself with
`mpirun -n N OPTIONS manapy-restart CHECKPOINT`. The exit code is the job's. Each rank checks every byte of its own
image while it reads it. The program goes on when all ranks have done so. Arguments after '--' are options of mpirun.

manapy takes the first mpirun that exists: the one of --mpirun, the one that started the job, the one in manapy's own
folder, the one on PATH. The last two searches skip Open MPI; name it with --mpirun. The mpirun may be a command with
options: a job that srun has started continues under `srun --mpi=pmi2`, and a job of Open MPI's mpirun continues with
its --oversubscribe. The mpirun decides which MPI library the ranks get. This library may be of another family than the
one before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..shared import arguments, configured, naming
from ..shared.output import Output

if TYPE_CHECKING:
    from ...ckpt.store.publish import Manifest

TAKES_MORE = "[-- OPTIONS...]"
VERSION_SECONDS = 10.0  # time limit of `mpirun --version`
PASSED_ON = {  # to manapy-restart
    "--mpi": ("PATH", "the real MPI"),
    "--interval": ("TIME", "take a checkpoint every TIME"),
    "--keep": ("K", "keep the K newest checkpoints"),
    "--child-grace": ("TIME", "how long a checkpoint waits for child processes"),
    "--callback-timeout": ("TIME", "how long a checkpoint waits for callbacks of the program"),
    "--ignore-child": ("NAMES", "children that need not be saved"),
    "--background": ("auto|off", "whether images are written while the program runs"),
    "--dirty": ("auto|pagemap|soft-dirty|hash|off", "how changed pages are found"),
    "--full-every": ("K", "at most K checkpoints build on each other"),
    "--compress": ("auto|on|off", "compress images with zstd"),
    "--local": ("DIRECTORY", "write images to DIRECTORY on each host"),
    "--flush": ("TIME|off", "time between copies to the job directory"),
    "--redundancy": ("none|partner|xor|rs:K+M", "which losses of hosts a checkpoint survives"),
    "--failure-groups": ("FILE", "hosts that fail together"),
    "--shift": ("auto|off|require", "protect MPI over RDMA"),
    "--on-failover": ("continue|checkpoint", "what to do when an RNIC fails"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_checkpoint(parser, "the only job in this directory that has ended and has a checkpoint")
    parser.add_argument("--mpirun", metavar="COMMAND", help="use this mpirun, or a command such as 'srun --mpi=pmi2'")
    parser.add_argument(
        "-n", dest="ranks", metavar="N", type=arguments.positive, help="fail if the checkpoint does not have N ranks"
    )
    parser.add_argument(
        "--lazy",
        action="store_true",
        help=(
            "let the program run before all of its memory has been read: pages are read when the program first uses "
            "them, and the others meanwhile"
        ),
    )
    parser.add_argument(
        "--unsigned",
        action="store_true",
        help=(
            "restart although the job's secret is lost. The seals are not checked, so nothing proves that the job has "
            "written the checkpoint"
        ),
    )
    parser.add_argument(
        "--drop-sockets",
        action="store_true",
        help="connections to processes outside the job do not prevent further checkpoints, as for manapy-launch",
    )
    parser.add_argument("--no-trace", action="store_true", help="do not record MPI calls, as for manapy-launch")
    for option, (value, text) in PASSED_ON.items():
        parser.add_argument(option, metavar=value, help=f"{text}, as for manapy-launch")


def run(options: argparse.Namespace, out: Output) -> int:
    """Check what is quick to check, then replace this process by mpirun."""
    from ...ckpt.store import publish, verify
    from ...core import installation
    from ...core.errors import ManapyError, why
    from ...core.units import and_more

    which = options.checkpoint or str(naming.ended())
    path = naming.checkpoint(which)
    if options.checkpoint is None:
        out.note(f"manapy: continues {path}")
    manifest = publish.read_manifest(path)
    ranks = len(manifest.ranks)
    if options.ranks not in (None, ranks):
        raise ManapyError(f"{path} has {ranks} ranks: it cannot be restarted with {options.ranks}")
    restart = installation.executable("manapy-restart")
    if restart is None:
        raise ManapyError("manapy-restart is missing: this installation of manapy is incomplete")
    if problems := verify.headers(path, manifest, signed=not options.unsigned)[1]:
        more = and_more(problems, f": manapy verify {path}")
        older = verify.older(path, signed=not options.unsigned)
        raise ManapyError(problems[0] + more + f"; {older} can be used instead" * (older is not None))
    mpirun = find_mpirun(options.mpirun, manifest)  # it asks the manifest's mpirun for its version
    values = {option: getattr(options, option[2:].replace("-", "_")) for option in PASSED_ON}
    given = {option: value for option, value in values.items() if value is not None}
    if options.settings:  # a wrong value in a file is found before ranks start
        configured.ask(restart, [f"{option}={given[option]}" for option in given if option not in options.settings])
    command = [*mpirun, "-n", str(ranks), *options.after, str(restart), "--no-config"]
    for option, value in given.items():
        command += [option, value]
    command += ["--lazy"] * options.lazy
    command += ["--unsigned"] * options.unsigned
    command += ["--drop-sockets"] * options.drop_sockets
    command += ["--no-trace"] * options.no_trace
    sys.stdout.flush()
    try:
        os.execv(mpirun[0], [*command, str(_what(which, path, manifest))])
    except OSError as error:
        raise ManapyError(f"{why(error, mpirun[0])}: give another one with --mpirun PATH") from error


def _what(given: str, path: Path, manifest: Manifest) -> Path:
    """Return the argument for manapy-restart: the checkpoint; or, if the user has named the job and hosts may have lost
    images, the directory of its checkpoints, so that the job can continue an older one."""
    from ...ckpt.store import known, publish

    is_named = known.find(given, publish.is_checkpoint) is not None
    home = path.parent
    return home if manifest.levels.local and not is_named and (home / "latest").resolve() == path else path


def find_mpirun(option: str | None, manifest: Manifest) -> list[str]:
    """The absolute path of an mpirun and its options, by the rules above. Raises ManapyError if there is none."""
    from ...core import launchers
    from ...core.errors import ManapyError

    if option is not None:
        if (command := _command(option)) is None:
            raise ManapyError(f"{option}: no such program")
        return command
    if manifest.mpirun and (command := _command(manifest.mpirun)) and Path(command[0]).name in launchers.OPEN_MPI:
        return command
    beside = [
        folder / name
        for folder in (Path(sys.argv[0]).resolve().parent, Path(sys.executable).parent)
        for name in launchers.HYDRA
    ]
    refused = []
    for candidate in (manifest.mpirun, *map(str, beside), *map(shutil.which, launchers.HYDRA)):
        if candidate and (command := _command(candidate)):
            if not _is_openmpis(command):
                return command
            refused.append(command[0])
    found = f" ({refused[0]} is Open MPI's)" if refused else ""
    raise ManapyError(f"no mpirun of MPICH or its relatives found{found}: give it with --mpirun PATH")


def _is_openmpis(command: list[str]) -> bool:
    """Is this Open MPI's, by its name or its --version? A program that prints neither may be a script of the site."""
    from ...core import launchers

    if Path(command[0]).name == "srun":
        return False
    if Path(command[0]).resolve().name in launchers.OPEN_MPI:
        return True
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [command[0], "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
        )
        return any(name in done.stdout + done.stderr for name in ("Open MPI", "OpenRTE", "PRRTE"))
    return False


def _command(text: str) -> list[str] | None:
    """The words of a command: text is a program's path or name (blanks included), or a command line.

    None if there is no such program.
    """
    with contextlib.suppress(ValueError):  # an unterminated quotation
        for words in ([text], shlex.split(text)):
            if words and (found := shutil.which(words[0])):
                return [os.path.abspath(found), *words[1:]]
    return None
