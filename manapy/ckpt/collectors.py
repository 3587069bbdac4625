"""The collectors of one host: processes `manapy _collect` (trace/capture/collect.py). They answer commands on other
hosts that read the recordings of this one. The agent of a node starts them, and the coordinator starts those of its own
host.

The coordinator names each collector by a stream. Its lines are COLLECT, ASK, MORE and LEAVE; the answers are PIECE and
ENDED (control.h).

Invariants
 1. A stream sends one piece, and the next one only after MORE. So a line of a checkpoint waits behind at most one piece
    of each stream, however long the output is, and no data is kept here.
 2. No code here waits for a collector: the collector reads and packs, and looks at processes, in a process of its own.
 3. A collector ends when its stream ends, and at the latest with this process, because its standard input ends then.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import select
import subprocess
from collections.abc import Callable

from ..core import installation

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 14
MOST = 16  # collectors at the same time
KINDS = frozenset("COLLECT ASK MORE LEAVE".split())


class Collectors:
    """The collectors of this host, by stream. ``say`` sends a line to the coordinator.

    The owner calls ready() when fileno() is readable.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._poll = select.epoll()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._outputs: dict[int, str] = {}  # descriptor of a collector's output: its stream
        self._ends: dict[int, subprocess.Popen[bytes]] = {}  # pidfd of a collector, until it has ended

    def fileno(self) -> int:
        """Readable if ready() has something to do."""
        return self._poll.fileno()

    def take(self, line: str) -> bool:
        """Handle a line of the coordinator. False: it is about something else."""
        kind, *fields = line.split(" ")
        if kind not in KINDS:
            return False
        stream = fields[0]
        if kind == "COLLECT":
            self._start(stream)
        elif stream not in self._running:  # it has ended, and the coordinator does not know that yet
            pass
        elif kind == "ASK":
            self._ask(stream, fields[1])
        elif kind == "MORE":
            self._poll.register(self._output(stream), select.EPOLLIN)
        else:
            self._stop(stream)
        return True

    def ready(self) -> None:
        """Pass on what collectors have written."""
        for fd, _ in self._poll.poll(0):
            if fd in self._outputs:
                self._pass_on(fd)
            elif (process := self._ends.get(fd)) is not None and process.poll() is not None:
                self._poll.unregister(fd)
                os.close(fd)
                del self._ends[fd]

    def close(self) -> None:
        """End all collectors."""
        for stream in list(self._running):
            self._stop(stream)

    def _start(self, stream: str) -> None:
        if len(self._running) >= MOST:
            log.warning("%d commands read the recordings of this host: one more is refused", MOST)
            self._say(f"ENDED {stream}")
            return
        try:
            process = subprocess.Popen(
                [installation.executable("manapy") or "manapy", "_collect"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            log.error("cannot start a collector: %s", error)
            self._say(f"ENDED {stream}")
            return
        self._running[stream] = process
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(self._output(stream), False)
        self._outputs[self._output(stream)] = stream
        self._poll.register(self._output(stream), select.EPOLLIN)
        end = os.pidfd_open(process.pid)
        self._ends[end] = process
        self._poll.register(end, select.EPOLLIN)

    def _output(self, stream: str) -> int:
        stdout = self._running[stream].stdout
        assert stdout is not None
        return stdout.fileno()

    def _ask(self, stream: str, data: str) -> None:
        """Pass a request on. A command asks again only after it has its answer, so the pipe is empty."""
        stdin = self._running[stream].stdin
        assert stdin is not None
        try:
            request = base64.b64decode(data, validate=True)
            if stdin.write(request) == len(request):
                return
            log.warning("a request for recordings is too long, or comes before the last one was answered")
        except (OSError, binascii.Error) as error:
            log.warning("a request for recordings cannot be passed on: %s", error)
        self._give_up(stream)

    def _pass_on(self, fd: int) -> None:
        """Send one piece (invariant 1)."""
        try:
            data = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return
        self._poll.unregister(fd)
        stream = self._outputs[fd]
        if data:
            self._say(f"PIECE {stream} {base64.b64encode(data).decode()}")
        else:
            log.warning("a collector of recordings has ended by itself")
            self._give_up(stream)

    def _give_up(self, stream: str) -> None:
        self._stop(stream)
        self._say(f"ENDED {stream}")

    def _stop(self, stream: str) -> None:
        del self._outputs[self._output(stream)]
        process = self._running.pop(stream)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()  # and so the descriptor leaves the epoll set
        process.kill()
