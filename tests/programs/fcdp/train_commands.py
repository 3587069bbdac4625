"""Runs several commands of manapy, one after the other, so that each rank imports PyTorch once. All ranks run all of
them, as after `mpirun manapy`. Rank 0 prints for each command the exit codes and the outputs (stdout and stderr) of all
ranks, as JSON.

    mpirun -n N python train_commands.py '[["fcdp", "train", "--steps", "3"], ...]'
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from manapy.cli import main

sys.path.append(str(Path(__file__).resolve().parents[1]))
import tracebacks  # noqa: E402, F401  in one piece


def run(command: list[str]) -> tuple[int, str]:
    """The exit code and the output of this rank."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(command)
    return code, said.getvalue()


ended = [run(command) for command in json.loads(sys.argv[1])]
from mpi4py import MPI  # noqa: E402  as late as the commands do it

by_rank = MPI.COMM_WORLD.gather(ended)
if by_rank is not None:
    print("RESULT", json.dumps(list(zip(*by_rank, strict=True))), flush=True)
