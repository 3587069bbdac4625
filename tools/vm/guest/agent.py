"""The guest's agent: runs commands for the host, several at a time, and reports their output and their end.

Requests and answers are lines of JSON on a virtio-serial port. Bytes are sent as text in Latin-1, one character per
byte.

    {"id": 7, "run": [PROGRAM, ...], "cwd": DIR, "env": {...}}      start a command
    {"id": 7, "read": [FILE, ...]}                                  a command that only prints these files
    {"id": 7, "signal": 15}                                         send a signal to its process group
    {"id": 7, "kill": true}                                         send SIGKILL to all its processes
    {"id": 7, "out": TEXT}, {"id": 7, "err": TEXT}                  its output
    {"id": 7, "exit": 0}                                            the last line about it; -N: ended by signal N;
                                                                    a file can't be read: 1
    {"id": 0, "ready": true}                                        the first line of all

Invariants
 1. The processes of a command are the members of its control group, even if they have made sessions of their own. When
    the command's own process has ended, the others are killed.
 2. `exit` comes after all output.
 3. When the host closes its end of the port, the agent ends, and so does the machine.
 4. The interpreter is isolated (-I -S), and few modules are imported: in emulation dataclasses and pathlib alone would
    take a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from functools import partial

NAME = "manapy"  # of the port
CGROUPS = "/sys/fs/cgroup"
PORTS = "/sys/class/virtio-ports"


class Command:
    """One running command. streams: its open streams of output."""

    def __init__(self, process: subprocess.Popen[bytes], group: str) -> None:
        self.process, self.group = process, group
        self.streams = 2
        self.status: int | None = None

    def kill(self) -> None:
        write(f"{self.group}/cgroup.kill", "1")


class Agent:
    """All work is done in one thread. The selector's data are functions to call."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received = b""
        self.commands: dict[int, Command] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(port, selectors.EVENT_READ, self._hear)

    def serve(self) -> None:
        """Run until the host closes the port."""
        self._say(id=0, ready=True)
        with contextlib.suppress(EOFError):
            while True:
                for key, _ in self.selector.select():
                    key.data()

    def _say(self, **fields: object) -> None:
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self.port, line) :]

    def _hear(self) -> None:
        data = os.read(self.port, 65536)
        if not data:
            raise EOFError
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            number = request["id"]
            if "run" in request:
                self._run(number, request)
            elif "read" in request:
                self._read(number, request["read"])
            elif number in self.commands:  # otherwise it has just ended, and the host will be told
                self._signal(self.commands[number], request)

    def _run(self, number: int, request: dict) -> None:
        group = f"{CGROUPS}/command-{number}"
        os.mkdir(group)

        def join() -> None:
            write(f"{group}/cgroup.procs", "0")

        try:
            process = subprocess.Popen(
                request["run"],
                cwd=request["cwd"],
                env=request["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=join,
            )
        except OSError as error:
            os.rmdir(group)
            self._say(id=number, err=f"{error.filename}: {error.strerror}\n")
            self._say(id=number, exit=127 if isinstance(error, FileNotFoundError) else 126)
            return
        self.commands[number] = Command(process, group)
        assert process.stdout and process.stderr
        self.selector.register(process.stdout, selectors.EVENT_READ, partial(self._copy, number, "out", process.stdout))
        self.selector.register(process.stderr, selectors.EVENT_READ, partial(self._copy, number, "err", process.stderr))
        pidfd = os.pidfd_open(process.pid)
        self.selector.register(pidfd, selectors.EVENT_READ, partial(self._ended, number, pidfd))

    def _read(self, number: int, files: list[str]) -> None:
        status = 0
        for file in files:
            try:
                self._say(id=number, out=read(file))
            except OSError as error:
                self._say(id=number, err=f"{error.filename}: {error.strerror}\n")
                status = 1
        self._say(id=number, exit=status)

    def _signal(self, command: Command, request: dict) -> None:
        if "kill" in request:
            command.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.process.pid, request["signal"])

    def _copy(self, number: int, name: str, stream) -> None:
        if data := stream.read(65536):
            self._say(id=number, **{name: data.decode("latin-1")})
            return
        self.selector.unregister(stream)
        stream.close()
        self.commands[number].streams -= 1
        self._forget_if_over(number)

    def _ended(self, number: int, pidfd: int) -> None:
        command = self.commands[number]
        self.selector.unregister(pidfd)
        os.close(pidfd)
        command.status = command.process.wait()
        command.kill()  # the remaining processes (invariant 1); this also closes the streams
        self._forget_if_over(number)

    def _forget_if_over(self, number: int) -> None:
        command = self.commands[number]
        if command.status is None or command.streams:
            return
        with contextlib.suppress(OSError):  # init has not reaped it yet; an empty directory stays, which does no harm
            os.rmdir(command.group)
        del self.commands[number]
        self._say(id=number, exit=command.status)


def read(path: str) -> str:
    """The text of a file, in Latin-1."""
    with open(path, encoding="latin-1") as file:
        return file.read()


def write(path: str, text: str) -> None:
    """Write a small file of the kernel."""
    with open(path, "w") as file:
        file.write(text)


def open_port() -> int:
    """The path of the port with our name."""
    for entry in os.listdir(PORTS):
        if read(f"{PORTS}/{entry}/name").strip() == NAME:
            return os.open(f"/dev/{entry}", os.O_RDWR | os.O_CLOEXEC)
    sys.exit(f"agent: no virtio-serial port {NAME}")


if __name__ == "__main__":
    Agent(open_port()).serve()
