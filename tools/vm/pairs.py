"""Runs tests/programs/rdma/stamps.c, the checker of messages: a server on host b, a client on host a.

    pair = Pair.start(vm, stamps, "-n", 500, "--srq")
    pair.wait_received(100)
    vm.cut(0)
    pair.finish()

For tests of SHIFT, `inside` comes before the program, and `env` is added to its environment.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .machine import PATIENCE, VM, GuestProcess

# For queue pairs that must not fail: half a second of retries. The default is half of that, and an emulated machine on
# a busy host may be that slow.
PATIENT = ("--timeout", 14, "--retry", 6)

_ports = itertools.count(18700)


@dataclass
class Pair:
    """Two processes that send messages to each other."""

    server: GuestProcess
    client: GuestProcess

    @classmethod
    def start(
        cls,
        vm: VM,
        program: Path,
        *options: object,
        rail: int = 0,
        inside: Sequence[str | Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> Pair:
        """Start them. Returns when they are connected."""
        port = next(_ports)
        common = ["-p", str(port), *map(str, options)]
        server = vm.start([*inside, program, "-d", f"rxb{rail}", *common], env=env)
        server.wait_for("listening\n")
        pair = cls(server, vm.start([*inside, program, "-d", f"rxa{rail}", "-c", "127.0.0.1", *common], env=env))
        for process in pair.both:
            process.wait_for("connected\n")
        return pair

    @property
    def both(self) -> tuple[GuestProcess, GuestProcess]:
        """Server and client."""
        return self.server, self.client

    def received(self) -> tuple[int, int]:
        """Numbers of messages that server and client have reported as received."""
        return _received(self.server.stdout), _received(self.client.stdout)

    def wait_received(self, messages: int = 1, since: tuple[int, int] = (0, 0), timeout: float = PATIENCE) -> None:
        """Wait until both have received so many more messages (they report this with --progress). Raises VMError if one
        ends before."""
        for process, before in zip(self.both, since, strict=True):
            process.wait_for(lambda text, target=before + messages: _received(text) >= target, timeout)

    def stop_sending(self) -> None:
        """Tell both to stop sending."""
        for process in self.both:
            process.signal(signal.SIGINT)

    def finish(self, timeout: float = PATIENCE) -> None:
        """Wait until both have ended without an error."""
        for process in self.both:
            process.wait_for("\nok\n", timeout)
            assert process.wait(timeout) == 0, process.report()
            assert process.stderr == "", process.report()

    def fail(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Wait until both have ended with an error. Returns the messages of server and client."""
        for process in self.both:
            assert process.wait(timeout) == 1, process.report()
        return self.server.stderr, self.client.stderr


def _received(text: str) -> int:
    _, found, rest = text[: text.rfind("\n") + 1].rpartition("received ")  # its last line may be incomplete
    return int(rest.split()[0]) if found else 0
