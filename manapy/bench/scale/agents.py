"""Agents of many nodes on one machine: the real agent (ckpt/node), each in a process of its own.

    python -m manapy.bench.scale.agents DIR NODES SOCKETS REFUSED

Each agent refuses its first REFUSED connections of ranks. The processes are forked from this one, so that the
interpreter starts once. At their end one line of JSON on standard output says what they have used: seconds of a
processor, all together, and bytes of the largest one.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from pathlib import Path

from ...ckpt.node import agent, leader
from ...ckpt.store import job
from ...core import processes
from .refusals import refuse


def say(line: str) -> None:
    """One line on standard output, now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """See the head of this file."""
    directory, nodes, sockets, refused = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    processes.raise_limit()
    record = job.read(directory)
    secret = record.secret()
    children, parent = [], os.getpid()
    for node in range(1, nodes):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0{sockets}-{node}")
        listener.listen(socket.SOMAXCONN)
        child = os.fork()
        if child == 0:
            processes.end_with_parent()
            if os.getppid() != parent:
                return
            refuse(listener, refused)
            agent.NodeAgent(listener, secret, leader.connect(record.host, record.port, secret)).serve()
            return
        listener.close()
        children.append(child)
    say("started")
    for child in children:
        os.waitpid(child, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(json.dumps({"seconds": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
