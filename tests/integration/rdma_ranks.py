"""Ranks with RNICs as an RDMA agent sees them, played by the test, because tests of jobs run on hosts without RNICs."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jobs import PATIENCE, manapy
from manapy.ckpt.store import job
from manapy.core import handshake
from manapy.rdma import kv_protocol
from manapy.rdma.place import Place

BACKUPS = {"MANAPY_SHIFT_BACKUP": "m0:m1,m1:m0"}


def ask_for_agent(
    directory: Path,
    *options: str,
    pid: int | None = None,
    env: dict[str, str] | None = None,
    inside: Sequence[str | Path] = (),
) -> list[str]:
    """What manapy-launch asks for a rank (this process, or another one): the fields of the answer. A directory without
    a job has no coordinator."""
    found = job.read(directory) if job.is_job(directory) else None
    host, port = (found.host, found.port) if found is not None else ("127.0.0.1", 1)
    where = ["--dir", directory, "--host", host, "--port", str(port), "--pid", str(pid or os.getpid())]
    return manapy("_shift", *where, *options, env=BACKUPS | (env or {}), inside=inside).stdout.rstrip("\n").split("\t")


def place_of(answer: Sequence[str]) -> Place:
    """The place of the agent that an answer names."""
    outcome, address, name, _ = answer
    assert outcome == "OK"
    return Place(Path(address).parent, name)


@contextlib.contextmanager
def program(where: Place, number: int = 0) -> Iterator[Callable[[str], str]]:
    """A program that is connected to an agent, and leaves it at the end. Yields a function that sends a request and
    returns the answer."""
    with socket.socket(socket.AF_UNIX) as connected, connected.makefile("rwb", buffering=0) as stream:
        connected.settimeout(PATIENCE)
        connected.connect(str(where.address))
        numbers = itertools.count(1)

        def ask(request: str) -> str:
            stream.write(f"{next(numbers)} {request}\n".encode())
            return stream.readline().decode().rstrip("\n").partition(" ")[2]

        line, expected = handshake.answer(
            where.secret.read_bytes(), stream.readline().decode().rstrip("\n"), "program", kv_protocol.AGENT
        )
        stream.write(line.encode() + b"\n")
        assert stream.readline().decode().rstrip("\n") == expected
        assert ask(f"HELLO {where.job} {number:032x} {number}") == "OK new"
        yield ask
        with contextlib.suppress(OSError):  # the agent has ended
            ask("BYE")
