"""Ranks that hold what cannot be saved, a connection to a server outside of the job, and close it before checkpoints.

    connected.py PORT FOLDER [RANK...]: these ranks hold one (default: all)

In each step they ask the server, and all meet. Files in FOLDER steer: with `fail` the callback of rank 1 raises an
exception after that of rank 0 has run, with `stuck` it does not return, with `call` it calls MPI, with `open` it closes
nothing, with `late` the one after a checkpoint fails. With `sleep` all ranks sleep, with `sum` they compute outside of
Python's code, with `wait` they wait for a message of rank 0. With `end` the job ends.
"""

import os
import socket
import sys
import threading
import time
import traceback
from array import array
from pathlib import Path

import manapy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
folder = sys.argv[2]
holders = [int(word) for word in sys.argv[3:]] or range(comm.Get_size())
connection: socket.socket | None = None


def told(what: str) -> bool:
    return os.path.exists(os.path.join(folder, what))


def say(text: str) -> None:
    assert threading.current_thread() is threading.main_thread()
    print(f"rank {rank} {text}", flush=True)


def connect() -> None:
    global connection
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))


def leave() -> None:
    global connection
    say("leaves")
    if told("fail") and rank == 0:
        Path(folder, "left").touch()
    if told("fail") and rank == 1:
        while not told("left"):
            time.sleep(0.01)
        raise ValueError("the server is busy")
    while told("stuck"):
        time.sleep(0.01)
    if told("call"):
        comm.sendrecv(1, rank, source=rank)
        say("has called MPI")
    if connection is not None and not told("open"):
        connection.close()
        connection = None


def go_on() -> None:
    say("goes on")
    if connection is None:
        connect()
    if told("late"):
        raise RuntimeError("no license")


def come_back() -> None:
    say("comes back")
    connect()


def ask(step: int) -> None:
    assert connection is not None, "the program ran on without its connection"
    connection.sendall(b"%d\n" % step)
    assert connection.recv(100) == b"%d\n" % step


def next_order() -> str:
    """The same on all ranks."""
    return next((order for order in ("end", "sleep", "sum", "wait") if comm.allreduce(told(order), MPI.LOR)), "")


def wait() -> None:
    """Rank 0 polls, and the others wait in calls of MPI, of which manapy knows different kinds."""
    number = array("i", [0])
    if rank == 0:
        print("waits", flush=True)
        while told("wait"):
            manapy.poll()
            time.sleep(0.005)
        for other in range(1, comm.Get_size()):
            comm.Send(array("i", [other]), other)
    elif rank == 1:
        comm.Recv(number, source=0)
        assert number[0] == rank
    else:
        request = comm.Irecv(number, source=0)
        while not request.Test():
            pass
        assert number[0] == rank


def main() -> None:
    if rank in holders:
        connect()
        manapy.before_checkpoint(leave)
        manapy.after_checkpoint(go_on)
        manapy.after_restart(come_back)
    step = 0
    while (order := next_order()) != "end":
        if rank in holders:
            ask(step)
        if step % 10 == 0:
            comm.barrier()
        if step == 20 and rank == 0:
            print("steps", flush=True)
        if order == "sleep":
            print("sleeps", flush=True)
            manapy.callbacks_anywhere()
            time.sleep(600)
        if order == "sum":
            print("sums", flush=True)
            while told("sum"):
                sum(range(100_000_000))
        if order == "wait":
            wait()
        time.sleep(0.005)
        step += 1
    assert comm.allreduce(step) == step * comm.Get_size()
    print("ok", flush=True)


try:
    main()
except Exception:
    traceback.print_exc()
    comm.Abort(1)
