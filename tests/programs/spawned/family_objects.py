"""Objects of a communicator that includes spawned processes, which run natively: test_dynamic.py.

family_objects.py DIRECTORY WHICH    makes objects with its children and prints "connected"; disconnects from them when
                                     DIRECTORY/part exists, and prints "kept"; gives up the rest when DIRECTORY/rest
                                     exists, and prints "parted"; ends when DIRECTORY/end exists

WHICH: persistent, group, file. The children run the same functions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

DIRECTORY, WHICH = Path(sys.argv[1]), sys.argv[2]


def wait_for(name: str) -> None:
    while not (DIRECTORY / name).exists():
        time.sleep(0.02)


def persistent(comm: MPI.Intracomm) -> Callable[[], None]:
    """More requests than after which the members inside one job agree on those that are free."""
    for _ in range(300):
        comm.Barrier_init().Free()
    request = comm.Barrier_init()
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()
    return lambda: None


def group(comm: MPI.Intracomm) -> Callable[[], None]:
    members = comm.Get_group()
    same = comm.Create_group(members, 7)
    members.Free()
    assert same.allreduce(1) == comm.size

    def end() -> None:
        assert same.allreduce(same.rank) == sum(range(same.size))
        same.Disconnect()

    return end


def file(comm: MPI.Intracomm) -> Callable[[], None]:
    shared = MPI.File.Open(comm, str(DIRECTORY / "shared"), MPI.MODE_CREATE | MPI.MODE_RDWR)
    shared.Write_at_all(comm.rank, bytes([comm.rank]))
    n = comm.size

    def end() -> None:
        shared.Sync()
        content = bytearray(n)
        shared.Read_at_all(0, content)
        assert bytes(content) == bytes(range(n))
        shared.Close()

    return end


def main() -> None:
    above = MPI.Comm.Get_parent()
    parent = above == MPI.COMM_NULL
    other = MPI.COMM_WORLD.Spawn(sys.executable, [__file__, *sys.argv[1:]]) if parent else above
    say = (lambda word: print(word, flush=True)) if parent else (lambda _: None)
    merged = other.Merge(high=not parent)
    end = globals()[WHICH](merged)
    say("connected")
    wait_for("part")
    merged.Disconnect()
    other.Disconnect()
    say("kept")
    wait_for("rest")
    end()
    say("parted")
    if parent:
        wait_for("end")
        say("done")


main()
