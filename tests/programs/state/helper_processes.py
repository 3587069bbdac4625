"""A rank with helper processes of Python's libraries, which an exec or a fork has started after MPI_Init.

Usage: helper_processes.py KIND METHOD GO: KIND is a function below, METHOD a start method of multiprocessing; it works
with its helpers until the file GO exists."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

Ask = Callable[[int], int]  # what a helper makes of a number: its square
End = Callable[[], object]


def square(value: int) -> int:
    return value * value


def answer(connection: Any) -> None:
    for value in iter(connection.recv, None):
        connection.send(square(value))


def answer_in_memory(memory: Any, request: Any, reply: Any) -> None:
    while request.acquire() and memory[0] >= 0:
        memory[1] = square(memory[0])
        reply.release()


def answer_in_posix_memory(name: str, request: Any, reply: Any) -> None:
    shared = shared_memory.SharedMemory(name=name)
    with shared.buf.cast("q") as memory:
        answer_in_memory(memory, request, reply)
    shared.close()


def through_memory(memory: Any, worker: Any, request: Any, reply: Any) -> tuple[Ask, End]:
    worker.start()

    def ask(value: int) -> int:
        memory[0] = value
        request.release()
        reply.acquire()
        return memory[1]

    def end() -> None:
        memory[0] = -1
        request.release()
        worker.join()

    return ask, end


def popen(_: Any) -> tuple[Ask, End]:
    """A filter that lives as long as the program, and programs that end soon."""
    code = "for line in iter(input, 'end'): print(int(line) ** 2, flush=True)"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    child = subprocess.Popen([sys.executable, "-c", code], **pipes)
    static = subprocess.Popen(["sh", "-c", "read line; echo $line; exit 3"], **pipes)

    def ask(value: int) -> int:
        assert subprocess.check_output(["echo", "short"]) == b"short\n"
        assert Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")[2] == code.encode()
        child.stdin.write(f"{value}\n")
        return int(child.stdout.readline())

    def end() -> None:
        assert child.communicate("end\n")[0] == "" and child.returncode == 0
        assert static.communicate("late\n")[0] == "late\n" and static.returncode == 3

    return ask, end


def aio(_: Any) -> tuple[Ask, End]:
    """asyncio gives its child a socket pair."""
    loop = asyncio.new_event_loop()
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    code = "for line in iter(input, 'end'): print(int(line) ** 2, flush=True)"
    child = loop.run_until_complete(asyncio.create_subprocess_exec(sys.executable, "-c", code, **pipes))

    async def talk(value: int) -> int:
        child.stdin.write(b"%d\n" % value)
        return int(await child.stdout.readline())

    def end() -> None:
        child.stdin.write(b"end\n")
        assert loop.run_until_complete(child.wait()) == 0
        loop.close()

    return lambda value: loop.run_until_complete(talk(value)), end


def pool(context: Any) -> tuple[Ask, End]:
    workers = context.Pool(2)
    return lambda value: sum(workers.map(square, [value] * 4)) // 4, lambda: (workers.close(), workers.join())


def executor(context: Any) -> tuple[Ask, End]:
    workers = ProcessPoolExecutor(2, mp_context=context)
    return lambda value: sum(workers.map(square, [value] * 4)) // 4, workers.shutdown


def pipe(context: Any) -> tuple[Ask, End]:
    """Both ends stay open in both processes."""
    ours, theirs = context.Pipe()
    worker = context.Process(target=answer, args=(theirs,))
    worker.start()

    def ask(value: int) -> int:
        ours.send(value)
        return ours.recv()

    return ask, lambda: (ours.send(None), worker.join())


def pipe_closed(context: Any) -> tuple[Ask, End]:
    ours, theirs = context.Pipe()
    worker = context.Process(target=answer, args=(theirs,))
    worker.start()
    theirs.close()
    ours.send(2)  # the answer to the last question is always on its way

    def ask(value: int) -> int:
        ours.send(value)
        assert ours.recv() == 4
        ours.send(2)
        return ours.recv()

    def end() -> None:
        assert ours.recv() == 4
        ours.send(None)
        worker.join()

    return ask, end


def value(context: Any) -> tuple[Ask, End]:
    memory, request, reply = context.Array("q", 2), context.Semaphore(0), context.Semaphore(0)
    worker = context.Process(target=answer_in_memory, args=(memory, request, reply))
    return through_memory(memory, worker, request, reply)


def posix(context: Any) -> tuple[Ask, End]:
    shared, request, reply = (
        shared_memory.SharedMemory(create=True, size=16),
        context.Semaphore(0),
        context.Semaphore(0),
    )
    worker = context.Process(target=answer_in_posix_memory, args=(shared.name, request, reply))
    memory = shared.buf.cast("q")
    ask, end_worker = through_memory(memory, worker, request, reply)

    def end() -> None:
        end_worker()
        memory.release()
        again = shared_memory.SharedMemory(name=shared.name)  # it has its name again
        assert again.buf[0] == 255
        again.close()
        shared.close()
        shared.unlink()

    return ask, end


def manager(context: Any) -> tuple[Ask, End]:
    server = context.Manager()
    shared = server.dict()

    def ask(value: int) -> int:
        shared["last"] = square(value)
        return int(shared["last"])

    return ask, server.shutdown


def tcp_manager(context: Any) -> tuple[Ask, End]:
    """Its clients connect to it over TCP."""
    server = SyncManager(("127.0.0.1", 0), ctx=context)
    server.start()
    shared = server.dict()

    def ask(value: int) -> int:
        shared["last"] = square(value)
        return int(shared["last"])

    return ask, server.shutdown


def main() -> None:
    from mpi4py import MPI  # not in the children

    comm, go = MPI.COMM_WORLD, Path(sys.argv[3])
    ask, end = globals()[sys.argv[1]](multiprocessing.get_context(sys.argv[2]))
    assert ask(3) == 9
    comm.Barrier()
    print("ready", flush=True)
    number = 0
    while not comm.bcast(go.exists(), root=0):
        assert ask(number) == square(number), (number, ask(number))
        number = (comm.allreduce(number) + 1) % 1000
        time.sleep(0.005)
    end()
    comm.Barrier()
    if comm.rank == 0:
        print("ok", flush=True)


if __name__ == "__main__":
    main()
