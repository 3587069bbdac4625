"""Frame of programs that do many steps of MPI traffic: their options, their progress, and their last line, "digest HEX"
of the data that all ranks have received. STEPS_HOLD in the environment, "K FILE": no rank continues after step K before
FILE exists, so that a test has the job for as long as it needs."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
import traceback
from array import array
from collections.abc import Callable

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
HELD, _, HOLD = os.environ.get("STEPS_HOLD", "").partition(" ")


def parser(*numbers: str) -> argparse.ArgumentParser:
    """Whole numbers by name, and --pause SECONDS."""
    made = argparse.ArgumentParser()
    for name in numbers:
        made.add_argument(name, type=int)
    made.add_argument("--pause", type=float, default=0.0)
    return made


def run(main: Callable[[], None]) -> None:
    """An error on one rank ends the job; otherwise the others would wait for it for ever."""
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        WORLD.Abort(1)


def progress(step: int) -> None:
    """Rank 0 prints "step K" now and then."""
    if WORLD.rank == 0 and step % 10 == 0:
        print(f"step {step}", flush=True)
    hold(step)


def hold(step: int) -> None:
    """STEPS_HOLD takes effect here."""
    while str(step) == HELD and not os.path.exists(HOLD):
        time.sleep(0.01)


def tell(comm: MPI.Comm, peer: int, tag: int, *numbers: int) -> None:
    """Send some whole numbers."""
    comm.Send(array("q", numbers), peer, tag)


def told(comm: MPI.Comm, peer: int, tag: int, count: int = 1) -> tuple[int, ...]:
    """Receive them. comm.recv() would wait in MPI_Mprobe, where a rank never yields its processor to the others."""
    into = array("q", [0] * count)
    comm.Recv(into, peer, tag)
    return tuple(into)


def report(digest: str) -> None:
    """The last line, of all ranks' digests."""
    digests = WORLD.gather(digest)
    if WORLD.rank == 0:
        print("digest", hashlib.sha256("".join(digests).encode()).hexdigest(), flush=True)
