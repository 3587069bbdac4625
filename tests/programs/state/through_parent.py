"""A program that talks to the other ranks through its parent, which uses MPI.

    python through_parent.py PROGRAM [ARGUMENT...]

runs PROGRAM with the same Python. In it, COMM of this module has the methods of mpi4py's COMM_WORLD. In a program that
was started without it, COMM is COMM_WORLD itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any


class Through:
    """A communicator whose calls the parent makes."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.rank, self.size = line.recv()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._line.send((name, args, named))
            return self._line.recv()

        return call


def serve(program: list[str]) -> int:
    """Start the program and make its calls until it ends; its exit code."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    ours, theirs = Pipe()
    env = os.environ | {"LINE": str(theirs.fileno())}
    child = subprocess.Popen([sys.executable, *program], env=env, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.send((comm.rank, comm.size))
    try:
        while True:
            name, args, named = ours.recv()
            ours.send(getattr(comm, name)(*args, **named))
    except EOFError:
        return child.wait()


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
if "LINE" in os.environ:
    COMM: Any = Through(Connection(int(os.environ["LINE"])))
else:
    from mpi4py import MPI

    COMM = MPI.COMM_WORLD
